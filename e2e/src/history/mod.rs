//! The history: every revision of every pod, EndpointSlice, Service, `LeaderGroup` and Event, and its checker.
//!
//! There are three independent parts. *Collectors* record a [`History`]: from etcd on the project's own cluster, from
//! an API watch elsewhere, and from the lock's term table in PostgreSQL. The *history* is plain data. The *checker*
//! ([`check()`]) is a pure function of it. A history must not have holes: the collectors fail if they cannot prove
//! that they saw every revision.

mod api_watch;
mod check;
mod deadline;
mod endpoints;
mod etcd;
mod evidence;
mod fencing;
mod objects;
mod outcome;
mod recorder;
mod report;
mod rest;
mod roles;
mod storms;
mod terms;

#[cfg(test)]
mod collector_tests;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fmt, sync::Arc};

use jiff::Timestamp;
use leadergroup::api::FIELD_MANAGER;
use serde::Serialize;
use serde_json::Value;

use crate::moment::Moment;

pub use api_watch::ApiCollector;
pub use check::check;
pub use deadline::{ACTS, Deadline};
pub use etcd::{EtcdCollector, current_revision};
pub use objects::{GroupView, Kind, Object, PodView, ServiceView, SliceView};
pub use outcome::{Checked, Invariant, Promotion, Violation};
pub use recorder::Recorder;
pub use rest::{not_at_rest, operator_writes};
pub use roles::{RoleChange, role_changes, role_changes_except_of_lost_nodes, unready_before_change};
pub use terms::TermCollector;

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// One revision of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// The revision of the API server's store. All kinds share one sequence.
    pub revision: i64,
    /// When the collector received it, which is after it was committed.
    pub seen: Moment,
    /// The same on the wall clock, to compare with timestamps of the database on the same machine.
    pub seen_at: Timestamp,
    /// Which object.
    pub id: ObjectId,
    /// The object from this revision on; `None` if it was deleted.
    pub state: Option<Object>,
    /// When the operator wrote the object last, by the managed fields: a revision that the operator wrote differs in
    /// this from the one before.
    pub operator: Option<String>,
    /// The object as stored, without managed fields, for the dump.
    pub raw: Arc<str>,
}

/// One row of the lock's term history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Term {
    /// The lock's key.
    pub key: String,
    /// The fencing token granted.
    pub token: i64,
    /// The grant's id.
    pub grant: String,
    /// The pod (its UID) that it was granted to.
    pub owner: String,
    /// When, by the database's clock.
    pub granted_at: Timestamp,
}

/// A complete recording.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The UID of the namespace `kube-system`, which is part of default lock keys.
    pub cluster: Option<String>,
    /// The revisions of the objects, in order. Objects that existed when the recording began come first.
    pub changes: Vec<Change>,
    /// Changes up to this revision are the initial state, not transitions.
    pub baseline: i64,
    /// Everything up to this revision was seen.
    pub complete_to: i64,
    /// The term history of the lock: every row that was ever read. `None` if the database cannot be reached from
    /// here; then promotions are checked only against the declarations.
    pub terms: Option<Vec<Term>>,
    /// The grants of a database that acted as primary beside the present one.
    pub grants_apart: BTreeSet<String>,
    /// Whether the database's clock is this machine's, so that a grant's time can be compared with [`Change::seen_at`].
    pub one_clock: bool,
    /// When the test had set the database's clock, on the clock of [`Change::seen_at`]; without an end while it is set.
    pub clock_set: Vec<(Timestamp, Option<Timestamp>)>,
    /// When the test made which pods fail, if that is known. A failure that only probes notice leaves no other trace.
    pub faults: Option<Vec<Fault>>,
    /// How soon the test expects which pods to be replaced.
    pub deadlines: Vec<Deadline>,
    /// The writes of slices that the test left without an answer.
    pub unanswered: Vec<Unanswered>,
    /// The writes that the test let take effect late.
    pub late: Vec<LateWrite>,
}

/// A write of a slice without an answer: the operator waits for it before it writes the slice again.
#[derive(Clone, Debug)]
pub struct Unanswered {
    /// The slice.
    pub slice: ObjectId,
    /// Not later than the write.
    pub from: Moment,
    /// Not earlier than the operator gives it up, and has written the slice again.
    pub until: Moment,
}

/// A write that took effect long after it was sent. It shows what the operator knew then.
#[derive(Clone, Debug)]
pub struct LateWrite {
    /// What was written.
    pub object: ObjectId,
    /// When it was sent.
    pub sent: Moment,
    /// Not earlier than it took effect.
    pub until: Moment,
}

/// A time during which the test made a pod fail, or asked for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The pod's UID.
    pub uid: String,
    /// The reasons for which the operator may replace the pod because of it, beside those that the API server shows.
    pub reasons: Vec<String>,
    /// Not later than the fault, on the clock of [`Change::seen`].
    pub from: Moment,
    /// Not earlier than the fault was undone; `None` if it lasts. The checker adds a grace to it.
    pub until: Option<Moment>,
}

/// When the operator wrote an object last, by the object's managed fields. The API server updates the time of an entry
/// with each write that changes something.
fn operator_wrote(managed_fields: Option<&Value>) -> Option<String> {
    let entries = managed_fields.and_then(Value::as_array).into_iter().flatten();
    let own = entries.filter(|entry| entry.get("manager").and_then(Value::as_str) == Some(FIELD_MANAGER));
    own.filter_map(|entry| entry.get("time")?.as_str()).max().map(str::to_owned)
}

impl History {
    /// The part for some namespaces. All terms are kept; their keys identify their groups.
    #[must_use]
    pub fn of_namespaces(&self, namespaces: &[&str]) -> Self {
        let wanted: BTreeSet<&str> = namespaces.iter().copied().collect();
        let changes =
            self.changes.iter().filter(|c| wanted.contains(c.id.namespace.as_str())).cloned().collect();
        Self { changes, ..self.clone_without_changes() }
    }

    /// Whether the time of a grant can be compared with a moment at which something after it was seen.
    pub fn compares_clocks(&self, seen_at: Timestamp) -> bool {
        let is_set = |(from, until): &(Timestamp, Option<Timestamp>)| {
            *from <= seen_at && until.is_none_or(|until| seen_at < until)
        };
        self.one_clock && !self.clock_set.iter().any(is_set)
    }

    /// Whether a write of this slice may be waiting for its answer at this time.
    fn is_unanswered(&self, (namespace, name): &(String, String), at: Moment) -> bool {
        let slice = ObjectId { kind: Kind::EndpointSlice, namespace: namespace.clone(), name: name.clone() };
        self.unanswered.iter().any(|it| it.slice == slice && (it.from..=it.until).contains(&at))
    }

    /// When the write that made this change was sent, at the earliest.
    fn sent(&self, change: &Change) -> Moment {
        let could_be =
            |it: &&LateWrite| it.object == change.id && (it.sent..=it.until).contains(&change.seen);
        self.late.iter().filter(could_be).map(|it| it.sent).min().unwrap_or(change.seen)
    }

    fn clone_without_changes(&self) -> Self {
        Self {
            cluster: self.cluster.clone(),
            changes: Vec::new(),
            baseline: self.baseline,
            complete_to: self.complete_to,
            terms: self.terms.clone(),
            grants_apart: self.grants_apart.clone(),
            one_clock: self.one_clock,
            clock_set: self.clock_set.clone(),
            faults: self.faults.clone(),
            deadlines: self.deadlines.clone(),
            unanswered: self.unanswered.clone(),
            late: self.late.clone(),
        }
    }
}
