//! The death mark against each change: a change either takes effect before the mark, or not at all.

use std::time::Duration;

use leadergroup::lock::{
    Changed, Claimed, DatabaseConfig, Granted, Key, LockError, Refusal, SessionId, Store, Token,
};
use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::cast::{GROUP, Gate, claim, grant, grant_one, granted, key, session, take, tombstone, vacate};
use crate::postgres::{eventually, migrated};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Adopt,
    Create,
    Yield,
    Grant,
    Confirm,
    Vacate,
    Bury,
    BuryMissing,
}

const ALL: [Change; 8] = [
    Change::Adopt,
    Change::Create,
    Change::Yield,
    Change::Grant,
    Change::Confirm,
    Change::Vacate,
    Change::Bury,
    Change::BuryMissing,
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
            Self::Create | Self::BuryMissing => {}
            Self::Adopt => {
                let before = session(store).await;
                take(store, before, key).await;
                store.close(before).await.unwrap();
            }
            Self::Yield | Self::Grant | Self::Bury => {
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
            Self::Adopt | Self::Create => match store.claim(own, &[claim(key)]).await {
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
            Self::Yield => store.yield_charge(own, std::slice::from_ref(key)).await.unwrap().remove(0),
            Self::Confirm => store.confirm(own, &[(key.clone(), Token::new(1))]).await.unwrap().remove(0),
            Self::Vacate => store.vacate(own, &[vacate(key, 1)]).await.unwrap().remove(0),
            Self::Bury | Self::BuryMissing => {
                store.tombstone(own, &[tombstone(key, GROUP)]).await.unwrap().remove(0)
            }
        };
        match changed {
            Changed::Done => Outcome::Done,
            Changed::Refused(Refusal::SessionDead) => Outcome::Dead,
            Changed::Refused(other) => panic!("{self:?}: {other:?}"),
        }
    }
}

/// The change was there first: the mark cannot be set until it is committed, so it cannot take effect afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_cannot_be_overtaken_by_the_death_mark() {
    let (database, store) = migrated().await;
    let quick = DatabaseConfig { statement_timeout: Duration::from_secs(2), ..database.config() };
    let quick = Store::new(&quick).unwrap();
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
        assert_eq!(quick.mark_dead(&[(own, 1)]).await.unwrap(), [], "{change:?}: marked dead in the middle");
        gate.open().await;
        assert_eq!(running.await.unwrap(), Outcome::Done, "{change:?}");
        assert_eq!(store.mark_dead(&[(own, 1)]).await.unwrap(), [own], "{change:?}");
    }
}

/// The mark was there first, but is not committed yet: the change waits for it and finds itself dead.
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
