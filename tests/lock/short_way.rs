//! The short ways to take a key and to give it up look at nothing but its row: what is changed at the same time must show there.

use leadergroup::lock::{Acquired, Changed, SessionId, Store, Token, Wish};
use sqlx::Connection as _;

use crate::cast::{key, owner, row, session};
use crate::fence::run;
use crate::postgres::{Database, eventually, migrated};

fn wish(who: &str) -> Wish {
    Wish::new(key("a"), owner(who), "work to do")
}

fn granted(token: i64) -> Acquired {
    Acquired::Granted { token: Token::new(token) }
}

async fn release(store: &Store, own: SessionId, token: i64) -> Changed {
    store.release(own, &key("a"), Token::new(token), "done").await.unwrap()
}

/// Does `action` while somebody queues up, as `leadergroup.acquire` does it, and has not committed yet.
async fn during<T>(database: &Database, waiter: SessionId, action: impl Future<Output = T>) -> T {
    let mut admin = database.admin().await;
    let mut queueing = admin.begin().await.unwrap();
    let steps = [
        "select from leadergroup.lock where key = 'a' for no key update".to_owned(),
        "update leadergroup.lock set awaited = true where key = 'a' and not awaited".to_owned(),
        format!(
            "insert into leadergroup.waiter (key, request, session, owner_uid, owner_namespace, owner_name, reason)
             values ('a', gen_random_uuid(), '{waiter}', 'uid', 'namespace', 'p1', 'r')"
        ),
    ];
    for step in steps {
        assert_eq!(run(&mut queueing, &step).await, Ok(()));
    }
    let commit = async {
        eventually("it waits for the row", async || database.waiting().await == 1).await;
        queueing.commit().await.unwrap();
    };
    let (done, ()) = tokio::join!(action, commit);
    done
}

#[tokio::test]
async fn whoever_queues_up_while_the_key_is_given_up_gets_it() {
    let (database, store) = migrated().await;
    let (holder, waiter) = (session(&store).await, session(&store).await);
    assert_eq!(store.try_hold(holder, &wish("p0")).await.unwrap(), granted(1));
    assert_eq!(during(&database, waiter, Box::pin(release(&store, holder, 1))).await, Changed::Done);
    let row = row(&store, &key("a")).await;
    assert_eq!((row.token, row.session), (Token::new(2), Some(waiter)), "the waiter was overlooked");
}

#[tokio::test]
async fn whoever_tries_a_free_key_while_another_one_queues_up_does_not_jump_the_queue() {
    let (database, store) = migrated().await;
    let (late, waiter) = (session(&store).await, session(&store).await);
    assert_eq!(store.try_hold(late, &wish("p0")).await.unwrap(), granted(1));
    assert_eq!(release(&store, late, 1).await, Changed::Done);
    let tried = Box::pin(async { store.try_hold(late, &wish("p0")).await.unwrap() });
    assert_eq!(during(&database, waiter, tried).await, Acquired::Held);
}

#[tokio::test]
async fn when_the_queue_is_over_the_ways_are_short_again() {
    let (database, store) = migrated().await;
    let [one, two, three] = [session(&store).await, session(&store).await, session(&store).await];
    let awaited = async || database.number("select count(*) from leadergroup.lock where awaited").await;
    assert_eq!(store.try_hold(one, &wish("p0")).await.unwrap(), granted(1));
    let (next, impatient) = (wish("p1"), wish("p2"));
    assert_eq!(store.queue_for(two, &next).await.unwrap(), Acquired::Waiting);
    assert_eq!(store.queue_for(three, &impatient).await.unwrap(), Acquired::Waiting);
    assert_eq!(release(&store, one, 1).await, Changed::Done);
    assert_eq!((store.queue_for(two, &next).await.unwrap(), awaited().await), (granted(2), 1));
    // Whoever gives up leaves the mark; the next release finds that nobody is there.
    store.give_up(three, &key("a"), impatient.request).await.unwrap();
    assert_eq!(awaited().await, 1);
    assert_eq!(release(&store, two, 2).await, Changed::Done);
    assert_eq!(awaited().await, 0);
    // The last of the queue takes the mark with it.
    assert_eq!(store.try_hold(one, &wish("p0")).await.unwrap(), granted(3));
    assert_eq!(store.queue_for(two, &wish("p1")).await.unwrap(), Acquired::Waiting);
    assert_eq!(release(&store, one, 3).await, Changed::Done);
    assert_eq!(awaited().await, 0);
}
