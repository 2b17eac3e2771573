//! The lock as the last heartbeat showed it: the sessions, and outages of the database.

use std::time::Duration;

use super::outage::Outage;
use crate::ownership::{Sessions, Yielded};
use leadergroup_lock::{LockError, SessionId, controller::Peer};

/// What a heartbeat, or the lack of one, shows.
#[derive(Debug)]
pub(in crate::operator) enum LockNews {
    /// The session is alive, and so are these of the same cluster's replicas (this one's own included).
    Beat {
        /// This replica's session.
        own: SessionId,
        /// All living sessions that groups can fall to.
        living: Vec<Peer>,
        /// Those of them that seem to have stopped.
        suspects: Vec<SessionId>,
        /// The database may have lost commits, or is another server: the rows have to be read again.
        doubt: bool,
        /// Claims that sessions which are still alive have given up.
        yielded: Yielded,
        /// How long the heartbeat took.
        took: Duration,
    },
    /// There is no session any more: other replicas may own what this one owned.
    Lost,
    /// The database cannot be used now. A session that exists is not lost by that: either the others cannot use the
    /// database either, or one of them marks the session dead.
    Down(LockError),
}

/// The lock as the last heartbeat showed it.
#[derive(Debug, Default)]
pub(in crate::operator) struct LockView {
    pub(in crate::operator) sessions: Sessions,
    outage: Option<Outage>,
    /// The outage as the groups were last shown it: its text, and whether it lasts.
    shown: Option<(String, bool)>,
}

impl LockView {
    pub(in crate::operator) fn outage(&self) -> Option<&Outage> {
        self.outage.as_ref()
    }

    /// Whether the database has been unavailable for so long that nothing waits for it any more.
    pub(in crate::operator) fn is_away(&self, now: Duration) -> bool {
        self.outage.as_ref().is_some_and(|outage| outage.lasts(now))
    }

    /// The database answered. Returns whether that ends an outage.
    pub(in crate::operator) fn answers_again(&mut self) -> bool {
        self.shown = None;
        self.outage.take().is_some()
    }

    /// The database could not be used. Returns the problem, if the outage was worded differently so far.
    pub(in crate::operator) fn down(&mut self, problem: &str, now: Duration) -> Option<&str> {
        let before = self.outage.take();
        let said = before.as_ref().map(|outage| outage.problem.clone());
        let outage = self.outage.insert(Outage::goes_on(before, problem, now));
        (said.as_ref() != Some(&outage.problem)).then_some(&*outage.problem)
    }

    /// Notes how the outage looks now, and returns whether the groups were shown something else.
    pub(in crate::operator) fn note_shown(&mut self, now: Duration) -> bool {
        let shown = self.outage.as_ref().map(|outage| (outage.problem.clone(), outage.lasts(now)));
        let before = std::mem::replace(&mut self.shown, shown);
        before != self.shown
    }
}
