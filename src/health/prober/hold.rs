//! The connection that is held open to an active pod. The kernel closes it the moment the pod's process ends, and so
//! tells of a crash long before the next probe is due.
//!
//! A closed connection is a hint and not evidence, because servers close idle connections too. All that follows from it
//! is that probes are sent at once.

use std::{future::pending, io, time::Duration};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Fuse, FusedFuture as _},
};
use tokio::{
    io::AsyncReadExt as _,
    time::{Instant, timeout},
};

use super::{exchange::Kept, network::Stream, places::Places};

/// How often a connection is opened at least, if servers keep closing it.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How much a server may send unasked, such as the greeting of a database, before it counts as one that does not work
/// with a client that says nothing.
const MOST_UNASKED: usize = 64 * 1024;

/// The connection held open to one target.
pub(super) struct Hold {
    connection: Fuse<BoxFuture<'static, ()>>,
    since: Instant,
    /// Whether a probe was answered while a connection was held. A server that serves one connection at a time answers
    /// nobody else for as long as one is held.
    trust: Trust,
    pause: Duration,
    not_before: Option<Instant>,
    shortest_pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Untried,
    Proven,
    Refuted,
}

impl Hold {
    /// No connection. After one was closed, the next follows after `interval` at the earliest.
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            connection: Fuse::terminated(),
            since: Instant::now(),
            trust: Trust::Untried,
            pause: interval,
            not_before: None,
            shortest_pause: interval,
        }
    }

    /// Whether a connection may be opened, or kept open, now.
    pub(super) fn is_welcome(&self, now: Instant) -> bool {
        self.trust != Trust::Refuted && self.not_before.is_none_or(|at| now >= at)
    }

    /// Whether a connection is held.
    pub(super) fn is_held(&self) -> bool {
        !self.connection.is_terminated()
    }

    /// Holds a connection that a probe has left open, in place of the one before: the younger it is, the less likely is
    /// the server to close it for being idle. Returns whether a probe should be sent at once, to see whether the server
    /// answers while the connection is held.
    pub(super) fn keep(&mut self, kept: Kept, places: &Places) -> bool {
        if self.is_held() {
            self.pause = self.shortest_pause;
        }
        // The connection before gives its place back.
        self.connection = Fuse::terminated();
        let Some(place) = places.held() else { return false };
        let closed = async move {
            let _place = place;
            closed(kept).await;
        };
        self.hold(closed.boxed())
    }

    /// Opens a connection of its own and holds it. The same is returned as by [`Self::keep`].
    pub(super) fn open(
        &mut self,
        connecting: BoxFuture<'static, io::Result<Box<dyn Stream>>>,
        patience: Duration,
        places: &Places,
    ) -> bool {
        let Some(place) = places.held() else { return false };
        let closed = async move {
            let _place = place;
            if let Ok(Ok(stream)) = timeout(patience, connecting).await {
                closed(Box::new(stream)).await;
            }
        };
        self.hold(closed.boxed())
    }

    fn hold(&mut self, closed: BoxFuture<'static, ()>) -> bool {
        (self.connection, self.since) = (closed.fuse(), Instant::now());
        self.trust == Trust::Untried
    }

    /// Returns when the connection is closed, or could not be opened. Never if there is none.
    pub(super) async fn lost(&mut self) {
        if self.connection.is_terminated() {
            return pending().await;
        }
        (&mut self.connection).await;
        let now = Instant::now();
        if now.duration_since(self.since) >= LONGEST_PAUSE {
            self.pause = self.shortest_pause;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE).max(self.shortest_pause);
    }

    /// A probe that was sent while a connection was held has ended.
    pub(super) fn probed_beside(&mut self, answered: bool) {
        match self.trust {
            Trust::Untried if answered => self.trust = Trust::Proven,
            Trust::Untried => {
                self.trust = Trust::Refuted;
                self.connection = Fuse::terminated();
            }
            Trust::Proven | Trust::Refuted => {}
        }
    }
}

/// Returns when the other side closes or resets the connection.
async fn closed(mut stream: Kept) {
    let (mut buffer, mut unasked) = ([0; 256], 0);
    while unasked < MOST_UNASKED
        && let Ok(1..) = stream.read(&mut buffer).await.inspect(|read| unasked += read)
    {}
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// With one place for a connection that is held.
    fn places() -> Places {
        Places::new(1)
    }

    /// A hold with a connection, and the server's end of it.
    fn held(places: &Places) -> (Hold, DuplexStream) {
        let (ours, theirs) = duplex(64);
        let mut hold = Hold::new(SECOND);
        assert!(hold.keep(Box::new(ours), places), "the first one is a trial");
        (hold, theirs)
    }

    #[tokio::test]
    async fn a_closed_connection_is_noticed_and_the_next_one_waits_longer_each_time() {
        let places = places();
        let (mut hold, theirs) = held(&places);
        let mut kept = Some(theirs);
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            let before = Instant::now();
            drop(kept.take());
            hold.lost().await;
            let after = Instant::now();
            assert!(!hold.is_held());
            let pause = SECOND * pause;
            assert!(!hold.is_welcome(before + pause - SECOND / 2) && hold.is_welcome(after + pause));
            let (ours, theirs) = duplex(64);
            hold.keep(Box::new(ours), &places);
            kept = Some(theirs);
        }
        // One that lived until it was replaced shows that the server keeps connections.
        let (ours, theirs) = duplex(64);
        hold.keep(Box::new(ours), &places);
        drop((kept, theirs));
        hold.lost().await;
        assert!(hold.is_welcome(Instant::now() + SECOND));
    }

    #[tokio::test]
    async fn what_the_server_says_unasked_is_ignored() {
        let (mut hold, mut theirs) = held(&places());
        theirs.write_all(b"220 mail.example ESMTP").await.expect("written");
        assert!(hold.lost().now_or_never().is_none());
        drop(theirs);
        hold.lost().await;
    }

    #[tokio::test]
    async fn a_server_that_answers_nobody_else_is_left_alone_for_good() {
        let places = places();
        let (mut hold, _theirs) = held(&places);
        hold.probed_beside(false);
        assert!(!hold.is_held() && !hold.is_welcome(Instant::now() + LONGEST_PAUSE * 100));
        assert!(places.held().is_some());

        let (mut hold, _theirs) = held(&places);
        hold.probed_beside(true);
        hold.probed_beside(false);
        assert!(hold.is_held(), "it answered before while a connection was held");
    }

    #[tokio::test]
    async fn there_are_never_more_connections_than_places() {
        let places = places();
        let (one, _theirs) = held(&places);
        let mut other = Hold::new(SECOND);
        let (ours, _theirs) = duplex(64);
        assert!(!other.keep(Box::new(ours), &places) && !other.is_held());
        drop(one);
        let (ours, _theirs) = duplex(64);
        assert!(other.keep(Box::new(ours), &places) && other.is_held());
    }
}
