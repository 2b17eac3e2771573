//! What became of the last request for a switchover.

use std::{fmt, time::Duration};

/// Why a request for a switchover is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchoverRefusal {
    /// The group is paused.
    Paused,
    /// The group has no pod of this name.
    NoSuchPod(String),
    /// This pod is active already.
    AlreadyActive(String),
    /// The node of this pod is about to be emptied, so that the group would leave it at once.
    NodeCordoned(String),
    /// A rollout is about to delete this pod, so that the group would leave it at once.
    Superseded(String),
    /// There is no fresh proof that this pod works, or the API server refuses to change it.
    NotEligible(String),
    /// No other pod could become active.
    NoCandidate,
    /// This pod, which is active, cannot lose the role, for this reason.
    HolderRefused(String, String),
    /// The group has no active pod that works, or may not change its holder for another reason.
    NotNow,
    /// The change was begun and could not be completed.
    Failed,
}

impl fmt::Display for SwitchoverRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the group is paused; set spec.paused to false first"),
            Self::NoSuchPod(pod) => write!(f, "the group has no pod named {pod}"),
            Self::AlreadyActive(pod) => write!(f, "{pod} is active already"),
            Self::NodeCordoned(pod) => write!(
                f,
                "the node of {pod} is cordoned, or about to be removed; uncordon it first, or choose another pod"
            ),
            Self::Superseded(pod) => {
                write!(
                    f,
                    "a rollout is about to delete {pod}; choose a pod of the newest revision, or set \
                     spec.election.onRollout to Ignore"
                )
            }
            Self::NotEligible(pod) => write!(
                f,
                "{pod} could not become active now: check that it is ready and answers its probe; the condition \
                 Redundant says whether the API server refuses to change it, or its hook has refused the role"
            ),
            Self::NoCandidate => f.write_str(
                "no other pod could become active now: check that one is ready, that its node is not cordoned, and \
                 that no rollout is about to delete it; the condition Redundant says more",
            ),
            // The pod stays active, so no condition says it for long.
            Self::HolderRefused(pod, words) => {
                write!(f, "{pod} cannot lose the active role: {words}")
            }
            Self::NotNow => f.write_str(
                "the group has no active pod that works, or could not change its holder; its condition Ready says why",
            ),
            Self::Failed => f.write_str(
                "the change was begun and could not be completed, or the API server, perhaps because of a webhook, did not \
                 answer in time whether it would let it be",
            ),
        }
    }
}

/// The pause after a planned change that nobody requested has failed: the next holder may be unfit by the time of the
/// grant, again and again.
pub(super) const MOVE_PAUSE: Duration = Duration::from_secs(5);

/// The pause after a dry run for a request had no definite answer.
pub(super) const TRIAL_PAUSE: Duration = Duration::from_secs(1);

/// What became of the last request.
#[derive(Clone, Debug, Default)]
pub(super) struct LastRequest {
    /// The request that is weighed, and since when.
    pub(super) weighed: Option<(String, Duration)>,
    /// Whether a change was begun for it.
    pub(super) begun: bool,
    /// How often a term was granted for it.
    pub(super) grants: u32,
    /// The next dry run for it comes after this time.
    pub(super) paused_until: Duration,
    pub(super) refused: Option<(String, SwitchoverRefusal)>,
}
