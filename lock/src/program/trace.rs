//! The operations of a client on a key, as spans of `tracing` at the level `debug`: each try, wait, release and
//! transfer, with its outcome.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span, debug_span};

use crate::{ClientError, Holder, Key, LockError, Reason, Successor, Token};

macro_rules! operation {
    ($name:literal, $key:expr, $holder:expr, $($field:tt)*) => {
        debug_span!($name, key = %$key, holder = $holder, $($field)*, outcome = Empty, error = Empty)
    };
}

/// A try for a key.
pub(crate) fn trying(key: &Key, holder: &Holder) -> Span {
    operation!("lock.try", key, holder.name, token = Empty, waited_ms = Empty)
}

/// A wait for a key.
pub(crate) fn waiting(key: &Key, holder: &Holder) -> Span {
    operation!("lock.wait", key, holder.name, token = Empty, waited_ms = Empty)
}

/// A release of a key, also in the background.
pub(crate) fn releasing(key: &Key, holder: &str, token: Token, held: Duration) -> Span {
    operation!("lock.release", key, holder, token = token.get(), held_ms = millis(held))
}

/// A transfer of a key to a successor.
pub(crate) fn transferring(
    key: &Key,
    holder: &str,
    token: Token,
    held: Duration,
    successor: Successor<'_>,
) -> Span {
    operation!("lock.transfer", key, holder, token = token.get(), held_ms = millis(held), ?successor)
}

/// A result that a span records.
pub(crate) trait Traced {
    /// The outcome, in a word or two.
    fn outcome(&self) -> &'static str;

    /// The token of the term, if there is one.
    fn token(&self) -> Option<i64> {
        None
    }
}

impl<T: Traced> Traced for Result<T, Reason> {
    fn outcome(&self) -> &'static str {
        self.as_ref().map_or("not free", Traced::outcome)
    }

    fn token(&self) -> Option<i64> {
        self.as_ref().ok().and_then(Traced::token)
    }
}

impl Traced for ClientError {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Deadline { .. } => "deadline",
            Self::QueueFull { .. } => "queue full",
            Self::Refused { .. } => "refused",
            Self::Lost { .. } => "lost",
            Self::Lock(error) => error.outcome(),
        }
    }
}

impl Traced for LockError {
    fn outcome(&self) -> &'static str {
        "failed"
    }
}

/// Runs the work within the span, and records its outcome there, even if the work is dropped before its end.
pub(crate) async fn within<T: Traced, E: Traced + Display>(
    span: Span,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut open = Open { span: span.clone(), begun: Instant::now(), outcome: "dropped" };
    // Boxed, because the future is large and would be copied from one future into the next.
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
        // Ignored if the span has no such field.
        self.span.record("waited_ms", millis(self.begun.elapsed()));
        self.span.record("outcome", self.outcome);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
