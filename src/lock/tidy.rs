//! Tidying up by programs: where no operator does it, one of the clients shortens the history now and then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Beat;
use super::client::Shared;
use super::waiting::portion;

/// Terms kept per lock, by whomever tidies up.
pub const KEPT_TERMS: u32 = 50;
/// How long dead sessions stay readable.
pub const KEPT_DEAD: Duration = Duration::from_hours(1);

const EVERY: Duration = Duration::from_mins(10);
/// How long all of it may take; what is left is for the next time.
const LIMIT: Duration = Duration::from_mins(2);

/// One of all living sessions, the operator's included, has the turn; if it does not do it for some reason, the next one's
/// turn comes with its end.
pub(super) fn is_our_turn(beat: &Beat) -> bool {
    let living = beat.sessions.iter().filter(|session| !session.dead);
    living.map(|session| session.id).min() == Some(beat.own)
}

/// Runs for as long as there is a client. Every statement may be given up at any time.
pub(super) async fn tidy(shared: Arc<Shared>) {
    // Of many programs that live for a short time only, one now and then gets as far as this, too.
    let mut pause = EVERY.mul_f64(portion());
    loop {
        sleep(pause).await;
        pause = EVERY;
        if !shared.tidies.load(Ordering::Relaxed) {
            continue;
        }
        match timeout(LIMIT, shared.store.prune(KEPT_TERMS, KEPT_DEAD)).await {
            Ok(Ok(pruned)) => tracing::debug!(?pruned, "tidied the lock's tables up"),
            Ok(Err(error)) => {
                tracing::debug!(%error, "could not tidy the lock's tables up; trying again later");
            }
            Err(_) => tracing::debug!("tidying the lock's tables up took too long; going on later"),
        }
    }
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
