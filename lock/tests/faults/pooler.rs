//! Through PgBouncer in transaction mode: everything works by polling, and nothing is left behind on the server's
//! connections, which others use next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, LockError, Released, Store, Token};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, Executor, Row};

use crate::cast::{grant, grant_one, granted, key, session, take};
use crate::pgbouncer::PgBouncer;
use crate::postgres::{DEADLINE, Database, Server, database, eventually, shared};
use crate::rds_proxy;

/// The PgBouncer setting for programs that send settings when they connect: PgBouncer then drops those settings.
const DROPS: &str = "ignore_startup_parameters = extra_float_digits,options";

/// How often clients poll and beat.
const OFTEN: Duration = Duration::from_millis(200);

fn through(pooler: &PgBouncer, database: &Database) -> DatabaseConfig {
    DatabaseConfig { url: pooler.url(database).into(), ..database.config() }
}

async fn client(config: &DatabaseConfig, name: &str, retry_interval: Duration) -> Client {
    let config_of =
        ClientConfig { name: name.into(), ttl: DEADLINE, retry_interval, ..ClientConfig::default() };
    Client::connect(Store::new(config).unwrap(), config_of).await.unwrap()
}

/// The values that a stranger finds on the server's connections.
async fn found_by_strangers(pooler: &PgBouncer, database: &Database) -> Vec<String> {
    let options: PgConnectOptions = pooler.url(database).parse().unwrap();
    let mut found = Vec::new();
    // Each of these is a transaction; there are two connections.
    for _ in 0..6 {
        let mut stranger =
            PgConnection::connect_with(&options.clone().extra_float_digits(None)).await.unwrap();
        let row = stranger
            .fetch_one(sqlx::raw_sql(
                "select concat_ws(' ', current_setting('search_path'), current_setting('statement_timeout'), \
                 current_setting('lock_timeout'), current_setting('synchronous_commit'), \
                 current_setting('leadergroup.direct', true), current_setting('leadergroup.history', true), \
                 current_setting('idle_in_transaction_session_timeout'), \
                 (select count(*) from pg_prepared_statements), (select count(*) from pg_listening_channels()))",
            ))
            .await
            .unwrap();
        found.push(row.get(0));
    }
    found.dedup();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_refuses_settings_in_other_words_is_a_pooler_too() {
    let pooler = PgBouncer::start(shared(), DROPS);
    let database = database().await;
    let port = rds_proxy::start(pooler.port()).await;
    let url = pooler.url(&database).replace(&format!(":{}/", pooler.port()), &format!(":{port}/"));
    let store = Store::new(&DatabaseConfig { url: url.as_str().into(), ..database.config() }).unwrap();
    store.migrate().await.unwrap();
    assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
    let own = session(&store).await;
    take(&store, own, &key("group")).await;
    assert_eq!(grant_one(&store, own, grant(&key("group"), 0, "p0")).await, granted(1));
    assert_eq!(found_by_strangers(&pooler, &database).await.len(), 1, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_by_polling_and_nothing_is_left_behind() {
    for settings in ["", DROPS] {
        let pooler = PgBouncer::start(shared(), settings);
        let database = database().await;
        let config = through(&pooler, &database);
        let before = found_by_strangers(&pooler, &database).await;
        assert_eq!(before.len(), 1);

        let store = Store::new(&config).unwrap();
        store.migrate().await.unwrap();
        assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
        let own = session(&store).await;
        take(&store, own, &key("group")).await;
        assert_eq!(grant_one(&store, own, grant(&key("group"), 0, "p0")).await, granted(1));
        assert!(store.beat(own, &[]).await.unwrap().alive);

        // No notification arrives, but the next holder gets the key anyway.
        let (one, two) = (client(&config, "one", OFTEN).await, client(&config, "two", OFTEN).await);
        let held = one.lock(&key("a"), DEADLINE).await.unwrap();
        let next = tokio::spawn(async move { (two.lock(&key("a"), DEADLINE).await.unwrap(), two) });
        let waiters = "select count(*) from leadergroup.waiter";
        eventually("it waits", async || database.number(waiters).await == 1).await;
        assert_eq!(held.release().await.unwrap(), Released::Done);
        let (next, _two) = next.await.unwrap();
        assert_eq!(next.token(), Token::new(2));
        assert_eq!(next.release().await.unwrap(), Released::Done);

        // A listener would receive nothing, so there is none.
        let mut hints = Box::pin(store.listen());
        for _ in 0..3 {
            let closed = session(&store).await;
            tokio::select! {
                biased;
                hint = hints.next() => panic!("{hint:?}"),
                done = store.close(closed) => assert_eq!(done, Ok(())),
            }
        }
        assert_eq!(found_by_strangers(&pooler, &database).await, before, "{settings}");
    }
}

/// Many programs on two connections of the server, with interleaved transactions.
#[tokio::test(flavor = "multi_thread")]
async fn many_programs_share_two_connections_and_never_a_lock() {
    const PROGRAMS: usize = 12;
    const TURNS: u32 = 3;
    let pooler = PgBouncer::start(shared(), "");
    let database = database().await;
    let config = through(&pooler, &database);
    Store::new(&config).unwrap().migrate().await.unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicU32::new(0));
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|number| {
            let (config, inside, last) = (config.clone(), Arc::clone(&inside), Arc::clone(&last));
            tokio::spawn(async move {
                let client = client(&config, &format!("program-{number}"), DEADLINE / 10).await;
                for _ in 0..TURNS {
                    let guard = loop {
                        match client.try_lock(&key("a")).await.unwrap() {
                            Some(guard) => break guard,
                            None => tokio::task::yield_now().await,
                        }
                    };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    let token = u32::try_from(guard.token().get()).unwrap();
                    assert!(last.swap(token, Ordering::SeqCst) < token, "tokens grow");
                    assert!(!guard.is_lost());
                    inside.store(false, Ordering::SeqCst);
                    assert_eq!(guard.release().await.unwrap(), Released::Done);
                }
            })
        })
        .collect();
    for program in programs {
        program.await.unwrap();
    }
    assert_eq!(last.load(Ordering::SeqCst), u32::try_from(PROGRAMS).unwrap() * TURNS);
    let backends =
        "select count(*) from pg_stat_activity where datname = current_database() and usename = 'app'";
    assert!(database.number(backends).await <= 2);
}

/// A pooler in front of each server: the one that leads to the primary is found.
#[tokio::test(flavor = "multi_thread")]
async fn the_pooler_of_the_primary_is_found() {
    let server = Server::start(&[]);
    let (database, _) = server.migrated().await;
    let standby = server.standby();
    standby.launch();
    for settings in ["", DROPS] {
        let (wrong, right) = (PgBouncer::start(&standby, settings), PgBouncer::start(&server, settings));
        let first = format!("127.0.0.1:{}", wrong.port());
        let url = wrong.url(&database).replace(&first, &format!("{first},127.0.0.1:{}", right.port()));
        let store = Store::new(&DatabaseConfig { url: url.into(), ..database.config() }).unwrap();
        let own = session(&store).await;
        assert!(store.beat(own, &[]).await.unwrap().alive);
        assert!(store.check().await.unwrap().writable);
    }
}

/// Nothing limits how long a COMMIT waits for a synchronous standby. A heartbeat must not.
#[tokio::test]
async fn a_heartbeat_does_not_wait_for_a_standby_that_is_away() {
    let server = Server::start(&[]);
    let database = server.database().await;
    let bouncer = PgBouncer::start(&server, "");
    let quick = Duration::from_millis(500);
    let straight = Store::new(&DatabaseConfig { statement_timeout: quick, ..database.config() }).unwrap();
    let pooled =
        Store::new(&DatabaseConfig { statement_timeout: quick, ..through(&bouncer, &database) }).unwrap();
    straight.migrate().await.unwrap();
    let own = session(&straight).await;
    take(&straight, own, &key("a")).await;
    server.psql("alter system set synchronous_standby_names = 'nobody'");
    server.psql("select pg_reload_conf()");
    // The first change that has to wait for the standby shows that the setting is in effect.
    let hangs = async |store: &Store| {
        let grant = grant(&key("a"), 0, "p0");
        matches!(store.grant(own, grant).await, Err(LockError::Timeout { .. }))
    };
    eventually("the new setting is in effect", async || hangs(&straight).await).await;
    eventually("through the pooler, too", async || hangs(&pooled).await).await;
    for store in [&straight, &pooled] {
        // Repeated, because even connecting may take too long on a busy machine.
        eventually("a heartbeat gets through", async || {
            store.beat(own, &[]).await.is_ok_and(|beat| beat.alive)
        })
        .await;
    }
}

/// A pooler that goes away and comes back is used again, and no lock is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_loses_its_connections_costs_no_lock() {
    let server = Server::start(&[]);
    let database = server.database().await;
    let pooler = PgBouncer::start(&server, "server_login_retry = 0");
    let config = through(&pooler, &database);
    Store::new(&config).unwrap().migrate().await.unwrap();
    let one = client(&config, "one", OFTEN).await;
    let held = one.lock(&key("a"), DEADLINE).await.unwrap();
    let beats = "select coalesce(max(beat), 0) from leadergroup.session";
    for _ in 0..3 {
        let before = database.number(beats).await;
        database
            .sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app' and datname = current_database()")
            .await;
        eventually("heartbeats go on", async || database.number(beats).await > before).await;
    }
    assert!(!held.is_lost());
    assert_eq!(held.release().await.unwrap(), Released::Done);
}

/// Nothing could be locked through such a pooler: each operation is refused, with the remedy, whether the pooler drops
/// settings or refuses them.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_works_by_the_statement_is_refused() {
    for settings in ["", DROPS] {
        let pooler = PgBouncer::start(shared(), &format!("pool_mode = statement\n{settings}"));
        let database = database().await;
        let straight = database.store();
        let store = Store::new(&through(&pooler, &database)).unwrap();
        let refused_to_migrate = store.migrate().await.unwrap_err();
        assert_eq!(
            database.number("select count(*) from pg_namespace where nspname = 'leadergroup'").await,
            0
        );
        straight.migrate().await.unwrap();
        let own = session(&straight).await;
        take(&straight, own, &key("a")).await;
        let connected = Client::connect(store.clone(), ClientConfig::default()).await.map(drop);
        for refused in [
            refused_to_migrate,
            store.migrate().await.unwrap_err(),
            store.check().await.unwrap_err(),
            store.register("replica", DEADLINE, None, None).await.unwrap_err(),
            store.beat(own, &[]).await.unwrap_err(),
            store.grant(own, grant(&key("a"), 0, "p0")).await.unwrap_err(),
            connected.unwrap_err(),
        ] {
            assert!(matches!(refused, LockError::StatementPooling { .. }), "{settings}: {refused}");
            assert!(refused.to_string().contains("set pool_mode = transaction"), "{refused}");
        }
        assert_eq!(database.number("select max(beat) from leadergroup.session").await, 1);
        assert_eq!(database.number("select count(*) from leadergroup.terms").await, 0, "nothing was changed");
    }
}

#[tokio::test]
async fn a_full_pooler_says_so() {
    let database = database().await;
    let pooler = PgBouncer::start(shared(), "max_client_conn = 1\nauth_type = trust");
    let options: PgConnectOptions = pooler.url(&database).parse().unwrap();
    let occupying = PgConnection::connect_with(&options.extra_float_digits(None)).await.unwrap();
    let store = Store::new(&through(&pooler, &database)).unwrap();
    let refused = store.check().await.unwrap_err();
    assert!(matches!(refused, LockError::NoConnection { .. }), "{refused}");
    assert!(refused.to_string().contains("max_client_conn"), "{refused}");
    drop(occupying);
    eventually("there is room again", async || store.check().await.is_ok()).await;
}
