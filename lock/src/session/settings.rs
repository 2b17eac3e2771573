//! Settings of sessions and of clients.

use std::time::Duration;

use crate::LockError;
use crate::session::lease::margin;

/// Settings of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// The name of the process in tables and in the history.
    pub name: String,
    /// Sessions with the same value watch each other, besides a few neighbours. Their ends are always
    /// [reported](crate::controller::Hint::Freed), because they may have claimed keys that others want.
    pub peers: Option<String>,
    /// Where the process runs, such as the name of its node. Only peers see it; the lock does not use it.
    pub place: Option<String>,
    /// After this long without a heartbeat, others take what the session holds. Its own lease ends before that.
    pub ttl: Duration,
    /// Time between two heartbeats; at most a third of `ttl`.
    pub retry_interval: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            name: "unnamed".to_owned(),
            peers: None,
            place: None,
            ttl: Duration::from_secs(5),
            retry_interval: Duration::from_secs(1),
        }
    }
}

/// The shortest ttl. A lease is shorter than the ttl by a fifth, which must not be less than the granularity of timers.
const SHORTEST_TTL: Duration = Duration::from_millis(50);

/// A ttl must leave a lease, and a heartbeat must have three tries within it.
pub(crate) fn check(ttl: Duration, retry_interval: Duration) -> Result<(), LockError> {
    if ttl < SHORTEST_TTL {
        let problem = format!(
            "is {ttl:?}; write {SHORTEST_TTL:?} or more, and usually several seconds: a client whose heartbeat is \
             this late loses its keys"
        );
        return Err(LockError::Config { key: "ttl", problem });
    }
    if !retry_interval.is_zero() && retry_interval.checked_mul(3).is_some_and(|three| three <= ttl) {
        return Ok(());
    }
    let problem = format!(
        "must be above zero, and at most a third of `ttl` ({retry_interval:?} with a ttl of {ttl:?}); choose a longer \
         ttl"
    );
    Err(LockError::Config { key: "retry_interval", problem })
}

/// Whether the lease outlasts one heartbeat that hangs: it was sent an interval after the last one, and is given up
/// after `step`. The next one follows at once.
pub(crate) fn survives_a_hanging_heartbeat(ttl: Duration, retry_interval: Duration, step: Duration) -> bool {
    retry_interval.saturating_add(step) < ttl.saturating_sub(margin(ttl))
}

/// Settings of a client: how it keeps its session, and how it requests keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// The holder's name in tables and in the history.
    pub name: String,
    /// After this long without a heartbeat, the client's keys go to others. Its guards are lost a fifth of it before
    /// that. It stays the same for as long as the client lives. At least 50 ms. Four fifths of it should be more
    /// than `retry_interval` and [`statement_timeout`](crate::DatabaseConfig::statement_timeout) together, so that a
    /// heartbeat that hangs can be repeated in time: otherwise the client logs a warning. Default: 5 seconds.
    pub ttl: Duration,
    /// Time between two heartbeats; at most a third of `ttl`. Waiters poll at the same interval, besides being woken.
    /// Default: 1 second.
    pub retry_interval: Duration,
    /// The reason for its requests, kept in the history.
    pub reason: String,
    /// For how long no one gets a key after this client's session was marked dead while it held the key: effects of
    /// work that was under way may come late. The waiters measure it, each from the time when it first learns of the
    /// death mark, and a try or a wait may take so much longer than it was asked to
    /// ([`confirm_death`](Self::confirm_death)). A release and a [`shutdown`](crate::Client::shutdown) hand over at
    /// once. Default: none.
    pub lock_delay: Duration,
    /// The longest time that a key may be held. After that, its guard is [lost](crate::Guard::lost). The key is free
    /// for others when the guard is dropped, or else with the first heartbeat after another fifth of the ttl, whatever
    /// the holder does. Default: none.
    pub max_hold: Option<Duration>,
    /// Whether the client, with all its clones, may take a key that it already has: it then holds the key until the
    /// last guard is dropped. Without this, tasks that share a client exclude each other: a second request for the key
    /// is treated like one of another program, and a task that requests a key that it holds itself waits for itself.
    /// Default: no.
    pub reentrant: bool,
    /// Whether the heartbeat runs in its own thread, with its own connections. Then code that blocks the caller's
    /// runtime does not lose the lock. Default: no.
    pub heartbeat_thread: bool,
    /// Whether a try, and a wait whose time is over, may take longer if something has to be observed before anyone can
    /// get the key. If the holder has been silent for twice its ttl, this takes its ttl: the client watches the holder,
    /// marks it dead, and tries once more. If the last holder had asked for a [`lock_delay`](Self::lock_delay), it
    /// takes what is left of the delay. In the quarantine after a failover, it takes the longest ttl. Four
    /// [`retry_interval`](Self::retry_interval)s come on top of each. If this is off and all programs only try once and
    /// exit, none ever gets such a key. Default: yes.
    pub confirm_death: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        let SessionConfig { name, ttl, retry_interval, .. } = SessionConfig::default();
        Self {
            name,
            ttl,
            retry_interval,
            reason: "asked for it".to_owned(),
            lock_delay: Duration::ZERO,
            max_hold: None,
            reentrant: false,
            heartbeat_thread: false,
            confirm_death: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_leaves_a_lease_in_which_three_heartbeats_fit() {
        let key = |ttl, retry_interval| match check(ttl, retry_interval) {
            Err(LockError::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        let (millis, second) = (Duration::from_millis, Duration::from_secs(1));
        assert_eq!(key(Duration::ZERO, Duration::ZERO), "ttl");
        assert_eq!(key(millis(49), millis(1)), "ttl");
        assert_eq!(check(SHORTEST_TTL, millis(16)), Ok(()));
        assert_eq!(margin(SHORTEST_TTL), SHORTEST_TTL / 5, "the lease has its whole length");
        assert_eq!(key(SHORTEST_TTL, millis(17)), "retry_interval");
        assert_eq!(key(second, Duration::ZERO), "retry_interval");
        assert_eq!(key(second, Duration::MAX), "retry_interval");
        assert!(survives_a_hanging_heartbeat(second, millis(200), millis(599)));
        assert!(!survives_a_hanging_heartbeat(second, millis(200), millis(600)));
        assert!(!survives_a_hanging_heartbeat(second, Duration::MAX, Duration::MAX));
    }
}
