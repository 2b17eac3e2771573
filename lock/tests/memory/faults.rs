//! What a test can do to the database in memory, and what a program notices of it: the same errors as with a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use leadergroup_lock::memory::{Call, End, Fate, MemoryClient, MemoryDatabase};
use leadergroup_lock::{
    DatabaseConfig, GrantId, Holder, Key, LockError, Refusal, SessionId, Store, Token,
    controller::{Claim, Claimed, Grant, Granted},
};
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(5);

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn claim(name: &str) -> [Claim; 1] {
    [Claim { key: key(name), group: "group".into(), may_create: true, supersedes: None }]
}

fn grant(name: &str, expected: i64) -> Grant {
    Grant {
        key: key(name),
        group: "group".into(),
        expected: Token::new(expected),
        floor: Token::ZERO,
        holder: Holder { uid: "1".into(), namespace: "default".into(), name: "pod".into() },
        grant: GrantId::new(),
        reason: "test".into(),
    }
}

/// A program with a session and a claim to the key `a`.
async fn program(database: &MemoryDatabase) -> (MemoryClient, Store, SessionId) {
    let client = MemoryClient::new(database, "one");
    let store = client.store().unwrap();
    let own = store.register("one", TTL, None, None).await.unwrap().0;
    assert!(matches!(store.claim(own, &claim("a")).await.unwrap()[0], Claimed::Ours(_)));
    (client, store, own)
}

/// All calls with this name have this fate.
fn befalls(database: &MemoryDatabase, statement: &'static str, fate: Fate) {
    database
        .set_network(move |call: &Call<'_>| if call.statement == statement { fate } else { Fate::default() });
}

/// The next call with this name has this fate.
fn befalls_once(database: &MemoryDatabase, statement: &'static str, fate: Fate) {
    let once = AtomicBool::new(true);
    database.set_network(move |call: &Call<'_>| {
        let now = call.statement == statement && once.swap(false, Ordering::Relaxed);
        if now { fate } else { Fate::default() }
    });
}

#[tokio::test(start_paused = true)]
async fn time_limits_are_those_of_the_program_and_of_the_server() {
    let database = MemoryDatabase::new();
    let (_, store, own) = program(&database).await;
    let timed = async |fate| {
        befalls(&database, "grant", fate);
        let (start, answer) = (Instant::now(), store.grant(own, grant("a", 0)).await);
        (answer.unwrap_err(), start.elapsed())
    };
    let client_s = LIMIT + Duration::from_millis(100);
    let timeout = |after| LockError::Timeout { statement: "grant", after };
    assert_eq!(timed(Fate::HANGS).await, (timeout(client_s), client_s));
    let slow = Fate { work: Duration::from_mins(1), ..Fate::default() };
    assert_eq!(timed(slow).await, (timeout(LIMIT), LIMIT));
    let far = Fate::answered(Duration::from_secs(1), Duration::from_secs(1));
    befalls(&database, "grant", far);
    let start = Instant::now();
    assert!(matches!(store.grant(own, grant("a", 0)).await.unwrap(), Granted::Granted { .. }));
    assert_eq!(start.elapsed(), LIMIT, "just in time");
    // Those of connections.
    let unreachable = |error: &LockError| matches!(error, LockError::Unreachable { .. });
    befalls(&database, "connect", Fate::HANGS);
    let start = Instant::now();
    let error = Store::in_memory(&database).check().await.unwrap_err();
    assert!(unreachable(&error) && start.elapsed() == LIMIT, "{error}");
    befalls(&database, "connect", Fate::UNREACHABLE);
    assert!(unreachable(&Store::in_memory(&database).check().await.unwrap_err()));
    let config =
        DatabaseConfig { statement_timeout: Duration::from_millis(300), ..DatabaseConfig::default() };
    befalls(&database, "check", slow);
    let hasty = MemoryClient::new(&database, "hasty").with_config(&config).store().unwrap();
    let after = Duration::from_millis(300);
    assert_eq!(hasty.check().await.unwrap_err(), LockError::Timeout { statement: "check", after });
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_open_what_happened_and_a_repetition_tells() {
    let database = MemoryDatabase::new();
    let (client, _, own) = program(&database).await;
    // On a connection that was just made, the program has to repeat it.
    let store = client.store().unwrap();
    befalls_once(&database, "grant", Fate::ANSWER_LOST);
    let first = grant("a", 0);
    let error = store.grant(own, first.clone()).await.unwrap_err();
    assert!(matches!(error, LockError::Interrupted { .. }), "{error}");
    let token = Granted::Granted { token: Token::new(1) };
    assert_eq!(store.grant(own, first).await.unwrap(), token);
    // On one that was idle, the pool repeats it.
    befalls_once(&database, "grant", Fate::ANSWER_LOST);
    let token = Granted::Granted { token: Token::new(2) };
    assert_eq!(store.grant(own, grant("a", 1)).await.unwrap(), token);
    befalls_once(&database, "grant", Fate::UNREACHABLE);
    let token = Granted::Granted { token: Token::new(3) };
    assert_eq!(store.grant(own, grant("a", 2)).await.unwrap(), token);
    assert_eq!(store.history(&key("a"), 10).await.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_statement_that_was_given_up_takes_effect_only_if_its_fate_says_so() {
    let database = MemoryDatabase::new();
    let (client, store, own) = program(&database).await;
    for (outlives, token) in [(false, 0), (true, 1)] {
        let late = Fate { request: 5 * LIMIT, outlives, ..Fate::default() };
        befalls_once(&database, "grant", late);
        let error = store.grant(own, grant("a", 0)).await.unwrap_err();
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
        tokio::time::sleep(10 * LIMIT).await;
        assert_eq!(store.read(&[key("a")]).await.unwrap()[0].token.get(), token);
    }
    // The same if the connection is cut while the server works on it.
    let slow = Fate { work: LIMIT / 2, outlives: true, ..Fate::default() };
    befalls_once(&database, "grant", slow);
    let store = client.store().unwrap();
    let asking = tokio::spawn(async move { store.grant(own, grant("a", 1)).await });
    tokio::time::sleep(LIMIT / 4).await;
    client.cut();
    assert!(matches!(asking.await.unwrap().unwrap_err(), LockError::Interrupted { .. }));
    tokio::time::sleep(LIMIT).await;
    assert_eq!(database.commits().last().unwrap(), "grant");
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_server_are_reported_as_such() {
    let database = MemoryDatabase::new();
    let (_, store, own) = program(&database).await;
    for (code, expected) in [
        ("25006", LockError::ReadOnly),
        ("57014", LockError::Timeout { statement: "grant", after: LIMIT }),
        ("42P01", LockError::SchemaOld { found: 0, needed: store.check().await.unwrap().program_version }),
    ] {
        befalls(&database, "grant", Fate::ended(End::Refused { code }));
        assert_eq!(store.grant(own, grant("a", 0)).await.unwrap_err(), expected);
    }
    befalls(&database, "", Fate::default());
    database.set_read_only(true);
    assert_eq!(store.beat(own, &[]).await.unwrap_err(), LockError::ReadOnly);
    assert_eq!(store.check().await.unwrap().verdict(), Err(LockError::ReadOnly));
    database.set_read_only(false);
    befalls(&database, "grant", Fate { busy: true, ..Fate::default() });
    let busy = Granted::Refused(Refusal::Busy);
    assert_eq!(store.grant(own, grant("a", 0)).await.unwrap(), busy);
    assert_eq!(store.read(&[key("a")]).await.unwrap()[0].token, Token::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_cannot_be_reached_and_keeps_its_rows() {
    let database = MemoryDatabase::new();
    let (_, store, own) = program(&database).await;
    database.stop();
    let error = store.read(&[key("a")]).await.unwrap_err();
    assert!(matches!(error, LockError::Interrupted { .. }), "{error}");
    let error = store.read(&[key("a")]).await.unwrap_err();
    assert!(matches!(error, LockError::Unreachable { .. }), "{error}");
    database.start();
    assert_eq!(store.read(&[key("a")]).await.unwrap()[0].session, Some(own));
    let era = store.beat(own, &[]).await.unwrap().era;
    database.restart();
    assert_eq!(store.beat(own, &[]).await.unwrap().era, era, "a restart loses nothing");
}

#[tokio::test(start_paused = true)]
async fn two_primaries_have_eras_and_tokens_of_their_own() {
    let database = MemoryDatabase::new();
    let (client, store, own) = program(&database).await;
    store.grant(own, grant("a", 0)).await.unwrap();
    let forks = [database.fork(1), database.fork(1)];
    let mut seen = vec![(store.beat(own, &[]).await.unwrap().era, Token::new(1))];
    for fork in &forks {
        client.move_to(fork);
        let still = store.beat(own, &[]).await.unwrap().era;
        assert_eq!(seen.last().unwrap().0, still, "present connections stay");
        client.cut();
        let granted = store.grant(own, grant("a", 0)).await.unwrap();
        let Granted::Granted { token } = granted else { panic!("{granted:?}") };
        assert!(token > Token::new(1), "the lost one is not granted again: {token}");
        seen.push((store.beat(own, &[]).await.unwrap().era, token));
    }
    let (eras, tokens): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    assert!(eras[0] != eras[1] && eras[1] != eras[2] && eras[0] != eras[2], "{eras:?}");
    assert!(tokens[1] != tokens[2], "{tokens:?}");
    client.move_to(&database);
    client.cut();
    assert_eq!(store.read(&[key("a")]).await.unwrap()[0].token, Token::new(1));
}

#[tokio::test(start_paused = true)]
async fn the_last_commits_can_be_lost_and_their_number_is_known() {
    let database = MemoryDatabase::new();
    let (_, store, own) = program(&database).await;
    let before = database.dump();
    store.read(&[key("a")]).await.unwrap();
    assert_eq!(database.commits(), ["register", "claim"], "what only reads is no commit");
    store.grant(own, grant("a", 0)).await.unwrap();
    database.begin_era(1_000);
    assert_eq!(database.commits()[2..], ["grant", "begin era"]);
    assert_eq!(database.fail_over_losing(2), 2);
    for table in ["meta", "sessions", "locks", "terms", "waiters"] {
        assert_eq!(database.dump()[table], before[table]);
    }
    assert_eq!(database.fail_over_losing(100), 2, "there are no others");
    assert!(!store.beat(own, &[]).await.unwrap().alive, "its session is unknown");
}

#[tokio::test(start_paused = true)]
async fn the_database_s_clock_may_be_set_and_nothing_follows_from_it() {
    let database = MemoryDatabase::new();
    let (_, store, own) = program(&database).await;
    let before = store.info(&key("a")).await.unwrap().unwrap().since;
    store.beat(own, &[]).await.unwrap();
    database.set_clock_by(SignedDuration::from_hours(-24));
    assert!(store.beat(own, &[]).await.unwrap().alive);
    store.grant(own, grant("a", 0)).await.unwrap();
    assert!(store.info(&key("a")).await.unwrap().unwrap().since < before);
}

/// What the database contains after some operations.
fn run(seed: u64) -> serde_json::Value {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let database = MemoryDatabase::with_seed(seed);
        let calls = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let made = Arc::clone(&calls);
        database.set_network(move |call: &Call<'_>| {
            made.lock().push(format!("{}: {}", call.client, call.statement));
            Fate::answered(Duration::from_millis(2), Duration::from_millis(3))
        });
        let (_, store, own) = program(&database).await;
        let mut first = grant("a", 0);
        first.grant = uuid::Uuid::from_u128(1).into();
        store.grant(own, first).await.unwrap();
        database.fail_over_losing(1);
        store.beat(own, &[]).await.unwrap();
        let calls = calls.lock().clone();
        serde_json::json!({ "tables": database.dump(), "calls": calls })
    })
}

#[test]
fn a_run_is_repeatable() {
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
