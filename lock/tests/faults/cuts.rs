//! Every operation, interrupted at every statement that it sends, in every way: repeating it has the effect of one.

use std::time::Duration;

use futures::future::join_all;
use leadergroup_lock::{
    Changed, Client, ClientConfig, ClientError, DatabaseConfig, LockError, Released, Store, Token,
    controller::Granted,
    protocol::{AcquireRequest, Acquired, Wait},
};

use crate::cast::{Gate, grant, key, row, session, take};
#[allow(clippy::enum_glob_use, reason = "all of them, without a second list")]
use crate::operations::Operation::{self, *};
use crate::operations::{ALL, is_under_way, outcome, repeated};
use crate::pgbouncer::PgBouncer;
use crate::postgres::{Database, eventually, migrated, shared};
use crate::proxy::{Backend, Fault, Proxy};

/// Connections of programs under test that are behind the proxy.
async fn connections(database: &Database) -> i64 {
    database
        .number(
            "select count(*) from pg_stat_activity \
             where datname = current_database() and application_name = 'behind the proxy'",
        )
        .await
}

/// How the operations are interrupted.
struct Stage<'a> {
    database: &'a Database,
    /// A store that reaches the database without a fault.
    direct: Store,
    backend: Backend,
    /// The URL of the backend.
    url: String,
    fault: Fault,
    limit: Duration,
    /// Whether the connection was in use before. The store itself repeats a statement that breaks together with such a
    /// connection.
    idle: bool,
}

impl Stage<'_> {
    /// Interrupts all operations at the same time; an operation that changes the tokens of all keys runs by itself.
    async fn break_off(&self, operations: &[Operation]) {
        let others = operations.iter().filter(|operation| **operation != BeatInANewEra);
        join_all(others.map(|&operation| self.break_one_off(operation))).await;
        self.break_one_off(BeatInANewEra).await;
        let twice = "select count(*) from \
                     (select from leadergroup.terms group by key, token having count(*) > 1) as t";
        assert_eq!(self.database.number(twice).await, 0, "a token was used twice");
    }

    /// Interrupts it at its first, second, third ... statement, until there are no more.
    async fn break_one_off(&self, operation: Operation) {
        let fault = self.fault;
        let proxy = Proxy::before(self.backend.clone()).await.unwrap();
        let config = DatabaseConfig {
            url: format!("{}?application_name=behind%20the%20proxy", proxy.url(&self.url)).into(),
            statement_timeout: self.limit,
            ..self.database.config()
        };
        let mut admin = self.database.admin().await;
        let expected = operation.answer();
        let (mut broken, mut slow) = (0, 0);
        loop {
            let context = format!("{operation:?}, {fault:?} at statement {broken}, idle: {}", self.idle);
            let name = format!("{operation:?}-{broken}-{slow}-{}", self.idle);
            let scene = operation.prepare(self.database, &self.direct, &name).await;
            let store = Store::new(&config).unwrap();
            if self.idle {
                store.check().await.unwrap();
            }
            proxy.arm(fault, broken);
            let answer = operation.act(&store, &scene).await;
            let fired = proxy.disarm();
            match &answer {
                // The store may have repeated it.
                Ok(answer) if self.idle && is_under_way(answer) => assert!(fired, "{context}: {answer}"),
                Ok(answer) => assert_eq!(answer, expected, "{context}"),
                // If the time limit is short, it may expire without a fault.
                Err(error) => {
                    assert!((fired || fault == Fault::Hang) && error.is_temporary(), "{context}: {error}");
                }
            }
            if fired || answer.is_err() {
                let answer = repeated(operation, &store, &scene).await;
                assert_eq!(answer, expected, "{context}, again");
            }
            let left = outcome(&mut admin, &scene.key).await;
            assert_eq!(left, operation.outcome(), "{context}: {answer:?}");
            match answer {
                _ if fired => broken += 1,
                Ok(_) => break,
                // The time was over before it came this far: the same again, with another key.
                Err(_) => slow += 1,
            }
            assert!(slow < 20, "{context}: the time is always too short");
        }
        assert!(broken > 0, "{operation:?} was never interrupted");
    }
}

async fn directly(fault: Fault, limit: Duration) {
    // An answer that never comes has the same effect on both.
    for idle in [false, true].into_iter().take(if fault == Fault::Hang { 1 } else { 2 }) {
        let (database, direct) = migrated().await;
        let (url, backend) = (database.url(), Backend::of(&shared().0));
        Stage { database: &database, direct, backend, url, fault, limit, idle }.break_off(ALL).await;
        eventually("no connection is left behind", async || connections(&database).await == 0).await;
    }
}

const GENEROUS: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_request_is_lost_can_be_repeated() {
    directly(Fault::RequestLost, GENEROUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_is_cut_off_can_be_repeated() {
    directly(Fault::Cut, GENEROUS).await;
}

/// The COMMIT is carried out, and its answer is lost: for an autocommitted statement, both have the same answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_answer_is_lost_can_be_repeated() {
    directly(Fault::AnswerLost, GENEROUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_answer_never_comes_ends_in_time_and_can_be_repeated() {
    directly(Fault::Hang, Duration::from_secs(2)).await;
}

/// The store then repeats it, and is answered that another request is about to take the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_is_cut_off_while_it_is_under_way_leaves_nothing_behind() {
    let (database, direct) = migrated().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    let config = DatabaseConfig { url: proxy.url(&database.url()).into(), ..database.config() };
    let ttl = Duration::from_hours(1);
    let config_of_client = ClientConfig { ttl, retry_interval: ttl / 4, ..ClientConfig::default() };
    let client = Client::connect(Store::new(&config).unwrap(), config_of_client).await.unwrap();
    // From here on there is a connection that was in use, and a row.
    let _ = client.try_lock(&key("a")).await.unwrap().unwrap().release().await.unwrap();
    let mut gate = Gate::close(&database).await;
    proxy.arm(Fault::Cut, 0);
    let answer = client.try_lock(&key("a")).await;
    assert!(
        proxy.disarm() && matches!(answer, Err(ClientError::Lock(LockError::Interrupted { .. }))),
        "{answer:?}"
    );
    gate.open().await;
    eventually("the key is free again", async || {
        let row = row(&direct, &key("a")).await;
        (row.token, row.holder) == (Token::new(2), None)
    })
    .await;
}

/// A request without an answer may or may not take effect. It must not undo a later grant, and if it takes effect after
/// that, it is no longer wanted.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_was_broken_off_and_goes_on_keeps_what_it_gets() {
    let (database, direct) = migrated().await;
    let (ttl, retry_interval) = (Duration::from_hours(1), Duration::from_millis(100));
    let config = DatabaseConfig { statement_timeout: Duration::from_secs(5), ..database.config() };
    let config_of_client = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    let client = Client::connect(Store::new(&config).unwrap(), config_of_client).await.unwrap();
    let holder = session(&direct).await;
    let wish = AcquireRequest::new(key("a"), crate::cast::holder("other"), "test");
    let token = Token::new(1);
    let answer = direct.acquire(holder, &wish, Wait::No).await.unwrap();
    assert_eq!(answer.outcome, Acquired::Granted { token });

    let mut gate = Gate::close_for(&database, "insert on leadergroup.waiter").await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.lock(&key("a"), ttl).await.unwrap() }
    });
    // The store repeats it on a new connection if the connection was in use before.
    let mut cut_off = 0;
    for _ in 0..2 {
        let waiting = format!(
            "select coalesce(min(pid), 0)::bigint from pg_stat_activity
             where datname = current_database() and wait_event_type = 'Lock' and pid <> {cut_off}"
        );
        eventually("it waits", async || database.number(&waiting).await != 0).await;
        cut_off = database.number(&waiting).await;
        database.number(&format!("select count(*) from pg_terminate_backend({cut_off})")).await;
    }
    gate.open().await;
    let waiters = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || database.number(waiters).await == 1).await;
    assert_eq!(direct.release(holder, &key("a"), token, "done").await.unwrap(), Changed::Done);
    let guard = waiting.await.unwrap();
    assert_eq!(guard.token(), Token::new(2));

    // The first request is void by then, and has been given up in case it had taken effect.
    let beats =
        async || database.number("select max(beat) from leadergroup.session where name = 'unnamed'").await;
    let before = beats().await;
    eventually("a long time passes", async || beats().await > before + 80).await;
    let seen = row(&direct, &key("a")).await;
    assert_eq!((seen.token, seen.holder.is_some()), (Token::new(2), true), "given up under its holder");
    assert!(!guard.is_lost());
    assert_eq!(guard.release().await.unwrap(), Released::Done);
    assert_eq!(row(&direct, &key("a")).await.holder, None);
    // As if a copy of the request had been delayed until now.
    let copy = AcquireRequest { grant: seen.grant.unwrap(), ..wish };
    let answer = direct.acquire(seen.session.unwrap(), &copy, Wait::No).await.unwrap();
    assert_eq!(answer.outcome, Acquired::Granted { token: Token::new(3) });
    eventually("it is given up", async || row(&direct, &key("a")).await.holder.is_none()).await;
}

/// A statement that broke together with a connection that had been idle is repeated once. If that fails, it is unknown
/// whether the statement took effect; the error must not suggest that it was not sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_was_sent_is_in_doubt_though_the_server_cannot_be_reached_any_more() {
    let (database, _direct) = migrated().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    let config = DatabaseConfig { url: proxy.url(&database.url()).into(), ..database.config() };
    let store = Store::new(&config).unwrap();
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    proxy.refuse(true);
    proxy.arm(Fault::AnswerLost, 0);
    let wanted = grant(&key("a"), 0, "p0");
    let answer = store.grant(own, wanted.clone()).await;
    assert!(proxy.disarm() && matches!(answer, Err(LockError::Interrupted { .. })), "{answer:?}");
    let answer = store.grant(own, wanted.clone()).await;
    assert!(matches!(answer, Err(LockError::Unreachable { .. })), "{answer:?}");
    proxy.refuse(false);
    let granted = Granted::Granted { token: Token::new(1) };
    assert_eq!(store.grant(own, wanted).await.unwrap(), granted, "it had taken effect");
}

/// Through a pooler, each operation is a transaction of three steps, including BEGIN and COMMIT.
#[tokio::test(flavor = "multi_thread")]
async fn through_a_pooler_an_operation_whose_commit_is_broken_off_can_be_repeated() {
    let pooler = PgBouncer::start(shared(), "auth_type = trust");
    let some = [MarkDead, Close, Grant, Acquire, AcquireAgain, Queue, Release, ReleaseToTheNext, GiveUp];
    for fault in [Fault::RequestLost, Fault::AnswerLost] {
        let (database, direct) = migrated().await;
        let (url, backend) = (pooler.url(&database), Backend::Port(pooler.port()));
        Stage { database: &database, direct, backend, url, fault, limit: GENEROUS, idle: false }
            .break_off(&some)
            .await;
        // These are the pooler's own.
        assert!(connections(&database).await <= 2);
    }
}

/// Either the schema is complete, or nothing was changed; migrating again completes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_is_broken_off_can_be_repeated() {
    let database = crate::postgres::database().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    let config = DatabaseConfig { url: proxy.url(&database.url()).into(), ..database.config() };
    let mut broken = 0;
    loop {
        database.sql("drop schema if exists leadergroup cascade").await;
        let store = Store::new(&config).unwrap();
        proxy.arm(Fault::AnswerLost, broken);
        let answer = store.migrate().await;
        let fired = proxy.disarm();
        if let Err(error) = &answer {
            assert!(fired && error.is_temporary(), "at statement {broken}: {error}");
            let begun = "select count(*) from pg_class where relnamespace = to_regnamespace('leadergroup')";
            let begun = database.number(begun).await > 0;
            let whole = store.check().await.unwrap().verdict().is_ok();
            assert_eq!(begun, whole, "half a schema after statement {broken}");
            store.migrate().await.unwrap();
        }
        session(&store).await;
        if !fired {
            assert!(broken > 10, "it has more steps than {broken}");
            return;
        }
        broken += 1;
    }
}
