//! When something is done at the earliest: after a failure, after it has lasted for a while, or because it must not be
//! repeated too often.

use std::time::Duration;

use super::event::Ticket;

/// The wait after the first failure. It doubles with each further failure.
pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The maximum wait between two attempts, so that a recovery is noticed soon.
pub(super) const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// The least time between two stampings. It doubles with each that fails.
const STAMP_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after the first deletion that fails, and after one that succeeds: the watch has not shown it yet.
const FIRST_DELETION_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_DELETION_PAUSE: Duration = Duration::from_mins(1);
/// How often former holders are deleted, but for changes that a user requested. A new pod may become active only to
/// fail like the one before it.
const DELETIONS: Limit = Limit { interval: Duration::from_mins(5), burst: 4 };

/// The pause after this many consecutive failures, where `first` is the one after the first.
pub(crate) fn growing(first: Duration, longest: Duration, failures: u32) -> Duration {
    let factor = 1_u32 << failures.saturating_sub(1).min(16);
    (first * factor).min(longest)
}

/// How often something may happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The time between two, on average.
    pub(crate) interval: Duration,
    /// How many may follow each other without that pause.
    pub(crate) burst: u32,
}

/// What has happened of something that is limited: a virtual-scheduling rate limiter (GCRA, as in ATM's I.371).
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    /// Moves on by one interval each time, and may be at most a burst ahead of now.
    paced: Duration,
}

impl Rate {
    /// The earliest time at which it may happen again: not later than now, if it may happen now.
    pub(crate) fn due(&self, limit: Limit, now: Duration) -> Duration {
        (self.paced.max(now) + limit.interval).saturating_sub(limit.interval * limit.burst)
    }

    /// It happens now.
    pub(crate) fn count(&mut self, limit: Limit, now: Duration) {
        self.paced = self.paced.max(now) + limit.interval;
    }
}

/// What has to last for a while before the holder is replaced: the UID of the pod, and since when it has been so.
#[derive(Clone, Debug, Default)]
pub(super) struct Delays {
    /// The holder against which there is evidence.
    pub(super) lost: Option<Lost>,
    /// The pod that the role would go back to, and could have, for the failback delay.
    pub(super) preferred: Option<(String, Duration)>,
}

/// The holder against which there is evidence.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    /// The UID of the pod.
    pub(super) uid: String,
    /// Since when there is evidence: the delay of the election counts from then on.
    pub(super) since: Duration,
    /// Since when it has not worked, as far as this replica knows: a silent pod since its last answer.
    pub(super) down: Duration,
}

/// The earliest times of what must not be repeated too often. They hold although the owner changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacing {
    /// Of the next change that nobody requested and no failure calls for.
    pub(super) moves: Duration,
    /// Of the next restoration of a lost label.
    pub(super) relabels: Duration,
    /// Of the next larger token for a group whose row is behind.
    pub(super) regains: Duration,
}

/// The stamping in the background, or a dry run in its place.
#[derive(Clone, Debug, Default)]
pub(super) struct Stamping {
    under_way: Option<UnderWay>,
    /// The earliest time of the next one.
    pub(super) after: Duration,
    /// Consecutive failures, for the pauses between them.
    failures: u32,
}

#[derive(Clone, Debug)]
struct UnderWay {
    ticket: Ticket,
    /// The UID of the standby for which a dry run asks again; none if it is a stamping.
    retried: Option<String>,
}

impl Stamping {
    /// Whether this is its ticket.
    pub(super) fn is(&self, ticket: Ticket) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| under_way.ticket == ticket)
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// `retried` is the UID of the standby, if it is a dry run.
    pub(super) fn begin(&mut self, ticket: Ticket, retried: Option<String>) {
        self.under_way = Some(UnderWay { ticket, retried });
    }

    /// Its outcome has arrived. Returns the UID of the standby, if it was a dry run.
    pub(super) fn end(&mut self, failed: bool, now: Duration) -> Option<String> {
        self.failures = if failed { self.failures + 1 } else { 0 };
        self.after = now + growing(STAMP_INTERVAL, LONGEST_BACKOFF, self.failures);
        self.under_way.take()?.retried
    }

    /// The replica is no longer the owner. The pause between two stampings holds all the same.
    pub(super) fn forget(&mut self) {
        *self = Self { after: self.after, ..Self::default() };
    }
}

/// The deletion of former holders.
#[derive(Clone, Debug, Default)]
pub(super) struct Deleting {
    /// The ticket, and whether a user requested the change.
    under_way: Option<(Ticket, bool)>,
    /// The earliest time of the next one.
    after: Duration,
    /// Consecutive failures, for the pauses between them.
    failures: u32,
    /// The deletions of the past that are limited.
    rate: Rate,
    /// Why the API server does not let the operator delete a pod.
    pub(super) refused: Option<String>,
}

impl Deleting {
    /// Whether this is its ticket.
    pub(super) fn is(&self, ticket: Ticket) -> bool {
        self.under_way.as_ref().is_some_and(|(under_way, _)| *under_way == ticket)
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// The earliest time of the next one: not later than now, if it may begin now. After a change that a user requested
    /// there is no limit: a failure may repeat itself without end, and a request is made once.
    pub(super) fn due(&self, is_requested: bool, now: Duration) -> Duration {
        if is_requested { self.after } else { self.after.max(self.rate.due(DELETIONS, now)) }
    }

    pub(super) fn begin(&mut self, ticket: Ticket, is_requested: bool) {
        self.under_way = Some((ticket, is_requested));
    }

    /// Its outcome has arrived.
    pub(super) fn end(&mut self, done: bool, now: Duration) {
        let is_requested = self.under_way.take().is_some_and(|(_, is_requested)| is_requested);
        if done {
            self.failures = 0;
            if !is_requested {
                self.rate.count(DELETIONS, now);
            }
        } else {
            self.failures += 1;
        }
        self.after = now + growing(FIRST_DELETION_PAUSE, LONGEST_DELETION_PAUSE, self.failures);
    }

    /// The replica is no longer the owner. The pauses hold all the same.
    pub(super) fn forget(&mut self) {
        (self.under_way, self.refused) = (None, None);
    }
}
