//! Answers without what differs between two databases: times.

use std::time::Duration;

use jiff::Timestamp;
use leadergroup_lock::{
    Term,
    admin::{LockInfo, TermInfo, WaiterInfo},
    controller::{Claimed, LockRow},
    protocol::Attempt,
};

/// An answer that can be compared.
pub trait Bare {
    /// Removes times.
    fn bare(&mut self);
}

impl<T: Bare> Bare for Vec<T> {
    fn bare(&mut self) {
        self.iter_mut().for_each(Bare::bare);
    }
}

impl<T: Bare> Bare for Option<T> {
    fn bare(&mut self) {
        self.iter_mut().for_each(Bare::bare);
    }
}

impl<T: Bare, E> Bare for Result<T, E> {
    fn bare(&mut self) {
        self.iter_mut().for_each(Bare::bare);
    }
}

impl<T: Bare> Bare for Box<T> {
    fn bare(&mut self) {
        (**self).bare();
    }
}

impl Bare for Term {
    fn bare(&mut self) {
        self.granted_at = Timestamp::UNIX_EPOCH;
    }
}

impl Bare for LockRow {
    fn bare(&mut self) {
        self.pending.bare();
    }
}

impl Bare for Claimed {
    fn bare(&mut self) {
        if let Self::Ours(row) = self {
            row.bare();
        }
    }
}

impl Bare for Attempt {
    fn bare(&mut self) {
        if let Some(holder) = &mut self.holder {
            holder.silent = Duration::ZERO;
        }
    }
}

impl Bare for LockInfo {
    fn bare(&mut self) {
        self.since = Timestamp::UNIX_EPOCH;
        if let Some(session) = &mut self.session {
            (session.seen, session.silent) = (Timestamp::UNIX_EPOCH, Duration::ZERO);
        }
    }
}

impl Bare for TermInfo {
    fn bare(&mut self) {
        self.term.bare();
        if let Some((at, _)) = &mut self.ended {
            *at = Timestamp::UNIX_EPOCH;
        }
    }
}

impl Bare for WaiterInfo {
    fn bare(&mut self) {
        self.since = Timestamp::UNIX_EPOCH;
    }
}
