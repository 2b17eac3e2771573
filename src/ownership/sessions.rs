//! The sessions with the lock, as the last heartbeat showed them: this replica's own, and those of the others.

use std::{collections::BTreeSet, time::Duration};

use leadergroup_lock::{Key, SessionId, controller::Peer};

/// The most keys that are noted by themselves.
const MOST_YIELDED: usize = 1_000;

/// Claims that sessions which are still alive have given up, or may have.
#[derive(Debug, Default)]
pub enum Yielded {
    /// No claims.
    #[default]
    None,
    /// Those to these keys.
    Keys(BTreeSet<Key>),
    /// Any: a notification may have been missed.
    Any,
}

impl Yielded {
    /// The claim to this key was given up.
    pub fn add(&mut self, key: Key) {
        match self {
            Self::None => *self = Self::Keys([key].into()),
            Self::Keys(keys) if keys.len() < MOST_YIELDED => {
                keys.insert(key);
            }
            Self::Keys(_) => *self = Self::Any,
            Self::Any => {}
        }
    }

    /// Whether the claim to this key may have been given up.
    pub fn concerns(&self, key: &Key) -> bool {
        match self {
            Self::None => false,
            Self::Keys(keys) => keys.contains(key),
            Self::Any => true,
        }
    }
}

/// The sessions of the replicas that share groups, as the last heartbeat showed them.
#[derive(Debug, Default)]
pub struct Sessions {
    own: Option<SessionId>,
    living: Vec<Peer>,
    /// Since when these are the living ones.
    living_since: Duration,
    /// Those of them that seem to have stopped beating.
    suspects: Vec<SessionId>,
    /// When the last successful heartbeat was sent.
    beaten_at: Duration,
    /// Since when the database answers; `None` while it does not.
    answers_since: Option<Duration>,
}

impl Sessions {
    /// This replica's session.
    pub fn own(&self) -> Option<SessionId> {
        self.own
    }

    /// This replica's session, while the database answers.
    pub fn reachable(&self) -> Option<SessionId> {
        self.own.filter(|_| self.answers_since.is_some())
    }

    /// The living replicas, this one included.
    pub fn living(&self) -> &[Peer] {
        &self.living
    }

    /// Those of the living replicas that do not seem to have stopped.
    pub fn working(&self) -> impl Iterator<Item = &Peer> {
        self.living.iter().filter(|replica| !self.is_suspect(replica.session))
    }

    /// Whether this session is that of a living replica.
    pub fn is_living(&self, session: SessionId) -> bool {
        self.living.iter().any(|replica| replica.session == session)
    }

    /// Whether this session seems to have stopped beating.
    pub fn is_suspect(&self, session: SessionId) -> bool {
        self.suspects.contains(&session)
    }

    /// Whether this replica has had a session since its start.
    pub fn has_beaten(&self) -> bool {
        !self.living.is_empty()
    }

    /// Since when the living replicas are the same.
    pub fn living_since(&self) -> Duration {
        self.living_since
    }

    /// Since when the database answers; `None` while it does not.
    pub fn answers_since(&self) -> Option<Duration> {
        self.answers_since
    }

    /// A heartbeat, sent at this time, succeeded. Returns whether the other replicas are not the same as before.
    pub fn beat(
        &mut self,
        own: SessionId,
        mut living: Vec<Peer>,
        suspects: Vec<SessionId>,
        (sent_at, now): (Duration, Duration),
    ) -> bool {
        living.sort_unstable();
        if self.living != living || self.own != Some(own) {
            self.living_since = sent_at;
        }
        self.answers_since.get_or_insert(now);
        let changed = self.living != living || self.suspects != suspects;
        (self.own, self.living, self.suspects, self.beaten_at) = (Some(own), living, suspects, sent_at);
        changed
    }

    /// The session of this replica has ended.
    pub fn lost(&mut self) {
        self.own = None;
    }

    /// The database does not answer. Returns whether the session may have expired because of that: other replicas may
    /// own the groups by now. If it turns out to be alive when the database answers, the groups are claimed again.
    pub fn down(&mut self, ttl: Duration, now: Duration) -> bool {
        self.answers_since = None;
        let expired = self.own.is_some() && now.saturating_sub(self.beaten_at) >= ttl;
        if expired {
            self.own = None;
        }
        expired
    }
}
