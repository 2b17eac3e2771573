//! Random sequences of what programs do with a lock, on a real server, compared step by step with a small model in memory.

use std::time::Duration;

use leadergroup::lock::{
    Acquired, Changed, GrantId, HandOver, Heir, Owner, Refusal, SessionId, Store, Token, Wish,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::cast::{TTL, key, owner};
use crate::postgres::migrated;

const SESSIONS: usize = 3;

/// One operation on the one key. Sessions are numbered by slot; whoever acts may be dead.
#[derive(Debug, Clone)]
enum Step {
    /// A new wish, or the slot's last one again.
    Ask {
        by: usize,
        again: bool,
        queue: bool,
        delay: bool,
        over: bool,
    },
    Release {
        by: usize,
        behind: i64,
    },
    HandOver {
        by: usize,
        behind: i64,
        to: usize,
    },
    Force {
        behind: i64,
    },
    GiveUp {
        by: usize,
    },
    Kill {
        slot: usize,
    },
    Close {
        slot: usize,
    },
    Register {
        slot: usize,
    },
    Prune,
}

fn step() -> impl Strategy<Value = Step> {
    let by = || 0..SESSIONS;
    // Mostly the right token.
    let behind = || prop_oneof![8 => Just(0_i64), 1 => Just(1), 1 => Just(-1)];
    let flag = |likely| prop::bool::weighted(likely);
    prop_oneof![
        12 => (by(), flag(0.5), flag(0.8), flag(0.3), flag(0.3))
            .prop_map(|(by, again, queue, delay, over)| Step::Ask { by, again, queue, delay, over }),
        5 => (by(), behind()).prop_map(|(by, behind)| Step::Release { by, behind }),
        2 => (by(), behind(), by()).prop_map(|(by, behind, to)| Step::HandOver { by, behind, to }),
        1 => behind().prop_map(|behind| Step::Force { behind }),
        1 => by().prop_map(|by| Step::GiveUp { by }),
        2 => by().prop_map(|slot| Step::Kill { slot }),
        1 => by().prop_map(|slot| Step::Close { slot }),
        3 => by().prop_map(|slot| Step::Register { slot }),
        1 => Just(Step::Prune),
    ]
}

const DELAY: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Lives,
    Killed,
    Closed,
}

/// A wish in the queue, or that was granted.
#[derive(Debug, Clone)]
struct Asked {
    session: SessionId,
    request: GrantId,
    owner: Owner,
    delay: Duration,
}

/// What the contract says.
#[derive(Debug, Default)]
struct Model {
    slots: Vec<SessionId>,
    lives: Vec<(SessionId, Life)>,
    last: Vec<Option<Wish>>,
    /// There is a row once somebody has asked.
    row: bool,
    token: i64,
    holder: Option<Asked>,
    queue: Vec<Asked>,
}

impl Model {
    fn life(&self, session: SessionId) -> Life {
        self.lives.iter().find(|(id, _)| *id == session).map_or(Life::Killed, |(_, life)| *life)
    }

    fn lives(&self, session: SessionId) -> bool {
        self.life(session) == Life::Lives
    }

    fn end(&mut self, session: SessionId, how: Life) {
        for (id, life) in &mut self.lives {
            if *id == session && *life == Life::Lives {
                *life = how;
            }
        }
    }

    fn install(&mut self, next: Asked) -> i64 {
        self.token += 1;
        self.holder = Some(next);
        self.token
    }

    fn ask(&mut self, own: SessionId, wish: &Wish, queue: bool) -> Acquired {
        if !self.lives(own) {
            return Acquired::Refused(Refusal::SessionDead);
        }
        self.row = true;
        let asked =
            Asked { session: own, request: wish.request, owner: wish.owner.clone(), delay: wish.lock_delay };
        let held = self.holder.clone().filter(|holder| self.lives(holder.session));
        if let Some(holder) = &held {
            if holder.session == own && holder.request == wish.request {
                return Acquired::Granted { token: Token::new(self.token) };
            }
            if !queue {
                return Acquired::Held;
            }
        }
        let token = Token::new(self.token);
        let unclean = self.holder.as_ref().filter(|holder| self.life(holder.session) == Life::Killed);
        let delay = unclean.map_or(Duration::ZERO, |holder| holder.delay);
        let delayed = held.is_none() && !delay.is_zero() && wish.delay_over != Some(token);
        let told = if delayed { Acquired::Delayed { token, delay } } else { Acquired::Waiting };
        if delayed && !queue {
            return told;
        }
        let place = self.queue.iter().position(|waiter| waiter.request == wish.request);
        let before = &self.queue[..place.unwrap_or(self.queue.len())];
        let first = !before.iter().any(|waiter| self.lives(waiter.session));
        if held.is_none() && !delayed && first {
            if let Some(place) = place {
                self.queue.drain(..=place);
            }
            return Acquired::Granted { token: Token::new(self.install(asked)) };
        }
        if !queue {
            return Acquired::Held;
        }
        if place.is_none() {
            self.queue.push(asked);
        }
        told
    }

    /// Whether the key has gone to somebody. Without the heir that is wanted nothing changes.
    fn let_go(&mut self, heir: Option<&str>) -> bool {
        let fits =
            |waiter: &Asked| self.lives(waiter.session) && heir.is_none_or(|name| waiter.owner.name == name);
        let next = self.queue.iter().position(fits);
        let Some(place) = next else {
            if heir.is_none() {
                self.holder = None;
            }
            return false;
        };
        let next = self.queue[place].clone();
        if heir.is_some() {
            self.queue.remove(place);
        } else {
            self.queue.drain(..=place);
        }
        self.install(next);
        true
    }

    fn holds(&self, own: SessionId, token: i64) -> bool {
        token == self.token && self.holder.as_ref().is_some_and(|holder| holder.session == own)
    }
}

fn refused(changed: Changed) -> Result<(), &'static str> {
    match changed {
        Changed::Done => Ok(()),
        Changed::Refused(refusal) => Err(word(&refusal)),
    }
}

fn word(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::SessionDead => "dead",
        Refusal::Missing => "missing",
        Refusal::TokenChanged { .. } => "changed",
        other => panic!("unexpected: {other:?}"),
    }
}

async fn carry_out(store: &Store, model: &mut Model, step: &Step) {
    let a = key("a");
    match *step {
        Step::Ask { by, again, queue, delay, over } => {
            let own = model.slots[by];
            let mut wish = match model.last[by].clone() {
                Some(wish) if again => wish,
                _ => Wish::new(a, owner(&format!("p{by}")), "model"),
            };
            wish.lock_delay = if delay { DELAY } else { Duration::ZERO };
            wish.delay_over = over.then_some(Token::new(model.token));
            model.last[by] = Some(wish.clone());
            let expected = model.ask(own, &wish, queue);
            let found =
                if queue { store.queue_for(own, &wish).await } else { store.try_hold(own, &wish).await };
            assert_eq!(found.unwrap(), expected, "{step:?}");
        }
        Step::Release { by, behind } => {
            let (own, token) = (model.slots[by], model.token - behind);
            let expected = match () {
                () if !model.lives(own) => Err("dead"),
                () if !model.row => Err("missing"),
                () if !model.holds(own, token) => Err("changed"),
                () => {
                    model.let_go(None);
                    Ok(())
                }
            };
            let found = store.release(own, &a, Token::new(token), "model").await.unwrap();
            assert_eq!(refused(found), expected, "{step:?}");
        }
        Step::HandOver { by, behind, to } => {
            let (own, token, heir) = (model.slots[by], model.token - behind, format!("p{to}"));
            let expected = match () {
                () if !model.lives(own) => Err("dead"),
                () if !model.row => Err("missing"),
                () if !model.holds(own, token) => Err("changed"),
                () => Ok(model.let_go(Some(&heir))),
            };
            let found =
                store.hand_over(own, &a, Token::new(token), Heir::Name(&heir), "model").await.unwrap();
            let found = match &found {
                HandOver::Done => Ok(true),
                HandOver::NotWaiting => Ok(false),
                HandOver::Refused(refusal) => Err(word(refusal)),
            };
            assert_eq!(found, expected, "{step:?}");
        }
        Step::Force { behind } => {
            let token = model.token - behind;
            let expected = match () {
                () if !model.row => Err("missing"),
                () if token != model.token => Err("changed"),
                () => {
                    if model.holder.is_some() {
                        model.let_go(None);
                    }
                    Ok(())
                }
            };
            let found = store.force_release(&a, Token::new(token), "model").await.unwrap();
            assert_eq!(refused(found), expected, "{step:?}");
        }
        Step::GiveUp { by } => {
            let own = model.slots[by];
            let Some(wish) = model.last[by].clone() else { return };
            model.queue.retain(|waiter| waiter.request != wish.request);
            let holder = model.holder.as_ref();
            if holder.is_some_and(|holder| holder.session == own && holder.request == wish.request)
                && model.lives(own)
            {
                model.let_go(None);
            }
            store.give_up(own, &a, wish.request).await.unwrap();
        }
        Step::Kill { slot } => {
            let victim = model.slots[slot];
            model.end(victim, Life::Killed);
            assert_eq!(store.mark_dead(&[(victim, 1)]).await.unwrap(), [victim]);
        }
        Step::Close { slot } => {
            model.end(model.slots[slot], Life::Closed);
            store.close(model.slots[slot]).await.unwrap();
        }
        Step::Register { slot } => {
            if !model.lives(model.slots[slot]) {
                register(store, model, slot).await;
            }
        }
        Step::Prune => {
            let lives = model.lives.clone();
            model.queue.retain(|waiter| lives.contains(&(waiter.session, Life::Lives)));
            store.prune(1, Duration::ZERO).await.unwrap();
        }
    }
}

async fn register(store: &Store, model: &mut Model, slot: usize) {
    let session = store.register("model", TTL).await.unwrap();
    model.lives.push((session, Life::Lives));
    model.slots[slot] = session;
    // Requests are not taken from one session to the next.
    model.last[slot] = None;
}

/// Row and queue are the model's.
async fn compare(store: &Store, model: &Model) {
    let row = store.read(&[key("a")]).await.unwrap().pop();
    assert_eq!(row.is_some(), model.row);
    if let Some(row) = row {
        assert_eq!((row.token.get(), row.session), (model.token, model.holder.as_ref().map(|h| h.session)));
        assert_eq!((row.owner, row.grant), model.holder.clone().map(|h| (h.owner, h.request)).unzip());
    }
    let waiting = store.waiters(&key("a"), 100).await.unwrap();
    let found: Vec<_> = waiting.into_iter().map(|waiter| (waiter.session, waiter.owner)).collect();
    let living = model.queue.iter().filter(|waiter| model.lives(waiter.session));
    assert_eq!(found, living.map(|waiter| (waiter.session, waiter.owner.clone())).collect::<Vec<_>>());
}

#[test]
fn random_sequences_of_a_program_s_operations_do_what_the_contract_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (database, store) = runtime.block_on(migrated());
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&prop::collection::vec(step(), 1..50), |steps| {
        runtime.block_on(async {
            let tables = "leadergroup.lock, leadergroup.term, leadergroup.session, leadergroup.waiter";
            database.sql(&format!("truncate {tables}")).await;
            let mut model = Model {
                slots: vec![SessionId::new(); SESSIONS],
                last: vec![None; SESSIONS],
                ..Model::default()
            };
            for slot in 0..SESSIONS {
                register(&store, &mut model, slot).await;
            }
            for step in &steps {
                carry_out(&store, &mut model, step).await;
                compare(&store, &model).await;
            }
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
