//! Connection options that the program gives: fixed ones, expiring passwords, and providers that do not work.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use leadergroup_lock::{
    ClientConfig, DatabaseConfig, Key, LockError, PgConnectOptions, PgSslMode, Provider, SessionId, Store,
    Token, blocking, controller::Hint,
};

use crate::cast::session;
use crate::connections::connections;
use crate::postgres::{Database, PASSWORD, database, eventually, migrated};

fn options(database: &Database) -> PgConnectOptions {
    database.url().parse().unwrap()
}

/// Each statement is on a new connection, except heartbeats.
fn config(database: &Database, provider: impl Into<Provider>) -> DatabaseConfig {
    let provider = Some(provider.into());
    DatabaseConfig { url: "".into(), provider, max_idle_connections: 0, ..database.config() }
}

/// A provider that returns what is in this place at the time.
fn changing(present: &Arc<Mutex<PgConnectOptions>>) -> Provider {
    let present = Arc::clone(present);
    Provider::new(move || {
        let present = Arc::clone(&present);
        async move { Ok(present.lock().unwrap().clone()) }
    })
}

/// A session that has a connection for heartbeats and one for hints, and no other one.
async fn at_work(store: &Store, database: &Database) -> (SessionId, BoxStream<'static, Hint>) {
    let mut hints = store.listen().boxed();
    assert_eq!(hints.next().await, Some(Hint::Missed));
    let own = session(store).await;
    assert!(store.beat(own, &[]).await.unwrap().alive);
    eventually("there are two connections", async || connections(database).await == 2).await;
    (own, hints)
}

/// The error's text, after a check that nothing reveals the password.
async fn error(store: &Store) -> (LockError, String) {
    let error = store.check().await.unwrap_err();
    let text = error.to_string();
    assert!(!format!("{text} {error:?} {store:?}").contains(PASSWORD), "{text} {error:?} {store:?}");
    (error, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_options_work_for_everything() {
    let database = database().await;
    let config = config(&database, options(&database));
    assert!(!format!("{config:?}").contains(PASSWORD), "{config:?}");
    let store = Store::new(&config).unwrap();
    store.migrate().await.unwrap();
    let (own, _hints) = at_work(&store, &database).await;
    assert!(store.beat(own, &[]).await.unwrap().alive);
    let token = tokio::task::spawn_blocking(move || {
        blocking::migrate(&store).unwrap();
        let config =
            ClientConfig { name: "blocking".into(), heartbeat_thread: true, ..ClientConfig::default() };
        let client = blocking::Client::connect(store, config).unwrap();
        let token = client.try_lock(&Key::new("a").unwrap()).unwrap().unwrap().token();
        client.shutdown().unwrap();
        token
    });
    assert_eq!(token.await.unwrap(), Token::new(1));
}

#[tokio::test]
async fn what_the_options_say_is_left_as_it_is() {
    let database = database().await;
    let named = options(&database).application_name("mine");
    let store = Store::new(&DatabaseConfig { max_idle_connections: 1, ..config(&database, named) }).unwrap();
    store.check().await.unwrap();
    let mine = "select count(*) from pg_stat_activity \
                where datname = current_database() and application_name = 'mine'";
    assert_eq!(database.number(mine).await, 1);
    // The server does not support TLS, and is on this machine, where a URL would not ask for it.
    let strict = options(&database).ssl_mode(PgSslMode::Require);
    let (refused, text) = error(&Store::new(&config(&database, strict)).unwrap()).await;
    assert!(matches!(refused, LockError::Tls { .. }) && text.contains("`provider`"), "{text}");
}

#[tokio::test]
async fn an_expired_password_is_replaced_and_a_new_one_alone_closes_nothing() {
    let database = database().await;
    let role = format!("renewed_{}", database.name);
    let set = async |verb: &str, password: &str| {
        database.sql(&format!("{verb} role {role} login password '{password}'")).await;
    };
    set("create", "first").await;
    database.sql(&format!("alter database {} owner to {role}", database.name)).await;
    let options = options(&database).username(&role);
    let present = Arc::new(Mutex::new(options.clone().password("first")));
    let store = Store::new(&config(&database, changing(&present))).unwrap();
    store.migrate().await.unwrap();
    let (own, mut hints) = at_work(&store, &database).await;
    let beat = async || assert!(store.beat(own, &[]).await.unwrap().alive);
    let now = database.number("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").await;
    let old = format!(
        "select count(*) from pg_stat_activity where datname = current_database() \
         and application_name = 'leadergroup' and extract(epoch from backend_start) * 1000000 < {now}"
    );

    set("alter", "second").await;
    let (refused, _) = error(&store).await;
    assert!(matches!(refused, LockError::Login { .. }), "{refused}");
    *present.lock().unwrap() = options.password("second");
    store.check().await.unwrap();
    beat().await;
    assert_eq!(database.number(&old).await, 2, "no connection was closed");

    database
        .sql(&format!("select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"))
        .await;
    beat().await;
    store.check().await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Missed), "it listens again");
    assert_eq!(database.number(&old).await, 0);
}

#[tokio::test]
async fn a_provider_that_fails_or_hangs_costs_one_time_limit_and_is_asked_again() {
    let (database, _store) = migrated().await;
    // Nothing: it hangs.
    let answer: Arc<Mutex<Option<Result<PgConnectOptions, &str>>>> = Arc::default();
    let shared = Arc::clone(&answer);
    let provider = Provider::new(move || {
        let answer = shared.lock().unwrap().clone();
        async move {
            match answer {
                Some(answer) => Ok(answer?),
                None => std::future::pending().await,
            }
        }
    });
    let limit = Duration::from_secs(2);
    let config = DatabaseConfig { statement_timeout: limit, ..config(&database, provider) };
    let store = Store::new(&config).unwrap();
    for (wrong, expected) in [
        (Some(Err("the vault is sealed")), "`provider`: the vault is sealed; check that"),
        (None, "`provider`: no answer within 2000 ms; check that"),
        (Some(Ok(options(&database).port(1))), "cannot reach PostgreSQL at 127.0.0.1:1/"),
    ] {
        let is_its_own = !matches!(wrong, Some(Ok(_)));
        *answer.lock().unwrap() = wrong;
        let start = Instant::now();
        let (error, text) = error(&store).await;
        assert!(start.elapsed() < limit * 2, "{:?}", start.elapsed());
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(matches!(error, LockError::Provider { .. }), is_its_own, "{error:?}");
        assert!(error.is_temporary() && !error.is_an_answer(), "{error:?}");
    }
    *answer.lock().unwrap() = Some(Ok(options(&database)));
    store.check().await.unwrap();
    // Nothing of a call that is dropped while it hangs is left.
    *answer.lock().unwrap() = None;
    for _ in 0..20 {
        let dropped = tokio::time::timeout(Duration::from_millis(10), store.check());
        assert!(dropped.await.is_err());
    }
    *answer.lock().unwrap() = Some(Ok(options(&database)));
    store.check().await.unwrap();
}

#[tokio::test]
async fn connections_follow_the_provider_to_another_database() {
    let (from, first) = migrated().await;
    let (to, second) = migrated().await;
    drop((first, second));
    for database in [&from, &to] {
        eventually("there are no connections", async || connections(database).await == 0).await;
    }
    let present = Arc::new(Mutex::new(options(&from)));
    let store = Store::new(&config(&from, changing(&present))).unwrap();
    let (own, mut hints) = at_work(&store, &from).await;
    *present.lock().unwrap() = options(&to);
    store.check().await.unwrap();
    assert!(!store.beat(own, &[]).await.unwrap().alive, "the other database does not have it");
    eventually("the old connection for heartbeats is closed", async || connections(&from).await == 1).await;
    // The connection for hints follows with the next hint, or when there was none for a while.
    from.sql("select pg_notify('leadergroup', '')").await;
    assert_eq!(hints.next().await, Some(Hint::Missed));
    eventually("there are no connections", async || connections(&from).await == 0).await;
    let own = session(&store).await;
    assert!(store.beat(own, &[]).await.unwrap().alive);
    assert_eq!(to.listening().await, 1);
}

#[tokio::test]
async fn an_error_says_what_caused_it() {
    #[derive(Debug, thiserror::Error)]
    #[error("no token")]
    struct NoToken(#[source] std::io::Error);
    let database = database().await;
    let provider = Provider::new(|| async {
        let error: Box<dyn Error + Send + Sync> = NoToken(std::io::Error::other("connection refused")).into();
        Err(error)
    });
    let (_, text) = error(&Store::new(&config(&database, provider)).unwrap()).await;
    assert!(text.starts_with("`provider`: no token: connection refused; "), "{text}");
}

#[tokio::test]
async fn a_panic_of_a_provider_is_an_error() {
    let database = database().await;
    let called = Arc::new(Mutex::new(false));
    let provider = {
        let (options, called) = (options(&database), Arc::clone(&called));
        Provider::new(move || {
            let first = !std::mem::replace(&mut *called.lock().unwrap(), true);
            assert!(!first, "the program has a bug");
            std::future::ready(Ok(options.clone()))
        })
    };
    let store = Store::new(&config(&database, provider)).unwrap();
    let (error, text) = error(&store).await;
    assert!(matches!(error, LockError::Provider { .. }) && text.contains("it panicked"), "{text}");
    store.check().await.unwrap();
}
