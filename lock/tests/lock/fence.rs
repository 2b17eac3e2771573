//! `leadergroup.fence`: its guarantees for applications' transactions at every isolation level, and that these cannot
//! prevent a change of holder.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leadergroup_lock::{
    Changed, FencePolicy, Key, Overrun, Refusal, SessionId, Store, Token,
    controller::{Claimed, Granted, Tombstone},
};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::cast::{
    GROUP, claim, claim_one, grant, grant_all, grant_one, granted, key, keys, session, take, tombstone,
    vacate,
};
use crate::postgres::{DEADLINE, Database, PASSWORD, ROLE, Server, eventually, migrated};

pub const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// The SQLSTATE that the fence raises.
pub const STALE: &str = "LG001";
pub const SERIALIZATION_FAILURE: &str = "40001";

/// The application's own role, which may only call the function. The lock's role is a member of it, and may therefore
/// end its transactions.
pub async fn application(database: &Database) -> Application {
    application_of(database, "bank").await
}

/// The same of another name.
pub async fn application_of(database: &Database, name: &str) -> Application {
    let role = format!("{name}_{}", database.name);
    database
        .sql(&format!(
            "create role {role} login password '{PASSWORD}';
             grant {role} to {ROLE};
             grant usage on schema leadergroup to {role};
             create schema {name} authorization {role}"
        ))
        .await;
    Application { url: database.url().replace(&format!("{ROLE}:"), &format!("{role}:")), role }
}

#[derive(Clone)]
pub struct Application {
    url: String,
    role: String,
}

impl Application {
    pub fn role(&self) -> &str {
        &self.role
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// A connection in a transaction at this level.
    async fn begin(&self, level: &str) -> PgConnection {
        let mut connection = self.connect().await;
        begin(&mut connection, level).await;
        connection
    }
}

pub async fn begin(connection: &mut PgConnection, level: &str) {
    connection.execute(AssertSqlSafe(format!("begin isolation level {level}"))).await.unwrap();
}

/// The SQLSTATE of an error; `lost` for a connection that is gone.
pub fn state(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(inner) => inner.code().map(Into::into).unwrap_or_default(),
        _ => "lost".to_owned(),
    }
}

pub async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), String> {
    connection.execute(AssertSqlSafe(sql.to_owned())).await.map(drop).map_err(|error| state(&error))
}

async fn fence(connection: &mut PgConnection, token: i64) -> Result<(), String> {
    run(connection, &format!("select leadergroup.fence('a', {token})")).await
}

/// A holder with token 1, and the policy to wait for its transactions without terminating them.
async fn held() -> (Database, Store, SessionId, Application) {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    assert_eq!(grant_one(&store, own, grant(&key("a"), 0, "p0")).await, granted(1));
    let application = application(&database).await;
    (database, store.with_fence_policy(policy(Duration::from_secs(10), Overrun::Wait)), own, application)
}

fn policy(patience: Duration, overrun: Overrun) -> FencePolicy {
    FencePolicy { patience, overrun }
}

/// A change of holder under way in the background.
fn take_over(store: &Store, own: SessionId, expected: i64) -> tokio::task::JoinHandle<Granted> {
    let store = store.clone();
    tokio::spawn(async move { grant_one(&store, own, grant(&key("a"), expected, "p1")).await })
}

#[tokio::test]
async fn only_the_token_of_the_present_term_passes() {
    let (_database, store, own, application) = held().await;
    let stale = Err(STALE.to_owned());
    for level in LEVELS {
        for (token, expected) in [(1, Ok(())), (0, stale.clone()), (2, stale.clone()), (-1, stale.clone())] {
            let mut bank = application.begin(level).await;
            assert_eq!(fence(&mut bank, token).await, expected, "{level}, token {token}");
        }
    }
    let mut bank = application.connect().await;
    assert_eq!(run(&mut bank, "select leadergroup.fence('unknown', 1)").await, stale);
    assert_eq!(run(&mut bank, "select leadergroup.fence('a', null)").await, Err("22004".to_owned()));
    assert_eq!(run(&mut bank, "select token from leadergroup.lock").await, Err("42501".to_owned()));
    let error = bank.execute("select leadergroup.fence('a', 7)").await.unwrap_err();
    assert!(error.to_string().contains("token 7 is not the current one of key \"a\""), "{error}");

    // After a release there is no holder, although no other token was granted yet.
    assert_eq!(store.vacate(own, vacate(&key("a"), 1)).await.unwrap(), Changed::Done);
    assert_eq!(fence(&mut bank, 1).await, stale);
    assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, granted(2));
    assert_eq!(fence(&mut bank, 1).await, stale);
    assert_eq!(fence(&mut bank, 2).await, Ok(()));
    // The end of the session that had claimed the key does not stop the holder.
    store.close(own).await.unwrap();
    assert_eq!(fence(&mut bank, 2).await, Ok(()));
    let next = session(&store).await;
    take(&store, next, &key("a")).await;
    assert_eq!(fence(&mut bank, 2).await, Ok(()));
    assert_eq!(store.tombstone(next, &[tombstone(&key("a"), GROUP)]).await.unwrap(), [Changed::Done]);
    assert_eq!(fence(&mut bank, 2).await, stale);
}

#[tokio::test]
async fn transactions_of_one_holder_do_not_wait_for_each_other_nor_keep_anything_else_waiting() {
    let (_database, store, own, application) = held().await;
    let mut open = Vec::new();
    for level in LEVELS.iter().cycle().take(9) {
        let mut bank = application.begin(level).await;
        // No transaction has ended yet: waiting for one would last for ever, which this turns into an error.
        bank.execute("set lock_timeout = '5s'").await.unwrap();
        assert_eq!(fence(&mut bank, 1).await, Ok(()), "{level}");
        open.push(bank);
    }
    // Meanwhile, the claim may move, and the term may be confirmed and ended.
    assert_eq!(store.confirm(own, &key("a"), Token::new(1)).await.unwrap(), Changed::Done);
    store.close(own).await.unwrap();
    let next = session(&store).await;
    assert!(matches!(claim_one(&store, next, claim(&key("a"))).await, Claimed::Ours(_)));
    assert_eq!(store.vacate(next, vacate(&key("a"), 1)).await.unwrap(), Changed::Done);
    let end = Tombstone { floor: Token::new(7), ..tombstone(&key("a"), GROUP) };
    assert_eq!(store.tombstone(next, &[end]).await.unwrap(), [Changed::Done]);
    for mut bank in open {
        assert_eq!(run(&mut bank, "commit").await, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_holder_waits_for_the_fenced_transaction_and_goes_on_right_after_it() {
    for level in LEVELS {
        let (database, store, own, application) = held().await;
        let mut bank = application.begin(level).await;
        assert_eq!(fence(&mut bank, 1).await, Ok(()));
        let change = take_over(&store, own, 1);
        eventually("the change waits", async || database.waiting().await > 0).await;
        // A later transaction of the same holder comes too late: it waits for the change, and is refused.
        let mut late = application.begin(level).await;
        let late = tokio::spawn(async move { fence(&mut late, 1).await });
        eventually("the late one waits, too", async || database.waiting().await == 2).await;
        assert!(!change.is_finished());
        assert_eq!(run(&mut bank, "commit").await, Ok(()), "{level}");
        assert_eq!(change.await.unwrap(), granted(2), "{level}");
        let late = late.await.unwrap().unwrap_err();
        assert!(
            late == STALE || level != "read committed" && late == SERIALIZATION_FAILURE,
            "{level}: {late}"
        );
    }
}

/// In the snapshot of such a transaction, the token is current; the fence must not rely on it.
#[tokio::test]
async fn a_snapshot_from_before_the_change_does_not_help_the_old_holder() {
    for level in ["repeatable read", "serializable"] {
        let (_database, store, own, application) = held().await;
        let mut bank = application.begin(level).await;
        bank.execute("select 1 from pg_class limit 1").await.unwrap();
        assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, granted(2));
        let refused = fence(&mut bank, 1).await.unwrap_err();
        assert!(refused == SERIALIZATION_FAILURE || refused == STALE, "{level}: {refused}");
        // A new holder with an old snapshot has to try again; it then gets through.
        run(&mut bank, "rollback").await.unwrap();
        begin(&mut bank, level).await;
        assert_eq!(fence(&mut bank, 2).await, Ok(()));
    }
}

/// Between the snapshot and the change of holder, the row gets several versions, by changes that do not conflict with a
/// fence.
#[tokio::test]
async fn a_snapshot_from_before_several_changes_does_not_help_the_old_holder_either() {
    for level in ["repeatable read", "serializable"] {
        for vacated in [false, true] {
            let (_database, store, own, application) = held().await;
            let mut bank = application.begin(level).await;
            bank.execute("select 1 from pg_class limit 1").await.unwrap();
            store.confirm(own, &key("a"), Token::new(1)).await.unwrap();
            store.close(own).await.unwrap();
            let own = session(&store).await;
            take(&store, own, &key("a")).await;
            if vacated {
                assert_eq!(store.vacate(own, vacate(&key("a"), 1)).await.unwrap(), Changed::Done);
            }
            assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, granted(2));
            store.confirm(own, &key("a"), Token::new(2)).await.unwrap();
            let refused = fence(&mut bank, 1).await.unwrap_err();
            assert!(refused == SERIALIZATION_FAILURE || refused == STALE, "{level}: {refused}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_never_ends_its_transaction_is_cut_off() {
    for level in LEVELS {
        let (database, store, own, application) = held().await;
        let mut bank = application.connect().await;
        bank.execute("create table bank.account (balance int)").await.unwrap();
        begin(&mut bank, level).await;
        assert_eq!(fence(&mut bank, 1).await, Ok(()));
        bank.execute("insert into bank.account values (1)").await.unwrap();
        let store = store.with_fence_policy(policy(Duration::from_millis(50), Overrun::Terminate));
        let start = Instant::now();
        assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, granted(2), "{level}");
        assert!(start.elapsed() < Duration::from_secs(10), "bounded");
        assert!(run(&mut bank, "commit").await.is_err(), "{level}: a write after the takeover");
        assert_eq!(database.number("select count(*) from bank.account").await, 0, "{level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_end_it_the_change_waits_and_nothing_is_lost() {
    let (database, store, own, application) = held().await;
    database.sql(&format!("revoke {} from {ROLE}", application.role)).await;
    let store = store.with_fence_policy(policy(Duration::from_millis(50), Overrun::Terminate));
    let mut bank = application.begin("read committed").await;
    assert_eq!(fence(&mut bank, 1).await, Ok(()));
    let busy = Granted::Refused(Refusal::Busy);
    assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, busy);
    let waiting = store.clone().with_fence_policy(policy(Duration::from_millis(50), Overrun::Wait));
    assert_eq!(grant_one(&waiting, own, grant(&key("a"), 1, "p1")).await, busy);
    assert_eq!(run(&mut bank, "commit").await, Ok(()));
    assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, granted(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_fenced_key_costs_its_batch_nothing() {
    let (database, store, own, application) = held().await;
    let others: Vec<Key> = crate::cast::keys(100);
    let claims: Vec<_> = others.iter().map(claim).collect();
    store.claim(own, &claims).await.unwrap();
    let mut bank = application.begin("read committed").await;
    assert_eq!(fence(&mut bank, 1).await, Ok(()));
    let mut grants: Vec<_> = others.iter().map(|key| grant(key, 0, "p0")).collect();
    grants.insert(50, grant(&key("a"), 1, "p1"));
    let batch = tokio::spawn(async move { grant_all(&store, own, &grants).await });
    // The others are committed while the one waits.
    let done = "select count(*) from leadergroup.lock where key like 'key-%' and token = 1";
    eventually("the other keys are granted", async || database.number(done).await == 100).await;
    eventually("the fenced one waits", async || database.waiting().await > 0).await;
    assert!(!batch.is_finished());
    run(&mut bank, "commit").await.unwrap();
    let mut answers = batch.await.unwrap();
    assert_eq!(answers.remove(50), granted(2));
    assert_eq!(answers, vec![granted(1); 100]);
}

/// An older program, or a person, that ignores fences.
#[tokio::test]
async fn nobody_changes_the_token_past_a_fenced_transaction() {
    let (database, _store, _own, application) = held().await;
    let mut person = database.admin().await;
    person.execute("set lock_timeout = '50ms'").await.unwrap();
    let mut bank = application.begin("read committed").await;
    assert_eq!(fence(&mut bank, 1).await, Ok(()));
    // As an older program did it, with a lock on the row.
    let change = "with held as materialized (select key from leadergroup.lock where key = 'a' for update)
                  update leadergroup.lock l set token = 9 from held where l.key = held.key";
    assert_eq!(run(&mut person, change).await, Err("55P03".to_owned()));
    assert_eq!(run(&mut bank, "commit").await, Ok(()));
    assert_eq!(run(&mut person, "update leadergroup.lock set token = 9").await, Ok(()));
}

/// 32 clients whose transactions overlap without a gap. With a lock on rows only, the change would not get a turn for
/// minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_fenced_transactions_does_not_keep_the_change_off() {
    for level in LEVELS {
        let (_database, store, own, application) = held().await;
        let through = Arc::new(AtomicUsize::new(0));
        let end = Instant::now() + DEADLINE;
        let clients: Vec<_> = (0..32)
            .map(|_| {
                let (application, through) = (application.clone(), Arc::clone(&through));
                tokio::spawn(async move {
                    let mut bank = application.connect().await;
                    while Instant::now() < end {
                        begin(&mut bank, level).await;
                        if let Err(refused) = fence(&mut bank, 1).await {
                            return refused;
                        }
                        through.fetch_add(1, Ordering::Relaxed);
                        bank.execute("select pg_sleep(0.02)").await.unwrap();
                        run(&mut bank, "commit").await.unwrap();
                    }
                    "never refused".to_owned()
                })
            })
            .collect();
        eventually("the stream flows", async || through.load(Ordering::Relaxed) > 64).await;
        let start = Instant::now();
        assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, granted(2), "{level}");
        println!("{level}: taken over from 32 clients after {:?}", start.elapsed());
        for client in clients {
            let refused = client.await.unwrap();
            assert!(
                refused == STALE || level != "read committed" && refused == SERIALIZATION_FAILURE,
                "{refused}"
            );
        }
    }
}

/// Each key needs an entry in the server's lock table while it changes hands.
#[tokio::test(flavor = "multi_thread")]
async fn more_fenced_keys_than_the_server_has_locks_change_hands() {
    let server = Server::start(&[("max_connections", "20"), ("max_locks_per_transaction", "10")]);
    let (database, store) = server.migrated().await;
    let own = session(&store).await;
    let keys = keys(2_500);
    let claims: Vec<_> = keys.iter().map(claim).collect();
    assert!(
        store.claim(own, &claims).await.unwrap().iter().all(|claimed| matches!(claimed, Claimed::Ours(_)))
    );
    let one_transaction =
        "select count(pg_try_advisory_xact_lock(leadergroup.fence_id(key))) from leadergroup.lock";
    let refused = sqlx::query(one_transaction).execute(&mut database.admin().await).await.unwrap_err();
    assert_eq!(state(&refused), "53200", "there is room for all of them");
    for token in 1..=2 {
        let grants: Vec<_> = keys.iter().map(|key| grant(key, token - 1, &format!("p{token}"))).collect();
        let answers = grant_all(&store, own, &grants).await;
        assert!(answers.iter().all(|answer| *answer == granted(token)), "{answers:?}");
    }
}

/// Others fill the server's lock table: not even a new connection can be made.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_busy_while_the_server_has_no_lock_left() {
    let server = Server::start(&[("max_connections", "20"), ("max_locks_per_transaction", "10")]);
    let (database, store) = server.migrated().await;
    let own = session(&store).await;
    let keys = keys(3);
    for key in &keys {
        take(&store, own, key).await;
    }
    let mut others = database.admin().await;
    let all = "select count(pg_advisory_lock(number)) from generate_series(1, 1000000) as number";
    assert_eq!(run(&mut others, all).await, Err("53200".to_owned()));
    let grants: Vec<_> = keys.iter().map(|key| grant(key, 0, "p1")).collect();
    for store in [&store, &database.store()] {
        let answers = grant_all(store, own, &grants).await;
        assert_eq!(answers, vec![Granted::Refused(Refusal::Busy); 3]);
    }
    run(&mut others, "select pg_advisory_unlock_all()").await.unwrap();
    assert_eq!(grant_all(&store, own, &grants).await, vec![granted(1); 3]);
}
