//! The lock as the last heartbeat showed it: this replica's session, the sessions of the others, and outages.

use std::{collections::BTreeSet, time::Duration};

use super::outage::Outage;
use leadergroup_lock::{Key, LockError, Peer, SessionId};

/// The most keys that are noted by themselves.
const MOST_YIELDED: usize = 1_000;

/// What a heartbeat, or the lack of one, shows.
#[derive(Debug)]
pub(super) enum LockNews {
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

/// Claims that sessions which are still alive have given up, or may have.
#[derive(Debug, Default)]
pub(super) enum Yielded {
    #[default]
    None,
    /// Those to these keys.
    Keys(BTreeSet<Key>),
    /// Any: a notification may have been missed.
    Any,
}

impl Yielded {
    pub(super) fn add(&mut self, key: Key) {
        match self {
            Self::None => *self = Self::Keys([key].into()),
            Self::Keys(keys) if keys.len() < MOST_YIELDED => {
                keys.insert(key);
            }
            Self::Keys(_) => *self = Self::Any,
            Self::Any => {}
        }
    }

    pub(super) fn concerns(&self, key: &Key) -> bool {
        match self {
            Self::None => false,
            Self::Keys(keys) => keys.contains(key),
            Self::Any => true,
        }
    }
}

/// The lock as the last heartbeat showed it.
#[derive(Debug, Default)]
pub(super) struct LockView {
    own: Option<SessionId>,
    living: Vec<Peer>,
    /// Since when these sessions are the living ones.
    living_since: Duration,
    /// Since when the database answers.
    answers_since: Duration,
    /// Those of them that seem to have stopped beating.
    suspects: Vec<SessionId>,
    /// When the last successful heartbeat was sent.
    beaten_at: Duration,
    outage: Option<Outage>,
    /// The outage as the groups were last shown it: its text, and whether it lasts.
    shown: Option<(String, bool)>,
}

impl LockView {
    pub(super) fn own(&self) -> Option<SessionId> {
        self.own
    }

    /// The living replicas, this one included.
    pub(super) fn living(&self) -> &[Peer] {
        &self.living
    }

    /// Those of the living replicas that do not seem to have stopped.
    pub(super) fn working(&self) -> impl Iterator<Item = &Peer> {
        self.living.iter().filter(|replica| !self.is_suspect(replica.session))
    }

    pub(super) fn is_living(&self, session: SessionId) -> bool {
        self.living.iter().any(|replica| replica.session == session)
    }

    /// Whether this replica has had a session since its start.
    pub(super) fn has_beaten(&self) -> bool {
        !self.living.is_empty()
    }

    /// Since when the living sessions are the same.
    pub(super) fn living_since(&self) -> Duration {
        self.living_since
    }

    /// Since when the database answers, after the last outage.
    pub(super) fn answers_since(&self) -> Duration {
        self.answers_since
    }

    pub(super) fn is_suspect(&self, session: SessionId) -> bool {
        self.suspects.contains(&session)
    }

    pub(super) fn outage(&self) -> Option<&Outage> {
        self.outage.as_ref()
    }

    /// Whether the database has been unavailable for so long that nothing waits for it any more.
    pub(super) fn is_away(&self, now: Duration) -> bool {
        self.outage.as_ref().is_some_and(|outage| outage.lasts(now))
    }

    /// The database answered. Returns whether that ends an outage.
    pub(super) fn answers_again(&mut self, now: Duration) -> bool {
        self.shown = None;
        let ended = self.outage.take().is_some();
        if ended {
            self.answers_since = now;
        }
        ended
    }

    /// A heartbeat succeeded. Returns whether the other sessions are not the same as before.
    pub(super) fn beat(
        &mut self,
        own: SessionId,
        mut living: Vec<Peer>,
        suspects: Vec<SessionId>,
        sent_at: Duration,
    ) -> bool {
        living.sort_unstable();
        if self.living != living || self.own != Some(own) {
            self.living_since = sent_at;
        }
        let changed = self.living != living || self.suspects != suspects;
        (self.own, self.living, self.suspects, self.beaten_at) = (Some(own), living, suspects, sent_at);
        changed
    }

    pub(super) fn session_lost(&mut self) {
        self.own = None;
    }

    /// The database could not be used. Returns whether the session may have expired because of that: other replicas may
    /// own the groups by now. If the session turns out to be alive when the database answers, the groups are claimed
    /// again.
    pub(super) fn down(&mut self, problem: &str, session_ttl: Duration, now: Duration) -> bool {
        self.outage = Some(Outage::goes_on(self.outage.take(), problem, now));
        let expired = self.own.is_some() && now.saturating_sub(self.beaten_at) >= session_ttl;
        if expired {
            self.own = None;
        }
        expired
    }

    /// The outage as the groups were last shown it.
    pub(super) fn shown_outage(&self) -> Option<(String, bool)> {
        self.shown.clone()
    }

    /// Notes how the outage looks now, and returns it.
    pub(super) fn note_shown(&mut self, now: Duration) -> Option<(String, bool)> {
        self.shown = self.outage.as_ref().map(|outage| (outage.problem.clone(), outage.lasts(now)));
        self.shown.clone()
    }
}
