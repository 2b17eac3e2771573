//! Whether this replica itself is on the network. A replica that is cut off gets no answer from any pod, and must not
//! conclude anything from that.

use std::time::Duration;

use super::watch_health::READ_TIMEOUT;

/// The peers besides the pods that this replica calls all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::operator) enum Peer {
    ApiServer,
    Database,
}

/// Which peers were reached at the last attempt.
///
/// If only one of them cannot be reached, the fault may be its own. If neither can be reached, the fault is most likely
/// on this side. Then no pod's silence counts. It does not need to, because nobody can be promoted without both peers.
#[derive(Debug, Default)]
pub(in crate::operator) struct Connectivity {
    api_server: bool,
    database: bool,
}

impl Connectivity {
    /// Takes in whether a peer was reached. Returns whether no peer could be reached until now.
    pub(in crate::operator) fn heard(&mut self, peer: Peer, reached: bool) -> bool {
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

/// How old the events of the watches may be.
#[derive(Debug, Default)]
pub(in crate::operator) struct Lag {
    answered_at: Option<Duration>,
}

impl Lag {
    /// Takes in whether the API server answered. If it did not, returns until when its watches may report what happened
    /// before.
    ///
    /// Kubelets and connections that fail wait longer after each attempt, so the last events of an outage arrive up to
    /// twice its length after its end. A watch that hangs is given up after [`READ_TIMEOUT`], and then fails.
    pub(in crate::operator) fn answered(&mut self, reached: bool, now: Duration) -> Option<Duration> {
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
        let mut network = Connectivity::default();
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
