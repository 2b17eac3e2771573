//! What tells connections that they were cut. It wakes those who wait in the order in which they began to wait; a
//! `watch` channel wakes them in a random one, so that a run could not be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The signal. Clones are the same signal.
#[derive(Clone, Debug, Default)]
pub(super) struct Signal(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    given: AtomicU64,
    waiting: Notify,
}

/// Learns whether a signal was given since it was subscribed to.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    signal: Signal,
    given_before: u64,
}

impl Signal {
    pub(super) fn give(&self) {
        self.0.given.fetch_add(1, Ordering::Relaxed);
        self.0.waiting.notify_waiters();
    }

    pub(super) fn subscribe(&self) -> Subscription {
        Subscription { signal: self.clone(), given_before: self.0.given.load(Ordering::Relaxed) }
    }
}

impl Subscription {
    pub(super) fn is_given(&self) -> bool {
        self.signal.0.given.load(Ordering::Relaxed) != self.given_before
    }

    pub(super) async fn given(&self) {
        loop {
            let waiting = self.signal.0.waiting.notified();
            if self.is_given() {
                return;
            }
            waiting.await;
        }
    }
}
