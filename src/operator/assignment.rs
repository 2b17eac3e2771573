//! Which replica each group falls to. Every replica computes the same answer from the living sessions and the declared
//! holders, without any communication.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
};

use leadergroup_lock::{Key, Peer, SessionId};

/// The session that a key falls to, of those that are alive: one on another node than the group's holder if there is
/// one, because a replica that is lost together with the holder cannot notice its loss; and of several, the one with
/// the highest hash. When a session ends, only its own keys move (rendezvous hashing).
pub(super) fn falls_to<'a>(
    key: &Key,
    holder_node: Option<&str>,
    replicas: impl Iterator<Item = &'a Peer>,
) -> Option<SessionId> {
    let weight = |replica: &&Peer| {
        let elsewhere = replica.place.is_none() || replica.place.as_deref() != holder_node;
        let mut hasher = DefaultHasher::new();
        (key.as_str(), replica.session.as_uuid()).hash(&mut hasher);
        (elsewhere, hasher.finish(), replica.session)
    };
    replicas.max_by_key(weight).map(|replica| replica.session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_falls_to_a_replica_on_another_node_than_its_holder_and_to_any_if_there_is_none() {
        let replica = |node: Option<&str>| Peer { session: SessionId::new(), place: node.map(str::to_owned) };
        let replicas = [replica(Some("n1")), replica(Some("n1")), replica(Some("n2")), replica(None)];
        let mut chosen = [[0_usize; 4]; 3];
        for index in 0..1_000 {
            let key = Key::new(format!("web-{index}")).expect("a key");
            for (holder_node, chosen) in [Some("n1"), Some("n2"), None].into_iter().zip(&mut chosen) {
                let session = falls_to(&key, holder_node, replicas.iter());
                let place = replicas.iter().position(|replica| Some(replica.session) == session);
                chosen[place.expect("one of them")] += 1;
            }
            let alone = &replicas[..1];
            assert_eq!(falls_to(&key, Some("n1"), alone.iter()), Some(alone[0].session));
            assert_eq!(falls_to(&key, Some("n1"), [].iter()), None);
        }
        // Each of those that may be chosen gets a share.
        let shares = chosen.map(|groups| groups.map(|count| count > 150));
        let expected = [[false, false, true, true], [true, true, false, true], [true; 4]];
        assert_eq!(shares, expected, "{chosen:?}");
    }
}
