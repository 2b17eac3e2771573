//! After lost commits: keys that programs hold go to nobody new until nobody can believe in a grant that was lost.

use std::time::Duration;

use leadergroup_lock::{
    AcquireRequest, Acquired, Changed, Client, ClientConfig, Refusal, Released, SessionId, Store, Successor,
    TOKEN_JUMP, Token, Transfer, Wait,
};
use tokio::time::timeout;

use crate::cast::{Gate, grant, grant_one, granted as granted_to, holder, key, row, session, settled, take};
use crate::holders::granted;
use crate::postgres::{DEADLINE, Database, eventually, migrated};

const NEW_HISTORY: &str = "update leadergroup.meta set system_identifier = 42";

fn wish(name: &str, who: &str) -> AcquireRequest {
    AcquireRequest::new(key(name), holder(who), "work to do")
}

async fn release(store: &Store, own: SessionId, name: &str, token: i64) -> Changed {
    store.release(own, &key(name), Token::new(token), "done").await.unwrap()
}

async fn client(database: &Database, ttl: Duration, retry_interval: Duration) -> Client {
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

#[tokio::test]
async fn until_the_era_has_settled_only_its_holder_has_a_key() {
    let (database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    let [first, second] = [wish("a", "p0"), wish("b", "p0")];
    assert_eq!(acquire(&store, one, &first).await, granted(1));
    assert_eq!(acquire(&store, one, &second).await, granted(1));
    let next = wish("a", "p1");
    assert_eq!(queue(&store, two, &next).await, Acquired::Waiting);
    database.sql(NEW_HISTORY).await;

    // The first to notice is one that asks for a key that nobody seems to hold.
    let fresh = wish("fresh", "p1");
    assert_eq!(acquire(&store, two, &fresh).await, Acquired::Held);
    assert!(!store.beat(two, &[]).await.unwrap().settled);
    assert_eq!(queue(&store, two, &fresh).await, Acquired::Waiting);
    assert_eq!(acquire(&store, one, &first).await, granted(1), "the row says so");
    // What looks like the present holder's release may be the repetition of one that was lost.
    let heir =
        store.transfer(one, &key("a"), Token::new(1), Successor::Name("p1"), "your turn").await.unwrap();
    assert_eq!(heir, Transfer::Refused(Refusal::Busy));
    assert_eq!(release(&store, one, "a", 1).await, Changed::Done);
    assert_eq!(queue(&store, two, &next).await, Acquired::Waiting);
    assert_eq!(store.force_release(&key("b"), Token::new(1), "stuck").await.unwrap(), Changed::Done);
    assert_eq!(acquire(&store, two, &wish("b", "p1")).await, Acquired::Held);
    for name in ["a", "b", "fresh"] {
        assert_eq!(row(&store, &key(name)).await.holder, None);
    }
    // The operator decides by Kubernetes, not by belief.
    take(&store, two, &key("pods")).await;
    assert_eq!(grant_one(&store, two, grant(&key("pods"), 0, "p0")).await, granted_to(TOKEN_JUMP + 1));

    end_quarantine(&database).await;
    assert!(store.beat(two, &[]).await.unwrap().settled);
    assert_eq!(queue(&store, two, &next).await, granted(TOKEN_JUMP + 2));
    assert_eq!(queue(&store, two, &fresh).await, granted(TOKEN_JUMP + 1));
}

#[tokio::test]
async fn who_waits_keeps_its_place_through_a_change_of_history() {
    let (database, store) = migrated().await;
    let (one, two, three) = (session(&store).await, session(&store).await, session(&store).await);
    assert_eq!(acquire(&store, one, &wish("a", "p0")).await, granted(1));
    let (first, second) = (wish("a", "p1"), wish("a", "p2"));
    assert_eq!(queue(&store, two, &first).await, Acquired::Waiting);
    assert_eq!(queue(&store, three, &second).await, Acquired::Waiting);
    store.close(one).await.unwrap();
    database.sql(NEW_HISTORY).await;
    // It was its turn, and the history is found to be another one in the middle of that.
    assert_eq!(queue(&store, two, &first).await, Acquired::Waiting);
    end_quarantine(&database).await;
    assert_eq!(queue(&store, three, &second).await, Acquired::Waiting);
    assert_eq!(queue(&store, two, &first).await, granted(TOKEN_JUMP + 2));
}

/// It was given up in order, and nobody waits for it: else the most ordinary thing.
#[tokio::test]
async fn a_free_key_is_taken_in_a_new_history_only_once_that_has_settled() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let wish = || wish("a", "p0");
    for token in 1..=2 {
        assert_eq!(acquire(&store, own, &wish()).await, granted(token));
        assert_eq!(release(&store, own, "a", token).await, Changed::Done);
    }
    database.sql(NEW_HISTORY).await;
    assert_eq!(
        acquire(&store, own, &wish()).await,
        Acquired::Held,
        "nobody has seen it yet"
    );
    for _ in 0..2 {
        assert!(!store.beat(own, &[]).await.unwrap().settled);
        assert_eq!(acquire(&store, own, &wish()).await, Acquired::Held);
    }
    end_quarantine(&database).await;
    for token in [TOKEN_JUMP + 3, TOKEN_JUMP + 4] {
        assert_eq!(acquire(&store, own, &wish()).await, granted(token));
        assert_eq!(release(&store, own, "a", token).await, Changed::Done);
    }
}

#[tokio::test]
async fn only_the_history_that_was_watched_is_settled() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let former = store.beat(own, &[]).await.unwrap();
    assert!(former.settled);
    database.sql("update leadergroup.meta set era = era + 1").await;
    let present = store.beat(own, &[]).await.unwrap();
    store.settle(former.epoch).await.unwrap();
    assert!(!store.beat(own, &[]).await.unwrap().settled, "it was another one");
    for _ in 0..2 {
        store.settle(present.epoch).await.unwrap();
        assert!(store.beat(own, &[]).await.unwrap().settled);
    }
    store.settle(former.epoch).await.unwrap();
    assert!(store.beat(own, &[]).await.unwrap().settled, "too late to matter");
}

/// Two clients with nobody else there: what one of them holds is free once they have settled the era between themselves.
#[tokio::test(flavor = "multi_thread")]
async fn clients_settle_an_era_by_themselves_and_go_on() {
    let (database, _store) = migrated().await;
    let (ttl, interval) = (Duration::from_millis(1_500), Duration::from_millis(100));
    let (one, two) = (client(&database, ttl, interval).await, client(&database, ttl, interval).await);
    database.sql(NEW_HISTORY).await;
    eventually("the new history is seen", async || {
        database.number("select era from leadergroup.meta").await == 1
    })
    .await;
    let (first, second) =
        (one.lock(&key("a"), DEADLINE).await.unwrap(), two.lock(&key("b"), DEADLINE).await.unwrap());
    assert_eq!(database.number("select era from leadergroup.settled").await, 1);
    assert_eq!((first.token(), second.token()), (Token::new(TOKEN_JUMP + 1), Token::new(TOKEN_JUMP + 1)));
    assert_eq!(first.release().await.unwrap(), Released::Done);
    assert!(one.try_lock(&key("a")).await.unwrap().is_some(), "at once, as ever");
}

/// A heartbeat gets through in the new history, but what is held cannot be looked at: it must not prolong the belief.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_history_s_heartbeats_count_only_once_what_is_held_was_looked_at() {
    let (database, _store) = migrated().await;
    let one = client(&database, Duration::from_secs(3), Duration::from_millis(100)).await;
    let held = one.try_lock(&key("a")).await.unwrap().expect("free");
    let beats = "select beat from leadergroup.session order by registered_at limit 1";
    database
        .sql("alter table leadergroup.term rename to not_there; update leadergroup.meta set era = 1")
        .await;
    let before = database.number(beats).await;
    eventually("heartbeats get through", async || database.number(beats).await > before + 1).await;
    timeout(DEADLINE, held.lost()).await.expect("the belief is over");
}

/// The answer to a grant of the former history comes after the new one was seen and what is held was looked at.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_of_the_former_history_that_comes_late_is_not_believed_in() {
    let (database, _store) = migrated().await;
    let one = client(&database, Duration::from_mins(10), Duration::from_millis(100)).await;
    let mut gate = Gate::close(&database).await;
    let asked = tokio::spawn(async move { one.lock(&key("a"), DEADLINE).await.unwrap() });
    gate.somebody_waits().await;
    database.sql("update leadergroup.meta set era = 1").await;
    end_quarantine(&database).await;
    let beats = "select max(beat) from leadergroup.session";
    let before = database.number(beats).await;
    eventually("the new history was looked at", async || database.number(beats).await > before + 1).await;
    gate.open().await;
    assert!(asked.await.unwrap().token().get() > TOKEN_JUMP, "it was asked for again");
}
