//! When a group's status was last computed and written, and from what.

use std::{sync::Arc, time::Duration};

use super::gist::Gist;
use crate::{
    api::LeaderGroupStatus,
    election::{Limit, Rate, growing},
    operator::{
        endpoints::publishing::EndpointsReport,
        index::{coverage::ProbeCoverage, outage::Hindrance},
        object::record::Record,
        trouble::Trouble,
    },
    ownership::Owner,
    routing::RoleLabelUse,
};

/// How often a status may be written for nothing but minor changes, such as a standby that comes and goes. Some may
/// follow each other at once, so that a group that is scaled up is reported without delay.
const MINOR: Limit = Limit { interval: Duration::from_secs(10), burst: 4 };

/// The pause after a write that failed. It doubles with each that the API server refuses: if the installed CRD is older
/// than the operator, it refuses the same status again until the CRD is replaced.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The state of a group's status.
#[derive(Debug, Default)]
pub(in crate::operator) struct Report {
    /// It waits for its turn to be written.
    pub(in crate::operator) queued: bool,
    /// The conditions of the status that was computed last, written or not.
    pub(in crate::operator) conditions: Vec<(&'static str, bool)>,
    /// What this replica wrote last.
    pub(in crate::operator) written: Option<Gist>,
    /// The status that the log and Events have reported, until it is written.
    pub(in crate::operator) told: Option<Box<LeaderGroupStatus>>,
    /// A write is under way.
    pub(in crate::operator) writing: bool,
    /// When the next write may begin.
    pub(in crate::operator) after: Duration,
    /// How many writes were refused since the last one that succeeded.
    pub(in crate::operator) refusals: u32,
    /// Until then a change of holder is under way that may soon be over.
    pub(in crate::operator) quiet_until: Option<Duration>,
    /// A replica that does not own the group has reported what it knows. It does so once for each outage and for each
    /// answer to a claim: it must not overwrite the owner's report again and again.
    pub(in crate::operator) spoken: bool,
    /// The minor changes that are written.
    minor: Rate,
    /// When a minor change that was put off may be written.
    pub(in crate::operator) minor_after: Option<Duration>,
    /// The last failure, which is logged once.
    pub(in crate::operator) trouble: Option<Trouble>,
    /// What the status was last computed from; `None` if it has to be computed again in any case.
    pub(in crate::operator) rendered: Option<Inputs>,
}

impl Report {
    /// A change of holder is under way, and is not reported within this time; none if there is none.
    pub(super) fn stay_quiet(&mut self, patience: Option<Duration>, now: Duration) {
        let until = patience.map(|patience| now + patience);
        self.quiet_until = until.map(|until| self.quiet_until.map_or(until, |before| before.min(until)));
    }

    /// A write failed: the next one waits.
    pub(in crate::operator) fn put_off(&mut self, refused: bool, now: Duration) {
        self.refusals += u32::from(refused);
        self.after = now + growing(PAUSE, LONGEST_PAUSE, if refused { self.refusals } else { 0 });
    }

    /// Whether a minor change may be written now. If not, it is put off.
    pub(in crate::operator) fn allows_minor(&mut self, now: Duration) -> bool {
        let due = self.minor.due(MINOR, now);
        if now < due {
            self.minor_after = Some(due);
            return false;
        }
        self.minor.count(MINOR, now);
        true
    }
}

/// Everything that a status is computed from.
#[derive(Debug)]
pub(in crate::operator) struct Inputs {
    pub(in crate::operator) record: Arc<Record>,
    /// The version of the election's state.
    pub(in crate::operator) election: u64,
    pub(in crate::operator) owner: Owner,
    pub(in crate::operator) trouble: Option<Trouble>,
    pub(in crate::operator) hindrance: Option<Hindrance>,
    /// The older groups that select pods of this one.
    pub(in crate::operator) contested: Option<String>,
    /// An owner that sets the role label on the group's pods.
    pub(in crate::operator) role_label_use: Option<RoleLabelUse>,
    /// How far the pods can be probed.
    pub(in crate::operator) coverage: ProbeCoverage,
    /// The Services whose endpoints are managed or looked at.
    pub(in crate::operator) endpoints: EndpointsReport,
    /// Whether pods without evidence are not yet counted as such.
    pub(in crate::operator) awaits_first_probes: bool,
}

impl PartialEq for Inputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.record, &other.record)
            && (self.election, self.awaits_first_probes) == (other.election, other.awaits_first_probes)
            && self.owner == other.owner
            && (&self.trouble, &self.hindrance) == (&other.trouble, &other.hindrance)
            && (&self.contested, &self.role_label_use) == (&other.contested, &other.role_label_use)
            && (&self.coverage, &self.endpoints) == (&other.coverage, &other.endpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_sooner_when_it_begins_to_wait() {
        let (mut report, second) = (Report::default(), Duration::from_secs(1));
        let mut until = |patience: Option<u32>, now| {
            report.stay_quiet(patience.map(|patience| second * patience), second * now);
            report.quiet_until
        };
        assert_eq!(until(Some(5), 10), Some(second * 15));
        assert_eq!(until(Some(5), 12), Some(second * 15), "a later step of the same change");
        assert_eq!(until(Some(1), 13), Some(second * 14));
        assert_eq!(until(Some(5), 14), Some(second * 14));
        assert_eq!((until(None, 16), until(Some(5), 20)), (None, Some(second * 25)));
    }

    #[test]
    fn minor_changes_are_written_in_a_short_burst_and_then_once_an_interval() {
        let (mut report, second) = (Report::default(), Duration::from_secs(1));
        let allowed = (0..200).filter(|at| report.allows_minor(second * *at)).collect::<Vec<u32>>();
        assert_eq!(allowed[..6], [0, 1, 2, 3, 10, 20]);
        assert_eq!(allowed.len(), 4 + 19);
        assert_eq!(report.minor_after, Some(second * 200));
    }
}
