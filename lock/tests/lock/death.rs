//! The death mark against each change: a change either takes effect before the mark, or not at all.

use std::time::Duration;

use leadergroup_lock::{
    Changed, Key, LockError, Refusal, SessionId, Store, Successor, Token,
    controller::{Claimed, Granted},
    protocol::{AcquireRequest, Acquired, Transfer},
};
use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::cast::{
    GROUP, Gate, claim, grant, grant_one, granted, holder, key, session, take, tombstone, vacate,
};
use crate::holders::{self, acquire, queue};
use crate::postgres::{eventually, migrated};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Claim,
    ClaimMissing,
    Unclaim,
    Grant,
    Confirm,
    Vacate,
    Tombstone,
    TombstoneMissing,
    Acquire,
    Queue,
    ReleaseToTheNext,
    Transfer,
}

const ALL: [Change; 12] = [
    Change::Claim,
    Change::ClaimMissing,
    Change::Unclaim,
    Change::Grant,
    Change::Confirm,
    Change::Vacate,
    Change::Tombstone,
    Change::TombstoneMissing,
    Change::Acquire,
    Change::Queue,
    Change::ReleaseToTheNext,
    Change::Transfer,
];

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Dead,
}

impl Change {
    /// Brings the key into the state that the change needs.
    async fn prepare(self, store: &Store, own: SessionId, key: &Key) {
        match self {
            Self::ClaimMissing | Self::TombstoneMissing | Self::Acquire => {}
            Self::Queue => drop(hold(store, session(store).await, key).await),
            Self::ReleaseToTheNext | Self::Transfer => {
                hold(store, own, key).await;
                let next = AcquireRequest::new(key.clone(), holder("next"), "test");
                assert_eq!(queue(store, session(store).await, &next).await, Acquired::Waiting);
            }
            Self::Claim => {
                let before = session(store).await;
                take(store, before, key).await;
                store.close(before).await.unwrap();
            }
            Self::Unclaim | Self::Grant | Self::Tombstone => {
                take(store, own, key).await;
            }
            Self::Confirm | Self::Vacate => {
                take(store, own, key).await;
                assert_eq!(grant_one(store, own, grant(key, 0, "p0")).await, granted(1));
            }
        }
    }

    async fn carry_out(self, store: &Store, own: SessionId, key: &Key) -> Outcome {
        let changed = match self {
            Self::Claim | Self::ClaimMissing => match store.claim(own, &[claim(key)]).await {
                Ok(answers) => {
                    assert!(matches!(answers[0], Claimed::Ours(_)), "{self:?}: {answers:?}");
                    return Outcome::Done;
                }
                Err(LockError::SessionDead) => return Outcome::Dead,
                Err(error) => panic!("{self:?}: {error}"),
            },
            Self::Grant => match grant_one(store, own, grant(key, 0, "p1")).await {
                Granted::Granted { .. } => return Outcome::Done,
                Granted::Refused(refusal) => Changed::Refused(refusal),
            },
            Self::Unclaim => store.unclaim(own, std::slice::from_ref(key)).await.unwrap().remove(0),
            Self::Confirm => store.confirm(own, key, Token::new(1)).await.unwrap(),
            Self::Vacate => store.vacate(own, vacate(key, 1)).await.unwrap(),
            Self::Tombstone | Self::TombstoneMissing => {
                store.tombstone(own, &[tombstone(key, GROUP)]).await.unwrap().remove(0)
            }
            Self::Acquire => match hold(store, own, key).await {
                Acquired::Granted { .. } => return Outcome::Done,
                Acquired::Refused(refusal) => Changed::Refused(refusal),
                other => panic!("{self:?}: {other:?}"),
            },
            Self::Queue => {
                match queue(store, own, &AcquireRequest::new(key.clone(), holder("late"), "test")).await {
                    Acquired::Waiting => return Outcome::Done,
                    Acquired::Refused(refusal) => Changed::Refused(refusal),
                    other => panic!("{self:?}: {other:?}"),
                }
            }
            Self::ReleaseToTheNext => store.release(own, key, Token::new(1), "done").await.unwrap(),
            Self::Transfer => {
                match store.transfer(own, key, Token::new(1), Successor::Name("next"), "yours").await.unwrap()
                {
                    Transfer::Done => return Outcome::Done,
                    Transfer::Refused(refusal) => Changed::Refused(refusal),
                    other => panic!("{self:?}: {other:?}"),
                }
            }
        };
        match changed {
            Changed::Done => Outcome::Done,
            Changed::Refused(Refusal::SessionDead) => Outcome::Dead,
            Changed::Refused(other) => panic!("{self:?}: {other:?}"),
        }
    }
}

async fn hold(store: &Store, own: SessionId, key: &Key) -> Acquired {
    acquire(store, own, &AcquireRequest::new(key.clone(), holder("holder"), "test")).await
}

/// The change came first: its session is skipped until it is committed, so it cannot take effect after the mark. The
/// mark does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_cannot_be_overtaken_by_the_death_mark() {
    let (database, store) = migrated().await;
    let mut gate = Gate::close_for(&database, "insert or update on leadergroup.lock").await;
    gate.open().await;
    for change in ALL {
        let own = session(&store).await;
        let key = key(&format!("{change:?}"));
        change.prepare(&store, own, &key).await;
        gate.close_again().await;
        let running = tokio::spawn({
            let (store, key) = (store.clone(), key.clone());
            async move { change.carry_out(&store, own, &key).await }
        });
        gate.somebody_waits().await;
        let others = session(&store).await;
        let dead = store.mark_dead(&[(own, 1), (others, 1)], None).await.unwrap();
        assert_eq!(dead, [others], "{change:?}: not in the middle, and at the expense of no other");
        assert_eq!(database.waiting().await, 1, "{change:?}: only the change, at the gate");
        gate.open().await;
        assert_eq!(running.await.unwrap(), Outcome::Done, "{change:?}");
        assert_eq!(store.mark_dead(&[(own, 1)], None).await.unwrap(), [own], "{change:?}");
    }
}

/// The mark came first, but is not committed yet: the change waits for it and finds its session dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_meets_a_death_mark_under_way_has_no_effect() {
    let (database, store) = migrated().await;
    for change in ALL {
        let own = session(&store).await;
        let key = key(&format!("{change:?}"));
        change.prepare(&store, own, &key).await;
        let before = store.read(std::slice::from_ref(&key)).await.unwrap();
        let mut admin = database.admin().await;
        let mut mark = admin.begin().await.unwrap();
        // As `mark_dead` does it.
        mark.execute(AssertSqlSafe(format!(
            "select from leadergroup.session where id = '{own}' for update;
             update leadergroup.session set dead = true where id = '{own}'"
        )))
        .await
        .unwrap();
        let running = tokio::spawn({
            let (store, key) = (store.clone(), key.clone());
            async move { change.carry_out(&store, own, &key).await }
        });
        eventually("the change waits for the mark", async || database.waiting().await > 0).await;
        mark.commit().await.unwrap();
        assert_eq!(running.await.unwrap(), Outcome::Dead, "{change:?}");
        assert_eq!(store.read(std::slice::from_ref(&key)).await.unwrap(), before, "{change:?}");
    }
}

/// To acquire a free key, the own session is read and not locked: a mark that is set meanwhile counts as set just after
/// it. The key then belongs to a dead holder, like any other.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_acquired_while_its_session_is_marked_dead_is_a_dead_holders() {
    let delay = Duration::from_hours(1);
    for lock_delay in [Duration::ZERO, delay] {
        let (database, store) = migrated().await;
        let key = key("a");
        let wish =
            |name| AcquireRequest { lock_delay, ..AcquireRequest::new(key.clone(), holder(name), "test") };
        let (own, other) = (session(&store).await, session(&store).await);
        hold(&store, own, &key).await;
        assert_eq!(store.release(own, &key, Token::new(1), "done").await.unwrap(), Changed::Done);
        let mut gate = Gate::close(&database).await;
        let (mine, others) = (wish("mine"), wish("other's"));
        let (answer, ()) = tokio::join!(acquire(&store, own, &mine), async {
            gate.somebody_waits().await;
            assert_eq!(store.mark_dead(&[(own, 1)], None).await.unwrap(), [own]);
            assert_eq!(acquire(&store, other, &others).await, Acquired::Refused(Refusal::Busy));
            gate.open().await;
        });
        assert_eq!(answer, holders::granted(2));
        let expected = if lock_delay.is_zero() {
            holders::granted(3)
        } else {
            Acquired::Delayed { token: Token::new(2), delay }
        };
        assert_eq!(acquire(&store, other, &others).await, expected);
        let late = store.release(own, &key, Token::new(2), "done").await.unwrap();
        assert_eq!(late, Changed::Refused(Refusal::SessionDead));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_while_its_session_is_marked_dead_is_free() {
    let (database, store) = migrated().await;
    let key = key("a");
    let (own, other) = (session(&store).await, session(&store).await);
    let delayed = AcquireRequest {
        lock_delay: Duration::from_hours(1),
        ..AcquireRequest::new(key.clone(), holder("mine"), "test")
    };
    assert_eq!(acquire(&store, own, &delayed).await, holders::granted(1));
    let mut gate = Gate::close_for(&database, "update of end_reason on leadergroup.lock").await;
    let (released, ()) = tokio::join!(store.release(own, &key, Token::new(1), "done"), async {
        gate.somebody_waits().await;
        assert_eq!(store.mark_dead(&[(own, 1)], None).await.unwrap(), [own]);
        gate.open().await;
    });
    assert_eq!(released.unwrap(), Changed::Done);
    assert_eq!(hold(&store, other, &key).await, holders::granted(2), "no delay after an end in order");
}
