//! What happened to each group of a run, and when: who was active, what was wrong with pods, who answered the clients,
//! and which faults the test caused. [`Timeline::of`] reads it from a history; [`page()`] shows it to a person.

mod page;
mod read;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::moment::Moment;

pub use page::{Step, page};

/// A fault that the test caused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injected {
    /// Its kind.
    pub kind: String,
    /// The machine, pod or group that it concerns; empty if the kind says it.
    pub target: String,
    /// The UIDs of the pods that it makes fail.
    pub pods: Vec<String>,
    /// When it began.
    pub from: Moment,
    /// When it was undone.
    pub until: Moment,
}

/// A time in which something was so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// When it began.
    pub from: Moment,
    /// When it ended.
    pub until: Moment,
    /// The pods that it is about, as indices into [`GroupLine::pods`]; none if calls were not answered.
    pub pods: Vec<usize>,
    /// The term, if it is about the active pod.
    pub token: Option<i64>,
}

/// A moment at which Kubernetes reported something of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    pub at: Moment,
    /// The pod, as an index into [`GroupLine::pods`].
    pub pod: usize,
    /// What was reported.
    pub what: String,
}

/// A change of holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOfHolder {
    /// When the new pod carried the active label.
    pub at: Moment,
    /// The token of the new term.
    pub token: i64,
    /// The pod that was active before.
    pub from: Option<usize>,
    /// The pod that is active now.
    pub to: usize,
    /// The reason in the status.
    pub reason: Option<String>,
    /// For how long no pod carried the label before.
    pub without_active: Duration,
}

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLine {
    /// Its name.
    pub name: String,
    /// The pods that it ever had: UIDs and names, in the order in which they were seen.
    pub pods: Vec<(String, String)>,
    /// Who carried the active label. In the gaps nobody did.
    pub active: Vec<Span>,
    /// What was wrong with its pods.
    pub evidence: Vec<Mark>,
    /// Who answered calls through its Service, for each client.
    pub answered: Vec<Vec<Span>>,
    /// The changes of holder, the first promotion included.
    pub changes: Vec<ChangeOfHolder>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// What ran.
    pub title: String,
    /// When it began.
    pub from: Moment,
    /// When it ended.
    pub until: Moment,
    /// What was found, a line each; empty if all is well.
    pub found: Vec<String>,
    /// What else there is to know: the number of revisions, the seed.
    pub notes: Vec<String>,
    /// The faults.
    pub faults: Vec<Injected>,
    /// The groups.
    pub groups: Vec<GroupLine>,
}
