//! Pruning: what is removed, in statements of bounded size, and what is kept. A key that is used again continues above
//! its old tokens.

use std::time::Duration;

use leadergroup_lock::{
    Changed, Client, ClientConfig, DatabaseConfig, Key, SessionId, Store, Token,
    admin::{Pruned, Retention},
    protocol::{AcquireRequest, Acquired, Wait},
};
use sqlx::{AssertSqlSafe, Executor as _};

use crate::cast::{
    GROUP, Gate, grant, grant_one, granted, holder, key, removed_of, session, take, tombstone, vacate,
};
use crate::postgres::{Database, eventually, migrated};

const HOUR: Duration = Duration::from_hours(1);

/// All idle keys, and nothing else.
const IDLE: Retention = Retention { terms: 50, idle_keys: Duration::ZERO, dead_sessions: HOUR };

fn wish(name: &str) -> AcquireRequest {
    AcquireRequest::new(key(name), holder("me"), "test")
}

async fn acquire(store: &Store, own: SessionId, name: &str) -> Token {
    match store.acquire(own, &wish(name), Wait::No).await.unwrap().outcome {
        Acquired::Granted { token } => token,
        other => panic!("{name}: {other:?}"),
    }
}

/// A term and its end.
async fn use_once(store: &Store, own: SessionId, name: &str) -> Token {
    let token = acquire(store, own, name).await;
    assert_eq!(store.release(own, &key(name), token, "done").await.unwrap(), Changed::Done);
    token
}

async fn keys(store: &Store) -> Vec<String> {
    store.list("", None, 1_000).await.unwrap().into_iter().map(|lock| lock.key.to_string()).collect()
}

async fn terms_of(database: &Database, name: &str) -> i64 {
    database.number(&format!("select count(*) from leadergroup.term where key = '{name}'")).await
}

#[tokio::test]
async fn one_caller_prunes_in_an_interval_also_after_the_servers_clock_was_put_back() {
    let (database, _store) = migrated().await;
    let due = async || database.number("select leadergroup.begin_pruning(3600000)::int::bigint").await == 1;
    assert_eq!((due().await, due().await), (true, false));
    for (last, expected) in [("2 hours ago", true), ("59 minutes ago", false), ("2 hours", true)] {
        let set = format!("update leadergroup.meta set pruned_at = now() + '{last}'");
        database.sql(&set).await;
        assert_eq!(due().await, expected, "{last}");
    }
}

#[tokio::test]
async fn the_tables_cannot_be_truncated() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let token = acquire(&store, own, "a").await;
    for tables in ["lock", "session", "meta", "term, leadergroup.lock"] {
        let tried = sqlx::query(AssertSqlSafe(format!("truncate leadergroup.{tables}")))
            .execute(&mut database.admin().await)
            .await;
        let error = tried.expect_err(tables).to_string();
        assert!(error.contains("must not be truncated"), "{error}");
    }
    assert_eq!(store.release(own, &key("a"), token, "done").await.unwrap(), Changed::Done);
    assert!(acquire(&store, own, "a").await > token);
}

#[tokio::test]
async fn many_terms_of_few_keys_are_removed_in_statements_of_bounded_size() {
    const TERMS: i64 = 40_000;
    let (database, store) = migrated().await;
    let own = session(&store).await;
    for name in ["a", "b", "c"] {
        use_once(&store, own, name).await;
    }
    // Statement triggers count what one statement has removed.
    database
        .sql(&format!(
            "insert into leadergroup.term
                 (key, token, group_id, holder_uid, holder_namespace, holder_name, granted_at, confirmed, ended_at)
             select key, token, 'held by programs', 'uid', 'namespace', 'name', now(), true, now()
             from unnest('{{a,b,c}}'::text[]) as key, generate_series(2, {TERMS}) as token;
             update leadergroup.lock set token = {TERMS}, confirmed_token = {TERMS};
             create table public.removed (terms bigint);
             grant insert on public.removed to app;
             create function public.count() returns trigger language plpgsql as
             'begin insert into public.removed select count(*) from gone; return null; end';
             create trigger count after delete on leadergroup.term referencing old table as gone
             for each statement execute function public.count()"
        ))
        .await;
    let config = DatabaseConfig { statement_timeout: Duration::from_secs(5), ..database.config() };
    let quick = Store::new(&config).unwrap();
    let pruned = quick.prune(Retention { terms: 3, ..Retention::default() }).await.unwrap();
    let removed = (TERMS - 3) * 3;
    assert_eq!(pruned, removed_of(removed.unsigned_abs(), 0, 0));
    assert_eq!(database.number("select sum(terms)::bigint from public.removed").await, removed);
    assert!(database.number("select max(terms) from public.removed").await <= 10_000);
    let kept = format!("select count(*) from leadergroup.term where token > {TERMS} - 3");
    assert_eq!(database.number(&kept).await, 9, "the latest ones");
    assert_eq!(quick.prune(Retention { terms: 3, ..Retention::default() }).await.unwrap(), Pruned::default());
}

#[tokio::test]
async fn idle_keys_are_removed_with_their_history_and_no_others() {
    let (database, store) = migrated().await;
    let (own, other) = (session(&store).await, session(&store).await);
    for _ in 0..3 {
        use_once(&store, own, "idle").await;
    }
    acquire(&store, own, "held").await;
    acquire(&store, own, "awaited").await;
    assert_eq!(
        store.acquire(other, &wish("awaited"), Wait::InQueue).await.unwrap().outcome,
        Acquired::Waiting
    );
    // Free, although there is a waiter: the release could not hand the key on.
    use_once(&store, own, "free and awaited").await;
    database
        .sql(&format!(
            "update leadergroup.lock set awaited = true where key = 'free and awaited';
             insert into leadergroup.waiter (key, grant_id, session, holder_uid, holder_namespace, holder_name, reason)
             values ('free and awaited', gen_random_uuid(), '{other}', 'uid', 'namespace', 'name', 'test')"
        ))
        .await;
    for name in ["claimed", "granted", "vacated", "unclaimed", "deleted group's"] {
        take(&store, own, &key(name)).await;
    }
    for name in ["granted", "vacated"] {
        assert_eq!(grant_one(&store, own, grant(&key(name), 0, "p0")).await, granted(1));
    }
    store.vacate(own, vacate(&key("vacated"), 1)).await.unwrap();
    store.unclaim(own, &[key("vacated"), key("unclaimed")]).await.unwrap();
    store.tombstone(own, &[tombstone(&key("deleted group's"), GROUP)]).await.unwrap();
    let before = keys(&store).await;

    let week = store.prune(Retention { dead_sessions: HOUR, ..Retention::default() }).await.unwrap();
    assert_eq!((week, keys(&store).await), (Pruned::default(), before.clone()), "not idle for long");
    assert_eq!(store.prune(IDLE).await.unwrap(), removed_of(0, 1, 0));
    let kept: Vec<_> = before.iter().filter(|key| *key != "idle").cloned().collect();
    assert_eq!(keys(&store).await, kept);
    assert_eq!(terms_of(&database, "idle").await, 0);
    assert_eq!(terms_of(&database, "free and awaited").await, 1);
    assert_eq!(store.waiters(&key("free and awaited"), 10).await.unwrap().len(), 1);
    assert_eq!(store.prune(IDLE).await.unwrap(), Pruned::default());
}

#[tokio::test]
async fn a_key_that_comes_back_goes_on_above_its_old_tokens() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    for token in 1..=5 {
        assert_eq!(use_once(&store, own, "a").await, Token::new(token));
        assert_eq!(use_once(&store, own, "group's").await, Token::new(token));
    }
    assert_eq!(use_once(&store, own, "kept").await, Token::new(1));
    acquire(&store, own, "kept").await;
    assert_eq!(store.prune(IDLE).await.unwrap().keys, 2);
    assert_eq!(store.info(&key("a")).await.unwrap(), None);
    assert_eq!(acquire(&store, own, "a").await, Token::new(6));
    assert!(acquire(&store, own, "never used before").await > Token::ZERO);
    store.release(own, &key("kept"), Token::new(2), "done").await.unwrap();
    assert_eq!(acquire(&store, own, "kept").await, Token::new(3), "it was there all the time");
    // A controller that uses the same key.
    take(&store, own, &key("group's")).await;
    assert_eq!(grant_one(&store, own, grant(&key("group's"), 0, "p0")).await, granted(6));
}

/// Programs that end without a release, in order or not, leave keys without a living holder behind.
#[tokio::test]
async fn keys_whose_holder_is_long_gone_are_removed_but_not_before_a_delay_that_it_asked_for() {
    let (database, store) = migrated().await;
    let [killed, closed, own, other] =
        [session(&store).await, session(&store).await, session(&store).await, session(&store).await];
    acquire(&store, own, "held").await;
    for (name, holder) in [("killed", killed), ("closed", closed), ("awaited", killed), ("next", killed)] {
        acquire(&store, holder, name).await;
    }
    let delayed = AcquireRequest { lock_delay: HOUR, ..wish("delayed") };
    assert_eq!(store.acquire(killed, &delayed, Wait::No).await.unwrap().outcome, granted_with(1));
    assert_eq!(
        store.acquire(other, &wish("awaited"), Wait::InQueue).await.unwrap().outcome,
        Acquired::Waiting
    );
    // A waiter that gave up has left the row marked as awaited.
    let gives_up = wish("killed");
    assert_eq!(store.acquire(other, &gives_up, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    store.give_up(other, &gives_up.key, gives_up.grant).await.unwrap();
    assert_eq!(store.mark_dead(&[(killed, 1)], None).await.unwrap(), [killed]);
    store.close(closed).await.unwrap();

    assert_eq!(store.prune(IDLE).await.unwrap(), Pruned::default(), "their sessions are still known");
    let all = Retention { dead_sessions: Duration::ZERO, ..IDLE };
    assert_eq!(store.prune(all).await.unwrap().sessions, 2);
    // Acquired by another session since.
    assert_eq!(acquire(&store, own, "next").await, Token::new(2));
    assert_eq!(store.prune(Retention::default()).await.unwrap(), Pruned::default(), "not idle for long");
    assert_eq!(store.prune(all).await.unwrap(), removed_of(0, 2, 0));
    assert_eq!(keys(&store).await, ["awaited", "delayed", "held", "next"]);
    assert_eq!(database.number("select count(*) from leadergroup.term where key <> 'next'").await, 0);
    for name in ["killed", "closed"] {
        assert_eq!(acquire(&store, own, name).await, Token::new(2));
    }
}

/// The deletion has locked the row, and is not committed yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_meets_the_deletion_of_its_key_gets_it_with_a_larger_token() {
    for wait in [Wait::No, Wait::InQueue] {
        let (database, store) = migrated().await;
        let own = session(&store).await;
        for token in 1..=3 {
            assert_eq!(use_once(&store, own, "a").await, Token::new(token));
        }
        let mut gate = Gate::close_for(&database, "delete on leadergroup.lock").await;
        sqlx::raw_sql(AssertSqlSafe(RETURNS_OLD)).execute(&mut database.admin().await).await.unwrap();
        let pruning = tokio::spawn({
            let store = database.store();
            async move { store.prune(IDLE).await.unwrap() }
        });
        gate.somebody_waits().await;
        let request = wish("a");
        let acquiring = tokio::spawn({
            let (store, request) = (store.clone(), request.clone());
            async move { store.acquire(own, &request, wait).await.unwrap().outcome }
        });
        eventually("it waits for the row", async || database.waiting().await == 2).await;
        gate.open().await;
        assert_eq!(pruning.await.unwrap().keys, 1);
        let outcome = acquiring.await.unwrap();
        let busy = Acquired::Refused(leadergroup_lock::Refusal::Busy);
        assert!(outcome == granted_with(4) || outcome == busy, "{wait:?}: {outcome:?}");
        assert_eq!(store.acquire(own, &request, wait).await.unwrap().outcome, granted_with(4), "{wait:?}");
        assert_eq!(keys(&store).await, ["a"]);
    }
}

fn granted_with(token: i64) -> Acquired {
    Acquired::Granted { token: Token::new(token) }
}

/// A gate before a deletion has to return the old row, or nothing is deleted.
const RETURNS_OLD: &str = "create or replace function leadergroup.gate() returns trigger language plpgsql as \
    'begin perform pg_catalog.pg_advisory_xact_lock(4711); return old; end'";

/// Programs are not affected by pruning.
#[tokio::test(flavor = "multi_thread")]
async fn clients_take_keys_while_these_are_removed() {
    const KEYS: usize = 3;
    const TURNS: usize = 40;
    let (database, store) = migrated().await;
    let mut working = Vec::new();
    for number in 0..4 {
        let config = ClientConfig { name: format!("client-{number}"), ..ClientConfig::default() };
        let client = Client::connect(database.store(), config).await.unwrap();
        working.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for turn in 0..TURNS {
                let name = key(&format!("key-{}", (turn + number) % KEYS));
                let guard = if turn % 2 == 0 {
                    client.lock(&name, crate::postgres::DEADLINE).await.unwrap()
                } else {
                    match client.try_lock(&name).await.unwrap() {
                        Some(guard) => guard,
                        None => continue,
                    }
                };
                tokens.push((name, guard.token()));
                let _ = guard.release().await.unwrap();
            }
            tokens
        }));
    }
    let mut removed = 0;
    while working.iter().any(|client| !client.is_finished()) {
        removed += store.prune(IDLE).await.unwrap().keys;
    }
    let mut all: Vec<(Key, Token)> = Vec::new();
    for client in working {
        all.extend(client.await.unwrap());
    }
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "a token was granted twice");
    assert!(removed > 0, "nothing was removed meanwhile");
}

/// The acquisition has locked the row, and is not committed yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_being_acquired_is_not_removed() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    use_once(&store, own, "a").await;
    let mut gate = Gate::close(&database).await;
    let acquiring = tokio::spawn({
        let store = store.clone();
        async move { acquire(&store, own, "a").await }
    });
    gate.somebody_waits().await;
    assert_eq!(database.store().prune(IDLE).await.unwrap(), Pruned::default());
    gate.open().await;
    assert_eq!(acquiring.await.unwrap(), Token::new(2));
    assert_eq!(keys(&store).await, ["a"]);
}

/// A place in a queue that nobody gives up, because its session is dead.
#[tokio::test]
async fn a_key_whose_last_waiter_died_is_pruned_like_any_other() {
    let (database, store) = migrated().await;
    let [holder, waiter] = [session(&store).await, session(&store).await];
    acquire(&store, holder, "a").await;
    let waits = store.acquire(waiter, &wish("a"), Wait::InQueue).await.unwrap().outcome;
    assert_eq!(waits, Acquired::Waiting);
    assert_eq!(store.mark_dead(&[(waiter, 1)], None).await.unwrap(), [waiter]);
    store.release(holder, &key("a"), Token::new(1), "done").await.unwrap();
    // In quarantine no waiter gets a key that is released: this one dies after the release.
    acquire(&store, holder, "b").await;
    let dies = session(&store).await;
    let waits = store.acquire(dies, &wish("b"), Wait::InQueue).await.unwrap().outcome;
    assert_eq!(waits, Acquired::Waiting);
    database.sql("update leadergroup.meta set quarantine = true").await;
    store.release(holder, &key("b"), Token::new(1), "done").await.unwrap();
    assert_eq!(store.mark_dead(&[(dies, 1)], None).await.unwrap(), [dies]);
    // One removes the place, one sees that no one waits, and one removes the key.
    for _ in 0..3 {
        store.prune(IDLE).await.unwrap();
    }
    assert_eq!(keys(&store).await, [""; 0]);
}

/// A scheduler's connection may have another isolation level, in which a statement does not see who has queued up.
#[tokio::test]
async fn keys_are_pruned_at_read_committed_only() {
    let (database, store) = migrated().await;
    use_once(&store, session(&store).await, "a").await;
    let mut admin = database.admin().await;
    admin.execute("set default_transaction_isolation = 'repeatable read'").await.unwrap();
    let refused = admin.execute("call leadergroup.prune()").await.unwrap_err().to_string();
    assert!(refused.contains("is repeatable read, not read committed"), "{refused}");
    admin.execute("set default_transaction_isolation = 'read committed'").await.unwrap();
    admin.execute("call leadergroup.prune()").await.unwrap();
}

#[tokio::test]
async fn one_call_in_sql_removes_what_the_store_does() {
    let (database, store) = migrated().await;
    let (own, dead) = (session(&store).await, session(&store).await);
    for _ in 0..4 {
        use_once(&store, own, "kept").await;
        use_once(&store, own, "idle").await;
    }
    acquire(&store, own, "held").await;
    assert_eq!(store.acquire(dead, &wish("held"), Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    store.close(dead).await.unwrap();
    let old = "update leadergroup.session set dead_at = now() - interval '2 hours' where dead;
               update leadergroup.lock set lock_timestamp = now() - interval '8 days' where key = 'idle'";
    database.sql(old).await;
    database.sql("call leadergroup.prune(keep_terms => 2)").await;
    assert_eq!(keys(&store).await, ["held", "kept"]);
    assert_eq!((terms_of(&database, "kept").await, terms_of(&database, "idle").await), (2, 0));
    for empty in ["leadergroup.waiter", "leadergroup.session where dead"] {
        assert_eq!(database.number(&format!("select count(*) from {empty}")).await, 0, "{empty}");
    }
    assert_eq!(store.prune(Retention { terms: 2, ..Retention::default() }).await.unwrap(), Pruned::default());
}
