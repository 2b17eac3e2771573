//! Whether this replica itself is on the network: who is cut off hears of no pod, and knows nothing of any.

/// Who else but pods is spoken to all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    ApiServer,
    Database,
}

/// Which of them were reached when last tried.
///
/// One alone that is away may have trouble of its own, and so may a pod. When both are, the trouble is most likely ours:
/// then no pod's silence counts, and none needs to, since without the two nobody can be promoted.
#[derive(Debug, Default)]
pub(super) struct OwnNetwork {
    api_server: bool,
    database: bool,
}

impl OwnNetwork {
    /// Takes in whether a peer was reached. True: until now the network led nowhere, as far as we can tell.
    pub(super) fn heard(&mut self, peer: Peer, reached: bool) -> bool {
        let before = self.is_away();
        match peer {
            Peer::ApiServer => self.api_server = reached,
            Peer::Database => self.database = reached,
        }
        before || self.is_away()
    }

    fn is_away(&self) -> bool {
        !self.api_server && !self.database
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_away_is_its_own_trouble_and_both_are_ours_until_one_is_back() {
        let mut network = OwnNetwork::default();
        for (peer, reached, was_away) in [
            (Peer::Database, true, true),
            (Peer::ApiServer, true, false),
            (Peer::ApiServer, false, false),
            (Peer::ApiServer, true, false),
            (Peer::Database, false, false),
            (Peer::ApiServer, false, true),
            (Peer::ApiServer, false, true),
            (Peer::Database, true, true),
            (Peer::Database, true, false),
            (Peer::ApiServer, true, false),
        ] {
            assert_eq!(network.heard(peer, reached), was_away, "{peer:?} {reached}");
        }
    }
}
