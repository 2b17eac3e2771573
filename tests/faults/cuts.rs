//! Every operation, broken off at every statement that it sends, in every way: repeating it does what it would have done.

use std::time::Duration;

use futures::future::join_all;
use leadergroup::lock::{
    Acquired, Changed, Claimed, DatabaseConfig, Granted, HandOver, Heir, Key, LockError, Refusal, SessionId,
    Store, Token, Wish,
};

use sqlx::postgres::PgConnection;

use crate::cast::{GROUP, TTL, claim, dead_session, grant, key, owner, session, take, tombstone, vacate};
use crate::pgbouncer::PgBouncer;
use crate::postgres::{Database, eventually, migrated, shared};
use crate::proxy::{Backend, Fault, Proxy};

/// Each operation by its name, and all of them.
macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Operation { $($name),* }

        const ALL: &[Operation] = &[$(Operation::$name),*];
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
    HoldAgain,
    TakeOver,
    Queue,
    Release,
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

/// What an operation works on.
struct Scene {
    own: SessionId,
    other: SessionId,
    key: Key,
    wish: Wish,
    grant: leadergroup::lock::Grant,
    vacate: leadergroup::lock::Vacate,
}

fn wish(key: &Key, name: &str) -> Wish {
    Wish::new(key.clone(), owner(name), "test")
}

async fn hold(store: &Store, own: SessionId, wish: &Wish) {
    assert!(matches!(store.try_hold(own, wish).await.unwrap(), Acquired::Granted { .. }));
}

impl Operation {
    async fn prepare(self, database: &Database, store: &Store, name: &str) -> Scene {
        let (own, other) = (session(store).await, session(store).await);
        let key = key(name);
        let (mine, others) = (wish(&key, "mine"), wish(&key, "other's"));
        match self {
            Register | Beat | MarkDead | Create | Hold | SetTtl => {}
            BeatInANewEra => database.sql("update leadergroup.meta set timeline = timeline + 1").await,
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
                assert_eq!(store.queue_for(other, &others).await.unwrap(), Acquired::Waiting);
            }
            GiveUp => {
                hold(store, other, &others).await;
                assert_eq!(store.queue_for(own, &mine).await.unwrap(), Acquired::Waiting);
            }
            Release | GiveUpWhatWasGranted | ForceReleaseHeld => hold(store, own, &mine).await,
        }
        let (grant, vacate) = (grant(&key, 0, "p0"), vacate(&key, 1));
        Scene { own, other, key, wish: mine, grant, vacate }
    }

    /// In words, so that answers can be compared.
    async fn act(self, store: &Store, scene: &Scene) -> Result<String, LockError> {
        let Scene { own, other, key, wish, .. } = scene;
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
            Register => store.register("replica", TTL).await.map(|_| "registered".to_owned())?,
            Beat => format!("alive {}", store.beat(*own).await?.alive),
            BeatInANewEra => {
                let beat = store.beat(*own).await?;
                format!("alive {} in era {}", beat.alive, beat.epoch.era)
            }
            MarkDead => format!("dead {}", store.mark_dead(&[(*other, 1)]).await? == [*other]),
            Close => format!("freed {}", store.close(*own).await?),
            Create | Adopt => match store.claim(*own, &[claim(key)]).await?.remove(0) {
                Claimed::Ours(_) => "ours".to_owned(),
                other => format!("{other:?}"),
            },
            Yield => changed(store.yield_charge(*own, std::slice::from_ref(key)).await?.remove(0)),
            Grant => match store.grant(*own, std::slice::from_ref(&scene.grant)).await?.remove(0) {
                Granted::Granted { token } => format!("granted {token}"),
                Granted::Refused(refusal) => format!("{refusal:?}"),
            },
            Confirm => changed(store.confirm(*own, &[(key.clone(), token)]).await?.remove(0)),
            Vacate => changed(store.vacate(*own, std::slice::from_ref(&scene.vacate)).await?.remove(0)),
            Bury => changed(store.tombstone(*own, &[tombstone(key, GROUP)]).await?.remove(0)),
            Hold | HoldAgain | TakeOver => acquired(store.try_hold(*own, wish).await?),
            Queue => acquired(store.queue_for(*own, wish).await?),
            Release | ReleaseToTheNext => changed(store.release(*own, key, token, "done").await?),
            Pass => match store.hand_over(*own, key, token, Heir::Name("other's"), "your turn").await? {
                HandOver::Done => "done".to_owned(),
                HandOver::NotWaiting => "nobody of this name waits".to_owned(),
                HandOver::Refused(refusal) => changed(Changed::Refused(refusal)),
            },
            SetTtl => format!("alive {}", store.set_ttl(*own, 2 * TTL).await?),
            GiveUp | GiveUpWhatWasGranted => {
                store.give_up(*own, key, wish.request).await?;
                "gave up".to_owned()
            }
            ForceRelease | ForceReleaseHeld => changed(store.force_release(key, token, "by hand").await?),
        })
    }

    /// The answer, and what else may be said to whoever asks again.
    fn answers(self) -> (&'static str, &'static str) {
        let (first, again) = match self {
            Register => ("registered", ""),
            Beat | SetTtl => ("alive true", ""),
            BeatInANewEra => ("alive true in era", ""),
            MarkDead => ("dead true", ""),
            Close => ("freed 1", "freed 0"),
            Create | Adopt => ("ours", ""),
            Yield | Confirm | Vacate | Bury | ForceRelease => ("done", ""),
            Grant | Hold => ("granted 1", ""),
            HoldAgain | TakeOver => ("granted 2", ""),
            Queue => ("Waiting", ""),
            Release | ReleaseToTheNext | Pass | ForceReleaseHeld => ("done", "another token"),
            GiveUp | GiveUpWhatWasGranted => ("gave up", ""),
        };
        (first, if again.is_empty() { first } else { again })
    }

    /// What has to be there afterwards: terms of the key, those of them that have ended, waiters, and whether it is held.
    fn outcome(self) -> (i64, i64, i64, bool) {
        match self {
            Register | Beat | BeatInANewEra | MarkDead | Close | Create | Adopt | Yield | Bury | SetTtl => {
                (0, 0, 0, false)
            }
            Grant | Confirm | Hold | GiveUp => (1, 0, 0, true),
            Queue => (1, 0, 1, true),
            Vacate | Release | GiveUpWhatWasGranted | ForceRelease | ForceReleaseHeld => (1, 1, 0, false),
            HoldAgain | ReleaseToTheNext | Pass => (2, 1, 0, true),
            TakeOver => (2, 0, 0, true),
        }
    }
}

async fn outcome(admin: &mut PgConnection, key: &Key) -> (i64, i64, i64, bool) {
    sqlx::query_as(
        "select (select count(*) from leadergroup.term where key = $1), \
         (select count(*) from leadergroup.terms where key = $1 and ended_at is not null), \
         (select count(*) from leadergroup.waiter where key = $1), \
         exists (select from leadergroup.lock where key = $1 and owner_uid is not null)",
    )
    .bind(key.as_str())
    .fetch_one(admin)
    .await
    .unwrap()
}

/// Connections of programs under test that are behind the proxy.
async fn connections(database: &Database) -> i64 {
    database
        .number(
            "select count(*) from pg_stat_activity \
             where datname = current_database() and application_name = 'behind the proxy'",
        )
        .await
}

/// What each of the operations is broken off by, and where.
struct Stage<'a> {
    database: &'a Database,
    /// Leads to the database without a fault.
    direct: Store,
    backend: Backend,
    /// Leads to the backend.
    url: String,
    fault: Fault,
    limit: Duration,
    /// Whether the connection was in use before. What breaks together with such a one is repeated by the store itself.
    idle: bool,
}

impl Stage<'_> {
    /// All at the same time; and by itself, in any case, what changes the tokens of all.
    async fn break_off(&self, operations: &[Operation]) {
        let others = operations.iter().filter(|operation| **operation != BeatInANewEra);
        join_all(others.map(|&operation| self.break_one_off(operation))).await;
        self.break_one_off(BeatInANewEra).await;
        let twice = "select count(*) from \
                     (select from leadergroup.term group by key, token having count(*) > 1) as t";
        assert_eq!(self.database.number(twice).await, 0, "a token was used twice");
    }

    /// At its first, second, third ... statement, until there are no more.
    async fn break_one_off(&self, operation: Operation) {
        let fault = self.fault;
        let proxy = Proxy::before(self.backend.clone()).await;
        let config = DatabaseConfig {
            url: format!("{}?application_name=behind%20the%20proxy", proxy.url(&self.url)).into(),
            statement_timeout: self.limit,
            ..self.database.config()
        };
        let mut admin = self.database.admin().await;
        let (expected, again) = operation.answers();
        let mut broken = 0;
        loop {
            let context = format!("{operation:?}, {fault:?} at statement {broken}, idle: {}", self.idle);
            let name = format!("{operation:?}-{broken}-{}", self.idle);
            let scene = operation.prepare(self.database, &self.direct, &name).await;
            let store = Store::new(&config).unwrap();
            if self.idle {
                store.check().await.unwrap();
            }
            proxy.arm(fault, broken);
            let answer = operation.act(&store, &scene).await;
            let fired = proxy.disarm();
            match &answer {
                // The store may have repeated it by itself. Only this one then says what the second time came to.
                Ok(answer) if self.idle && operation == Close && answer == again => {}
                Ok(answer) => assert!(answer.starts_with(expected), "{context}: {answer}"),
                // Where the time is short it may be over without a fault.
                Err(error) => {
                    assert!((fired || fault == Fault::Hang) && error.is_temporary(), "{context}: {error}");
                }
            }
            if fired || answer.is_err() {
                let answer = repeated(operation, &store, &scene).await;
                assert!(answer.starts_with(expected) || answer == again, "{context}, again: {answer}");
            }
            let left = outcome(&mut admin, &scene.key).await;
            assert_eq!(left, operation.outcome(), "{context}: {answer:?}");
            if !fired {
                break;
            }
            broken += 1;
        }
        assert!(broken > 0, "{operation:?} was not broken off at all");
    }
}

/// Until the first try is over, the server may say that it is still under way.
async fn repeated(operation: Operation, store: &Store, scene: &Scene) -> String {
    let start = std::time::Instant::now();
    loop {
        match operation.act(store, scene).await {
            Ok(answer) if answer == "Busy" || answer == "Refused(Busy)" => {}
            // The statement that was broken off still has the session's row.
            Ok(answer) if answer == "dead false" => {}
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_temporary(), "{operation:?}: {error}"),
        }
        assert!(start.elapsed() < crate::postgres::DEADLINE, "{operation:?} is under way for ever");
    }
}

async fn directly(fault: Fault, limit: Duration) {
    // An answer that never comes is the same on both.
    for idle in [false, true].into_iter().take(if fault == Fault::Hang { 1 } else { 2 }) {
        let (database, direct) = migrated().await;
        let (url, backend) = (database.url(), Backend::of(shared()));
        Stage { database: &database, direct, backend, url, fault, limit, idle }.break_off(ALL).await;
        eventually("no connection is left behind", async || connections(&database).await == 0).await;
    }
}

const GENEROUS: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_request_is_lost_can_be_repeated() {
    directly(Fault::RequestLost, GENEROUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_is_cut_off_can_be_repeated() {
    directly(Fault::Cut, GENEROUS).await;
}

/// The COMMIT is carried out, and nobody is told: with an autocommitted statement its answer is the COMMIT's.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_answer_is_lost_can_be_repeated() {
    directly(Fault::AnswerLost, GENEROUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_answer_never_comes_ends_in_time_and_can_be_repeated() {
    directly(Fault::Hang, Duration::from_secs(2)).await;
}

/// A statement that broke together with a connection that had been idle is repeated once. Where that cannot be, nobody knows
/// whether it took effect; the error must not sound as if it had not been sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_was_sent_is_in_doubt_though_the_server_cannot_be_reached_any_more() {
    let (database, _direct) = migrated().await;
    let proxy = Proxy::before(Backend::of(shared())).await;
    let config = DatabaseConfig { url: proxy.url(&database.url()).into(), ..database.config() };
    let store = Store::new(&config).unwrap();
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    proxy.refuse(true);
    proxy.arm(Fault::AnswerLost, 0);
    let wanted = [grant(&key("a"), 0, "p0")];
    let answer = store.grant(own, &wanted).await;
    assert!(proxy.disarm() && matches!(answer, Err(LockError::Interrupted { .. })), "{answer:?}");
    let answer = store.grant(own, &wanted).await;
    assert!(matches!(answer, Err(LockError::Unreachable { .. })), "{answer:?}");
    proxy.refuse(false);
    let granted = Granted::Granted { token: Token::new(1) };
    assert_eq!(store.grant(own, &wanted).await.unwrap(), [granted], "it had taken effect");
}

/// Through a pooler each operation is a transaction of three steps, BEGIN and COMMIT among them.
#[tokio::test(flavor = "multi_thread")]
async fn through_a_pooler_an_operation_whose_commit_is_broken_off_can_be_repeated() {
    let pooler = PgBouncer::start(shared(), "auth_type = trust");
    let some = [MarkDead, Close, Grant, Hold, HoldAgain, Queue, Release, ReleaseToTheNext, GiveUp];
    for fault in [Fault::RequestLost, Fault::AnswerLost] {
        let (database, direct) = migrated().await;
        let (url, backend) = (pooler.url(&database), Backend::Port(pooler.port()));
        Stage { database: &database, direct, backend, url, fault, limit: GENEROUS, idle: false }
            .break_off(&some)
            .await;
        // These are the pooler's own.
        assert!(connections(&database).await <= 2);
    }
}

/// Either the schema is what it should be, or nothing was changed; migrating again makes it so.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_is_broken_off_can_be_repeated() {
    let database = crate::postgres::database().await;
    let proxy = Proxy::before(Backend::of(shared())).await;
    let config = DatabaseConfig { url: proxy.url(&database.url()).into(), ..database.config() };
    let mut broken = 0;
    loop {
        database.sql("drop schema if exists leadergroup cascade").await;
        let store = Store::new(&config).unwrap();
        proxy.arm(Fault::AnswerLost, broken);
        let answer = store.migrate().await;
        let fired = proxy.disarm();
        if let Err(error) = &answer {
            assert!(fired && error.is_temporary(), "at statement {broken}: {error}");
            let begun = "select count(*) from pg_class where relnamespace = to_regnamespace('leadergroup')";
            let begun = database.number(begun).await > 0;
            let whole = store.check().await.unwrap().verdict().is_ok();
            assert_eq!(begun, whole, "half a schema after statement {broken}");
            store.migrate().await.unwrap();
        }
        session(&store).await;
        if !fired {
            assert!(broken > 10, "it has more steps than {broken}");
            return;
        }
        broken += 1;
    }
}
