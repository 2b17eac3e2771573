//! What the evidence on a pod amounts to.

use super::Reason;

/// The conclusion from the evidence on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is fresh evidence that it works: it may become or stay the active pod.
    Eligible,
    /// It works, but another group selects it, too. So neither group makes it active.
    Contested,
    /// There is neither fresh evidence that it works nor evidence against it.
    Unknown,
    /// It did not answer this replica for `health.silenceTimeout`, but it answers another one, which is to own the
    /// group.
    HeardElsewhere,
    /// There is evidence that it does not work.
    Failing(Reason),
    /// It did not answer for `health.silenceTimeout`, although it was probed all the time.
    Silent,
    /// It has ended, or is about to end: deleted, finished, or being evicted.
    Ended(Reason),
}

impl Verdict {
    /// The reason to replace a holder with this verdict; none if it is healthy, or if nothing is known.
    pub fn against(self) -> Option<Reason> {
        match self {
            Self::Ended(reason) | Self::Failing(reason) => Some(reason),
            Self::Silent => Some(Reason::Silent),
            Self::Eligible | Self::Contested | Self::Unknown | Self::HeardElsewhere => None,
        }
    }
}
