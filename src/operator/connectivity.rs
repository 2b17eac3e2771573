//! Whether this replica itself is on the network: who is cut off hears of no pod, and knows nothing of any.

use std::time::Duration;

use super::READ_TIMEOUT;

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

/// How old the news of the API server may be.
#[derive(Debug, Default)]
pub(super) struct Lag {
    answered_at: Option<Duration>,
}

impl Lag {
    /// Takes in whether the API server answered. Some: until when what is heard from it may be of the time before.
    ///
    /// Kubelets and connections that could not get through pause longer from attempt to attempt, so that the last news
    /// of an outage comes about as long after its end as it lasted, or twice that. A watch that hangs for good is given up
    /// after [`READ_TIMEOUT`], and then fails.
    pub(super) fn answered(&mut self, reached: bool, now: Duration) -> Option<Duration> {
        if reached {
            self.answered_at = Some(now);
            return None;
        }
        let away = now.saturating_sub(*self.answered_at.get_or_insert(now));
        Some(now + (away * 2).min(READ_TIMEOUT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_late_for_twice_as_long_as_the_api_server_was_away_and_not_for_ever() {
        let s = Duration::from_secs;
        let mut lag = Lag::default();
        assert_eq!(lag.answered(true, s(100)), None);
        assert_eq!(lag.answered(false, s(103)), Some(s(109)));
        assert_eq!(lag.answered(false, s(106)), Some(s(118)));
        assert_eq!(lag.answered(false, s(160)), Some(s(160) + READ_TIMEOUT));
        assert_eq!(lag.answered(true, s(161)), None);
        assert_eq!(lag.answered(false, s(162)), Some(s(164)));
    }

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
