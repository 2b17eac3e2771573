//! The operations that are broken off in every way: what each begins with, answers, and leaves.

use std::collections::BTreeSet;

use futures::future::join_all;
use leadergroup_lock::{
    AcquireRequest, Acquired, Changed, Claimed, EraId, Granted, Key, LockError, Refusal, SessionId, Store,
    Successor, Token, Transfer, Wait,
};
use sqlx::postgres::PgConnection;

use crate::cast::{GROUP, TTL, claim, dead_session, grant, holder, key, session, take, tombstone, vacate};
use crate::postgres::Database;

/// Each operation by its name, and all of them.
macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Operation { $($name),* }

        pub const ALL: &[Operation] = &[$(Operation::$name),*];
    };
}

operations![
    Register,
    Beat,
    BeatInANewEra,
    MarkDead,
    Close,
    Create,
    Adopt,
    Yield,
    Grant,
    Confirm,
    Vacate,
    Bury,
    Hold,
    HoldTogether,
    HoldAgain,
    TakeOver,
    Queue,
    Release,
    ReleaseTogether,
    ReleaseToTheNext,
    Pass,
    GiveUp,
    GiveUpWhatWasGranted,
    ForceRelease,
    ForceReleaseHeld,
    SetTtl,
];

#[allow(clippy::enum_glob_use, reason = "all of them, without a second list")]
use Operation::*;

/// How many keys are asked for at the same time.
const TOGETHER: i64 = 6;

/// What an operation works on.
pub struct Scene {
    own: SessionId,
    other: SessionId,
    pub key: Key,
    /// The era before.
    era: EraId,
    wish: AcquireRequest,
    /// What is asked at the same time.
    wishes: Vec<AcquireRequest>,
    grant: leadergroup_lock::Grant,
    vacate: leadergroup_lock::Vacate,
}

fn wish(key: &Key, name: &str) -> AcquireRequest {
    AcquireRequest::new(key.clone(), holder(name), "test")
}

async fn hold(store: &Store, own: SessionId, wish: &AcquireRequest) {
    assert!(matches!(store.acquire(own, wish, Wait::No).await.unwrap().outcome, Acquired::Granted { .. }));
}

impl Operation {
    pub async fn prepare(self, database: &Database, store: &Store, name: &str) -> Scene {
        let (own, era) = store.register("replica", TTL, None).await.unwrap();
        let other = session(store).await;
        let key = key(name);
        let (mine, others) = (wish(&key, "mine"), wish(&key, "other's"));
        let mut wishes: Vec<_> = (0..TOGETHER)
            .map(|number| wish(&Key::new(format!("{name}-{number}")).unwrap(), "mine"))
            .collect();
        match self {
            Register | Beat | MarkDead | Create | Hold | SetTtl => {}
            BeatInANewEra => database.sql("update leadergroup.meta set history = 'another one'").await,
            Adopt => {
                let before = dead_session(store).await;
                let claimed = store.claim(before, &[claim(&key)]).await;
                assert_eq!(claimed, Err(LockError::SessionDead));
                let before = session(store).await;
                take(store, before, &key).await;
                store.close(before).await.unwrap();
            }
            Close | Yield | Grant | Bury => drop(take(store, own, &key).await),
            Confirm | Vacate | ForceRelease => {
                take(store, own, &key).await;
                let granted = store.grant(own, &[grant(&key, 0, "p0")]).await.unwrap();
                assert!(matches!(granted[0], Granted::Granted { .. }));
            }
            Queue => hold(store, other, &others).await,
            HoldAgain => {
                hold(store, other, &others).await;
                assert_eq!(store.release(other, &key, Token::new(1), "done").await.unwrap(), Changed::Done);
            }
            TakeOver => {
                hold(store, other, &others).await;
                assert_eq!(store.mark_dead(&[(other, 1)]).await.unwrap(), [other]);
            }
            ReleaseToTheNext | Pass => {
                hold(store, own, &mine).await;
                assert_eq!(
                    store.acquire(other, &others, Wait::InQueue).await.unwrap().outcome,
                    Acquired::Waiting
                );
            }
            GiveUp => {
                hold(store, other, &others).await;
                assert_eq!(
                    store.acquire(own, &mine, Wait::InQueue).await.unwrap().outcome,
                    Acquired::Waiting
                );
            }
            Release | GiveUpWhatWasGranted | ForceReleaseHeld => hold(store, own, &mine).await,
            HoldTogether | ReleaseTogether => {
                for wish in &wishes {
                    hold(store, own, wish).await;
                    if self == HoldTogether {
                        let released = store.release(own, &wish.key, Token::new(1), "done").await.unwrap();
                        assert_eq!(released, Changed::Done);
                    }
                }
                if self == HoldTogether {
                    wishes = wishes.iter().map(|before| wish(&before.key, "mine")).collect();
                }
            }
        }
        let (grant, vacate) = (grant(&key, 0, "p0"), vacate(&key, 1));
        Scene { own, other, key, era, wish: mine, wishes, grant, vacate }
    }

    /// In words, so that answers can be compared.
    pub async fn act(self, store: &Store, scene: &Scene) -> Result<String, LockError> {
        let Scene { own, other, key, wish, wishes, .. } = scene;
        let changed = |changed: Changed| match changed {
            Changed::Done => "done".to_owned(),
            Changed::Refused(Refusal::TokenChanged { .. }) => "another token".to_owned(),
            Changed::Refused(refusal) => format!("{refusal:?}"),
        };
        let acquired = |acquired| match acquired {
            Acquired::Granted { token } => format!("granted {token}"),
            other => format!("{other:?}"),
        };
        let token = Token::new(1);
        Ok(match self {
            Register => store.register("replica", TTL, None).await.map(|_| "registered".to_owned())?,
            Beat => format!("alive {}", store.beat(*own, &[]).await?.alive),
            BeatInANewEra => {
                let beat = store.beat(*own, &[]).await?;
                let (another, quarantine) = (beat.era != scene.era, beat.quarantine.is_some());
                format!("alive {}, another era {another}, quarantine {quarantine}", beat.alive)
            }
            MarkDead => format!("dead {}", store.mark_dead(&[(*other, 1)]).await? == [*other]),
            Close => store.close(*own).await.map(|()| "closed".to_owned())?,
            Create | Adopt => match store.claim(*own, &[claim(key)]).await?.remove(0) {
                Claimed::Ours(_) => "ours".to_owned(),
                other => format!("{other:?}"),
            },
            Yield => changed(store.unclaim(*own, std::slice::from_ref(key)).await?.remove(0)),
            Grant => match store.grant(*own, std::slice::from_ref(&scene.grant)).await?.remove(0) {
                Granted::Granted { token } => format!("granted {token}"),
                Granted::Refused(refusal) => format!("{refusal:?}"),
            },
            Confirm => changed(store.confirm(*own, &[(key.clone(), token)]).await?.remove(0)),
            Vacate => changed(store.vacate(*own, std::slice::from_ref(&scene.vacate)).await?.remove(0)),
            Bury => changed(store.tombstone(*own, &[tombstone(key, GROUP)]).await?.remove(0)),
            HoldTogether => {
                let all = wishes.iter().map(|wish| store.acquire(*own, wish, Wait::No));
                one_answer(all_of(all).await?.into_iter().map(|attempt| acquired(attempt.outcome)))
            }
            ReleaseTogether => {
                let all = wishes.iter().map(|wish| store.release(*own, &wish.key, token, "done"));
                one_answer(all_of(all).await?.into_iter().map(changed))
            }
            Hold | HoldAgain | TakeOver => {
                acquired(store.acquire(*own, wish, Wait::No).await.map(|attempt| attempt.outcome)?)
            }
            Queue => acquired(store.acquire(*own, wish, Wait::InQueue).await.map(|attempt| attempt.outcome)?),
            Release | ReleaseToTheNext => changed(store.release(*own, key, token, "done").await?),
            Pass => match store.transfer(*own, key, token, Successor::Name("other's"), "your turn").await? {
                Transfer::Done => "done".to_owned(),
                Transfer::NotWaiting => "nobody of this name waits".to_owned(),
                Transfer::Refused(refusal) => changed(Changed::Refused(refusal)),
            },
            SetTtl => format!("alive {}", store.set_ttl(*own, 2 * TTL).await?.is_some()),
            GiveUp | GiveUpWhatWasGranted => {
                store.give_up(*own, key, wish.grant).await?;
                "gave up".to_owned()
            }
            ForceRelease | ForceReleaseHeld => changed(store.force_release(key, token, "by hand").await?),
        })
    }

    /// The answer, however often it is asked.
    pub fn answer(self) -> &'static str {
        match self {
            Register => "registered",
            Beat | SetTtl => "alive true",
            BeatInANewEra => "alive true, another era true, quarantine true",
            MarkDead => "dead true",
            Close => "closed",
            Create | Adopt => "ours",
            Yield | Confirm | Vacate | Bury | Release | ReleaseTogether | ReleaseToTheNext | Pass
            | ForceRelease | ForceReleaseHeld => "done",
            Grant | Hold => "granted 1",
            HoldTogether | HoldAgain | TakeOver => "granted 2",
            Queue => "Waiting",
            GiveUp | GiveUpWhatWasGranted => "gave up",
        }
    }

    /// What has to be there afterwards.
    pub fn outcome(self) -> Outcome {
        match self {
            Register | Beat | BeatInANewEra | MarkDead | Close | Yield | Bury | SetTtl => (0, 0, 0, 0, 0),
            Create | Adopt => (0, 0, 0, 0, 1),
            Grant | Confirm | Hold | GiveUp => (1, 0, 0, 1, 1),
            HoldTogether => (2 * TOGETHER, TOGETHER, 0, TOGETHER, TOGETHER),
            Queue => (1, 0, 1, 1, 1),
            Vacate => (1, 1, 0, 0, 1),
            Release | GiveUpWhatWasGranted | ForceRelease | ForceReleaseHeld => (1, 1, 0, 0, 0),
            ReleaseTogether => (TOGETHER, TOGETHER, 0, 0, 0),
            HoldAgain | ReleaseToTheNext | Pass | TakeOver => (2, 1, 0, 1, 1),
        }
    }
}

/// Terms of the keys, those of them that have ended, waiters, keys that are held, and keys of living sessions.
pub type Outcome = (i64, i64, i64, i64, i64);

pub async fn outcome(admin: &mut PgConnection, key: &Key) -> Outcome {
    sqlx::query_as(
        "select (select count(*) from leadergroup.terms where starts_with(key, $1)), \
         (select count(*) from leadergroup.terms where starts_with(key, $1) and ended_at is not null), \
         (select count(*) from leadergroup.waiter where starts_with(key, $1)), \
         (select count(*) from leadergroup.lock where starts_with(key, $1) and holder_uid is not null), \
         (select count(*) from leadergroup.lock as l join leadergroup.session as s on s.id = l.session \
          where starts_with(l.key, $1) and not s.dead)",
    )
    .bind(key.as_str())
    .fetch_one(admin)
    .await
    .unwrap()
}

/// All of them, whatever becomes of one: an error does not break the others off.
async fn all_of<T>(
    asked: impl Iterator<Item = impl Future<Output = Result<T, LockError>>>,
) -> Result<Vec<T>, LockError> {
    join_all(asked).await.into_iter().collect()
}

/// The answer that all were given, or all that there were.
fn one_answer(answers: impl Iterator<Item = String>) -> String {
    let answers: BTreeSet<_> = answers.collect();
    answers.into_iter().collect::<Vec<_>>().join(", ")
}

/// Whether the answer says that the first try has not ended: something is locked still.
pub fn is_under_way(answer: &str) -> bool {
    ["Busy", "Refused(Busy)", "dead false"].contains(&answer)
}

/// Until the first try is over, the server may say that it is still under way.
pub async fn repeated(operation: Operation, store: &Store, scene: &Scene) -> String {
    let start = std::time::Instant::now();
    loop {
        match operation.act(store, scene).await {
            Ok(answer) if is_under_way(&answer) => {}
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_temporary(), "{operation:?}: {error}"),
        }
        assert!(start.elapsed() < crate::postgres::DEADLINE, "{operation:?} is under way for ever");
    }
}
