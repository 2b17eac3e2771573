//! After lost commits, programs' keys get no new holder until no program can rely on a lost grant.

use std::time::Duration;

use leadergroup_lock::{
    Changed, Client, ClientConfig, Refusal, Released, SessionId, Store, Successor, Token,
    protocol::{AcquireRequest, Acquired, Transfer},
};
use tokio::time::timeout;

use crate::cast::{
    self, Gate, TOKEN_JUMP, TTL, assert_jumped, end_quarantine, grant, grant_one, holder, key, row, session,
    take,
};
use crate::holders::{acquire, granted, queue, token_of};
use crate::postgres::{DEADLINE, Database, eventually, migrated};

const NEW_HISTORY: &str = "update leadergroup.meta set history = 'elsewhere/00000001'";
const NEW_ERA: &str = "select leadergroup.begin_era()";

fn wish(name: &str, who: &str) -> AcquireRequest {
    AcquireRequest::new(key(name), holder(who), "work to do")
}

async fn release(store: &Store, own: SessionId, name: &str, token: Token) -> Changed {
    store.release(own, &key(name), token, "done").await.unwrap()
}

async fn quarantine(store: &Store, own: SessionId) -> Option<Duration> {
    store.beat(own, &[]).await.unwrap().quarantine
}

async fn client(database: &Database, ttl: Duration, retry_interval: Duration) -> Client {
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

#[tokio::test]
async fn in_quarantine_only_its_holder_has_a_key() {
    let (database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    let [first, second] = [wish("a", "p0"), wish("b", "p0")];
    assert_eq!(acquire(&store, one, &first).await, granted(1));
    assert_eq!(acquire(&store, one, &second).await, granted(1));
    let next = wish("a", "p1");
    assert_eq!(queue(&store, two, &next).await, Acquired::Waiting);
    database.sql(NEW_HISTORY).await;

    // The first call to notice it is a request for a key that seems to be free.
    let fresh = wish("fresh", "p1");
    assert_eq!(acquire(&store, two, &fresh).await, Acquired::Quarantine);
    assert_eq!(quarantine(&store, two).await, Some(TTL));
    assert_eq!(store.waiters(&key("fresh"), 10).await.unwrap(), [], "a try leaves no place behind");
    assert_eq!(queue(&store, two, &fresh).await, Acquired::Quarantine);
    assert_eq!(store.waiters(&key("fresh"), 10).await.unwrap().len(), 1, "it queues up meanwhile");
    assert_eq!(acquire(&store, one, &first).await, granted(1), "the row says so");
    assert_eq!(queue(&store, two, &next).await, Acquired::Waiting, "its holder lives");
    assert_eq!(acquire(&store, two, &wish("a", "p2")).await, Acquired::Held);
    // A release that seems to be the present holder's may be the repetition of one that was lost.
    let successor =
        store.transfer(one, &key("a"), Token::new(1), Successor::Name("p1"), "your turn").await.unwrap();
    assert_eq!(successor, Transfer::Refused(Refusal::Busy));
    assert_eq!(release(&store, one, "a", Token::new(1)).await, Changed::Done);
    assert_eq!(queue(&store, two, &next).await, Acquired::Quarantine);
    assert_eq!(store.force_release(&key("b"), Token::new(1), "stuck").await.unwrap(), Changed::Done);
    assert_eq!(acquire(&store, two, &wish("b", "p1")).await, Acquired::Quarantine);
    for name in ["a", "b", "fresh"] {
        assert_eq!(row(&store, &key(name)).await.holder, None);
    }
    // A controller decides by its own evidence, not by a program's lease.
    take(&store, two, &key("pods")).await;
    let pods = grant_one(&store, two, grant(&key("pods"), 0, "p0")).await;
    assert_jumped(&database, 0, cast::token_of(&pods)).await;

    end_quarantine(&database).await;
    assert_eq!(quarantine(&store, two).await, None);
    assert_jumped(&database, 1, token_of(&queue(&store, two, &next).await)).await;
    assert_jumped(&database, 0, token_of(&queue(&store, two, &fresh).await)).await;
}

#[tokio::test]
async fn a_waiter_keeps_its_place_through_a_change_of_history() {
    let (database, store) = migrated().await;
    let (one, two, three) = (session(&store).await, session(&store).await, session(&store).await);
    assert_eq!(acquire(&store, one, &wish("a", "p0")).await, granted(1));
    let (first, second) = (wish("a", "p1"), wish("a", "p2"));
    assert_eq!(queue(&store, two, &first).await, Acquired::Waiting);
    assert_eq!(queue(&store, three, &second).await, Acquired::Waiting);
    store.close(one).await.unwrap();
    database.sql(NEW_HISTORY).await;
    // It was its turn, and at that moment the history turns out to have changed.
    assert_eq!(queue(&store, two, &first).await, Acquired::Quarantine);
    end_quarantine(&database).await;
    assert_eq!(queue(&store, three, &second).await, Acquired::Waiting);
    assert_jumped(&database, 1, token_of(&queue(&store, two, &first).await)).await;
}

/// The key was released in order and has no waiters: without the quarantine, it would be granted at once.
#[tokio::test]
async fn a_free_key_is_acquired_in_a_new_history_only_after_its_quarantine() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let wish = || wish("a", "p0");
    for token in 1..=2 {
        assert_eq!(acquire(&store, own, &wish()).await, granted(token));
        assert_eq!(release(&store, own, "a", Token::new(token)).await, Changed::Done);
    }
    database.sql(NEW_HISTORY).await;
    assert_eq!(acquire(&store, own, &wish()).await, Acquired::Quarantine, "no heartbeat has seen it yet");
    for _ in 0..2 {
        assert_eq!(quarantine(&store, own).await, Some(TTL));
        assert_eq!(acquire(&store, own, &wish()).await, Acquired::Quarantine);
    }
    end_quarantine(&database).await;
    let token = token_of(&acquire(&store, own, &wish()).await);
    assert_jumped(&database, 2, token).await;
    assert_eq!(release(&store, own, "a", token).await, Changed::Done);
    assert_eq!(acquire(&store, own, &wish()).await, granted(token.get() + 1), "as ever");
}

#[tokio::test]
async fn only_the_quarantine_of_the_era_that_was_watched_is_ended() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let former = store.beat(own, &[]).await.unwrap();
    assert_eq!(former.quarantine, None);
    database.sql(NEW_ERA).await;
    let present = store.beat(own, &[]).await.unwrap();
    store.end_quarantine(former.era).await.unwrap();
    assert_eq!(quarantine(&store, own).await, Some(TTL), "it was another one");
    for _ in 0..2 {
        store.end_quarantine(present.era).await.unwrap();
        assert_eq!(quarantine(&store, own).await, None);
    }
    store.end_quarantine(former.era).await.unwrap();
    assert_eq!(quarantine(&store, own).await, None, "too late to matter");
    // The next era begins before the call to end the quarantine arrives.
    database.sql(NEW_ERA).await;
    let watched = store.beat(own, &[]).await.unwrap();
    database.sql(NEW_HISTORY).await;
    store.end_quarantine(watched.era).await.unwrap();
    assert_eq!(quarantine(&store, own).await, Some(TTL), "the history was another one already");
}

/// The longest ttl of all living sessions counts: any of them may rely on a grant for that long.
#[tokio::test]
async fn a_quarantine_lasts_for_the_longest_ttl_of_the_living() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let (long, longest) = (TTL * 2, TTL * 3);
    store.register("long", long, None, None).await.unwrap();
    let (dying, _) = store.register("longest", longest, None, None).await.unwrap();
    database.sql(NEW_ERA).await;
    assert_eq!(quarantine(&store, own).await, Some(longest));
    assert_eq!(store.mark_dead(&[(dying, 1)], None).await.unwrap(), [dying]);
    assert_eq!(quarantine(&store, own).await, Some(long));
}

/// Two clients alone: keys can be acquired again once one of the two has ended the quarantine.
#[tokio::test(flavor = "multi_thread")]
async fn clients_end_a_quarantine_by_themselves_and_go_on() {
    let (database, _store) = migrated().await;
    let (ttl, interval) = (Duration::from_millis(1_500), Duration::from_millis(100));
    let (one, two) = (client(&database, ttl, interval).await, client(&database, ttl, interval).await);
    database.sql(NEW_HISTORY).await;
    let seen = "select count(*) from leadergroup.meta where era > 0 and history = leadergroup.read_history()";
    eventually("the new history is seen", async || database.number(seen).await == 1).await;
    let (first, second) =
        (one.lock(&key("a"), DEADLINE).await.unwrap(), two.lock(&key("b"), DEADLINE).await.unwrap());
    assert_eq!(database.number("select count(*) from leadergroup.meta where quarantine").await, 0);
    assert_jumped(&database, 0, first.token()).await;
    assert_jumped(&database, 0, second.token()).await;
    assert_eq!(first.release().await.unwrap(), Released::Done);
    assert!(one.try_lock(&key("a")).await.unwrap().is_some(), "at once, as ever");
}

/// A heartbeat is answered in the new era, but the held keys cannot be checked: it must not renew the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_era_s_heartbeats_count_only_once_what_is_held_was_looked_at() {
    let (database, _store) = migrated().await;
    let one = client(&database, Duration::from_secs(3), Duration::from_millis(100)).await;
    let held = one.try_lock(&key("a")).await.unwrap().expect("free");
    let beats = "select beat from leadergroup.session order by registered_at limit 1";
    database.sql(&format!("alter table leadergroup.lock rename to not_there; {NEW_ERA}")).await;
    let before = database.number(beats).await;
    eventually("heartbeats get through", async || database.number(beats).await > before + 1).await;
    timeout(DEADLINE, held.lost()).await.expect("the lease has ended");
}

/// The answer to a grant of the former era arrives after the new era was seen and the held keys were checked.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_of_the_former_era_that_comes_late_is_not_believed_in() {
    let (database, _store) = migrated().await;
    let one = client(&database, Duration::from_mins(10), Duration::from_millis(100)).await;
    let mut gate = Gate::close(&database).await;
    let asked = tokio::spawn(async move { one.lock(&key("a"), DEADLINE).await.unwrap() });
    gate.somebody_waits().await;
    database.sql(NEW_ERA).await;
    end_quarantine(&database).await;
    let beats = "select max(beat) from leadergroup.session";
    let before = database.number(beats).await;
    eventually("the new era was looked at", async || database.number(beats).await > before + 1).await;
    gate.open().await;
    assert!(asked.await.unwrap().token().get() > TOKEN_JUMP, "it was requested again");
}
