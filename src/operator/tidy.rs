//! Tidying the database up: old terms and dead sessions, now and then, by one replica, beside everything else.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::lock::{KEPT_DEAD, KEPT_TERMS, Store};

/// How long the first time is put off: right after a start there is more urgent work.
const FIRST: Duration = Duration::from_mins(1);
const EVERY: Duration = Duration::from_mins(10);
/// How long all of it may take; what is left is for the next time.
const LIMIT: Duration = Duration::from_mins(2);

/// Tidies up whenever it is this replica's turn, until `leave`. Every statement may be given up at any time.
pub(super) async fn run(store: Store, turn: watch::Receiver<bool>, leave: CancellationToken) {
    let rounds = async {
        let mut pause = FIRST;
        loop {
            sleep(pause).await;
            pause = EVERY;
            if !*turn.borrow() {
                continue;
            }
            match timeout(LIMIT, store.prune(KEPT_TERMS, KEPT_DEAD)).await {
                Ok(Ok(pruned)) => {
                    tracing::debug!(
                        terms = pruned.terms,
                        sessions = pruned.sessions,
                        "tidied the lock's history up"
                    );
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "could not tidy the lock's history up; trying again later");
                }
                Err(_) => tracing::warn!("tidying the lock's history up took too long; going on later"),
            }
        }
    };
    tokio::select! {
        () = rounds => {}
        () = leave.cancelled() => {}
    }
}
