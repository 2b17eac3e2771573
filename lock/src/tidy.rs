//! Tidying up: now and then one of those who live, a replica of the operator or a program, shortens the history.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::client::Shared;
use super::waiting::portion;
use super::{Beat, Store};

/// Terms kept per lock, by whomever tidies up.
const KEPT_TERMS: u32 = 50;
/// How long dead sessions stay readable.
const KEPT_DEAD: Duration = Duration::from_hours(1);

const EVERY: Duration = Duration::from_mins(10);
/// How long all of it may take; what is left is for the next time.
const LIMIT: Duration = Duration::from_mins(2);

/// One of all living sessions, the operator's included, has the turn; if it does not do it for some reason, the next one's
/// turn comes with its end.
pub(super) fn is_our_turn(beat: &Beat) -> bool {
    let living = beat.sessions.iter().filter(|session| !session.dead);
    living.map(|session| session.id).min() == Some(beat.own)
}

/// Tidies up whenever it is the caller's turn, for the first time after `first`. Runs until it is dropped; every statement
/// may be given up at any time.
pub async fn tidy(store: &Store, first: Duration, is_our_turn: impl Fn() -> bool) {
    let mut pause = first;
    loop {
        sleep(pause).await;
        pause = EVERY;
        if !is_our_turn() {
            continue;
        }
        match timeout(LIMIT, store.prune(KEPT_TERMS, KEPT_DEAD)).await {
            Ok(Ok(pruned)) => tracing::debug!(?pruned, "tidied the lock's tables up"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not tidy the lock's tables up; trying again later");
            }
            Err(_) => tracing::warn!("tidying the lock's tables up took too long; going on later"),
        }
    }
}

/// Runs for as long as there is a client.
pub(super) async fn tidy_for_programs(shared: Arc<Shared>) {
    // Of many programs that live for a short time only, one now and then gets as far as this, too.
    let first = EVERY.mul_f64(portion());
    tidy(&shared.store, first, || shared.tidies.load(Ordering::Relaxed)).await;
}

#[cfg(test)]
mod tests {
    use super::super::{Epoch, SessionId, SessionSeen};
    use super::*;

    #[test]
    fn of_all_that_live_one_has_the_turn() {
        let mut ids = [SessionId::new(), SessionId::new(), SessionId::new()];
        ids.sort();
        let turn = |own: usize, dead: usize| {
            let seen = |(place, id): (usize, &SessionId)| SessionSeen {
                id: *id,
                name: "session".into(),
                beat: 1,
                ttl: Duration::from_secs(5),
                dead: place == dead,
            };
            is_our_turn(&Beat {
                alive: true,
                own: ids[own],
                sessions: ids.iter().enumerate().map(seen).collect(),
                epoch: Epoch { system_identifier: 1, timeline: 1, era: 0 },
                settled: true,
                epoch_changed: false,
            })
        };
        assert_eq!([turn(0, 2), turn(1, 2), turn(2, 1)], [true, false, false]);
        assert_eq!([turn(1, 0), turn(2, 0)], [true, false]);
    }
}
