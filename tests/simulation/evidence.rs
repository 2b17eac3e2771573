//! When the evidence against a pod is over, so that it must not be replaced for it any more.

use leadergroup::{
    api::Role,
    election::{Effect, Phase, Standing},
};

use crate::{
    model::Model,
    replica::Replica,
    server::{Health, Server},
    task::{Job, Task},
};

impl Model {
    /// The evidence against a pod is over when the pod is well, every replica knows this, and no change that was decided
    /// before is unfinished. Two databases may hold different decisions, so then it is never over.
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
        if changing
            || self.server.forgot
            || !self.packets.is_empty()
            || !living().all(|replica| rests(&replica))
        {
            return;
        }
        let holder = row.and_then(|row| row.holder.as_ref()).map(|holder| holder.uid.clone());
        let Server { pods, health, blemished, .. } = &mut self.server;
        for pod in pods.values().filter(|pod| !pod.deleting && !pod.crashed && pod.selected) {
            let uid = &pod.pod.uid;
            // It left the selector, lost the lock, and came back with its label.
            let stray = pod.role == Role::Active && holder.as_ref() != Some(uid);
            let known = |replica: &Replica| {
                replica.pods.get(uid) == Some(pod) && replica.evidence.get(uid) == Some(&Standing::Eligible)
            };
            if !stray && health.get(uid) == Some(&Health::Well) && living().all(known) {
                blemished.remove(uid);
            }
        }
    }
}
