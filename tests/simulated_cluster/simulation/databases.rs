//! The databases of a run: one, or for a time two that both act as primary.

use leadergroup_lock::memory::MemoryDatabase;
use serde_json::Value;

use leadergroup_e2e::history::Term;

use super::{Simulation, recorded};
use crate::cluster::NAMESPACE;

impl Simulation {
    /// Faults may take terms out of the database, so this comes before each fault that does.
    pub fn record_terms(&mut self) {
        for (database, is_apart) in
            self.former.iter().map(|(former, _)| (former, true)).chain([(&self.database, false)])
        {
            for term in recorded::terms(database) {
                // All terms of both were recorded when the two became one.
                let grant = term.grant.clone();
                let is_new = self.terms.insert((term.key.clone(), term.token, grant.clone()), term).is_none();
                if is_new && is_apart {
                    self.grants_apart.insert(grant);
                }
            }
        }
    }

    /// Whether there is one database, and it knows this term of a group, or a later one.
    pub fn remembers(&self, group: &str, token: i64) -> bool {
        let key = format!("/{NAMESPACE}/{group}");
        let knows = |term: &Term| term.key.ends_with(&key) && term.token >= token;
        self.former.is_none() && recorded::terms(&self.database).iter().any(knows)
    }

    /// A copy of the database that lacks the last commits acts as primary from now on, and the former one, too: some of
    /// the replicas still reach that one. Returns false if there are two already.
    pub fn split_database(&mut self, commits: usize) -> bool {
        if self.former.is_some() {
            return false;
        }
        self.record_terms();
        let copy = self.database.fork(commits);
        let former = std::mem::replace(&mut self.database, copy);
        let locks = [&former, &self.database].map(locks);
        self.former = Some((former, locks));
        let stays = self.any_replica();
        let moves = (stays + 1 + self.random.below(self.replicas.len().max(2) - 1)) % self.replicas.len();
        for place in 0..self.replicas.len() {
            if place == moves || (place != stays && self.random.below(2) == 0) {
                self.lead_to_database(place);
            }
        }
        true
    }

    /// The former database is turned off. Returns whether claims or grants have changed in both.
    pub fn join_databases(&mut self) -> bool {
        self.record_terms();
        let Some((former, before)) = self.former.take() else { return false };
        let have_acted =
            [&former, &self.database].map(locks).iter().zip(&before).all(|(now, then)| now != then);
        former.stop();
        (0..self.replicas.len()).for_each(|place| self.lead_to_database(place));
        have_acted
    }

    fn lead_to_database(&self, place: usize) {
        let lock = &self.replicas[place].lock;
        lock.move_to(&self.database);
        lock.cut();
    }
}

/// What a database knows of owners and holders.
fn locks(database: &MemoryDatabase) -> Value {
    database.dump()["locks"].take()
}
