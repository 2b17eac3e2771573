//! When the evidence against a pod is over, so that it must not be replaced for it any more.

use leadergroup::{
    api::{PodRef, Reason, Role, Verdict},
    election::{Effect, Phase},
};

use crate::{
    model::Model,
    replica::Replica,
    server::{Health, Server},
    task::{Job, Task},
};

impl Model {
    /// The evidence against a pod is over when the pod is well, every replica knows this, and no change that was
    /// decided before is unfinished. While two databases may hold different decisions, it is not over.
    pub fn acquit(&mut self) {
        let settled = |task: &Task| matches!(task.job, Job::Effect(_, Effect::Stamp { .. }));
        let rests = |replica: &&Replica| {
            let entry = replica.entry.as_ref();
            let phase = entry.map(|entry| entry.machine.phase());
            replica.pod_watch.is_empty()
                && replica.tasks.iter().all(settled)
                && phase.is_none_or(|phase| matches!(phase, Phase::Stable | Phase::Observing))
        };
        let living = || self.replicas.iter().filter(|replica| replica.alive);
        let row = self.databases.last().and_then(|database| database.row.as_ref());
        let changing = row.is_some_and(|row| row.holder.is_some() && row.confirmed != row.token);
        if changing || !self.packets.is_empty() || !living().all(|replica| rests(&replica)) {
            return;
        }
        let latest = self.databases.len() - 1;
        let follows = |replica: &Replica| replica.database == latest && !replica.doubt;
        let declared = self.server.group.as_ref().map(|group| &group.declared);
        // The present database has granted what is declared, or something later.
        let is_behind = declared.is_some_and(|declared| {
            let (token, grant) = row.map(|row| (row.token, row.grant)).unwrap_or_default();
            declared.token > token
                || (declared.token == token
                    && row.is_some_and(|row| row.holder.is_some())
                    && declared.grant != grant.map(|grant| grant.to_string()))
        });
        self.server.divided &= is_behind || !living().all(follows);
        if self.server.divided {
            return;
        }
        let holder = row.and_then(|row| row.holder.as_ref()).map(|holder| holder.uid.clone());
        let Server { pods, health, blemished, .. } = &mut self.server;
        for pod in pods.values().filter(|pod| !pod.deleting && !pod.crashed && pod.selected) {
            let uid = &pod.pod.uid;
            // It left the selector, lost the lock, and came back with its label.
            let stray = pod.role == Role::Active && holder.as_ref() != Some(uid);
            let known = |replica: &Replica| {
                replica.pods.get(uid) == Some(pod) && replica.evidence.get(uid) == Some(&Verdict::Eligible)
            };
            if !stray && health.get(uid) == Some(&Health::Well) && living().all(known) {
                blemished.remove(uid);
            }
        }
    }
}

/// What a replica sees of a pod, and what becomes of it.
impl Model {
    /// What a probe of this pod by this replica shows. If the path between them is cut, the other replica is asked.
    pub fn verdict(&self, replica: usize, uid: &str) -> Verdict {
        let is_cut = |of: usize| self.server.cut.as_ref().is_some_and(|cut| *cut == (of, uid.to_owned()));
        match self.server.health.get(uid) {
            None => Verdict::Unknown,
            Some(Health::Well) if !is_cut(replica) => Verdict::Eligible,
            Some(Health::Refusing) if !is_cut(replica) => Verdict::Failing(Reason::ProbeRefused),
            Some(Health::Well) if self.is_heard_by_another(replica, uid) => Verdict::HeardElsewhere,
            Some(_) => Verdict::Silent,
        }
    }

    fn is_heard_by_another(&self, replica: usize, uid: &str) -> bool {
        let mut others = self.replicas.iter().enumerate().filter(|(other, _)| *other != replica);
        let database = self.replicas[replica].database;
        !self.database_down
            && others.any(|(_, other)| {
                let lives = other.session.is_some_and(|session| self.databases[database].lives(session));
                other.alive && other.database == database && lives && other.pods.contains_key(uid)
            })
    }

    /// A probe ended.
    pub fn probe(&mut self, replica: usize, uid: &str) {
        let verdict = self.verdict(replica, uid);
        self.replicas[replica].evidence.insert(uid.to_owned(), verdict);
    }

    /// Where the path is cut and no other replica hears the pod, there is nothing better to go by than the silence.
    pub fn note_unheard_pod(&mut self) {
        let Server { cut, blemished, bad_until, revision, .. } = &mut self.server;
        if let Some((replica, uid)) = cut
            && self.replicas[*replica].evidence.get(uid) == Some(&Verdict::Silent)
        {
            blemished.insert(uid.clone());
            bad_until.insert(uid.clone(), *revision);
        }
    }

    /// Whether this replica owns the group, does not hear the holder, and another one does.
    pub fn may_hand_over(&self, replica: usize) -> bool {
        let Replica { entry, evidence, database, session, .. } = &self.replicas[replica];
        let Some(machine) = entry.as_ref().map(|entry| &entry.machine) else { return false };
        let heard_elsewhere = |holder: &PodRef| evidence.get(&holder.uid) == Some(&Verdict::HeardElsewhere);
        let lives = session.is_some_and(|session| self.databases[*database].lives(session));
        let at_rest = machine.is_at_work() && *machine.phase() == Phase::Stable && !machine.busy();
        at_rest && machine.holder().is_some_and(heard_elsewhere) && lives && !self.database_down
    }

    pub fn hand_over(&mut self, replica: usize) {
        let Replica { database, session, .. } = self.replicas[replica];
        if let Some(row) = self.databases[database].row.as_mut().filter(|row| row.session == session) {
            row.session = None;
        }
        self.replicas[replica].disown(self.now);
    }
}
