//! The end of every long schedule: all faults are removed, and then the group must settle.

use leadergroup::api::Role;

use crate::{
    action::{Action, Faults},
    model::{Model, NAMES},
    server::Health,
};

/// Limit of rounds in which every replica completes its jobs. A change of holder takes about ten.
const ROUNDS: usize = 400;

impl Model {
    /// Ends all faults, delivers all requests in flight, and lets the replicas work.
    pub fn heal(&mut self) {
        self.faults = Faults::all();
        if self.database_down {
            self.apply(Action::DatabaseUp);
        }
        if self.server.group.is_none() {
            self.apply(Action::CreateGroup);
        }
        if self.server.group.as_ref().is_some_and(|group| group.paused) {
            self.apply(Action::Pause { paused: false });
        }
        for pod in 0..NAMES.len() {
            self.mend(pod);
        }
        while !self.packets.is_empty() {
            self.apply(Action::Arrive { packet: 0 });
        }
        for replica in 0..self.replicas.len() {
            if !self.replicas[replica].alive {
                self.apply(Action::Start { replica });
            } else if self.replicas[replica].database + 1 < self.databases.len() {
                self.apply(Action::Follow { replica });
            }
        }
        self.bury_orphans();
        self.work();
    }

    /// Expires the sessions without a replica.
    fn bury_orphans(&mut self) {
        let kept: Vec<_> = self.replicas.iter().filter_map(|replica| replica.session).collect();
        if let Some(database) = self.databases.last_mut() {
            for (session, dead) in &mut database.sessions {
                *dead |= !kept.contains(session);
            }
        }
    }

    fn mend(&mut self, pod: usize) {
        let Some(found) = self.server.pods.get(NAMES[pod]).cloned() else {
            return self.apply(Action::Create { pod });
        };
        if found.deleting {
            self.apply(Action::Gone { pod });
            return self.apply(Action::Create { pod });
        }
        if found.crashed {
            self.apply(Action::Restarted { pod });
        }
        if self.server.health.get(&found.pod.uid) != Some(&Health::Well) {
            self.apply(Action::Ail { pod, health: Health::Well });
        }
    }

    /// Lets the replicas work without faults until there is nothing left to do.
    pub fn work(&mut self) {
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            let mut idle = true;
            if self.server.group.is_none() {
                // It was being deleted.
                self.apply(Action::CreateGroup);
            }
            for replica in 0..self.replicas.len() {
                self.catch_up_one(replica);
                for action in self.actions() {
                    let wanted = match action {
                        Action::Beat { replica: of } | Action::Claim { replica: of } => of == replica,
                        Action::Wake { replica: of } => of == replica && quiet > 0,
                        _ => false,
                    };
                    idle &= !wanted;
                    if wanted {
                        self.apply(action);
                    }
                }
                let mut answers = 0;
                while !self.replicas[replica].tasks.is_empty() {
                    idle = false;
                    answers += 1;
                    if answers > ROUNDS {
                        let tasks = format!("I6: without rest: {:?}", self.replicas[replica].tasks);
                        return self.server.violate(tasks);
                    }
                    self.apply(Action::Answer { replica, task: 0 });
                    self.catch_up_one(replica);
                }
            }
            quiet = if idle { quiet + 1 } else { 0 };
            if quiet > 2 {
                return;
            }
        }
    }

    /// I6, I7: the reason why the group has not settled after all faults were removed.
    pub fn unsettled(&mut self) -> Option<String> {
        if self.server.violation.is_some() {
            return self.server.violation.clone();
        }
        let row = self.row();
        let Some(group) = &self.server.group else { return Some("I6: there is no group".to_owned()) };
        let owners = self.replicas.iter().filter(|replica| replica.is_owner()).count();
        let actives = self.server.actives();
        let [active] = actives[..] else {
            return Some(format!(
                "I6: {} pods are active, {owners} replicas own the group: {row:?}",
                actives.len()
            ));
        };
        let declared = &group.declared;
        let row = row.unwrap_or_default();
        let uid = Some(&active.pod.uid);
        let agreed = row.confirmed
            && row.token == declared.token
            && row.holder.as_ref().map(|pod| &pod.uid) == uid
            && declared.holder.as_ref().map(|pod| &pod.uid) == uid;
        if !agreed {
            return Some(format!("I6: {active:?} is active, with {declared:?} and {row:?}"));
        }
        let stamp = Some((group.uid, declared.token));
        let all = self.server.pods.values();
        let mut others = all.filter(|pod| pod.role != Role::Active);
        if let Some(pod) = others.find(|pod| pod.role != Role::Standby || pod.stamp != stamp) {
            return Some(format!("I6: a standby is not stamped: {pod:?}; declared: {declared:?}"));
        }
        (owners != 1).then(|| format!("I6: {owners} replicas own the group"))
    }
}
