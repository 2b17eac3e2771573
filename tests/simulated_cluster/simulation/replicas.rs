//! The replicas of a run: how they start, stop and leave.

use leadergroup_e2e::random::Random;

use super::Simulation;
use crate::replica::{Leaving, Process, Surroundings};

/// By how many millionths the clock of a replica is fast. Some are off by as much as I9 allows: by 1 %, and one of them
/// is bent by 8.33 %.
fn drift(random: &mut Random) -> i32 {
    match random.below(6) {
        0 => -10_000,
        1 => 10_000,
        2 => 94_000,
        _ => i32::try_from(random.below(401)).expect("a small number") - 200,
    }
}

impl Simulation {
    /// Starts a replica on a node.
    pub fn start_replica(&mut self, node: &str) {
        self.started += 1;
        let name = format!("replica-{}", self.started);
        let mut random = Random::new(self.seed ^ (u64::from(self.started) << 32));
        let drift = drift(&mut random);
        let around = Surroundings {
            api: &self.api,
            database: &self.database,
            network: &self.network,
            world: self.world.handle(),
        };
        let mut replica = Process::start(&name, node, drift, &around);
        if !self.network.has_power(node) {
            // It starts with its node.
            replica.host.stop();
        }
        self.replicas.push(replica);
    }

    /// Ends a replica in the middle of what it does, and starts another one on its node, unless there is one that was
    /// to take its place.
    pub fn kill_replica(&mut self, place: usize) {
        let killed = self.replicas.remove(place);
        self.reach(&killed.name);
        if killed.leaving.is_none() {
            self.start_replica(&killed.node);
        }
    }

    /// Asks a replica to stop; another one is on its node. It may have been killed: then another one leaves the node.
    pub fn drain_replica(&mut self, name: &str, node: &str, kind: Option<&'static str>) {
        let stay = |it: &&mut Process| it.node == node && it.leaving.is_none();
        if self.replicas.iter_mut().filter(stay).count() < 2 {
            return;
        }
        let revision = self.api.store().revision();
        let named = self.replicas.iter().position(|it| it.name == name && it.leaving.is_none());
        let mut others = self.replicas.iter().map(|it| it.node == node && it.leaving.is_none());
        let Some(place) = named.or_else(|| others.position(|stays| stays)) else { return };
        self.replicas[place].leaving = Some(Leaving { revision, kind });
        self.replicas[place].ask_to_stop();
    }

    /// Takes the replicas away that have left.
    pub(super) fn remove_ended(&mut self) {
        let left = self.replicas.extract_if(.., |it| it.leaving.is_some() && it.has_ended());
        for replica in left.collect::<Vec<_>>() {
            self.reach(&replica.name);
            let Some(Leaving { revision, kind: Some(kind) }) = replica.leaving else { continue };
            let name = format!("{}/", replica.name);
            if self.api.store().since(revision).any(|change| change.by.starts_with(&name)) {
                self.effects.note(kind);
            }
        }
    }

    pub fn stop_replicas_on(&mut self, node: &str) {
        for replica in self.replicas.iter_mut().filter(|it| it.node == node) {
            replica.host.stop();
        }
    }

    pub fn suspend_replicas_on(&mut self, node: &str) {
        for replica in self.replicas.iter_mut().filter(|it| it.node == node) {
            replica.host.suspend();
        }
    }

    pub fn resume_replicas_on(&mut self, node: &str) {
        self.replicas.iter_mut().filter(|it| it.node == node).for_each(|it| it.host.resume());
    }

    /// Resumes a replica, or starts another one in its place if it was asked to stop. It may have been killed.
    pub fn resume_or_replace(&mut self, name: &str) {
        let Some(place) = self.replicas.iter().position(|it| it.name == name) else { return };
        if self.replicas[place].is_stopping() && self.replicas[place].leaving.is_none() {
            self.kill_replica(place);
        } else {
            self.replicas[place].host.resume();
        }
    }
}
