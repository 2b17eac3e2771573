//! What the lock costs the server: counted, not timed.

use std::time::Duration;

use leadergroup_lock::{Changed, protocol::Acquired};

use crate::cast::{claim, confirm_all, grant, grant_all, granted, keys, session};
use crate::holders::{self, acquire, release, wish};
use crate::postgres::{Database, Server, eventually, migrated};

/// Counts the statements that the program sends from now on.
async fn count_statements(database: &Database) {
    database.sql("create extension if not exists pg_stat_statements").await;
    // Only this database's; other tests count theirs at the same time.
    database
        .sql("select pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database()")
        .await;
}

/// Asserts how many statements there were. The queries that open a connection do not count, because the number of
/// connections depends on the time that the test takes.
async fn assert_statements(database: &Database, expected: i64, why: &str) {
    let sent: Vec<(i64, String)> = sqlx::query_as(
        "select calls, left(query, 200) from pg_stat_statements s \
         join pg_database d on d.oid = s.dbid join pg_roles r on r.oid = s.userid \
         where d.datname = current_database() and r.rolname = 'app' \
         and s.query not like '%tells_history%' and s.query not like '%leadergroup.read_history()%'",
    )
    .fetch_all(&mut database.admin().await)
    .await
    .unwrap();
    assert_eq!(sent.iter().map(|(calls, _)| calls).sum::<i64>(), expected, "{why}: {sent:#?}");
}

#[tokio::test]
async fn many_keys_are_few_statements() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = keys(1_000);
    let claims: Vec<_> = keys.iter().map(claim).collect();
    store.claim(own, &claims).await.unwrap();
    let grants: Vec<_> = keys.iter().map(|key| grant(key, 0, "p0")).collect();

    count_statements(&database).await;
    assert_eq!(grant_all(&store, own, &grants).await, vec![granted(1); 1_000]);
    assert_statements(&database, 2, "each grant needs an entry in the lock table: 500 in one statement")
        .await;
    assert_eq!(confirm_all(&store, own, &keys, 1).await, vec![Changed::Done; 1_000]);
    assert_statements(&database, 3, "a thousand in one").await;
    assert_eq!(store.read(&keys).await.unwrap().len(), 1_000);
    assert_statements(&database, 4, "reading a thousand is one").await;
    let more: Vec<_> = keys.iter().map(|key| grant(key, 1, "p1")).collect();
    let one_more = grant(&crate::cast::key("one-more"), 0, "p1");
    let answers = grant_all(&store, own, &[more, vec![one_more]].concat()).await;
    assert_eq!(answers.len(), 1_001);
    assert_statements(&database, 7, "500 at most in one").await;
    assert_eq!(confirm_all(&store, own, &crate::cast::keys(1_001), 2).await.len(), 1_001);
    assert_statements(&database, 9, "a thousand at most in one").await;
}

/// The most frequent operations cost one statement each: a free key is acquired, a held one is not, a held one is
/// checked again, and a key without waiters is released.
#[tokio::test]
async fn acquiring_looking_again_and_releasing_are_one_statement_each() {
    let (database, store) = migrated().await;
    let (own, other) = (session(&store).await, session(&store).await);
    let rival = database.store();
    assert_eq!(acquire(&store, own, &wish("p0")).await, holders::granted(1));
    assert_eq!(release(&store, own, 1).await, Changed::Done);
    assert_eq!(acquire(&rival, other, &wish("p1")).await, holders::granted(2));

    count_statements(&database).await;
    assert_eq!(release(&rival, other, 2).await, Changed::Done);
    assert_eq!(acquire(&store, own, &wish("p0")).await, holders::granted(3));
    assert_statements(&database, 2, "releasing, acquiring").await;
    assert_eq!(acquire(&rival, other, &wish("p1")).await, Acquired::Held);
    assert_statements(&database, 3, "looking at a key that is held").await;
    for _ in 0..3 {
        assert_eq!(acquire(&rival, other, &wish("p1")).await, Acquired::Held);
    }
    assert_statements(&database, 6, "looking again").await;
    assert_eq!(release(&store, own, 3).await, Changed::Done);
    assert_eq!(acquire(&rival, other, &wish("p1")).await, holders::granted(4));
    assert_eq!(release(&rival, other, 4).await, Changed::Done);
    assert_eq!(acquire(&rival, other, &wish("p1")).await, holders::granted(5));
    assert_statements(&database, 10, "releasing and acquiring, twice").await;
}

#[tokio::test]
async fn a_heartbeat_is_one_statement_however_many_locks() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let claims: Vec<_> = keys(2_000).iter().map(claim).collect();
    store.claim(own, &claims).await.unwrap();
    store.beat(own, &[]).await.unwrap();
    count_statements(&database).await;
    for _ in 0..50 {
        assert!(store.beat(own, &[]).await.unwrap().alive);
    }
    assert_statements(&database, 50, "heartbeats").await;
}

/// Nor does a heartbeat. Only the end of a session does, because it leaves the index of the living ones. Uses its own
/// server: a transaction of another test, or autovacuum, would keep old versions of rows alive.
#[tokio::test]
async fn no_change_of_a_lock_touches_an_index() {
    let server = Server::start(&[("autovacuum", "off")]);
    let (database, store) = server.migrated().await;
    let own = session(&store).await;
    let keys = keys(50);
    let claims: Vec<_> = keys.iter().map(claim).collect();
    store.claim(own, &claims).await.unwrap();
    for _ in 0..200 {
        assert!(store.beat(own, &[]).await.unwrap().alive);
    }
    for token in 0..20 {
        let grants: Vec<_> = keys.iter().map(|key| grant(key, token, "p0")).collect();
        assert_eq!(grant_all(&store, own, &grants).await, vec![granted(token + 1); 50]);
        assert_eq!(confirm_all(&store, own, &keys, token + 1).await, vec![Changed::Done; 50]);
    }
    store.close(own).await.unwrap();
    let next = session(&store).await;
    store.claim(next, &claims).await.unwrap();
    drop(store);
    let updates = async |table: &str, column: &str| {
        database
            .number(&format!(
                "select {column} from pg_stat_user_tables where schemaname = 'leadergroup' and relname = '{table}'"
            ))
            .await
    };
    for (table, all, others) in [("session", 200 + 1, 1), ("lock", 50 * (20 + 20 + 1), 0), ("term", 0, 0)] {
        eventually("the server has counted the updates", async || updates(table, "n_tup_upd").await == all)
            .await;
        let in_place = updates(table, "n_tup_hot_upd").await;
        assert_eq!(in_place, all - others, "{table}: not all of the updates were heap-only");
    }
    // Space is reused: the tables have not grown beyond what they need.
    assert!(database.number("select pg_relation_size('leadergroup.session')").await <= 2 * 8_192);
    assert!(database.number("select pg_relation_size('leadergroup.lock')").await <= 4 * 8_192);
    let indexes = "select count(*) from pg_index where indrelid = 'leadergroup.lock'::regclass";
    assert_eq!(database.number(indexes).await, 1);
}

/// A notification makes the commits of the whole server queue up while it commits, so none is sent together with a
/// change. Notifications are separate statements.
#[tokio::test]
async fn no_function_that_changes_anything_notifies() {
    let (database, _store) = migrated().await;
    let functions = |what: &str| {
        format!(
            "select count(*) from pg_proc where pronamespace = 'leadergroup'::regnamespace and proname not like 'wake%'
             and coalesce(prosrc, '') || coalesce(pg_get_function_sqlbody(oid), '') ~* '{what}'"
        )
    };
    assert_eq!(database.number(&functions("notify|leadergroup.wake")).await, 0);
    let wake = "select count(*) from pg_proc where pronamespace = 'leadergroup'::regnamespace and proname like 'wake%'";
    assert_eq!(database.number(wake).await, 2, "one for a session, one for all: nothing else is left out");
    assert!(database.number(&functions("leadergroup.lock")).await > 3, "the query reads their bodies");
}

/// The limits for a hung client or network are in effect on the server.
#[tokio::test]
async fn the_server_knows_the_limits() {
    let (database, store) = migrated().await;
    store.check().await.unwrap();
    let config =
        leadergroup_lock::DatabaseConfig { statement_timeout: Duration::from_secs(12), ..database.config() };
    let store = leadergroup_lock::Store::new(&config).unwrap();
    // The function runs inside the program's own connection and records the settings there.
    database
        .sql(
            "create table leadergroup.found (name text, setting text);
             grant insert on leadergroup.found to app;
             create function leadergroup.look() returns trigger language plpgsql as $$ begin
                 insert into leadergroup.found select name, pg_catalog.current_setting(name) from pg_catalog.unnest(array[
                     'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'tcp_user_timeout',
                     'client_connection_check_interval', 'application_name', 'synchronous_commit',
                     'transaction_isolation']) as n (name);
                 return new; end $$;
             create trigger look before insert or update on leadergroup.session
                 for each row execute function leadergroup.look()",
        )
        .await;
    let own = session(&store).await;
    let found = async |name: &str| -> Vec<String> {
        sqlx::query_scalar("select distinct setting from leadergroup.found where name = $1")
            .bind(name)
            .fetch_all(&mut database.admin().await)
            .await
            .unwrap()
    };
    assert_eq!(found("statement_timeout").await, ["12s"]);
    assert_eq!(found("lock_timeout").await, ["6s"]);
    assert_eq!(found("idle_in_transaction_session_timeout").await, ["24s"]);
    assert_eq!(found("tcp_user_timeout").await, ["24000"]);
    assert_eq!(found("client_connection_check_interval").await, ["3s"]);
    assert_eq!(found("application_name").await, ["leadergroup"]);
    assert_eq!(found("transaction_isolation").await, ["read committed"]);
    assert_eq!(found("synchronous_commit").await, ["on"], "a registration is durable");
    database.sql("truncate leadergroup.found").await;
    store.beat(own, &[]).await.unwrap();
    assert_eq!(found("synchronous_commit").await, ["local"]);
}
