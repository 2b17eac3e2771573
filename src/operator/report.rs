//! When a group's status was last computed and written, and from what.

use std::{sync::Arc, time::Duration};

use super::{outage::Hindrance, ownership::Ownership, record::Record, trouble::Trouble};

/// The state of a group's status.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// A write is under way.
    pub(super) writing: bool,
    /// When the next write may begin.
    pub(super) after: Duration,
    /// Until then a change of holder is under way that may soon be over.
    pub(super) quiet_until: Option<Duration>,
    /// A replica that does not own the group reported why nothing happens. It does so once for each outage.
    pub(super) hindrance_reported: bool,
    /// The last failure, which is logged once.
    pub(super) trouble: Option<Trouble>,
    /// What the status was last computed from; `None` if it has to be computed again in any case.
    pub(super) rendered: Option<Inputs>,
}

/// Everything that a status is computed from.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) record: Arc<Record>,
    /// The version of the election's state.
    pub(super) election: u64,
    pub(super) ownership: Ownership,
    pub(super) trouble: Option<Trouble>,
    pub(super) hindrance: Option<Hindrance>,
    /// The older groups that select pods of this one.
    pub(super) older_groups: Vec<String>,
    /// An owner that selects the group's pods by the role label.
    pub(super) owner: Option<String>,
    /// Whether pods without evidence are not yet counted as such.
    pub(super) settles: bool,
}

impl PartialEq for Inputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.record, &other.record)
            && (self.election, self.settles) == (other.election, other.settles)
            && self.ownership == other.ownership
            && (&self.trouble, &self.hindrance) == (&other.trouble, &other.hindrance)
            && (&self.older_groups, &self.owner) == (&other.older_groups, &other.owner)
    }
}
