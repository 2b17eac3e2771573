//! Requests that take effect after they were given up must not block the key for others.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, DatabaseConfig, GrantId, LockError, SessionId, Store, Token,
    protocol::{AcquireRequest, Acquired, Wait},
};

use crate::cast::{Gate, holder, key, row};
use crate::connections::connections;
use crate::postgres::{Database, eventually, migrated};

/// How long a request may take to arrive.
const LIMIT: Duration = Duration::from_secs(5);

/// Some of the sessions send no heartbeats: with a shorter ttl, the client would mark them dead.
const TTL: Duration = Duration::from_mins(10);

async fn client(database: &Database) -> Client {
    let store = Store::new(&DatabaseConfig { statement_timeout: LIMIT, ..database.config() }).unwrap();
    let retry_interval = Duration::from_millis(200);
    let config = ClientConfig { ttl: TTL, retry_interval, ..ClientConfig::default() };
    Client::connect(store, config).await.unwrap()
}

fn wish(name: &str) -> AcquireRequest {
    AcquireRequest::new(key(name), holder("unnamed"), "asked for it")
}

/// The client's session.
async fn session_of(store: &Store, held: &str) -> SessionId {
    store.info(&key(held)).await.unwrap().unwrap().session.unwrap().id
}

/// Counts how often a request was given up, and stops each request just before it takes effect, with its id as the name
/// of the connection.
async fn watch(database: &Database) {
    database
        .sql(
            "create sequence public.given_up;
             grant usage on sequence public.given_up to app;
             create schema original;
             grant usage on schema original to app;
             alter function leadergroup.give_up set schema original;
             create function leadergroup.give_up(
                 session uuid, key text, grant_id uuid, out next_grant uuid, out next_session uuid
             ) language plpgsql as $$ begin
                 select r.* into next_grant, next_session from original.give_up(session, key, grant_id) as r;
                 perform nextval('public.given_up');
             end $$;
             create function leadergroup.gate() returns trigger language plpgsql as $$ begin
                 perform set_config('application_name', new.grant_id::text, false);
                 perform pg_advisory_xact_lock(4711);
                 return new;
             end $$;
             create trigger gate before update of token on leadergroup.lock
             for each row execute function leadergroup.gate();
             create trigger gate before insert on leadergroup.waiter
             for each row execute function leadergroup.gate()",
        )
        .await;
}

async fn given_up(database: &Database) -> i64 {
    database.number("select case when is_called then last_value else 0 end from public.given_up").await
}

/// A request that the client drops in the middle, so that its outcome is unknown. It is given up, and the state is as
/// if it had never been made.
async fn dropped(database: &Database, client: Client, name: &str, wait: Wait) -> GrantId {
    let mut gate = Gate::shut(database).await;
    let key = key(name);
    let asking = tokio::spawn(async move {
        match wait {
            Wait::No => client.try_lock(&key).await.map(drop),
            Wait::InQueue => client.lock(&key, TTL).await.map(drop),
        }
    });
    gate.somebody_waits().await;
    let id = "select application_name from pg_stat_activity
              where datname = current_database() and wait_event_type = 'Lock'";
    let id: String = sqlx::query_scalar(id).fetch_one(&mut database.admin().await).await.unwrap();
    let before = given_up(database).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    gate.open().await;
    eventually("it is given up", async || given_up(database).await > before).await;
    let connection =
        format!("select count(*) from pg_stat_activity where application_name = '{id}' and state = 'active'");
    eventually("the first copy has ended", async || database.number(&connection).await == 0).await;
    id.parse::<uuid::Uuid>().unwrap().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_is_given_up_and_what_is_held_or_waited_for_stays() {
    let (database, store) = migrated().await;
    let one = client(&database).await;
    let other = store.register("other", TTL, None, None).await.unwrap().0;
    let held = one.try_lock(&key("held")).await.unwrap().unwrap();
    for name in ["queue", "late-queue"] {
        let answer = store.acquire(other, &wish(name), Wait::No).await.unwrap().outcome;
        assert_eq!(answer, Acquired::Granted { token: Token::new(1) });
    }
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.lock(&key("queue"), TTL).await }
    });
    let waiters = async |name: &str| store.waiters(&key(name), 10).await.unwrap().len();
    eventually("it waits", async || waiters("queue").await == 1).await;
    watch(&database).await;

    let own = session_of(&store, "held").await;
    let late = dropped(&database, one.clone(), "late", Wait::No).await;
    let late_queue = dropped(&database, one.clone(), "late-queue", Wait::InQueue).await;
    // Copies that were delayed for almost as long as possible.
    let beats = "select beat from leadergroup.session where not dead and name <> 'other'";
    let void_after = Some(database.number(beats).await.unsigned_abs() + 10);
    let before = given_up(&database).await;
    let late = AcquireRequest { grant: late, void_after, ..wish("late") };
    let answer = store.acquire(own, &late, Wait::No).await.unwrap().outcome;
    assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");
    let late_queue = AcquireRequest { grant: late_queue, void_after, ..wish("late-queue") };
    let answer = store.acquire(own, &late_queue, Wait::InQueue).await.unwrap().outcome;
    assert_eq!(answer, Acquired::Waiting);

    eventually("the late grant is given up", async || row(&store, &key("late")).await.holder.is_none()).await;
    eventually("the late place is given up", async || waiters("late-queue").await == 0).await;
    assert!(given_up(&database).await >= before + 2, "each of them a second time");
    // From then on they can have no effect.
    for (copy, wait) in [(&late, Wait::No), (&late_queue, Wait::InQueue), (&late, Wait::InQueue)] {
        let answer = store.acquire(own, copy, wait).await;
        assert!(matches!(answer, Err(LockError::Timeout { .. })), "{answer:?}");
    }
    assert!(row(&store, &key("late")).await.holder.is_none() && waiters("late-queue").await == 0);
    assert!(!held.is_lost() && row(&store, &key("held")).await.holder.is_some());
    assert_eq!(waiters("queue").await, 1, "a request that still waits keeps its place");
    waiting.abort();
}

/// When the request is dropped, its outcome is still open: its row is not visible before the commit.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_request_for_a_key_that_is_dropped_in_the_middle_leaves_it_free() {
    let (database, store) = migrated().await;
    let one = client(&database).await;
    let mut gate = Gate::close_for(&database, "insert on leadergroup.lock").await;
    let dropped = tokio::spawn({
        let one = one.clone();
        async move { one.try_lock(&key("a")).await }
    });
    gate.somebody_waits().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    gate.open().await;
    let other = store.register("other", TTL, None, None).await.unwrap().0;
    let next = wish("a");
    let taken = async || {
        matches!(store.acquire(other, &next, Wait::No).await.unwrap().outcome, Acquired::Granted { .. })
    };
    eventually("it is free", taken).await;
}

/// The task that gives the request up ends, although no heartbeat shows that the request is void.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_dropped_in_the_middle_of_a_request_leaves_no_connection() {
    let (database, store) = migrated().await;
    drop(store);
    watch(&database).await;
    let only = client(&database).await;
    dropped(&database, only, "a", Wait::No).await;
    eventually("its connections are closed", async || connections(&database).await == 0).await;
}
