//! The actions that are possible in a state.

use leadergroup::{
    api::{DeletionPolicy, Role, Verdict},
    election::Phase,
};

use crate::{
    action::{Action, Forgery},
    database::LockRow,
    model::{Model, NAMES},
    replica::{Entry, Replica},
    server::{Health, Refusal},
};

/// How old the cache is that a replica lists from: current, or a little behind. It may also know nothing yet.
const BACK: [usize; 3] = [0, 1, 4];

impl Model {
    /// All actions that are possible now.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (index, replica) in self.replicas.iter().enumerate() {
            self.actions_of(index, replica, &mut actions);
        }
        actions.extend((0..self.packets.len()).map(|packet| Action::Arrive { packet }));
        for pod in 0..NAMES.len() {
            self.fates_of(pod, &mut actions);
        }
        let group = match &self.server.group {
            None => Action::CreateGroup,
            Some(_) if self.database_down => Action::DatabaseUp,
            Some(_) => Action::DatabaseDown,
        };
        actions.push(group);
        if let Some(group) = self.server.group.as_ref().filter(|group| !group.deleting) {
            actions.extend([
                Action::DeleteGroup,
                Action::Pause { paused: !group.paused },
                Action::Request,
                Action::Delay { on: group.delay.is_zero() },
                Action::FailBack { on: group.failback.is_none() },
                Action::Keep { keep: group.deletion_policy != DeletionPolicy::Retain },
                Action::Contest { contested: !group.contested },
            ]);
            if group.contested {
                actions.extend((0..NAMES.len()).map(|pod| Action::Rival { pod }));
            }
        }
        if self.databases.len() < 4 {
            actions.extend((0..self.snapshots.len()).map(|steps| Action::Rewind { steps }));
            actions.push(Action::Empty);
        }
        let mut faults = self.faults;
        actions.retain(|action| faults.left(action).is_none_or(|left| *left > 0));
        actions
    }

    fn actions_of(&self, index: usize, replica: &Replica, actions: &mut Vec<Action>) {
        if !replica.alive {
            return actions.push(Action::Start { replica: index });
        }
        for task in 0..replica.tasks.len() {
            actions.push(Action::Answer { replica: index, task });
            actions.push(Action::TimeOut { replica: index, task });
            actions.push(Action::Fail { replica: index, task });
        }
        if !replica.pod_watch.is_empty() {
            actions.push(Action::WatchPod { replica: index });
        }
        if !replica.group_watch.is_empty() {
            actions.push(Action::WatchGroup { replica: index });
        }
        let beginning = self.published.beginning();
        for back in BACK.into_iter().filter(|back| *back < beginning).chain([beginning]) {
            actions.push(Action::RelistPods { replica: index, back });
            actions.push(Action::RelistGroup { replica: index, back });
        }
        for (pod, name) in NAMES.iter().enumerate() {
            let Some(found) = self.server.pods.get(*name) else { continue };
            let uid = &found.pod.uid;
            if !replica.pods.contains_key(uid) {
                continue;
            }
            let known = replica.evidence.get(uid);
            if known != Some(&self.verdict(index, uid)) {
                actions.push(Action::Probe { replica: index, pod });
            }
            if known.is_some_and(|known| *known != Verdict::Unknown) {
                actions.push(Action::Stale { replica: index, pod });
            }
        }
        if self.may_hand_over(index) {
            actions.push(Action::HandOver { replica: index });
        }
        match &self.server.cut {
            None => actions.extend((0..NAMES.len()).map(|pod| Action::CutPath { replica: index, pod })),
            Some((of, _)) if *of == index => actions.push(Action::MendPath),
            Some(_) => {}
        }
        if replica.entry.as_ref().is_some_and(|entry| entry.machine.wake().is_some()) {
            actions.push(Action::Wake { replica: index });
        }
        let database = &self.databases[replica.database];
        let dead = replica.session.is_none_or(|session| !database.lives(session));
        if !self.database_down && (dead || replica.doubt) {
            actions.push(Action::Beat { replica: index });
        }
        if !dead {
            actions.push(Action::MarkDead { replica: index });
        }
        if replica.session.is_some()
            && replica.entry.as_ref().is_some_and(|entry| !entry.claiming && !entry.machine.is_at_work())
            && self.claimable(replica)
        {
            actions.push(Action::Claim { replica: index });
        }
        if replica.database + 1 < self.databases.len() {
            actions.push(Action::Follow { replica: index });
        }
        actions.extend([true, false].map(|clean| Action::Stop { replica: index, clean }));
    }

    /// Whether a claim can have an effect. Other claims would be repetitions.
    fn claimable(&self, replica: &Replica) -> bool {
        let database = &self.databases[replica.database];
        let group = replica.entry.as_ref().map(|entry| entry.object.uid);
        let free = |row: &LockRow| {
            row.session.is_none_or(|other| replica.session == Some(other) || !database.lives(other))
        };
        // A group that is being deleted needs a claim to find out that it has no row, or none any more.
        let observing = |entry: &Entry| entry.object.deleting && *entry.machine.phase() == Phase::Observing;
        let observing = replica.entry.as_ref().is_some_and(observing);
        let deleting = replica.entry.as_ref().is_some_and(|entry| entry.object.deleting);
        let has_none = |row: &LockRow| if Some(row.group) == group { row.tombstone } else { deleting };
        database.row.as_ref().is_none_or(|row| free(row) && (observing || !has_none(row)))
    }

    fn fates_of(&self, pod: usize, actions: &mut Vec<Action>) {
        let Some(found) = self.server.pods.get(NAMES[pod]) else {
            return actions.push(Action::Create { pod });
        };
        match self.server.health.get(&found.pod.uid) {
            Some(Health::Well) => {
                actions.extend([Health::Refusing, Health::Hung].map(|health| Action::Ail { pod, health }));
            }
            _ => actions.push(Action::Ail { pod, health: Health::Well }),
        }
        actions.push(if found.crashed { Action::Restarted { pod } } else { Action::Crash { pod } });
        actions.push(if found.deleting { Action::Gone { pod } } else { Action::Delete { pod } });
        actions.push(if found.leaving { Action::Uncordon { pod } } else { Action::Cordon { pod } });
        actions.push(if found.selected { Action::Leave { pod } } else { Action::Rejoin { pod } });
        if found.role == Role::Active {
            actions.extend([Action::Unlabel { pod }, Action::Relabel { pod, role: Role::Standby }]);
        } else {
            actions.push(Action::Relabel { pod, role: Role::Active });
        }
        actions.extend(Forgery::ALL.map(|forgery| Action::Restamp { pod, forgery }));
        match &self.server.refusing {
            None => {
                let refusals = [Refusal::Promotion, Refusal::Role];
                actions.extend(refusals.map(|refusal| Action::Refuse { pod, refusal }));
            }
            Some((uid, _)) if *uid == found.pod.uid => actions.push(Action::Permit),
            Some(_) => {}
        }
    }
}
