//! The client: guards, waiting, reentrancy, and how a loss is noticed.

use std::time::{Duration, Instant};

use leadergroup_lock::{
    Client, ClientConfig, ClientError, Guard, LockError, Released, Store, Token, Watcher, monotonic,
    protocol::{AcquireRequest, Acquired, Wait},
};
use sqlx::Executor as _;
use tokio::time::timeout;
use tracing::{Dispatch, Level};

use crate::cast::{Gate, Log, claim_one, holder, key, row, session};
use crate::postgres::{DEADLINE, Database, PASSWORD, Server, eventually, migrated};

/// So long that nothing in a test is caused by a poll.
const NEVER: Duration = Duration::from_mins(10);

fn config(name: &str, ttl: Duration) -> ClientConfig {
    ClientConfig { name: name.into(), ttl, retry_interval: ttl / 5, ..ClientConfig::default() }
}

async fn client(database: &Database, name: &str, ttl: Duration) -> Client {
    Client::connect(database.store(), config(name, ttl)).await.unwrap()
}

async fn taken(client: &Client) -> Guard {
    client.lock(&key("a"), DEADLINE).await.unwrap()
}

async fn waiters(database: &Database) -> i64 {
    database.number("select count(*) from leadergroup.waiter").await
}

async fn free(store: &Store) -> bool {
    row(store, &key("a")).await.holder.is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_share_a_client_exclude_each_other() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", NEVER).await;
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    assert!(one.try_lock(&key("a")).await.unwrap().is_none());
    assert!(one.clone().try_lock(&key("a")).await.unwrap().is_none());
    // In the queue with others, and in their order.
    let mut queue = Vec::new();
    for place in 1..=3 {
        let next = if place == 2 { client(&database, "two", NEVER).await } else { one.clone() };
        queue.push(tokio::spawn(async move { (taken(&next).await, next) }));
        eventually("it waits", async || waiters(&database).await == place).await;
    }
    eventually("both listen", async || database.listening().await >= 2).await;
    assert_eq!(held.release().await.unwrap(), Released::Done);
    for (token, next) in (2..).zip(queue) {
        let (guard, _client) = timeout(DEADLINE, next).await.expect("it is its turn").unwrap();
        assert_eq!(guard.token(), Token::new(token));
        assert_eq!(guard.release().await.unwrap(), Released::Done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reentrant_holder_may_take_a_key_again_and_holds_it_until_the_last_guard_is_gone() {
    let (database, store) = migrated().await;
    let reentrant = ClientConfig { reentrant: true, ..config("one", NEVER) };
    let one = Client::connect(database.store(), reentrant).await.unwrap();
    let other = one.another_holder("other");
    let first = one.try_lock(&key("a")).await.unwrap().unwrap();
    let again = one.clone().try_lock(&key("a")).await.unwrap().unwrap();
    let third = taken(&one).await;
    assert_eq!((first.token(), again.token(), third.token()), (Token::new(1), Token::new(1), Token::new(1)));
    assert!(other.try_lock(&key("a")).await.unwrap().is_none(), "another holder, though in the same process");
    assert_eq!(first.release().await.unwrap(), Released::StillHeld);
    drop(again);
    assert!(!third.is_lost() && other.try_lock(&key("a")).await.unwrap().is_none());
    assert_eq!(third.release().await.unwrap(), Released::Done);
    let next = other.try_lock(&key("a")).await.unwrap().unwrap();
    assert_eq!(next.token(), Token::new(2));
    drop(next);
    eventually("a dropped guard releases", async || free(&store).await).await;
    assert_eq!(one.try_lock(&key("a")).await.unwrap().unwrap().token(), Token::new(3));
    let error = one.try_lock(&key("b")).await.map(|guard| guard.is_some()).unwrap();
    assert!(error, "the error is about another key");
}

/// Polls are ten minutes apart: a waiter that gets the key was woken.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_one_is_woken_at_once() {
    let (database, _store) = migrated().await;
    let mut held = taken(&client(&database, "first", NEVER).await).await;
    let mut clients = Vec::new();
    let mut queue = Vec::new();
    for place in 1..=5 {
        let next = client(&database, &format!("next-{place}"), NEVER).await;
        clients.push(next.clone());
        queue.push(tokio::spawn(async move { taken(&next).await }));
        eventually("it is in the queue", async || waiters(&database).await == place).await;
    }
    // Each of them has to listen before the first notification is sent.
    eventually("all listen", async || database.listening().await >= 5).await;
    for (token, next) in (2..).zip(queue) {
        assert_eq!(held.release().await.unwrap(), Released::Done);
        held = timeout(DEADLINE, next).await.expect("woken").unwrap();
        assert_eq!(held.token(), Token::new(token), "in the order of the queue");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_waiting_leaves_the_queue() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", NEVER).await;
    let two = client(&database, "two", NEVER).await;
    let held = taken(&one).await;
    let late = two.lock(&key("a"), Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
    eventually("its place is gone", async || waiters(&database).await == 0).await;
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { taken(&two).await }
    });
    eventually("it waits", async || waiters(&database).await == 1).await;
    waiting.abort();
    eventually("a cancelled wait leaves nothing behind", async || waiters(&database).await == 0).await;
    assert_eq!(held.release().await.unwrap(), Released::Done);
    assert_eq!(taken(&two).await.token(), Token::new(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_frees_everything_at_once() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", NEVER).await;
    let two = client(&database, "two", NEVER).await;
    let held = taken(&one).await;
    one.shutdown().await.unwrap();
    timeout(DEADLINE, held.lost()).await.expect("its guards are lost");
    assert_eq!(two.try_lock(&key("a")).await.unwrap().unwrap().token(), Token::new(2));
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_shutdown_clones_get_an_error_at_once() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", NEVER).await;
    let held = taken(&one).await;
    let other = one.another_holder("other");
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.lock(&key("a"), NEVER).await }
    });
    eventually("it waits", async || waiters(&database).await == 1).await;
    one.shutdown().await.unwrap();
    for refused in [
        timeout(DEADLINE, waiting).await.expect("it does not wait for nothing").unwrap().unwrap_err(),
        timeout(DEADLINE, other.lock(&key("b"), NEVER)).await.expect("at once").unwrap_err(),
        other.try_lock(&key("b")).await.unwrap_err(),
    ] {
        assert!(matches!(refused, ClientError::Lock(LockError::SessionDead)), "{refused}");
    }
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_tells_other_tasks_of_the_end_and_keeps_nothing() {
    let (database, store) = migrated().await;
    let often = ClientConfig { retry_interval: Duration::from_millis(200), ..config("one", NEVER) };
    let one = Client::connect(database.store(), often).await.unwrap();
    let told = |watcher: Watcher| tokio::spawn(async move { watcher.lost().await });
    // The end by a release, by a drop, and by force.
    for (token, end) in (1..).zip(["release", "drop", "force"]) {
        let held = taken(&one).await;
        let watcher = held.watcher();
        assert_eq!((watcher.key(), watcher.token()), (&key("a"), Token::new(token)));
        assert!(!watcher.is_lost() && watcher.remaining() > Duration::ZERO);
        assert!(watcher.remaining() <= NEVER && held.remaining() <= NEVER);
        let (task, jeopardy) = (told(watcher.clone()), watcher.clone());
        let jeopardy = tokio::spawn(async move { jeopardy.in_jeopardy().await });
        tokio::task::yield_now().await;
        assert!(!task.is_finished() && !jeopardy.is_finished());
        match end {
            "release" => assert_eq!(held.release().await.unwrap(), Released::Done),
            "drop" => drop(held),
            _ => {
                store.force_release(&key("a"), Token::new(token), "by hand").await.unwrap();
                timeout(DEADLINE, held.lost()).await.expect("it is noticed");
                assert_eq!(held.remaining(), Duration::ZERO);
            }
        }
        timeout(DEADLINE, task).await.expect("it is told").unwrap();
        timeout(DEADLINE, jeopardy).await.expect("so is this one").unwrap();
        assert!(watcher.is_lost() && watcher.remaining().is_zero() && watcher.held_until().is_none());
        timeout(DEADLINE, watcher.lost()).await.expect("at once");
    }
}

/// The next holder may have the key before the answer arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_sees_the_end_before_the_release_is_answered() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", NEVER).await;
    let held = taken(&one).await;
    let watcher = held.watcher();
    let told = tokio::spawn({
        let watcher = watcher.clone();
        async move { watcher.lost().await }
    });
    let mut slow = database.admin().await;
    slow.execute("begin; select from leadergroup.lock where key = 'a' for update").await.unwrap();
    let released = tokio::spawn(held.release());
    timeout(DEADLINE, told).await.expect("it does not wait for the answer").unwrap();
    assert!(!released.is_finished() && watcher.is_lost());
    assert_eq!((watcher.remaining(), watcher.held_until()), (Duration::ZERO, None));
    slow.execute("commit").await.unwrap();
    assert_eq!(released.await.unwrap().unwrap(), Released::Done);
}

/// Without its client, the session is no longer kept alive, but the key is held for the rest of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_outlives_its_client_is_held_until_it_is_released() {
    let (database, _store) = migrated().await;
    for heartbeat_thread in [false, true] {
        let config = ClientConfig {
            ttl: NEVER,
            retry_interval: NEVER / 5,
            heartbeat_thread,
            ..ClientConfig::default()
        };
        let one = Client::connect(database.store(), config).await.unwrap();
        let held = taken(&one).await;
        drop(one);
        let two = client(&database, "two", NEVER).await;
        assert!(!held.is_lost() && held.held_until().is_some());
        assert!(two.try_lock(&key("a")).await.unwrap().is_none());
        assert_eq!(held.release().await.unwrap(), Released::Done);
        let next = two.try_lock(&key("a")).await.unwrap().expect("free at once");
        assert_eq!(next.release().await.unwrap(), Released::Done);
    }
}

/// The process was killed, or is paused, and cannot notify others. Here its background tasks end.
#[tokio::test(flavor = "multi_thread")]
async fn when_a_holder_dies_the_next_one_follows_and_the_old_guard_knew_it_before() {
    const TTL: Duration = Duration::from_secs(4);
    let (database, _store) = migrated().await;
    let one = client(&database, "one", TTL).await;
    let two = client(&database, "two", TTL).await;
    let held = taken(&one).await;
    assert!(!held.is_lost());
    drop(one);
    let next = taken(&two).await;
    assert_eq!(next.token(), Token::new(2));
    assert!(held.is_lost(), "two hold the same lock");
    timeout(DEADLINE, held.lost()).await.expect("the guard is lost");
    assert!(!next.is_lost());
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    assert!(!next.is_lost(), "the old one's release changed nothing");
    assert!(two.another_holder("x").try_lock(&key("a")).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_others_marked_dead_is_replaced_and_its_guards_are_lost() {
    let (database, store) = migrated().await;
    let one = client(&database, "one", Duration::from_secs(2)).await;
    let held = taken(&one).await;
    database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
    timeout(DEADLINE, held.lost()).await.expect("noticed");
    let again = taken(&one).await;
    assert_eq!(again.token(), Token::new(2));
    assert!(held.is_lost(), "for ever");
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    assert!(!free(&store).await && !again.is_lost());
}

/// Its heartbeat is answered, but too late. The holder has as much time to stop as if it were not answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_heartbeat_comes_too_late_has_time_to_stop() {
    const TTL: Duration = Duration::from_secs(5);
    let (database, store) = migrated().await;
    let one = client(&database, "one", TTL).await;
    let held = taken(&one).await;
    let next = session(&store).await;
    let mut heartbeats = Gate::close_for(&database, "update of beat on leadergroup.session").await;
    heartbeats.somebody_waits().await;
    // All heartbeats before this one have been answered.
    let until = held.held_until().expect("it is held");
    timeout(DEADLINE, held.lost()).await.expect("no heartbeat gets through");
    assert!(monotonic() >= until);
    heartbeats.open().await;
    eventually("the next one has it", async || {
        let request = AcquireRequest::new(key("a"), holder("next"), "test");
        let answer = store.acquire(next, &request, Wait::No).await.unwrap().outcome;
        matches!(answer, Acquired::Granted { .. })
    })
    .await;
    let time = monotonic().saturating_sub(until);
    assert!(time >= TTL / 5, "the next one has it {time:?} after the end of the lease");
}

/// The loss of the old session is reported even if no new one can begin.
#[tokio::test(flavor = "multi_thread")]
async fn guards_of_a_dead_session_are_lost_before_there_is_another_one() {
    let (database, _store) = migrated().await;
    let (ttl, retry_interval) = (NEVER, Duration::from_millis(200));
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    let one = Client::connect(database.store(), config).await.unwrap();
    let held = taken(&one).await;
    let mut gate = Gate::close_for(&database, "insert on leadergroup.session").await;
    database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
    gate.somebody_waits().await;
    assert!(held.is_lost(), "others may hold the key by now");
    gate.open().await;
    assert_eq!(taken(&one).await.token(), Token::new(2));
}

/// While the database is away, no notification arrives. The guard is lost by its own clock.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_a_lock_is_lost_in_time_and_taken_again_later() {
    const TTL: Duration = Duration::from_secs(4);
    let server = Server::start(&[]);
    let database = server.database().await;
    database.store().migrate().await.unwrap();
    let one = client(&database, "one", TTL).await;
    let held = taken(&one).await;
    server.stop();
    // The last heartbeat was answered before this.
    let away = Instant::now();
    timeout(DEADLINE, held.lost()).await.expect("lost without any notification");
    assert!(away.elapsed() < TTL, "too late: {:?}", away.elapsed());
    let again = tokio::spawn(async move { taken(&one).await });
    server.launch();
    let again = timeout(DEADLINE, again).await.expect("a new session").unwrap();
    assert_eq!(again.token(), Token::new(2));
    assert!(held.is_lost(), "the old guard stays lost");
}

/// On one thread, so that what the heartbeat logs is seen.
#[tokio::test]
async fn why_keys_are_lost_for_lack_of_heartbeats_is_logged_once() {
    let server = Server::start(&[]);
    let (database, _store) = server.migrated().await;
    let log = Log::default();
    let seeing = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(log.clone());
    // With two subscribers, a thread without one does not decide for all which events are of interest.
    let (_other, seeing) =
        (Dispatch::new(tracing_subscriber::registry()), Dispatch::new(seeing.with_ansi(false).finish()));
    let _default = tracing::dispatcher::set_default(&seeing);
    let one = client(&database, "one", Duration::from_secs(2)).await;
    assert!(log.text().contains("together are not below four fifths of `ttl`"), "{}", log.text());
    let held = taken(&one).await;
    server.stop();
    timeout(DEADLINE, held.lost()).await.expect("lost");
    let lost = "for lack of heartbeats, all keys are lost";
    eventually("it fails on and on", async || {
        log.text().split_once(lost).is_some_and(|(_, later)| later.matches("no heartbeat;").count() > 3)
    })
    .await;
    let text = log.text();
    let warnings: Vec<_> = text.lines().filter(|line| line.contains(lost)).collect();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("WARN") && warning.contains("cannot reach PostgreSQL"), "{warning}");
    assert!(!text.contains(PASSWORD), "{text}");
}

#[tokio::test]
async fn nonsense_is_refused_with_the_remedy() {
    let (database, store) = migrated().await;
    for (ttl, retry_interval) in [(5, 0), (5, 2)] {
        let (ttl, retry_interval) = (Duration::from_secs(ttl), Duration::from_secs(retry_interval));
        let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
        let refused = Client::connect(database.store(), config).await.unwrap_err();
        assert!(refused.to_string().contains("at most a third of `ttl`"), "{refused}");
    }
    let ttl = Duration::from_millis(49);
    let config = ClientConfig { ttl, retry_interval: ttl / 5, ..ClientConfig::default() };
    let refused = Client::connect(database.store(), config).await.unwrap_err();
    assert!(refused.to_string().starts_with("`ttl`: is 49ms; write 50ms or more"), "{refused}");
    let operator = session(&store).await;
    claim_one(&store, operator, crate::cast::claim(&key("a"))).await;
    let one = client(&database, "one", NEVER).await;
    for refused in [
        one.try_lock(&key("a")).await.unwrap_err().to_string(),
        one.lock(&key("a"), NEVER).await.unwrap_err().to_string(),
    ] {
        assert!(refused.contains("choose another key"), "{refused}");
    }
}
