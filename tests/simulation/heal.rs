//! The end of every long schedule: all faults are removed, and then the group must settle. Then its active pod fails,
//! and must be replaced. Both within a time that follows from the settings.

use std::time::Duration;

use leadergroup::{
    api::{PodRef, Role},
    election::{Group, Phase},
};

use crate::{
    action::{Action, Faults},
    model::{Model, NAMES},
    replica::Replica,
    server::{Health, Pod, Refusal},
};

/// Limit of rounds in which every replica completes its jobs. A change of holder takes about ten.
const ROUNDS: usize = 400;
/// The longest time until a group is served after all faults: a pause after failures that has just begun (at most 5 s),
/// then 5 s of waiting for evidence about the holder of an unfinished term, or until the next restored label or larger
/// token. The `election.delay` comes on top.
const HEALED_WITHIN: Duration = Duration::from_secs(10);
/// The longest time until the active pod of a settled group is replaced after the evidence: the pause after one
/// failure. The `election.delay` comes on top, unless the pod has ended.
const REPLACED_WITHIN: Duration = Duration::from_millis(100);

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
        if self.server.group.as_ref().is_some_and(|group| group.contested) {
            self.apply(Action::Contest { contested: false });
        }
        self.apply(Action::MendPath);
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
        if !self.can_do_without_the_refusing_pod() {
            self.apply(Action::Permit);
        }
        self.bury_orphans();
        self.work_within(HEALED_WITHIN + self.delay());
    }

    fn delay(&self) -> Duration {
        self.server.group.as_ref().map_or(Duration::ZERO, |group| group.delay)
    }

    /// I6: fails the active pod of a settled group, in one of the ways in which it can fail.
    pub fn fail_active(&mut self, way: u64) {
        let active = self.server.actives().first().map(|active| active.pod.name.clone());
        let Some(pod) = NAMES.iter().position(|name| Some(*name) == active.as_deref()) else { return };
        let (fault, delay) = match way % 5 {
            0 => (Action::Ail { pod, health: Health::Refusing }, self.delay()),
            1 => (Action::Ail { pod, health: Health::Hung }, self.delay()),
            2 => (Action::Crash { pod }, self.delay()),
            3 => (Action::Leave { pod }, Duration::ZERO),
            _ => (Action::Delete { pod }, Duration::ZERO),
        };
        self.apply(fault);
        self.work_within(REPLACED_WITHIN + delay);
    }

    /// I6: lets the replicas work, and the group must be served after this time at the latest.
    fn work_within(&mut self, bound: Duration) {
        let from = self.now;
        let took = self.work().map(|served| served.saturating_sub(from));
        if took.is_none_or(|took| took > bound) {
            self.server
                .violate(format!("I6: served after {took:?}, not within {bound:?}: {:?}", self.server.pods));
        }
    }

    /// Whether one pod is active, declared, and well.
    fn is_served(&self) -> bool {
        let declared = self.server.group.as_ref().and_then(|group| group.declared.holder.as_ref());
        let actives = self.server.actives();
        let [active] = actives[..] else { return false };
        let well = self.server.health.get(&active.pod.uid) == Some(&Health::Well);
        well && !active.deleting && !active.crashed && active.selected && declared == Some(&active.pod)
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

    /// Whether the group must settle without the pod that an admission policy refuses to change. A pod that may be
    /// active has to be changed before another one may become active. Only the replica that tried to promote it knows
    /// that it is not, so the owner must not change either, and the group must stay.
    fn can_do_without_the_refusing_pod(&mut self) -> bool {
        let Some((uid, refusal)) = self.server.refusing.clone() else { return true };
        let is = |pod: &PodRef| pod.uid == uid;
        if self.server.actives().iter().any(|pod| is(&pod.pod)) {
            return false;
        }
        let databases = &self.databases;
        let stays = |replica: &Replica| {
            let database = &databases[replica.database];
            let lives = replica.session.is_some_and(|session| database.lives(session));
            replica.database + 1 == databases.len() && !replica.doubt && (lives || !replica.is_owner())
        };
        let group = self.server.group.as_ref().filter(|group| !group.deleting);
        let declared = match group {
            Some(group) if self.replicas.iter().all(|replica| !replica.alive || stays(replica)) => {
                &group.declared
            }
            _ => return refusal != Refusal::Role,
        };
        let database = &self.databases[self.databases.len() - 1];
        let confirmed = database.row.as_ref().map_or(0, |row| row.confirmed);
        let pending =
            database.terms.iter().filter(|(token, _)| *token >= confirmed).map(|(_, holder)| holder);
        refusal != Refusal::Role || !declared.holder.iter().chain(&declared.strip).chain(pending).any(is)
    }

    /// Whether the group is served, no pause after a failure has to end, and every other pod may become active again.
    fn rests_but_for_the_refusing_pod(&self) -> bool {
        let Some((refusing, _)) = &self.server.refusing else { return false };
        let owners = self.replicas.iter().filter(|replica| replica.is_owner());
        let mut machines = owners.filter_map(|replica| replica.entry.as_ref()).map(|entry| &entry.machine);
        let rests = |machine: &Group| {
            *machine.phase() == Phase::Stable && machine.refused().all(|(pod, _)| pod.pod.uid == *refusing)
        };
        self.is_served() && machines.all(rests)
    }

    fn mend(&mut self, pod: usize) {
        let Some(found) = self.server.pods.get(NAMES[pod]).cloned() else {
            return self.apply(Action::Create { pod });
        };
        if found.deleting {
            self.apply(Action::Gone { pod });
            return self.apply(Action::Create { pod });
        }
        if !found.selected {
            self.apply(Action::Rejoin { pod });
        }
        if found.crashed {
            self.apply(Action::Restarted { pod });
        }
        if found.leaving {
            self.apply(Action::Uncordon { pod });
        }
        if self.server.health.get(&found.pod.uid) != Some(&Health::Well) {
            self.apply(Action::Ail { pod, health: Health::Well });
        }
    }

    /// Lets the replicas work without faults until there is nothing left to do. Returns since when the group is served.
    pub fn work(&mut self) -> Option<Duration> {
        let mut quiet = 0;
        let mut served = None;
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
                        self.server.violate(tasks);
                        return None;
                    }
                    self.apply(Action::Answer { replica, task: 0 });
                    self.catch_up_one(replica);
                }
                served = self.is_served().then(|| served.unwrap_or(self.now));
            }
            // An attempt to write to a pod that refuses it is repeated for ever.
            let settled = self.rests_but_for_the_refusing_pod() && self.unsettled().is_none();
            quiet = if idle { quiet + 1 } else { 0 };
            if quiet > 2 || settled {
                return served;
            }
        }
        served
    }

    /// The end of a random schedule. Returns what is wrong.
    pub fn conclude(&mut self, seed: u64) -> Option<String> {
        self.heal();
        self.unsettled().or_else(|| {
            self.fail_active(seed);
            self.unsettled()
        })
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
                "I6: {} pods are active, {owners} replicas own the group: {row:?}; declared: {:?}; refusing: {:?}",
                actives.len(),
                group.declared,
                self.server.refusing
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
        let refusing = |pod: &Pod| self.server.refuses(&pod.pod, Role::Standby);
        let stampable = |pod: &&Pod| pod.selected && !pod.deleting && !refusing(pod);
        let mut others = all.filter(|pod| pod.role != Role::Active).filter(stampable);
        if let Some(pod) = others.find(|pod| pod.role != Role::Standby || pod.stamp != stamp) {
            return Some(format!("I6: a standby is not stamped: {pod:?}; declared: {declared:?}"));
        }
        (owners != 1).then(|| format!("I6: {owners} replicas own the group"))
    }
}
