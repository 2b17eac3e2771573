//! After an unclean end, no one gets the key for as long as its holder had asked for.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, Reason, SessionId, Store, Token, monotonic,
    protocol::{AcquireRequest, Acquired},
};
use tokio::time::timeout;

use crate::cast::{Gate, key, session, why};
use crate::holders::{self, acquire, granted, queue};
use crate::postgres::{DEADLINE, Database, eventually, migrated};

const HOUR: Duration = Duration::from_hours(1);

fn wish(who: &str, lock_delay: Duration) -> AcquireRequest {
    AcquireRequest { lock_delay, ..holders::wish(who) }
}

fn delayed(token: i64) -> Acquired {
    Acquired::Delayed { token: Token::new(token), delay: HOUR }
}

async fn kill(store: &Store, session: SessionId) {
    assert_eq!(store.mark_dead(&[(session, 1)], None).await.unwrap(), [session]);
}

#[tokio::test]
async fn after_a_death_each_one_sits_the_delay_out_and_the_queue_keeps_its_order() {
    let (_database, store) = migrated().await;
    let [holder, first, second] = [session(&store).await, session(&store).await, session(&store).await];
    assert_eq!(acquire(&store, holder, &wish("p0", HOUR)).await, granted(1));
    let mut one = wish("p1", Duration::ZERO);
    assert_eq!(queue(&store, first, &one).await, Acquired::Waiting);
    kill(&store, holder).await;
    let mut two = wish("p2", Duration::ZERO);
    for _ in 0..2 {
        assert_eq!(queue(&store, first, &one).await, delayed(1));
        assert_eq!(queue(&store, second, &two).await, delayed(1), "it queues up meanwhile");
        assert_eq!(acquire(&store, second, &wish("p3", HOUR)).await, delayed(1));
    }
    // The delay of another term does not count for this one.
    one.sat_out = Some(Token::new(0));
    assert_eq!(queue(&store, first, &one).await, delayed(1));
    // The second one has waited out the delay as well, but it is not its turn.
    two.sat_out = Some(Token::new(1));
    assert_eq!(queue(&store, second, &two).await, Acquired::Waiting);
    let rash = AcquireRequest { sat_out: Some(Token::new(1)), ..wish("p3", HOUR) };
    assert_eq!(acquire(&store, second, &rash).await, Acquired::Held, "others wait for it");
    one.sat_out = Some(Token::new(1));
    assert_eq!(queue(&store, first, &one).await, granted(2));
    // This holder asked for no delay.
    kill(&store, first).await;
    assert_eq!(queue(&store, second, &two).await, granted(3));
}

#[tokio::test]
async fn a_successor_has_its_own_delay() {
    let (_database, store) = migrated().await;
    let [holder, next, last] = [session(&store).await, session(&store).await, session(&store).await];
    assert_eq!(acquire(&store, holder, &wish("p0", Duration::ZERO)).await, granted(1));
    assert_eq!(queue(&store, next, &wish("p1", HOUR)).await, Acquired::Waiting);
    store.release(holder, &key("a"), Token::new(1), "done").await.unwrap();
    kill(&store, next).await;
    assert_eq!(acquire(&store, last, &wish("p2", HOUR)).await, delayed(2));
}

#[tokio::test]
async fn an_end_in_order_hands_over_at_once() {
    let (database, store) = migrated().await;
    let [one, two, three] = [session(&store).await, session(&store).await, session(&store).await];
    assert_eq!(acquire(&store, one, &wish("p0", HOUR)).await, granted(1));
    store.release(one, &key("a"), Token::new(1), "done").await.unwrap();
    assert_eq!(acquire(&store, two, &wish("p1", HOUR)).await, granted(2));
    store.close(two).await.unwrap();
    assert_eq!(acquire(&store, three, &wish("p2", HOUR)).await, granted(3));
    // A session that was removed by hand did not end in order.
    database.sql(&format!("delete from leadergroup.session where id = '{three}'")).await;
    assert_eq!(acquire(&store, one, &wish("p3", HOUR)).await, delayed(3));
}

async fn client(database: &Database, lock_delay: Duration) -> Client {
    let (ttl, retry_interval) = (Duration::from_secs(4), Duration::from_millis(200));
    let config = ClientConfig { ttl, retry_interval, lock_delay, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

/// The heartbeat ends with the client; the guard stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_sits_out_what_others_have_asked_for() {
    let (database, _store) = migrated().await;
    let [long, short, next] = [
        client(&database, HOUR).await,
        client(&database, Duration::from_millis(300)).await,
        client(&database, Duration::ZERO).await,
    ];
    let _held = [
        long.try_lock(&key("long")).await.unwrap().unwrap(),
        short.try_lock(&key("short")).await.unwrap().unwrap(),
        short.try_lock(&key("tried")).await.unwrap().unwrap(),
    ];
    drop((long, short));
    let dead = "select count(*) from leadergroup.session where dead";
    eventually("they are marked dead", async || database.number(dead).await >= 2).await;
    assert_eq!(next.lock(&key("short"), DEADLINE).await.unwrap().token(), Token::new(2));
    eventually("trying is enough", async || next.try_lock(&key("tried")).await.unwrap().is_some()).await;
    let impatient = ClientConfig { confirm_death: false, ..ClientConfig::default() };
    let impatient = Client::connect(database.store(), impatient).await.unwrap();
    let mut last = HOUR + Duration::from_millis(1);
    for _ in 0..2 {
        let reason = why(impatient.try_lock_or_why(&key("long")).await.unwrap());
        let Reason::Delay { delay: HOUR, left } = reason else { panic!("{reason}") };
        assert!(left < last && left > Duration::ZERO, "it goes by: {left:?}");
        last = left;
    }
    impatient.lock(&key("long"), Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(database.number("select max(token) from leadergroup.lock where key = 'long'").await, 1);
}

/// How long no one gets the key `a`.
const DELAY: Duration = Duration::from_secs(2);

/// A program that comes after the holder of `a` has died.
async fn delayed_key() -> (Database, Client) {
    let (database, store) = migrated().await;
    let dead = session(&store).await;
    assert_eq!(acquire(&store, dead, &wish("p0", DELAY)).await, granted(1));
    kill(&store, dead).await;
    let program = client(&database, Duration::ZERO).await;
    (database, program)
}

/// Programs that run for a moment, such as those that cron starts: none of them saw the delay begin.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_tries_once_and_ends_sits_the_delay_out() {
    let (_database, program) = delayed_key().await;
    let begun = monotonic();
    let guard = program.try_lock_or_why(&key("a")).await.unwrap().held().unwrap();
    assert_eq!(guard.token(), Token::new(2));
    assert!(monotonic() >= begun + DELAY, "two hold the same lock");
}

/// Its time is over long before the delay is: it waits the delay out all the same, as a single try does.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_wait_sits_the_delay_out_and_asks_again() {
    let (_database, program) = delayed_key().await;
    let guard =
        program.lock(&key("a"), Duration::from_millis(300)).await.expect("the key, when the delay is over");
    assert_eq!(guard.token(), Token::new(2));
}

/// The holder lost the key because its heartbeats failed, and drops its guard while its session still counts as alive:
/// that is not an end in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_is_dropped_after_its_loss_does_not_skip_the_delay() {
    let (database, store) = migrated().await;
    let silent = client(&database, HOUR).await;
    let held = silent.try_lock(&key("a")).await.unwrap().unwrap();
    let mut heartbeats = Gate::close_for(&database, "update on leadergroup.session").await;
    timeout(DEADLINE, held.lost()).await.expect("no heartbeat gets through");
    drop(held);
    heartbeats.open().await;
    let dead = "select count(*) from leadergroup.session where dead";
    eventually("it gives its session up", async || database.number(dead).await == 1).await;
    let other = session(&store).await;
    assert_eq!(acquire(&store, other, &wish("p1", HOUR)).await, delayed(1));
}
