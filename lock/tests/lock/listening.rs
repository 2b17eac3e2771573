//! Every listener makes each NOTIFY of the server slower: a program listens only while it waits.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use leadergroup_lock::{Changed, Client, ClientConfig, Guard, Token, controller::Hint};
use tokio::time::timeout;

use crate::cast::{key, session};
use crate::connections::connections;
use crate::postgres::{DEADLINE, Database, eventually, migrated};

/// A client whose polls come too late for the test.
async fn client(database: &Database) -> Client {
    let (ttl, retry_interval) = (DEADLINE * 10, DEADLINE * 2);
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

fn waits(client: &Client) -> tokio::task::JoinHandle<Guard> {
    let client = client.clone();
    tokio::spawn(async move { client.lock(&key("a"), DEADLINE).await.unwrap() })
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens_while_nobody_waits() {
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database).await, client(&database).await);
    let mut held = one.try_lock(&key("a")).await.unwrap().unwrap();
    // If no connection was made, it cannot have listened in between.
    let made = connections(&database).await;
    for _ in 0..20 {
        assert!(two.try_lock(&key("a")).await.unwrap().is_none());
        let _ = two.try_lock(&key("b")).await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!((connections(&database).await, database.listening().await), (made, 0));
    // A second wait works like the first one.
    for token in [2, 3] {
        eventually("no connection listens", async || database.listening().await == 0).await;
        let next = waits(if token == 2 { &two } else { &one });
        eventually("one listens, which waits", async || database.listening().await == 1).await;
        let queued = "select count(*) from leadergroup.waiter";
        eventually("it is in the queue", async || database.number(queued).await == 1).await;
        let _ = held.release().await.unwrap();
        held = timeout(DEADLINE, next).await.expect("it was notified").unwrap();
        assert_eq!(held.token(), Token::new(token));
    }
    eventually("no connection listens", async || database.listening().await == 0).await;
}

/// What those who listen hear until this moment, besides that they may have missed something.
async fn heard(database: &Database, hints: &mut (impl Stream<Item = Hint> + Unpin)) -> Vec<Hint> {
    database.sql("select leadergroup.wake_all('yielded mark')").await;
    let mut heard = Vec::new();
    loop {
        match timeout(DEADLINE, hints.next()).await.expect("it is notified").unwrap() {
            Hint::Yielded(_) => return heard,
            Hint::Missed => {}
            hint => heard.push(hint),
        }
    }
}

/// Otherwise, every program that ends would make all that wait ask at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_program_wakes_others_only_if_it_may_concern_them() {
    let (database, store) = migrated().await;
    let mut hints = Box::pin(store.listen());
    assert_eq!(hints.next().await, Some(Hint::Missed));
    let [idle, done, holder] = [client(&database).await, client(&database).await, client(&database).await];
    idle.shutdown().await.unwrap();
    let _ = done.try_lock(&key("b")).await.unwrap().unwrap().release().await.unwrap();
    done.shutdown().await.unwrap();
    let dead = session(&store).await;
    assert_eq!(store.mark_dead(&[(dead, 1)], None).await.unwrap(), [dead]);
    assert_eq!(heard(&database, &mut hints).await, [], "no one waits for anything");
    let held = holder.try_lock(&key("a")).await.unwrap().unwrap();
    let waiter = client(&database).await;
    let waiting = waits(&waiter);
    // One that goes on waiting: if the first one got its key by a poll before it was woken, no one would be left to
    // wake.
    let keeper = client(&database).await;
    let kept = keeper.try_lock(&key("kept")).await.unwrap().unwrap();
    let patient = waiter.another_holder("patient");
    let patient = tokio::spawn(async move { patient.lock(&key("kept"), DEADLINE * 2).await });
    let queued = "select count(*) from leadergroup.waiter";
    eventually("both wait", async || database.number(queued).await == 2).await;
    eventually("they listen", async || database.listening().await >= 2).await;
    let idle = client(&database).await;
    idle.shutdown().await.unwrap();
    assert_eq!(heard(&database, &mut hints).await, [], "it held nothing");
    holder.shutdown().await.unwrap();
    let _next = timeout(DEADLINE, waiting).await.expect("woken").unwrap();
    assert_eq!(heard(&database, &mut hints).await, [Hint::Freed]);
    patient.abort();
    drop((held, kept));
}

/// The holder learns of it by the answer to its next heartbeat. Its regular comparison comes later than the end of the
/// test.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_taken_away_by_force_is_lost_though_its_holder_does_not_listen() {
    let (database, store) = migrated().await;
    let config = ClientConfig {
        ttl: DEADLINE * 10,
        retry_interval: Duration::from_millis(200),
        ..ClientConfig::default()
    };
    let holder = Client::connect(database.store(), config).await.unwrap();
    let kept = holder.try_lock(&key("kept")).await.unwrap().unwrap();
    for token in [1, 2] {
        let held = holder.try_lock(&key("a")).await.unwrap().unwrap();
        assert_eq!(held.token(), Token::new(token));
        assert_eq!(database.listening().await, 0);
        let answer = store.force_release(&key("a"), held.token(), "by hand").await.unwrap();
        assert_eq!(answer, Changed::Done);
        timeout(DEADLINE, held.lost()).await.expect("the heartbeat shows it");
        assert_eq!(database.listening().await, 0);
        assert!(!kept.is_lost());
    }
    let session = store.info(&key("kept")).await.unwrap().unwrap().session.unwrap().id;
    assert_eq!(store.beat(session, &[]).await.unwrap().revoked, 2);
}
