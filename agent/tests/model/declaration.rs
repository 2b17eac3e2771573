//! The declaration in the status of the group, and the API server that keeps it.

use leadergroup_agent::contract::{Declared, Former, FormerRun, Run};

/// The declaration of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    pub token: i64,
    pub run: Option<Run>,
    pub former: Option<FormerRun>,
}

/// The group, as one revision of etcd has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub uid: u64,
    pub declaration: Option<Declaration>,
}

/// The API server: one object, linearizable, and its past.
#[derive(Default)]
pub struct Store {
    /// All revisions, the latest last, each with the true time of its commit.
    revisions: Vec<(u64, Option<Object>)>,
}

impl Store {
    pub fn now(&self) -> Option<Object> {
        self.revisions.last().and_then(|(_, object)| object.clone())
    }

    /// What a cache shows that is behind by this time.
    pub fn cached(&self, time: u64) -> Option<Object> {
        let seen = self.revisions.iter().rev().find(|(at, _)| *at <= time);
        seen.and_then(|(_, object)| object.clone())
    }

    pub fn write(&mut self, time: u64, object: Option<Object>) {
        self.revisions.push((time, object));
    }
}

impl Declaration {
    /// What may run beside the program of this term.
    pub fn former(&self) -> Former {
        Former::of(self.token, self.run.as_ref(), self.former.as_ref())
    }

    /// As the agent reads it.
    pub fn declared(&self) -> Declared {
        Declared { token: self.token, run: self.run.clone() }
    }
}
