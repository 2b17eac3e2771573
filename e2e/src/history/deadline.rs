//! I6: an active pod that fails is replaced in time.
//!
//! The design promises 100 ms from the evidence to the label of the next active pod. Tests share two cores with a whole
//! cluster, so the bounds here have slack. They find a failover that waits for a timer, a list or another attempt.
//! Scenarios that run side by side, and beside all other tests, have more: there a single write of the API server may
//! take a second. The simulated cluster has the tighter bounds on the same code, in simulated time.

use std::time::Duration;

use serde::Serialize;

use super::outcome::{Invariant, Promotion, Violation};
use crate::moment::Moment;

/// From evidence to the label of the next active pod: the quorum read, the grant, the declaration, the strip and the
/// promotion.
pub const ACTS: Duration = Duration::from_secs(2);

/// As much more where the machine does many other things at the same time.
const BUSY: Duration = ACTS;

/// The test's own request to the API server, which is evidence when it takes effect.
const ASKED: Duration = Duration::from_secs(1);

/// The reasons of planned changes: nothing is wrong with the pod, and the test has asked for it.
pub(super) const PLANNED: [&str; 4] = ["Switchover", "NodeCordoned", "Rollout", "Failback"];

/// How soon an active pod must be replaced after a fault of the test. While the fault begins, the API server, the
/// database and a replica work, and a standby is eligible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deadline {
    /// The UID of the pod.
    pub uid: String,
    /// When the fault began, on the clock of [`super::Change::seen`].
    pub from: Moment,
    /// The longest time from then to the label of the next active pod.
    pub within: Duration,
    /// The longest time from the first evidence in the API server to that label, if there is any there.
    pub from_evidence: Duration,
}

impl Deadline {
    /// The usual one of a change for this reason. `refused` is how long refusals must last until they are evidence.
    pub fn usual(uid: &str, from: Moment, reason: &str, silence: Duration, refused: Duration) -> Self {
        let noticed = match reason {
            "PodDeleted" => ASKED,
            planned if PLANNED.contains(&planned) => ASKED,
            "ProbeRefused" => refused,
            // The kubelet reports when it notices, but by then the pod is silent at the latest.
            _ => silence,
        };
        Self { uid: uid.to_owned(), from, within: noticed + ACTS, from_evidence: ACTS }
    }

    /// The same where the machine does many other things at the same time.
    #[must_use]
    pub fn on_a_busy_machine(self) -> Self {
        let (within, from_evidence) = (self.within + BUSY, self.from_evidence.saturating_add(BUSY));
        Self { within, from_evidence, ..self }
    }

    /// Those of pods that held the role when their fault began. Of one that was replaced before, the change that
    /// followed shows nothing. Evidence that is older than the fault is of an earlier one, so the time from it does not
    /// count.
    #[must_use]
    pub fn of_holders(deadlines: Vec<Self>, promotions: &[Promotion]) -> Vec<Self> {
        let held = |mut deadline: Self| {
            let (_, next) = term(&deadline, promotions)?;
            let Some(next) = next else { return Some(deadline) };
            let evidence = next.evidence_ms.map(|ms| next.seen.minus(Duration::from_millis(ms)));
            if evidence.is_some_and(|evidence| evidence < deadline.from) {
                deadline.from_evidence = Duration::MAX;
            }
            (next.seen > deadline.from).then_some(deadline)
        };
        deadlines.into_iter().filter_map(held).collect()
    }
}

/// The deadlines that no promotion of another pod of the group met.
pub(super) fn violations(deadlines: &[Deadline], promotions: &[Promotion]) -> Vec<Violation> {
    deadlines.iter().filter_map(|deadline| missed(deadline, promotions)).collect()
}

/// The pod's last promotion before its fault, and the next one of another pod of the group.
fn term<'a>(
    deadline: &Deadline,
    promotions: &'a [Promotion],
) -> Option<(&'a Promotion, Option<&'a Promotion>)> {
    let own = promotions.iter().rposition(|one| one.uid == deadline.uid && one.seen <= deadline.from)?;
    let (own, later) = promotions[own..].split_first()?;
    Some((own, later.iter().find(|next| next.group == own.group && next.uid != own.uid)))
}

fn missed(deadline: &Deadline, promotions: &[Promotion]) -> Option<Violation> {
    let Deadline { uid, from, within, from_evidence } = deadline;
    let violation = |revision, text| {
        Some(Violation { invariant: Invariant::Liveness, revision, object: format!("Pod {uid}"), text })
    };
    let Some(next) = term(deadline, promotions).and_then(|(_, next)| next) else {
        return violation(0, format!("it failed at {from}, and none replaced it"));
    };
    let took = next.seen.since(*from);
    if took > *within {
        let text = format!("{} followed {took:?} after the fault, not within {within:?}", next.pod);
        return violation(next.revision, text);
    }
    let took = next.evidence_ms.map(Duration::from_millis).filter(|took| took > from_evidence)?;
    let text = format!("{} followed {took:?} after the evidence, not within {from_evidence:?}", next.pod);
    violation(next.revision, text)
}

#[cfg(test)]
mod tests {
    use leadergroup::api::Reason;

    use super::*;

    #[test]
    fn planned_changes_are_those_of_the_operator() {
        let planned = Reason::ALL.iter().filter(|reason| reason.is_planned());
        assert_eq!(planned.map(ToString::to_string).collect::<Vec<_>>(), PLANNED);
    }
}
