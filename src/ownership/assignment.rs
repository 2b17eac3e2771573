//! Which replica each group falls to, and which one is its deputy. Every replica computes the same from the living
//! sessions and the declared holders, without any communication.

use leadergroup_lock::{Key, SessionId, controller::Peer};

use super::sessions::Sessions;

/// The replica that a group falls to, of those that are alive: one on another node than the group's holder if there is
/// one, because a replica that is lost together with the holder cannot notice its loss; and of several, the one with
/// the highest hash. When a session ends, only its own groups move (rendezvous hashing: Thaler and Ravishankar, 1998).
pub fn owner<'a>(
    key: &Key,
    holder_node: Option<&str>,
    replicas: impl Iterator<Item = &'a Peer>,
) -> Option<SessionId> {
    let weight = |replica: &&Peer| {
        let elsewhere = replica.place.is_none() || replica.place.as_deref() != holder_node;
        let hash = stable_hash(replica.session.as_uuid().as_bytes().iter().chain(key.as_str().as_bytes()));
        (elsewhere, hash, replica.session)
    };
    replicas.max_by_key(weight).map(|replica| replica.session)
}

/// The replica that the group would fall to without this owner.
pub fn deputy(key: &Key, holder_node: Option<&str>, of: SessionId, sessions: &Sessions) -> Option<SessionId> {
    owner(key, holder_node, sessions.working().filter(|other| other.session != of))
}

/// A hash on which replicas of different versions agree: FNV-1a, and the finalizer of `SplitMix64`, without which
/// inputs that differ in their last bytes have similar hashes.
pub fn stable_hash<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fold);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
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
                let session = owner(&key, holder_node, replicas.iter());
                let place = replicas.iter().position(|replica| Some(replica.session) == session);
                chosen[place.expect("one of them")] += 1;
            }
            let alone = &replicas[..1];
            assert_eq!(owner(&key, Some("n1"), alone.iter()), Some(alone[0].session));
            assert_eq!(owner(&key, Some("n1"), [].iter()), None);
        }
        // Each of those that may be chosen gets a share.
        let shares = chosen.map(|groups| groups.map(|count| count > 150));
        let expected = [[false, false, true, true], [true, true, false, true], [true; 4]];
        assert_eq!(shares, expected, "{chosen:?}");
    }

    /// Replicas of different versions must agree.
    #[test]
    fn the_hash_stays_the_same() {
        assert_eq!(format!("{:016x}", stable_hash(b"web")), "c850f03f92a375f3");
    }
}
