//! Random sequences of programs' operations on a real server, compared step by step with a small model in memory.

use std::time::Duration;

use leadergroup_lock::{
    Changed, FencePolicy, Key, Overrun, Refusal, SessionId, Store, Successor, Token,
    admin::Retention,
    protocol::{AcquireRequest, Transfer},
};
use proptest::prelude::*;
use sqlx::postgres::PgConnection;

use crate::cast::{TTL, end_quarantine, holder, key};
use crate::hold_contract::{Contract, GivingUp, Life, NOT_WANTED, Ran};
use crate::holders::{acquire, queue};
use crate::postgres::{Database, migrated};
use crate::random;

const SESSIONS: usize = 3;
const KEYS: [&str; 2] = ["a", "b"];
const DELAY: Duration = Duration::from_mins(1);

/// Reasons for the end of a term. A repetition is recognised by its reason.
const RELEASED: &str = "released";
const TRANSFERRED: &str = "transferred";
const FORCED: &str = "by force";

/// One operation. Sessions are numbered by slot; the one that acts may be dead.
#[derive(Debug, Clone)]
enum Step {
    /// A new request, or the slot's last one again.
    Ask {
        by: usize,
        key: usize,
        again: bool,
        queue: bool,
        delay: bool,
        over: bool,
    },
    Release {
        by: usize,
        /// Whether the slot that holds the key acts, if there is one.
        holder: bool,
        key: usize,
        behind: i64,
    },
    Transfer {
        by: usize,
        key: usize,
        behind: i64,
        to: usize,
    },
    Force {
        key: usize,
        behind: i64,
    },
    GiveUp {
        by: usize,
        key: usize,
    },
    /// An application begins a transaction under the fence.
    Fence {
        key: usize,
        behind: i64,
        isolation: &'static str,
    },
    EndFence {
        key: usize,
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
    NewEra,
    EndQuarantine,
    Prune,
}

fn step() -> impl Strategy<Value = Step> {
    let by = || 0..SESSIONS;
    let key = || 0..KEYS.len();
    // Mostly the right token.
    let behind = || prop_oneof![8 => Just(0_i64), 1 => Just(1), 1 => Just(-1)];
    let flag = |likely| prop::bool::weighted(likely);
    let isolation = prop::sample::select(vec!["read committed", "repeatable read", "serializable"]);
    prop_oneof![
        24 => (by(), key(), flag(0.5), flag(0.8), flag(0.3), flag(0.3))
            .prop_map(|(by, key, again, queue, delay, over)| Step::Ask { by, key, again, queue, delay, over }),
        10 => (by(), flag(0.7), key(), behind())
            .prop_map(|(by, holder, key, behind)| Step::Release { by, holder, key, behind }),
        4 => (by(), key(), behind(), by()).prop_map(|(by, key, behind, to)| Step::Transfer { by, key, behind, to }),
        2 => (key(), behind()).prop_map(|(key, behind)| Step::Force { key, behind }),
        2 => (by(), key()).prop_map(|(by, key)| Step::GiveUp { by, key }),
        5 => (key(), behind(), isolation)
            .prop_map(|(key, behind, isolation)| Step::Fence { key, behind, isolation }),
        4 => key().prop_map(|key| Step::EndFence { key }),
        4 => by().prop_map(|slot| Step::Kill { slot }),
        2 => by().prop_map(|slot| Step::Close { slot }),
        6 => by().prop_map(|slot| Step::Register { slot }),
        3 => Just(Step::NewEra),
        5 => Just(Step::EndQuarantine),
        2 => Just(Step::Prune),
    ]
}

/// The real database beside the model.
struct Stage {
    database: Database,
    store: Store,
    keys: [Key; KEYS.len()],
    /// An application's connection for each key.
    applications: [PgConnection; KEYS.len()],
    contract: Contract,
    slots: Vec<SessionId>,
    /// Each slot's last request for each key.
    last: Vec<[Option<AcquireRequest>; KEYS.len()]>,
}

fn refused(changed: Changed) -> Result<(), &'static str> {
    match changed {
        Changed::Done => Ok(()),
        Changed::Refused(refusal) => Err(word(&refusal)),
    }
}

fn done(expected: GivingUp) -> Result<(), &'static str> {
    match expected {
        GivingUp::Now | GivingUp::Before => Ok(()),
        GivingUp::Refused(word) => Err(word),
    }
}

fn word(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::SessionDead => "dead",
        Refusal::Missing => "missing",
        Refusal::TokenChanged => "changed",
        Refusal::Busy => "busy",
        other => panic!("unexpected: {other:?}"),
    }
}

impl Stage {
    async fn new() -> Self {
        let (database, store) = migrated().await;
        // No transaction is terminated: a fenced transaction blocks other holders for as long as it lasts.
        let policy = FencePolicy { patience: Duration::from_millis(2), overrun: Overrun::Wait };
        let applications = [database.admin().await, database.admin().await];
        Self {
            database,
            store: store.with_fence_policy(policy),
            keys: KEYS.map(key),
            applications,
            contract: Contract::new(KEYS.len()),
            slots: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Resets everything to the initial state.
    async fn clear(&mut self) {
        for application in &mut self.applications {
            sql(application, "rollback").await.unwrap();
        }
        let reset = "delete from leadergroup.waiter;
             delete from leadergroup.lock;
             delete from leadergroup.term;
             delete from leadergroup.session;
             update leadergroup.meta set era = 0, quarantine = false, token_floor = 0";
        self.database.sql(reset).await;
        self.contract = Contract::new(KEYS.len());
        self.slots = vec![SessionId::new(); SESSIONS];
        self.last = vec![[const { None }; KEYS.len()]; SESSIONS];
        for slot in 0..SESSIONS {
            self.register(slot).await;
        }
    }

    async fn register(&mut self, slot: usize) {
        let session = self.store.register("model", TTL, None, None).await.unwrap().0;
        self.contract.begin(session);
        self.slots[slot] = session;
        // Requests are not carried over from one session to the next.
        self.last[slot] = [const { None }; KEYS.len()];
    }

    /// The session of a slot that has the key.
    fn holder(&self, key: usize) -> Option<SessionId> {
        let holder = self.contract.locks[key].holder.as_ref()?.session;
        self.slots.contains(&holder).then_some(holder)
    }

    fn token(&self, key: usize, behind: i64) -> i64 {
        self.contract.locks[key].token - behind
    }

    async fn carry_out(&mut self, step: &Step) {
        match *step {
            Step::Ask { .. } => self.ask(step).await,
            Step::Release { by, holder, key, behind } => {
                let own = self.holder(key).filter(|_| holder).unwrap_or(self.slots[by]);
                let token = self.token(key, behind);
                let expected = self.contract.check(own, key, token, RELEASED);
                if expected == GivingUp::Now {
                    self.contract.let_go(key, RELEASED);
                }
                let found =
                    self.store.release(own, &self.keys[key], Token::new(token), RELEASED).await.unwrap();
                assert_eq!(refused(found), done(expected), "{step:?}");
            }
            Step::Transfer { by, key, behind, to } => {
                let (own, token, name) = (self.slots[by], self.token(key, behind), format!("p{to}"));
                let expected = match self.contract.check(own, key, token, TRANSFERRED) {
                    GivingUp::Now => self.contract.transfer(key, &name, TRANSFERRED),
                    other => done(other).map(|()| true),
                };
                let (token, to) = (Token::new(token), Successor::Name(&name));
                let found = self.store.transfer(own, &self.keys[key], token, to, TRANSFERRED).await.unwrap();
                let found = match &found {
                    Transfer::Done => Ok(true),
                    Transfer::NotWaiting => Ok(false),
                    Transfer::Refused(refusal) => Err(word(refusal)),
                    other => panic!("{other:?}"),
                };
                assert_eq!(found, expected, "{step:?}");
            }
            Step::Force { key, behind } => {
                let token = self.token(key, behind);
                let expected = self.contract.check_force(key, token, FORCED);
                if expected == GivingUp::Now {
                    self.contract.let_go(key, FORCED);
                }
                let found =
                    self.store.force_release(&self.keys[key], Token::new(token), FORCED).await.unwrap();
                assert_eq!(refused(found), done(expected), "{step:?}");
            }
            Step::GiveUp { by, key } => {
                let own = self.slots[by];
                let Some(wish) = self.last[by][key].clone() else { return };
                let lock = &mut self.contract.locks[key];
                // It waits for an insertion that may be under way by inserting a row itself.
                lock.row = true;
                lock.queue.retain(|waiter| waiter.grant != wish.grant);
                let holder = lock.holder.as_ref();
                if holder.is_some_and(|holder| holder.session == own && holder.grant == wish.grant)
                    && self.contract.lives(own)
                {
                    self.contract.let_go(key, NOT_WANTED);
                }
                self.store.give_up(own, &self.keys[key], wish.grant).await.unwrap();
            }
            Step::Fence { key, behind, isolation } => self.fence(key, behind, isolation).await,
            Step::EndFence { key } => {
                sql(&mut self.applications[key], "commit").await.unwrap();
                self.contract.locks[key].fenced = false;
            }
            Step::Kill { slot } => {
                let victim = self.slots[slot];
                self.contract.end(victim, Life::Killed);
                assert_eq!(self.store.mark_dead(&[(victim, 1)], None).await.unwrap(), [victim]);
            }
            Step::Close { slot } => {
                self.contract.end(self.slots[slot], Life::Closed);
                self.store.close(self.slots[slot]).await.unwrap();
            }
            Step::Register { slot } => {
                if !self.contract.lives(self.slots[slot]) {
                    self.register(slot).await;
                }
            }
            Step::NewEra => {
                self.contract.era = self.database.number("select leadergroup.begin_era()").await;
                self.contract.quarantine = true;
            }
            Step::EndQuarantine => {
                end_quarantine(&self.database).await;
                self.contract.quarantine = false;
            }
            Step::Prune => {
                self.contract.prune();
                let retention = Retention { terms: 1, dead_sessions: Duration::ZERO, ..Retention::default() };
                self.store.prune(retention).await.unwrap();
            }
        }
    }

    async fn ask(&mut self, step: &Step) {
        let Step::Ask { by, key, again, queue: in_queue, delay, over } = *step else { return };
        let own = self.slots[by];
        let mut wish = match self.last[by][key].clone() {
            Some(wish) if again => wish,
            _ => AcquireRequest::new(self.keys[key].clone(), holder(&format!("p{by}")), "model"),
        };
        wish.lock_delay = if delay { DELAY } else { Duration::ZERO };
        wish.sat_out = over.then_some(Token::new(self.token(key, 0)));
        self.last[by][key] = Some(wish.clone());
        let expected = self.contract.ask(own, key, &wish, in_queue);
        let found = if in_queue {
            queue(&self.store, own, &wish).await
        } else {
            acquire(&self.store, own, &wish).await
        };
        assert_eq!(found, expected, "{step:?}");
    }

    /// Refused unless the key has a holder with this token, dead or alive.
    async fn fence(&mut self, key: usize, behind: i64, isolation: &str) {
        let token = self.token(key, behind);
        let lock = &mut self.contract.locks[key];
        if lock.fenced {
            return;
        }
        let (name, application) = (KEYS[key], &mut self.applications[key]);
        let fence = format!("begin isolation level {isolation}; select leadergroup.fence('{name}', {token})");
        let fenced = sql(application, &fence).await;
        lock.fenced = lock.holder.is_some() && lock.token == token;
        match fenced {
            Ok(()) => assert!(lock.fenced, "token {token} is not that of a holder: {lock:?}"),
            Err(error) => {
                let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code).unwrap();
                assert!(!lock.fenced && code == "LG001", "{error}: {lock:?}");
                sql(application, "rollback").await.unwrap();
            }
        }
    }

    /// Compares rows, queues and history with the model.
    async fn compare(&self) {
        for (key, lock) in self.keys.iter().zip(&self.contract.locks) {
            let row = self.store.read(std::slice::from_ref(key)).await.unwrap().pop();
            assert_eq!(row.is_some(), lock.row);
            if let Some(row) = row {
                let holder = lock.holder.as_ref();
                assert_eq!((row.token.get(), row.session), (lock.token, holder.map(|holder| holder.session)));
                let expected = holder.map(|holder| (holder.holder.clone(), holder.grant)).unzip();
                assert_eq!((row.holder, row.grant), expected);
            }
            let waiting = self.store.waiters(key, 100).await.unwrap();
            let found: Vec<_> = waiting.into_iter().map(|waiter| (waiter.session, waiter.holder)).collect();
            let living = lock.queue.iter().filter(|waiter| self.contract.lives(waiter.session));
            assert_eq!(
                found,
                living.map(|waiter| (waiter.session, waiter.holder.clone())).collect::<Vec<_>>()
            );
            let history = self.store.history(key, 100).await.unwrap();
            let ran = history.into_iter().rev().map(|info| Ran {
                token: info.term.token.get(),
                holder: info.term.holder,
                session: info.session.unwrap(),
                ended: info.ended.map(|(_, reason)| reason),
            });
            assert_eq!(ran.collect::<Vec<_>>(), lock.terms);
        }
    }
}

async fn sql(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(connection).await.map(drop)
}

#[test]
fn random_sequences_of_a_program_s_operations_do_what_the_contract_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stage = std::cell::RefCell::new(runtime.block_on(Stage::new()));
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/hold_model.txt");
    let name = "hold_model::random_sequences_of_a_program_s_operations_do_what_the_contract_says";
    random::run(name, regressions, 80, &prop::collection::vec(step(), 1..60), |steps| {
        let mut stage = stage.borrow_mut();
        runtime.block_on(async {
            stage.clear().await;
            for step in &steps {
                stage.carry_out(step).await;
                stage.compare().await;
            }
        });
        Ok(())
    });
}
