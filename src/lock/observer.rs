//! Whether other sessions have expired, judged by observation on the own monotonic clock. No I/O, no clock of its own.
//!
//! The counter of a session must not have changed for the session's ttl, measured from the *receipt* of the first answer
//! that showed it to the *sending* of a later question that found it unchanged. Both ends err on the session's side,
//! and the database's clock plays no part. When the observer itself could not see the database for a while, nobody
//! else may have been able to beat either: all windows start anew.

use std::collections::HashMap;
use std::time::Duration;

use super::{Beat, SessionId};

/// Watches the heartbeat counters of all sessions but its own.
#[derive(Debug, Clone)]
pub struct Observer {
    longest_gap: Duration,
    last_receipt: Option<Duration>,
    seen: HashMap<SessionId, Window>,
}

/// Since when a counter has been seen unchanged.
#[derive(Debug, Clone, Copy)]
struct Window {
    beat: u64,
    since: Duration,
}

impl Observer {
    /// An observer that polls about every `retry_interval`; a gap of more than two and a half intervals between two
    /// answers starts all windows anew.
    pub fn new(retry_interval: Duration) -> Self {
        Self { longest_gap: retry_interval * 5 / 2, last_receipt: None, seen: HashMap::new() }
    }

    /// Takes in one answer. `sent_at` and `now` are when the question was sent and the answer received, on one monotonic
    /// clock that goes on while the machine sleeps ([`monotonic`](super::monotonic)). Returns the sessions that have
    /// expired, with the counter to mark them dead by; they are returned again by each later call until they are seen
    /// dead or beating.
    pub fn observe(&mut self, now: Duration, sent_at: Duration, beat: &Beat) -> Vec<(SessionId, u64)> {
        let gap = self.last_receipt.is_none_or(|last| now.saturating_sub(last) > self.longest_gap);
        self.last_receipt = Some(now);
        let mut expired = Vec::new();
        let mut seen = HashMap::with_capacity(beat.sessions.len());
        for session in beat.sessions.iter().filter(|session| !session.dead && session.id != beat.own) {
            let window = match self.seen.get(&session.id) {
                Some(window) if !gap && window.beat == session.beat => *window,
                _ => Window { beat: session.beat, since: now },
            };
            if sent_at.saturating_sub(window.since) >= session.ttl && sent_at > window.since {
                expired.push((session.id, session.beat));
            }
            seen.insert(session.id, window);
        }
        self.seen = seen;
        expired
    }
}
