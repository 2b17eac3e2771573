//! How long a term lasts: at most as long as the key may be held, with a warning before the end, and also while the
//! program's own runtime is blocked.

use std::sync::mpsc;
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, ClientError, Released, Store, Token, monotonic};
use tokio::time::timeout;

use crate::cast::{Gate, key};
use crate::connections::connections;
use crate::postgres::{DEADLINE, Database, eventually, migrated};

const TTL: Duration = Duration::from_secs(10);

async fn client(database: &Database, name: &str, max_hold: Option<Duration>) -> Client {
    let retry_interval = Duration::from_millis(200);
    let config =
        ClientConfig { name: name.into(), ttl: TTL, retry_interval, max_hold, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_held_for_as_long_as_it_may_be_and_then_it_is_another_ones() {
    const MAX: Duration = Duration::from_secs(2);
    let (database, store) = migrated().await;
    let (one, two) = (client(&database, "one", Some(MAX)).await, client(&database, "two", None).await);
    let asked = monotonic();
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    let after = monotonic();
    let until = held.held_until().expect("it is held");
    assert!(until >= asked + MAX && until <= after + MAX, "not by the lease, which is longer");
    let waiting = tokio::spawn(async move {
        let guard = two.lock(&key("a"), DEADLINE).await.unwrap();
        (guard.token(), monotonic(), two, guard)
    });
    timeout(DEADLINE, held.in_jeopardy()).await.expect("it ends soon");
    let in_jeopardy = monotonic();
    timeout(DEADLINE, held.lost()).await.expect("it has ended");
    let lost = monotonic();
    assert!(in_jeopardy <= lost && lost >= asked + MAX && held.is_lost());
    assert_eq!(held.held_until(), None);
    let (token, began, _two, _guard) = timeout(DEADLINE, waiting).await.expect("free").unwrap();
    assert_eq!(token, Token::new(2));
    assert!(began >= asked + MAX, "two hold the same lock");
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    eventually("it is counted", async || one.store().stats().lost == 1).await;
    let ended = store.history(&key("a"), 2).await.unwrap()[1].ended.clone().unwrap().1;
    assert_eq!(ended, "held for as long as it may be");
    // Its session lives, and may take other keys.
    assert!(!one.try_lock(&key("b")).await.unwrap().unwrap().is_lost());
    assert_eq!(database.number("select count(*) from leadergroup.session where dead").await, 0);
}

/// The time limit of a term that was released in time affects no other term.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_term_that_was_released_concerns_no_later_one() {
    const MAX: Duration = Duration::from_secs(3);
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database, "one", Some(MAX)).await, client(&database, "two", None).await);
    let first = one.try_lock(&key("a")).await.unwrap().unwrap();
    let ends = first.held_until().unwrap();
    assert_eq!(first.release().await.unwrap(), Released::Done);
    let again = one.try_lock(&key("a")).await.unwrap().unwrap();
    assert!(again.held_until().unwrap() > ends, "its own time");
    assert_eq!(again.release().await.unwrap(), Released::Done);
    let others = two.try_lock(&key("a")).await.unwrap().unwrap();
    // Another term, which ends later than the first two.
    let control = one.try_lock(&key("control")).await.unwrap().unwrap();
    timeout(DEADLINE, control.lost()).await.expect("it ends");
    assert!(monotonic() > ends && !others.is_lost());
    assert_eq!(others.release().await.unwrap(), Released::Done, "it is still there");
}

/// A guard that is taken once more does not make the term longer.
#[tokio::test(flavor = "multi_thread")]
async fn all_guards_of_a_term_end_together() {
    let (database, _store) = migrated().await;
    let (retry_interval, max_hold) = (Duration::from_millis(200), Some(Duration::from_secs(2)));
    let config =
        ClientConfig { ttl: TTL, retry_interval, max_hold, reentrant: true, ..ClientConfig::default() };
    let one = Client::connect(database.store(), config).await.unwrap();
    let first = one.try_lock(&key("a")).await.unwrap().unwrap();
    let second = one.try_lock(&key("a")).await.unwrap().unwrap();
    assert_eq!((first.token(), first.held_until()), (second.token(), second.held_until()));
    timeout(DEADLINE, second.lost()).await.expect("it ends");
    assert!(first.is_lost());
    // It does not matter whether the guards, the background or this call notices it first.
    let third = one.lock(&key("a"), DEADLINE).await.unwrap();
    assert_eq!(third.token(), Token::new(2));
    drop((first, second));
    assert!(!third.is_lost());
}

/// The guard is dropped as soon as it is lost, before anything else has noticed the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_held_for_as_long_as_it_may_be_is_free_without_its_guard() {
    let (database, store) = migrated().await;
    let one = client(&database, "one", Some(Duration::from_millis(500))).await;
    let two = client(&database, "two", None).await;
    let a = key("a");
    for round in 0..5 {
        let ended = one.run_while_held(&a, DEADLINE, async |_| std::future::pending::<()>().await);
        let ended = timeout(DEADLINE, ended).await.expect("it ends");
        assert!(matches!(ended, Err(ClientError::Lost { .. })), "{ended:?}");
        let guard = two.lock(&key("a"), DEADLINE).await.unwrap();
        assert_eq!(guard.token(), Token::new(round * 2 + 2));
        let _ = guard.release().await.unwrap();
        let ended = store.history(&a, 2).await.unwrap()[1].ended.clone();
        assert_eq!(ended.unwrap().1, "held for as long as it may be");
    }
    // Also while nothing checks the guard.
    let unwatched = one.try_lock(&key("a")).await.unwrap().unwrap();
    let _ = two.lock(&key("a"), DEADLINE).await.unwrap().release().await.unwrap();
    assert!(unwatched.is_lost());
    assert_eq!(database.number("select count(*) from leadergroup.session where dead").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_is_in_jeopardy_before_it_is_lost_and_may_recover() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", None).await;
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    let mut healthy = Box::pin(held.in_jeopardy());
    assert!(futures::poll!(&mut healthy).is_pending(), "its heartbeats get through");
    let mut heartbeats = Gate::close_for(&database, "update on leadergroup.session").await;
    timeout(DEADLINE, healthy).await.expect("no heartbeat gets through");
    assert!(!held.is_lost());
    let until = held.held_until().expect("some of it is left");
    heartbeats.open().await;
    eventually("it recovers", async || held.held_until() > Some(until)).await;
    let mut recovered = Box::pin(held.in_jeopardy());
    assert!(futures::poll!(&mut recovered).is_pending(), "there is time again");
    drop(recovered);

    heartbeats.close_again().await;
    timeout(DEADLINE, held.in_jeopardy()).await.expect("no heartbeat gets through");
    let in_jeopardy = monotonic();
    assert!(held.held_until().is_some_and(|until| until > in_jeopardy), "there is time left");
    timeout(DEADLINE, held.lost()).await.expect("none gets through");
    timeout(DEADLINE, held.in_jeopardy()).await.expect("it is lost, too");
    heartbeats.open().await;
    // A lost guard stays lost, although heartbeats succeed again.
    let other = one.lock(&key("b"), DEADLINE).await.unwrap();
    assert!(held.is_lost() && !other.is_lost());
}

/// Programs whose only thread does something else for longer than the ttl.
mod blocked {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);
    const INTERVAL: Duration = Duration::from_millis(200);

    async fn client(store: Store, heartbeat_thread: bool) -> Client {
        let config =
            ClientConfig { ttl: TTL, retry_interval: INTERVAL, heartbeat_thread, ..ClientConfig::default() };
        Client::connect(store, config).await.unwrap()
    }

    /// Runs the work in its own thread and runtime, and blocks the caller's thread meanwhile.
    fn meanwhile<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                tell.send(runtime.block_on(work())).unwrap();
            });
            told.recv_timeout(DEADLINE * 2).unwrap()
        })
    }

    /// Waits until this many heartbeats of the holder were counted from now on.
    async fn heartbeats(database: &Database, count: i64) {
        let beat =
            "select s.beat from leadergroup.session as s join leadergroup.lock as l on l.session = s.id
                    where l.key = 'a'";
        let before = database.number(beat).await;
        eventually("it beats", async || database.number(beat).await >= before + count).await;
    }

    #[tokio::test]
    async fn heartbeats_in_a_thread_of_their_own_keep_the_key() {
        let (database, store) = migrated().await;
        let one = client(store, true).await;
        let held = one.try_lock(&key("a")).await.unwrap().unwrap();
        let until = held.held_until();
        let refused = meanwhile(async || {
            // Three times the ttl, counted in heartbeats.
            heartbeats(&database, 30).await;
            let other = client(database.store(), false).await;
            other.try_lock(&key("a")).await.unwrap().is_none()
        });
        assert!(refused && !held.is_lost());
        assert!(held.held_until() > until);
        assert_eq!(held.release().await.unwrap(), Released::Done);
        // Its thread ends with it, and so do all connections.
        drop(one);
        eventually("it is gone", async || connections(&database).await == 0).await;
    }

    #[tokio::test]
    async fn without_a_thread_the_key_is_lost() {
        let (database, store) = migrated().await;
        let one = client(store, false).await;
        let held = one.try_lock(&key("a")).await.unwrap().unwrap();
        let token = meanwhile(async || {
            let other = client(database.store(), false).await;
            other.lock(&key("a"), DEADLINE).await.unwrap().token()
        });
        assert_eq!(token, Token::new(2));
        assert!(held.is_lost());
    }

    /// The heartbeat in its own thread keeps the session alive, so only it can end the term.
    #[tokio::test]
    async fn a_key_is_free_when_its_time_is_over_though_the_thread_is_blocked() {
        let (database, store) = migrated().await;
        let config = ClientConfig {
            ttl: TTL,
            retry_interval: INTERVAL,
            heartbeat_thread: true,
            max_hold: Some(INTERVAL),
            ..ClientConfig::default()
        };
        let one = Client::connect(store, config).await.unwrap();
        let _held = one.try_lock(&key("a")).await.unwrap().unwrap();
        let token = meanwhile(async || {
            let other = client(database.store(), false).await;
            other.lock(&key("a"), TTL * 5).await.map(|guard| guard.token()).map_err(|error| error.to_string())
        });
        assert_eq!(token, Ok(Token::new(2)));
    }

    /// A loss that the heartbeat notices reaches the guards in the other thread.
    #[tokio::test]
    async fn heartbeats_in_a_thread_of_their_own_tell_of_a_loss() {
        let (database, store) = migrated().await;
        let config = ClientConfig {
            ttl: DEADLINE * 10,
            retry_interval: INTERVAL,
            heartbeat_thread: true,
            ..ClientConfig::default()
        };
        let one = Client::connect(store, config).await.unwrap();
        let held = one.try_lock(&key("a")).await.unwrap().unwrap();
        let other = one.try_lock(&key("b")).await.unwrap().unwrap();
        database.store().force_release(&key("a"), held.token(), "by hand").await.unwrap();
        timeout(DEADLINE, held.lost()).await.expect("the heartbeat shows it");
        assert!(!other.is_lost());
        // A dead session is replaced by a new one.
        database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
        timeout(DEADLINE, other.lost()).await.expect("the heartbeat shows it");
        let again = one.lock(&key("b"), DEADLINE).await.unwrap();
        assert_eq!(again.token(), Token::new(2));
        one.shutdown().await.unwrap();
        assert!(again.is_lost());
        assert_eq!(database.number("select count(*) from leadergroup.session where not dead").await, 0);
    }
}
