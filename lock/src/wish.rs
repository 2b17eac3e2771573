//! What a program says when it wants a key, and what it is answered.

use std::time::Duration;

use super::{GrantId, Key, Owner, Refusal, Token};

/// A wish to hold a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The key.
    pub key: Key,
    /// Who is to hold it.
    pub owner: Owner,
    /// Names this wish; repeat it with the same id while waiting, and when an answer was lost.
    pub request: GrantId,
    /// Kept in the history.
    pub reason: String,
    /// For how long nobody is to get the key should this holder's session be marked dead while it holds the key: the
    /// others' work may have effects that come late. Zero for none. A release, and an end in order, hand over at once.
    pub lock_delay: Duration,
    /// The token of the term whose delay the asker has sat out, if any; see [`Acquired::Delayed`].
    pub delay_over: Option<Token>,
}

impl Wish {
    /// A new wish, without any delay.
    pub fn new(key: Key, owner: Owner, reason: impl Into<String>) -> Self {
        let (request, reason) = (GrantId::new(), reason.into());
        Self { key, owner, request, reason, lock_delay: Duration::ZERO, delay_over: None }
    }
}

/// The answer to a [`Wish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds the key with this token, by this call, an earlier one, or because it was handed over.
    Granted {
        /// The token of the term.
        token: Token,
    },
    /// Somebody else holds the key, or waits for it, or may hold it by a grant that the database has lost; see
    /// [`Settler`](super::Settler).
    Held,
    /// In the queue.
    Waiting,
    /// [`MOST_WAITERS`](super::MOST_WAITERS) wait already.
    QueueFull,
    /// The last holder's session was marked dead, and it had asked that nobody gets the key for some time after that: in
    /// the queue, or not, as asked for. Whoever counts `delay` on a monotonic clock from the receipt of its *first* such
    /// answer for this token on may then ask with [`Wish::delay_over`].
    Delayed {
        /// The token of the term that ended so.
        token: Token,
        /// How long to let pass.
        delay: Duration,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// To whom a key is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heir<'a> {
    /// The waiter with this [`Owner::uid`].
    Uid(&'a str),
    /// Of the waiters with this [`Owner::name`] the first.
    Name(&'a str),
}

impl<'a> Heir<'a> {
    pub(super) fn uid(self) -> Option<&'a str> {
        if let Self::Uid(uid) = self { Some(uid) } else { None }
    }

    pub(super) fn name(self) -> Option<&'a str> {
        if let Self::Name(name) = self { Some(name) } else { None }
    }
}

/// The answer to [`Store::hand_over`](super::Store::hand_over).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandOver {
    /// The heir holds the key.
    Done,
    /// Nobody alive of that description waits for the key; nothing was changed.
    NotWaiting,
    /// Nothing was changed.
    Refused(Refusal),
}
