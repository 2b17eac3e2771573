//! Requests that tasks of a program make at the same time go to the server together, and each gets the answer that it
//! would get alone.

use std::time::Duration;

use futures::future::join_all;
use leadergroup_lock::{
    Changed, GrantId, Key, LockError, SessionId, Store, Token,
    protocol::{AcquireRequest, Acquired, Wait},
};

use tokio::sync::Notify;

use crate::cast::{GROUP, Gate, holder, key, session, take, tombstone};
use crate::fence::{application, begin, run};
use crate::postgres::{Database, eventually, migrated};

/// The state in which a request finds a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Unknown,
    Free,
    FreeToo,
    Held,
    HeldByThisWish,
    HeldByMe,
    Awaited,
    Dead,
    DeadWithDelay,
    Operators,
    Tombstone,
    Newer,
    OfAnotherEra,
    Fenced,
    HeldByThisWishToo,
}

const ALL: [Found; 15] = [
    Found::Unknown,
    Found::Free,
    Found::FreeToo,
    Found::Held,
    Found::HeldByThisWish,
    Found::HeldByMe,
    Found::Awaited,
    Found::Dead,
    Found::DeadWithDelay,
    Found::Operators,
    Found::Tombstone,
    Found::Newer,
    Found::OfAnotherEra,
    Found::Fenced,
    Found::HeldByThisWishToo,
];

/// Which requests go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Acquire,
    Release,
}

fn wish(key: &Key) -> AcquireRequest {
    AcquireRequest::new(key.clone(), holder("me"), "test")
}

async fn hold(store: &Store, own: SessionId, wish: &AcquireRequest) {
    let answer = store.acquire(own, wish, Wait::No).await.unwrap().outcome;
    assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");
}

struct Scene {
    database: Database,
    store: Store,
    own: SessionId,
    other: SessionId,
    wishes: Vec<AcquireRequest>,
    #[allow(dead_code, reason = "a transaction of an application, which ends with the scene")]
    open: Vec<sqlx::postgres::PgConnection>,
}

impl Scene {
    async fn new() -> Self {
        let (database, store) = migrated().await;
        // Set up now: the application's transaction will block any change to the table.
        Gate::build(&database, "update of end_reason on leadergroup.lock").await;
        let (own, other, dead) = (session(&store).await, session(&store).await, session(&store).await);
        let mut open = Vec::new();
        let application = application(&database).await;
        let mut wishes = Vec::new();
        for found in ALL {
            let key = key(&format!("{found:?}"));
            let wish = wish(&key);
            let others = AcquireRequest { lock_delay: Duration::from_hours(1), ..wish.clone() };
            let others = AcquireRequest { grant: GrantId::new(), ..others };
            let given_up = async |by| {
                hold(&store, by, &others).await;
                assert_eq!(store.release(by, &key, Token::new(1), "done").await.unwrap(), Changed::Done);
            };
            match found {
                Found::Unknown => {}
                Found::Free | Found::FreeToo => given_up(other).await,
                Found::Held => hold(&store, other, &others).await,
                Found::HeldByThisWish | Found::HeldByThisWishToo => hold(&store, own, &wish).await,
                Found::HeldByMe => hold(&store, own, &others).await,
                Found::Awaited => {
                    hold(&store, own, &others).await;
                    let waits = AcquireRequest { grant: GrantId::new(), ..wish.clone() };
                    assert_eq!(
                        store.acquire(other, &waits, Wait::InQueue).await.unwrap().outcome,
                        Acquired::Waiting
                    );
                }
                Found::Dead => hold(&store, dead, &wish).await,
                Found::DeadWithDelay => hold(&store, dead, &others).await,
                Found::Operators => drop(take(&store, other, &key).await),
                Found::Tombstone => {
                    take(&store, other, &key).await;
                    let ended = store.tombstone(other, &[tombstone(&key, GROUP)]).await.unwrap();
                    assert_eq!(ended, [Changed::Done]);
                }
                Found::Newer => {
                    given_up(other).await;
                    database.sql("update leadergroup.lock set protocol = 99 where key = 'Newer'").await;
                }
                Found::OfAnotherEra => {
                    given_up(other).await;
                    database.sql("update leadergroup.lock set era = 7 where key = 'OfAnotherEra'").await;
                }
                Found::Fenced => {
                    hold(&store, other, &others).await;
                    let mut bank = application.connect().await;
                    begin(&mut bank, "read committed").await;
                    assert_eq!(run(&mut bank, "select leadergroup.fence('Fenced', 1)").await, Ok(()));
                    open.push(bank);
                    assert_eq!(
                        store.release(other, &key, Token::new(1), "done").await.unwrap(),
                        Changed::Done
                    );
                }
            }
            wishes.push(wish);
        }
        assert_eq!(store.mark_dead(&[(dead, 1)], None).await.unwrap(), [dead]);
        for number in 1..=2 {
            let way = AcquireRequest { key: key(&format!("way-{number}")), ..wish(&key("a")) };
            hold(&store, own, &way).await;
            assert_eq!(store.release(own, &way.key, Token::new(1), "done").await.unwrap(), Changed::Done);
        }
        Self { database, store, own, other, wishes, open }
    }

    async fn mark_the_other_dead(&self) {
        let mark = format!("update leadergroup.session set dead = true where id = '{}'", self.other);
        self.database.sql(&mark).await;
    }

    async fn ask(&self, own: SessionId, wish: &AcquireRequest, queue: bool) -> Result<Acquired, LockError> {
        if queue {
            self.store.acquire(own, wish, Wait::InQueue).await.map(|attempt| attempt.outcome)
        } else {
            self.store.acquire(own, wish, Wait::No).await.map(|attempt| attempt.outcome)
        }
    }

    /// Makes all these requests while two other statements of their kind are under way, so that they have to wait for
    /// a slot.
    async fn together<T>(
        &self,
        kind: Kind,
        all: impl IntoIterator<Item = impl Future<Output = T>>,
    ) -> Vec<T> {
        self.together_after("select", kind, all).await
    }

    /// Like [`together`](Self::together); `change` is made while the two are under way.
    async fn together_after<T>(
        &self,
        change: &str,
        kind: Kind,
        all: impl IntoIterator<Item = impl Future<Output = T>>,
    ) -> Vec<T> {
        let busy = [1, 2].map(|number| wish(&key(&format!("way-{number}"))));
        if kind == Kind::Release {
            for way in &busy {
                hold(&self.store, self.own, way).await;
            }
        }
        let mut gate = Gate::shut(&self.database).await;
        let mut ways = Vec::new();
        for way in busy {
            let before = self.database.waiting().await;
            ways.push(tokio::spawn({
                let (store, own) = (self.store.clone(), self.own);
                async move {
                    if kind == Kind::Acquire {
                        hold(&store, own, &way).await;
                    }
                    store.release(own, &way.key, Token::new(2), "done").await
                }
            }));
            eventually("a way is taken", async || self.database.waiting().await > before).await;
        }
        self.database.sql(change).await;
        let (answers, ()) = tokio::join!(join_all(all), gate.open());
        for way in ways {
            way.await.unwrap().unwrap();
        }
        answers
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_is_answered_together_with_others_as_it_is_alone() {
    for (queue, dead) in [(false, false), (true, false), (false, true), (true, true)] {
        let (scene, other) = (Scene::new().await, Scene::new().await);
        if dead {
            scene.mark_the_other_dead().await;
            other.mark_the_other_dead().await;
        }
        let asker = |scene: &Scene| if dead { scene.other } else { scene.own };
        let asks = async || {
            let all = scene.wishes.iter().map(|wish| scene.ask(asker(&scene), wish, queue));
            scene.together(Kind::Acquire, all).await
        };
        let together = asks().await;
        let at_once = "select count(*) from leadergroup.lock as a join leadergroup.lock as b on a.xmin = b.xmin \
                       where a.key = 'Free' and b.key = 'FreeToo' and a.token = 2 and b.token = 2";
        let expected = i64::from(!dead);
        assert_eq!(scene.database.number(at_once).await, expected, "they did not go together");
        let again = asks().await;
        for (place, found) in ALL.into_iter().enumerate() {
            let wish = &other.wishes[place];
            for answers in [&together, &again] {
                let alone = other.ask(asker(&other), wish, queue).await;
                assert_eq!(answers[place], alone, "{found:?}, queue: {queue}, dead: {dead}");
            }
        }
    }
}

/// As on a server that is promoted while the requests wait for a slot.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_together_in_a_new_history() {
    let scene = Scene::new().await;
    let free = ALL.into_iter().zip(&scene.wishes);
    let free = free.filter(|(found, _)| matches!(found, Found::Free | Found::FreeToo));
    let asks = free.map(|(_, wish)| scene.ask(scene.own, wish, false));
    let answers =
        scene.together_after("update leadergroup.meta set history = 'lost'", Kind::Acquire, asks).await;
    assert_eq!(answers, [Ok(Acquired::Quarantine), Ok(Acquired::Quarantine)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_given_up_together_with_others_as_it_is_alone() {
    for (token, dead) in [(1, false), (2, false), (1, true)] {
        let (scene, other) = (Scene::new().await, Scene::new().await);
        if dead {
            scene.mark_the_other_dead().await;
            other.mark_the_other_dead().await;
        }
        let release = async |scene: &Scene, place: usize| {
            let key = &scene.wishes[place].key;
            let own = if place.is_multiple_of(2) { scene.own } else { scene.other };
            let changed = scene.store.release(own, key, Token::new(token), "done").await;
            // Some answers come with rows, which contain other sessions and times.
            let said = format!("{changed:?}");
            said.split("row").next().unwrap().to_owned()
        };
        let releases = (0..ALL.len()).map(|place| release(&scene, place));
        let together = scene.together(Kind::Release, releases).await;
        let at_once = "select count(*) from leadergroup.lock as a join leadergroup.lock as b on a.xmin = b.xmin \
                       where a.key = 'HeldByThisWish' and b.key = 'HeldByThisWishToo' and a.holder_uid is null";
        let expected = i64::from(token == 1);
        assert_eq!(scene.database.number(at_once).await, expected, "they did not go together");
        for (place, found) in ALL.into_iter().enumerate() {
            assert_eq!(
                together[place],
                release(&other, place).await,
                "{found:?}, token {token}, dead: {dead}"
            );
        }
        let held = "select coalesce(string_agg(key, ' ' order by key), '') from leadergroup.lock where holder_uid is not null";
        let held = async |scene: &Scene| -> String {
            sqlx::query_scalar(held).fetch_one(&mut scene.database.admin().await).await.unwrap()
        };
        assert_eq!(held(&scene).await, held(&other).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_has_locked_costs_the_others_nothing() {
    let scene = Scene::new().await;
    let (stuck, free) = (&scene.wishes[1], &scene.wishes[2]);
    let mut admin = scene.database.admin().await;
    begin(&mut admin, "read committed").await;
    let lock = format!("select from leadergroup.lock where key = '{}' for update", stuck.key);
    assert_eq!(run(&mut admin, &lock).await, Ok(()));
    let granted = Ok(Acquired::Granted { token: Token::new(2) });
    let answered = Notify::new();
    let ask = |wish| {
        let (scene, answered) = (&scene, &answered);
        async move {
            let answer = scene.ask(scene.own, wish, false).await;
            answered.notify_one();
            answer
        }
    };
    let (answers, ()) = tokio::join!(scene.together(Kind::Acquire, [stuck, free].map(ask)), async {
        // The first answer can only be that of the other request.
        answered.notified().await;
        assert_eq!(run(&mut admin, "commit").await, Ok(()));
    });
    assert_eq!(answers, [granted.clone(), granted]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_wishes_for_one_key_that_go_together_one_is_granted() {
    for queue in [false, true] {
        let scene = Scene::new().await;
        let wishes: Vec<_> = (0..5).map(|_| wish(&scene.wishes[1].key)).collect();
        let answers =
            scene.together(Kind::Acquire, wishes.iter().map(|wish| scene.ask(scene.own, wish, queue))).await;
        let granted = Acquired::Granted { token: Token::new(2) };
        let other = if queue { Acquired::Waiting } else { Acquired::Held };
        assert_eq!(answers.iter().filter(|answer| **answer == Ok(granted.clone())).count(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| **answer == Ok(other.clone())).count(), 4, "{answers:?}");
        let terms = "select count(*) from leadergroup.terms where key = 'Free'";
        assert_eq!(scene.database.number(terms).await, 2);
    }
}
