//! How a key passes from one holder to the next: to a named successor, or by force; and how many may wait.

use std::time::Duration;

use leadergroup_lock::{
    Changed, Client, ClientConfig, ClientError, FencePolicy, Overrun, Refusal, Released, SessionId, Store,
    Successor, Token, Transferred,
    admin::Retention,
    protocol::{AcquireRequest, Acquired, MOST_WAITERS, Transfer},
};
use sqlx::{AssertSqlSafe, Connection, Executor};
use tokio::time::timeout;
use uuid::Uuid;

use crate::cast::{assert_jumped, dead_session, end_quarantine, grant, grant_one, key, row, session, take};
use crate::fence::{application, begin, run};
use crate::holders::{self, acquire, granted, token_of, wish};
use crate::postgres::{DEADLINE, Database, eventually, migrated};

/// So long that nothing in a test is caused by a poll.
const NEVER: Duration = Duration::from_mins(10);

async fn queue(store: &Store, own: SessionId, names: &[&str]) -> Vec<AcquireRequest> {
    let mut wishes = Vec::new();
    for name in names {
        let wish = wish(name);
        assert_eq!(holders::queue(store, own, &wish).await, Acquired::Waiting);
        wishes.push(wish);
    }
    wishes
}

async fn transfer(store: &Store, own: SessionId, token: i64, to: Successor<'_>) -> Transfer {
    store.transfer(own, &key("a"), Token::new(token), to, "your turn").await.unwrap()
}

async fn holder(store: &Store) -> String {
    row(store, &key("a")).await.holder.map_or_else(String::new, |holder| holder.name)
}

/// A death mark that is under way, and is rolled back: the transfer does not wait for its session.
#[tokio::test]
async fn one_that_is_passed_over_for_a_moment_keeps_its_place() {
    let (database, store) = migrated().await;
    let [holder, doubted, next] = [session(&store).await, session(&store).await, session(&store).await];
    assert_eq!(acquire(&store, holder, &wish("p0")).await, granted(1));
    let first = queue(&store, doubted, &["p1"]).await.remove(0);
    queue(&store, next, &["p2", "p3"]).await;
    let mut mark = database.admin().await;
    let lock = format!("begin; select from leadergroup.session where id = '{doubted}' for update");
    mark.execute(AssertSqlSafe(lock)).await.unwrap();
    assert_eq!(store.release(holder, &key("a"), Token::new(1), "done").await.unwrap(), Changed::Done);
    assert_eq!(self::holder(&store).await, "p2");
    mark.execute("rollback").await.unwrap();
    assert_eq!(store.release(next, &key("a"), Token::new(2), "done").await.unwrap(), Changed::Done);
    assert_eq!(holders::queue(&store, doubted, &first).await, granted(3), "before p3");
}

#[tokio::test]
async fn a_successor_goes_first_and_the_others_keep_their_places() {
    let (database, store) = migrated().await;
    let [one, two, dying] = [session(&store).await, session(&store).await, session(&store).await];
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    let waiting = queue(&store, two, &["p1", "p2", "p3", "p4"]).await;
    queue(&store, dying, &["gone"]).await;
    assert_eq!(store.mark_dead(&[(dying, 1)], None).await.unwrap(), [dying]);
    for nobody in [Successor::Name("nobody"), Successor::Uid("p3"), Successor::Name("gone")] {
        assert_eq!(transfer(&store, one, 1, nobody).await, Transfer::NotWaiting);
    }
    assert_eq!((holder(&store).await, row(&store, &key("a")).await.token), ("p0".to_owned(), Token::new(1)));
    for (own, token) in [(two, 1), (one, 2)] {
        let refused = transfer(&store, own, token, Successor::Name("p3")).await;
        assert!(matches!(refused, Transfer::Refused(Refusal::TokenChanged)), "{refused:?}");
    }
    assert_eq!((holder(&store).await, row(&store, &key("a")).await.token), ("p0".to_owned(), Token::new(1)));
    assert_eq!(transfer(&store, one, 1, Successor::Name("p3")).await, Transfer::Done);
    assert_eq!(holders::queue(&store, two, &waiting[2]).await, granted(2));
    assert_eq!(transfer(&store, two, 2, Successor::Uid("uid-p2")).await, Transfer::Done);
    assert_eq!(store.history(&key("a"), 10).await.unwrap()[1].ended.as_ref().unwrap().1, "your turn");
    // From now on in order.
    for (token, next) in [(3, "p1"), (4, "p4")] {
        store.release(two, &key("a"), Token::new(token), "done").await.unwrap();
        assert_eq!(holder(&store).await, next);
    }
    let left = database.number("select count(*) from leadergroup.waiter where holder_name <> 'gone'").await;
    assert_eq!(left, 0, "all but the dead one had their turn");
}

#[tokio::test]
async fn a_successor_s_token_jumps_with_the_database_s_history() {
    let (database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    let waiting = queue(&store, two, &["p1"]).await;
    database.sql("update leadergroup.meta set history = 'elsewhere/00000001'").await;
    let busy = Transfer::Refused(Refusal::Busy);
    assert_eq!(transfer(&store, one, 1, Successor::Name("p1")).await, busy, "no heartbeat has seen it yet");
    assert!(store.beat(one, &[]).await.unwrap().quarantine.is_some());
    assert_eq!(transfer(&store, one, 1, Successor::Name("p1")).await, busy, "in quarantine");
    end_quarantine(&database).await;
    assert_eq!(transfer(&store, one, 1, Successor::Name("p1")).await, Transfer::Done);
    assert_jumped(&database, 1, token_of(&holders::queue(&store, two, &waiting[0]).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_transferred_past_a_fenced_transaction() {
    let (database, store) = migrated().await;
    let patience = FencePolicy { patience: Duration::from_millis(50), overrun: Overrun::Wait };
    let store = store.with_fence_policy(patience);
    let (one, two) = (session(&store).await, session(&store).await);
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    queue(&store, two, &["p1"]).await;
    let mut bank = application(&database).await.connect().await;
    begin(&mut bank, "read committed").await;
    run(&mut bank, "select leadergroup.fence('a', 1)").await.unwrap();
    assert_eq!(transfer(&store, one, 1, Successor::Name("p1")).await, Transfer::Refused(Refusal::Busy));
    assert_eq!(holder(&store).await, "p0");
    run(&mut bank, "commit").await.unwrap();
    assert_eq!(transfer(&store, one, 1, Successor::Name("p1")).await, Transfer::Done);
    bank.close_hard().await.unwrap();
}

async fn client(database: &Database, name: &str) -> Client {
    let (ttl, retry_interval) = (NEVER, NEVER / 5);
    let config =
        ClientConfig { name: name.into(), ttl, retry_interval, reentrant: true, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_is_transferred_or_comes_back() {
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database, "one").await, client(&database, "two").await);
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    let Transferred::NotWaiting(held) = held.transfer_to(Successor::Name("two")).await.unwrap() else {
        panic!("there is no waiter")
    };
    let again = one.try_lock(&key("a")).await.unwrap().expect("still held, and the guard is counted");
    let Transferred::StillHeld(held) = held.transfer_to(Successor::Name("two")).await.unwrap() else {
        panic!("held twice")
    };
    assert_eq!(again.release().await.unwrap(), Released::StillHeld);
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.lock(&key("a"), DEADLINE).await.unwrap() }
    });
    let waiters = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || database.number(waiters).await == 1).await;
    let transferred = held.transfer_to(Successor::Uid(&two.holder().uid)).await.unwrap();
    assert!(matches!(transferred, Transferred::Done), "{transferred:?}");
    assert!(one.try_lock(&key("a")).await.unwrap().is_none());
    let successor = timeout(DEADLINE, waiting).await.expect("woken").unwrap();
    assert_eq!((successor.token(), successor.is_lost()), (Token::new(2), false));
    two.shutdown().await.unwrap();
    let lost = successor.transfer_to(Successor::Name("one")).await.unwrap();
    assert!(matches!(lost, Transferred::WasLost), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_by_force_goes_to_the_first_in_the_queue() {
    let (database, store) = migrated().await;
    let holder = AcquireRequest { lock_delay: NEVER, ..wish("p0") };
    let one = session(&store).await;
    assert_eq!(acquire(&store, one, &holder).await, granted(1));
    let next = client(&database, "next").await;
    let waiting = tokio::spawn(async move { next.lock(&key("a"), DEADLINE).await.unwrap() });
    let waiters = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || database.number(waiters).await == 1).await;
    eventually("it listens", async || database.listening().await == 1).await;
    let refused = store.force_release(&key("a"), Token::new(7), "by mistake").await.unwrap();
    assert!(matches!(refused, Changed::Refused(Refusal::TokenChanged)), "{refused:?}");
    let force =
        async |token| store.force_release(&key("a"), Token::new(token), "stuck (by ann)").await.unwrap();
    assert_eq!(force(1).await, Changed::Done);
    let guard = timeout(DEADLINE, waiting).await.expect("woken").unwrap();
    assert_eq!(guard.token(), Token::new(2));
    assert_eq!(store.history(&key("a"), 10).await.unwrap()[1].ended.as_ref().unwrap().1, "stuck (by ann)");
    let late = store.release(one, &key("a"), Token::new(1), "done").await.unwrap();
    assert!(matches!(late, Changed::Refused(Refusal::TokenChanged)), "{late:?}");
    // There are no waiters now, and the session is dead: its lock delay does not apply.
    assert_eq!(force(2).await, Changed::Done);
    assert_eq!(force(2).await, Changed::Done, "it has no holder");
    assert_eq!(acquire(&store, one, &holder).await, granted(3));
    assert_eq!(store.mark_dead(&[(one, 1)], None).await.unwrap(), [one]);
    assert_eq!(force(3).await, Changed::Done);
    assert_eq!(acquire(&store, session(&store).await, &wish("p1")).await, granted(4));
    // A group's key loses its holder and its claim, and keeps its token.
    let operator = session(&store).await;
    take(&store, operator, &key("b")).await;
    grant_one(&store, operator, grant(&key("b"), 0, "p0")).await;
    assert_eq!(store.force_release(&key("b"), Token::new(1), "stuck").await.unwrap(), Changed::Done);
    let freed = row(&store, &key("b")).await;
    assert_eq!((freed.holder, freed.session, freed.token), (None, None, Token::new(1)));
    let missing = store.force_release(&key("c"), Token::new(1), "x").await.unwrap();
    assert_eq!(missing, Changed::Refused(Refusal::Missing));
}

/// Pruning locks sessions that ended long ago, and then the rows that name them; a release by force locks the row
/// first.
#[tokio::test]
async fn a_release_by_force_does_not_wait_for_the_session_of_one_that_is_dead() {
    let (database, store) = migrated().await;
    let one = session(&store).await;
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    assert_eq!(store.mark_dead(&[(one, 1)], None).await.unwrap(), [one]);
    let mut admin = database.admin().await;
    let mut locked = admin.begin().await.unwrap();
    locked.execute("select from leadergroup.session for update").await.unwrap();
    let released =
        timeout(Duration::from_secs(5), store.force_release(&key("a"), Token::new(1), "stuck")).await;
    assert_eq!(released.expect("a dead session is not updated").unwrap(), Changed::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_has_an_end_and_the_dead_make_room() {
    let (database, store) = migrated().await;
    let (one, dead) = (session(&store).await, dead_session(&store).await);
    let last = client(&database, "last").await;
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    let fill = async |count: u32, session: SessionId| {
        let rows = format!(
            "insert into leadergroup.waiter (key, grant_id, session, holder_uid, holder_namespace, holder_name, reason)
             select 'a', gen_random_uuid(), '{session}', 'u', 'n', 'n', 'r' from generate_series(1, {count})"
        );
        database.sql(&rows).await;
    };
    fill(MOST_WAITERS - 2, one).await;
    fill(1, dead).await;
    queue(&store, one, &["p1"]).await;
    // Full, except for the dead waiter.
    let waiting = queue(&store, one, &["p2"]).await;
    assert_eq!(database.number("select count(*) from leadergroup.waiter").await, i64::from(MOST_WAITERS));
    assert_eq!(holders::queue(&store, one, &wish("p3")).await, Acquired::QueueFull);
    assert_eq!(holders::queue(&store, one, &waiting[0]).await, Acquired::Waiting, "it has its place");
    let error = last.lock(&key("a"), NEVER).await.unwrap_err();
    assert!(matches!(error, ClientError::QueueFull { .. }) && error.to_string().contains("try again later"));
}

#[tokio::test]
async fn places_of_the_dead_are_pruned_even_where_nobody_asks() {
    let (database, store) = migrated().await;
    let (one, dead) = (session(&store).await, session(&store).await);
    assert_eq!(holders::queue(&store, dead, &wish("p0")).await, granted(1));
    queue(&store, dead, &["p1"]).await;
    let last = queue(&store, one, &["p2"]).await.remove(0);
    assert_eq!(store.mark_dead(&[(dead, 1)], None).await.unwrap(), [dead]);
    let pruned =
        store.prune(Retention { dead_sessions: Duration::ZERO, ..Retention::default() }).await.unwrap();
    assert_eq!((pruned.waiters, pruned.sessions), (1, 1));
    assert_eq!(database.number("select count(*) from leadergroup.waiter where holder_name = 'p2'").await, 1);
    // The row still names the removed session, and is as free as with a dead one.
    assert_eq!(row(&store, &key("a")).await.session, Some(dead));
    assert_eq!(acquire(&store, one, &wish("p3")).await, Acquired::Held, "p2 waits for it");
    assert_eq!(holders::queue(&store, one, &last).await, granted(2));
}

/// The first answer was lost, and the next holder was not woken: the repetition has to return it again.
#[tokio::test]
async fn a_release_by_force_that_is_repeated_tells_the_same() {
    let (database, store) = migrated().await;
    let (old, new) = (session(&store).await, session(&store).await);
    assert_eq!(acquire(&store, old, &wish("p0")).await, granted(1));
    let waiting = queue(&store, new, &["p1"]).await;
    let release =
        "select verdict, next_grant, next_session from leadergroup.end_hold(null, 'a', 1, 'by force')";
    for time in 1..=2 {
        let told: (String, Uuid, Uuid) =
            sqlx::query_as(release).fetch_one(&mut database.admin().await).await.unwrap();
        let next = (waiting[0].grant.as_uuid(), new.as_uuid());
        assert_eq!(told, ("done".to_owned(), next.0, next.1), "time {time}");
        assert_eq!(
            store.beat(old, &[]).await.unwrap().revoked,
            1,
            "time {time}: the old holder's count grows once"
        );
    }
    assert_eq!(store.beat(new, &[]).await.unwrap().revoked, 0);
    assert_eq!((holder(&store).await, row(&store, &key("a")).await.token), ("p1".to_owned(), Token::new(2)));
}
