//! Tidying the database up: old terms and dead sessions, now and then, by one replica, beside everything else.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use leadergroup_lock::{Store, tidy};

/// How long the first time is put off: right after a start there is more urgent work.
const FIRST: Duration = Duration::from_mins(1);

/// Tidies up whenever it is this replica's turn, until `leave`.
pub(super) async fn run(store: Store, turn: watch::Receiver<bool>, leave: CancellationToken) {
    leave.run_until_cancelled(tidy(&store, FIRST, || *turn.borrow())).await;
}
