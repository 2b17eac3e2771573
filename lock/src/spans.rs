//! What a client does with a key, as spans of `tracing`: each wait, release and hand-over, with how it came out. Whoever
//! exports spans sees them among its own. At the level `debug`.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span, debug_span};

use super::guard::Term;
use super::{ClientError, Guard, HandedOver, Heir, Key, LockError, Obstacle, Owner, Released};

/// Taking the key if it is free.
pub(super) fn trying(key: &Key, owner: &Owner) -> Span {
    debug_span!("lock.try", %key, owner = owner.name, token = Empty, waited_ms = Empty, outcome = Empty, error = Empty)
}

/// Waiting for it.
pub(super) fn waiting(key: &Key, owner: &Owner) -> Span {
    debug_span!("lock.wait", %key, owner = owner.name, token = Empty, waited_ms = Empty, outcome = Empty, error = Empty)
}

/// Releasing it, also in the background.
pub(super) fn releasing(term: &Term) -> Span {
    debug_span!(
        "lock.release",
        key = %term.key,
        owner = term.owner,
        token = term.token.get(),
        held_ms = millis(term.since.elapsed()),
        outcome = Empty,
        error = Empty
    )
}

/// Handing it over.
pub(super) fn handing_over(term: &Term, heir: Heir<'_>) -> Span {
    debug_span!(
        "lock.hand_over",
        key = %term.key,
        owner = term.owner,
        token = term.token.get(),
        held_ms = millis(term.since.elapsed()),
        ?heir,
        outcome = Empty,
        error = Empty
    )
}

/// A result that is worth telling.
pub(super) trait Told {
    /// In a word or two.
    fn outcome(&self) -> &'static str;

    /// The token of the term that it began, or went on with.
    fn token(&self) -> Option<i64> {
        None
    }
}

impl Told for Guard {
    fn outcome(&self) -> &'static str {
        "held"
    }

    fn token(&self) -> Option<i64> {
        Some(self.token().get())
    }
}

impl Told for Result<Guard, Obstacle> {
    fn outcome(&self) -> &'static str {
        self.as_ref().map_or("not free", Told::outcome)
    }

    fn token(&self) -> Option<i64> {
        self.as_ref().ok().and_then(Told::token)
    }
}

impl Told for Released {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::StillHeld => "still held",
            Self::WasLost => "was lost",
        }
    }
}

impl Told for HandedOver {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotWaiting(_) => "heir not waiting",
            Self::StillHeld(_) => "still held",
            Self::Busy(_) => "busy",
            Self::WasLost => "was lost",
        }
    }
}

impl Told for ClientError {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Deadline { .. } => "deadline",
            Self::QueueFull { .. } => "queue full",
            Self::Refused { .. } => "refused",
            Self::Lock(error) => error.outcome(),
        }
    }
}

impl Told for LockError {
    fn outcome(&self) -> &'static str {
        "failed"
    }
}

/// Does the work within the span, and writes into it what came of it, also if the work is dropped before its end.
pub(super) async fn within<T: Told, E: Told + Display>(
    span: Span,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut open = Open { span: span.clone(), begun: Instant::now(), outcome: "not wanted any more" };
    // Boxed: the whole of a wait is in it, and it would be copied from one to the next.
    let result = Box::pin(work).instrument(span).await;
    match &result {
        Ok(done) => {
            open.outcome = done.outcome();
            if let Some(token) = done.token() {
                open.span.record("token", token);
            }
        }
        Err(error) => {
            open.outcome = error.outcome();
            open.span.record("error", display(error));
        }
    }
    result
}

struct Open {
    span: Span,
    begun: Instant,
    outcome: &'static str,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Left out where the span has no such field.
        self.span.record("waited_ms", millis(self.begun.elapsed()));
        self.span.record("outcome", self.outcome);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
