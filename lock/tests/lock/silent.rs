//! A holder that was killed cannot report its end. Programs that only try, and that live for less than its ttl, still
//! free its key. A holder that is alive keeps its key, however silent it looks.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, ClientError, DatabaseConfig, Guard, Reason, Store, Token, monotonic,
};

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, eventually, migrated};
use crate::program::{self, Program};

const URL: &str = "LEADERGROUP_TEST_SILENT_URL";
/// Long enough for a heartbeat on a machine that has more to do than it can.
const TTL: Duration = Duration::from_secs(3);
/// Shorter than the ttl, and enough for an answer.
const SHORT: Duration = Duration::from_secs(2);

async fn connect(store: Store, confirm_death: bool) -> Client {
    let config = ClientConfig { ttl: TTL, retry_interval: TTL / 3, confirm_death, ..ClientConfig::default() };
    Client::connect(store, config).await.unwrap()
}

/// A program that tries once, and ends.
async fn try_once(database: &Database, confirm_death: bool) -> Result<Token, Reason> {
    let client = connect(database.store(), confirm_death).await;
    let tried = Result::from(client.try_lock_or_why(&key("a")).await.unwrap());
    let token = tried.map(|guard| guard.token());
    client.shutdown().await.unwrap();
    token
}

/// A program that waits, but not long enough to be certain.
async fn wait_shortly(database: &Database, confirm_death: bool) -> Result<Guard, ClientError> {
    connect(database.store(), confirm_death).await.lock(&key("a"), SHORT).await
}

/// The time since its last heartbeat is negative by that clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_does_not_look_silent_because_the_database_s_clock_was_put_back() {
    let (database, store) = migrated().await;
    let holder = crate::cast::session(&store).await;
    let wish = crate::holders::wish("p0");
    assert_eq!(crate::holders::acquire(&store, holder, &wish).await, crate::holders::granted(1));
    database.sql("update leadergroup.session set seen = now() + interval '1 hour'").await;
    assert_eq!(try_once(&database, false).await, Err(Reason::Others));
}

/// As if its process was killed: the connections are closed, and the session is not.
async fn killed(database: &Database) {
    let client = connect(database.store(), true).await;
    let guard = client.try_lock(&key("a")).await.unwrap().unwrap();
    // Dropping the guard would release the key.
    std::mem::forget(guard);
    drop(client);
}

async fn living(database: &Database) -> i64 {
    database.number("select count(*) from leadergroup.session where not dead").await
}

/// By the database's clock the holder is silent from now on.
async fn until_it_looks_silent(database: &Database) {
    let store = database.store();
    eventually("the holder looks silent", async || {
        store.info(&key("a")).await.unwrap().unwrap().session.unwrap().is_silent()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that the other test kills"]
async fn process() {
    let Ok(url) = std::env::var(URL) else { return };
    let store = Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() }).unwrap();
    let _guard = connect(store, true).await.try_lock(&key("a")).await.unwrap().unwrap();
    program::say("holds it");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_try_once_each_free_the_key_of_one_that_was_killed() {
    let (database, _store) = migrated().await;
    let mut holder = Program::start("silent::process", [(URL, database.url())]);
    assert_eq!(holder.says(), "holds it");
    for _ in 0..3 {
        assert_eq!(try_once(&database, true).await, Err(Reason::Others), "it lives");
    }
    holder.kill();
    let start = monotonic();
    let token = loop {
        match try_once(&database, true).await {
            Ok(token) => break token,
            Err(reason) => assert!(monotonic().saturating_sub(start) < DEADLINE, "still: {reason}"),
        }
    };
    assert_eq!(token, Token::new(2));
    assert_eq!(try_once(&database, true).await, Ok(Token::new(3)), "it was released in order since");
}

/// A single try is enough once the holder is silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_takes_the_key_of_a_holder_that_has_been_silent_for_long() {
    let (database, _store) = migrated().await;
    killed(&database).await;
    until_it_looks_silent(&database).await;
    assert_eq!(try_once(&database, true).await, Ok(Token::new(2)));
    assert_eq!(living(&database).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_wait_takes_the_key_of_a_holder_that_has_been_silent_for_long() {
    let (database, _store) = migrated().await;
    killed(&database).await;
    until_it_looks_silent(&database).await;
    assert_eq!(wait_shortly(&database, true).await.unwrap().token(), Token::new(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_confirming_deaths_a_program_is_told_that_the_holder_is_silent() {
    let (database, store) = migrated().await;
    killed(&database).await;
    until_it_looks_silent(&database).await;
    let is_silent = |reason: &Reason| match reason {
        Reason::Silent { silent, ttl } => *silent >= TTL * 2 && *ttl == TTL,
        _ => false,
    };
    for _ in 0..3 {
        let reason = try_once(&database, false).await.unwrap_err();
        assert!(is_silent(&reason), "{reason:?}");
        let text = reason.to_string();
        assert!(text.contains("silent for") && text.contains("wait longer"), "{text}");
        let error = wait_shortly(&database, false).await.unwrap_err();
        assert!(matches!(&error, ClientError::Deadline { reason, .. } if is_silent(reason)), "{error:?}");
    }
    let holder = store.info(&key("a")).await.unwrap().unwrap();
    assert_eq!((holder.token, holder.session.unwrap().dead), (Token::new(1), false));
    // A try that confirms the death frees the key.
    assert_eq!(try_once(&database, true).await, Ok(Token::new(2)));
}

/// No program runs long enough to end the quarantine by chance.
#[tokio::test(flavor = "multi_thread")]
async fn programs_that_try_once_each_end_a_quarantine() {
    let (database, _store) = migrated().await;
    assert_eq!(try_once(&database, true).await, Ok(Token::new(1)));
    let another_history = "update leadergroup.meta set history = 'another'";
    database.sql(another_history).await;
    assert_eq!(try_once(&database, false).await, Err(Reason::Quarantine), "it does not wait until the end");
    assert!(wait_shortly(&database, true).await.unwrap().token() > Token::new(1));
    database.sql(another_history).await;
    assert!(try_once(&database, true).await.is_ok());
}

/// The database's clock may be wrong, or may have been set: only the holder's heartbeats count.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_only_looks_silent_keeps_its_key() {
    let (database, _store) = migrated().await;
    let store = database.store();
    let holder = connect(store.clone(), true).await;
    let guard = holder.try_lock(&key("a")).await.unwrap().unwrap();
    // It is the only session so far.
    database
        .sql(
            "create function public.look_silent() returns trigger language plpgsql as
             'begin new.seen = now() - interval ''1 hour''; return new; end';
             do $$ begin
                 execute format(
                     'create trigger look_silent before update of beat on leadergroup.session
                      for each row when (old.id = %L) execute function public.look_silent()',
                     (select id from leadergroup.session)
                 );
             end $$",
        )
        .await;
    until_it_looks_silent(&database).await;
    for _ in 0..3 {
        let Err(reason) = try_once(&database, true).await else {
            panic!("its heartbeats were late by up to {:?}", store.stats().longest_heartbeat_lag)
        };
        assert!(matches!(reason, Reason::Silent { .. }), "it was watched for its ttl: {reason:?}");
        wait_shortly(&database, true).await.unwrap_err();
    }
    assert!(!guard.is_lost());
    let dead = "select count(*) from leadergroup.session as s join leadergroup.lock as l on l.session = s.id
                where s.dead";
    assert_eq!(database.number(dead).await, 0);
}
