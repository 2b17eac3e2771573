//! The operations that the tests interrupt: the initial state, the answer and the outcome of each.

use std::collections::BTreeSet;

use futures::future::join_all;
use leadergroup_lock::{
    Changed, Key, LockError, Refusal, SessionId, Store, Successor, Token,
    controller::{Claimed, Granted},
    protocol::{AcquireRequest, Acquired, EraId, Transfer, Wait},
};
use sqlx::postgres::PgConnection;

use crate::cast::{GROUP, TTL, claim, dead_session, grant, holder, key, session, take, tombstone, vacate};
use crate::postgres::Database;

/// Declares the operations and a list of all of them.
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
    ClaimNew,
    ClaimFreed,
    Unclaim,
    Grant,
    Confirm,
    Vacate,
    LeaveTombstone,
    Acquire,
    AcquireTogether,
    AcquireAgain,
    AcquireOfTheDead,
    Queue,
    Release,
    ReleaseTogether,
    ReleaseToTheNext,
    TransferTo,
    GiveUp,
    GiveUpWhatWasGranted,
    ForceRelease,
    ForceReleaseHeld,
];

#[allow(clippy::enum_glob_use, reason = "all of them, without a second list")]
use Operation::*;

/// How many keys are requested at the same time.
const TOGETHER: i64 = 6;

/// The objects that an operation works on.
pub struct Scene {
    own: SessionId,
    other: SessionId,
    pub key: Key,
    /// The era before.
    era: EraId,
    request: AcquireRequest,
    /// The request of the other session.
    others: AcquireRequest,
    /// The requests that are made at the same time.
    requests: Vec<AcquireRequest>,
    grant: leadergroup_lock::controller::Grant,
    vacate: leadergroup_lock::controller::Vacate,
}

fn request(key: &Key, name: &str) -> AcquireRequest {
    AcquireRequest::new(key.clone(), holder(name), "test")
}

async fn hold(store: &Store, own: SessionId, request: &AcquireRequest) {
    assert!(matches!(store.acquire(own, request, Wait::No).await.unwrap().outcome, Acquired::Granted { .. }));
}

impl Operation {
    pub async fn prepare(self, database: &Database, store: &Store, name: &str) -> Scene {
        let (own, era) = store.register("replica", TTL, None, None).await.unwrap();
        let other = session(store).await;
        let key = key(name);
        let (mine, others) = (request(&key, "mine"), request(&key, "other's"));
        let mut requests: Vec<_> = (0..TOGETHER)
            .map(|number| request(&Key::new(format!("{name}-{number}")).unwrap(), "mine"))
            .collect();
        match self {
            Register | Beat | MarkDead | ClaimNew | Acquire => {}
            BeatInANewEra => database.sql("update leadergroup.meta set history = 'another one'").await,
            ClaimFreed => {
                let before = dead_session(store).await;
                let claimed = store.claim(before, &[claim(&key)]).await;
                assert_eq!(claimed, Err(LockError::SessionDead));
                let before = session(store).await;
                take(store, before, &key).await;
                store.close(before).await.unwrap();
            }
            Close | Unclaim | Grant | LeaveTombstone => drop(take(store, own, &key).await),
            Confirm | Vacate | ForceRelease => {
                take(store, own, &key).await;
                let granted = store.grant(own, grant(&key, 0, "p0")).await.unwrap();
                assert!(matches!(granted, Granted::Granted { .. }));
            }
            Queue => hold(store, other, &others).await,
            AcquireAgain => {
                hold(store, other, &others).await;
                assert_eq!(store.release(other, &key, Token::new(1), "done").await.unwrap(), Changed::Done);
            }
            AcquireOfTheDead => {
                hold(store, other, &others).await;
                assert_eq!(store.mark_dead(&[(other, 1)], None).await.unwrap(), [other]);
            }
            ReleaseToTheNext | TransferTo => {
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
            AcquireTogether | ReleaseTogether => {
                for request in &requests {
                    hold(store, own, request).await;
                    if self == AcquireTogether {
                        let released = store.release(own, &request.key, Token::new(1), "done").await.unwrap();
                        assert_eq!(released, Changed::Done);
                    }
                }
                if self == AcquireTogether {
                    requests = requests.iter().map(|before| request(&before.key, "mine")).collect();
                }
            }
        }
        let (grant, vacate) = (grant(&key, 0, "p0"), vacate(&key, 1));
        Scene { own, other, key, era, request: mine, others, requests, grant, vacate }
    }

    /// Runs the operation. The answer is text, so that answers can be compared.
    pub async fn act(self, store: &Store, scene: &Scene) -> Result<String, LockError> {
        let Scene { own, other, key, request, requests, .. } = scene;
        let changed = |changed: Changed| match changed {
            Changed::Done => "done".to_owned(),
            Changed::Refused(Refusal::TokenChanged) => "another token".to_owned(),
            Changed::Refused(refusal) => format!("{refusal:?}"),
        };
        let acquired = |acquired| match acquired {
            Acquired::Granted { token } => format!("granted {token}"),
            other => format!("{other:?}"),
        };
        let token = Token::new(1);
        Ok(match self {
            Register => store.register("replica", TTL, None, None).await.map(|_| "registered".to_owned())?,
            Beat => format!("alive {}", store.beat(*own, &[]).await?.alive),
            BeatInANewEra => {
                let beat = store.beat(*own, &[]).await?;
                let (another, quarantine) = (beat.era != scene.era, beat.quarantine.is_some());
                format!("alive {}, another era {another}, quarantine {quarantine}", beat.alive)
            }
            MarkDead => format!("dead {}", store.mark_dead(&[(*other, 1)], None).await? == [*other]),
            Close => store.close(*own).await.map(|()| "closed".to_owned())?,
            ClaimNew | ClaimFreed => match store.claim(*own, &[claim(key)]).await?.remove(0) {
                Claimed::Ours(_) => "ours".to_owned(),
                other => format!("{other:?}"),
            },
            Unclaim => changed(store.unclaim(*own, std::slice::from_ref(key)).await?.remove(0)),
            Grant => match store.grant(*own, scene.grant.clone()).await? {
                Granted::Granted { token } => format!("granted {token}"),
                Granted::Refused(refusal) => format!("{refusal:?}"),
            },
            Confirm => changed(store.confirm(*own, key, token).await?),
            Vacate => changed(store.vacate(*own, scene.vacate.clone()).await?),
            LeaveTombstone => changed(store.tombstone(*own, &[tombstone(key, GROUP)]).await?.remove(0)),
            AcquireTogether => {
                let all = requests.iter().map(|request| store.acquire(*own, request, Wait::No));
                one_answer(all_of(all).await?.into_iter().map(|attempt| acquired(attempt.outcome)))
            }
            ReleaseTogether => {
                let all = requests.iter().map(|request| store.release(*own, &request.key, token, "done"));
                one_answer(all_of(all).await?.into_iter().map(changed))
            }
            Acquire | AcquireAgain | AcquireOfTheDead => {
                acquired(store.acquire(*own, request, Wait::No).await.map(|attempt| attempt.outcome)?)
            }
            Queue => {
                acquired(store.acquire(*own, request, Wait::InQueue).await.map(|attempt| attempt.outcome)?)
            }
            Release | ReleaseToTheNext => changed(store.release(*own, key, token, "done").await?),
            TransferTo => {
                match store.transfer(*own, key, token, Successor::Name("other's"), "your turn").await? {
                    Transfer::Done => "done".to_owned(),
                    Transfer::NotWaiting => "no waiter of this name".to_owned(),
                    Transfer::Refused(refusal) => changed(Changed::Refused(refusal)),
                    other => panic!("{other:?}"),
                }
            }
            GiveUp | GiveUpWhatWasGranted => {
                store.give_up(*own, key, request.grant).await?;
                "gave up".to_owned()
            }
            ForceRelease | ForceReleaseHeld => changed(store.force_release(key, token, "by hand").await?),
        })
    }

    /// The answer, however often the operation is repeated.
    pub fn answer(self) -> &'static str {
        match self {
            Register => "registered",
            Beat => "alive true",
            BeatInANewEra => "alive true, another era true, quarantine true",
            MarkDead => "dead true",
            Close => "closed",
            ClaimNew | ClaimFreed => "ours",
            Unclaim | Confirm | Vacate | LeaveTombstone | Release | ReleaseTogether | ReleaseToTheNext
            | TransferTo | ForceRelease | ForceReleaseHeld => "done",
            Grant | Acquire => "granted 1",
            AcquireTogether | AcquireAgain | AcquireOfTheDead => "granted 2",
            Queue => "Waiting",
            GiveUp | GiveUpWhatWasGranted => "gave up",
        }
    }

    /// The state that has to be there afterwards.
    pub fn outcome(self) -> Outcome {
        match self {
            Register | Beat | BeatInANewEra | MarkDead | Close | Unclaim | LeaveTombstone => (0, 0, 0, 0, 0),
            ClaimNew | ClaimFreed => (0, 0, 0, 0, 1),
            Grant | Confirm | Acquire | GiveUp => (1, 0, 0, 1, 1),
            AcquireTogether => (2 * TOGETHER, TOGETHER, 0, TOGETHER, TOGETHER),
            Queue => (1, 0, 1, 1, 1),
            Vacate => (1, 1, 0, 0, 1),
            Release | GiveUpWhatWasGranted | ForceRelease | ForceReleaseHeld => (1, 1, 0, 0, 0),
            ReleaseTogether => (TOGETHER, TOGETHER, 0, 0, 0),
            AcquireAgain | ReleaseToTheNext | TransferTo | AcquireOfTheDead => (2, 1, 0, 1, 1),
        }
    }
}

/// The numbers of terms of the keys, of ended terms, of waiters, of held keys, and of keys of living sessions.
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

/// Waits for all of them: an error does not stop the others.
async fn all_of<T>(
    asked: impl Iterator<Item = impl Future<Output = Result<T, LockError>>>,
) -> Result<Vec<T>, LockError> {
    join_all(asked).await.into_iter().collect()
}

/// The common answer, or all answers if they differ.
fn one_answer(answers: impl Iterator<Item = String>) -> String {
    let answers: BTreeSet<_> = answers.collect();
    answers.into_iter().collect::<Vec<_>>().join(", ")
}

/// Whether the answer, or one of several, shows that the first try has not ended, because something is still locked.
pub fn is_under_way(answer: &str) -> bool {
    answer.split(", ").any(|answer| ["Busy", "Refused(Busy)", "dead false"].contains(&answer))
}

/// Repeats the operation. Until the first try has ended, the answer may be that it is still under way.
pub async fn repeated(operation: Operation, store: &Store, scene: &Scene) -> String {
    let start = std::time::Instant::now();
    loop {
        match operation.act(store, scene).await {
            Ok(answer) if is_under_way(&answer) => {}
            Ok(answer) => {
                if operation == ReleaseToTheNext {
                    look_again(store, scene).await;
                }
                return answer;
            }
            Err(error) => assert!(error.is_temporary(), "{operation:?}: {error}"),
        }
        assert!(start.elapsed() < crate::postgres::DEADLINE, "{operation:?} is under way for ever");
    }
}

/// What a waiter does when it is woken. A process of the server that is killed keeps its advisory locks a little longer
/// than its row locks. A release that is repeated in between makes the key free, as during a fenced transaction, and
/// the waiter takes it.
async fn look_again(store: &Store, scene: &Scene) {
    let looked = store.acquire(scene.other, &scene.others, Wait::InQueue).await.unwrap();
    assert_eq!(looked.outcome, Acquired::Granted { token: Token::new(2) });
}
