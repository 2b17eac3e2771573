//! Which replica each group falls to. Every replica computes the same answer from the living sessions, without any
//! communication.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
};

use leadergroup_lock::{Key, SessionId};

/// The session that a key falls to, of those that are alive: the one with the highest hash. When a session ends, only
/// its own keys move (rendezvous hashing).
pub(super) fn falls_to<'a>(key: &Key, sessions: impl Iterator<Item = &'a SessionId>) -> Option<SessionId> {
    let weight = |session: &&SessionId| {
        let mut hasher = DefaultHasher::new();
        (key.as_str(), session.as_uuid()).hash(&mut hasher);
        (hasher.finish(), **session)
    };
    sessions.max_by_key(weight).copied()
}
