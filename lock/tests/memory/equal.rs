//! Random sequences of operations on a PostgreSQL server and on the database in memory: answers, rows and notifications
//! are the same after each step.

use std::fmt::Debug;
use std::time::Duration;

use leadergroup_lock::{
    Key, LockError, SessionId, Store, Successor, Token,
    admin::Retention,
    controller::{Claim, Grant, Reassignment, Tombstone, Vacate},
    protocol::{AcquireRequest, Attempt, Wait},
};

use crate::bare::Bare;
use crate::random;
use crate::stage::{PEERS, Stage, holder};
use crate::step::{Ask, GROUPS, KEYS, Step, steps};

const DELAY: Duration = Duration::from_mins(1);
const REASON: &str = "model";

fn group(number: usize) -> String {
    assert!(number < GROUPS);
    format!("group-{number}")
}

fn same<T: Debug + PartialEq>(step: &Step, real: T, double: T) {
    assert_eq!(real, double, "{step:?}: PostgreSQL first");
}

fn alike<T: Bare + Debug + PartialEq>(step: &Step, mut real: T, mut double: T) {
    real.bare();
    double.bare();
    same(step, real, double);
}

impl Stage {
    fn stores(&self) -> [Store; 2] {
        [self.real.store.clone(), self.double.store.clone()]
    }

    /// The keys whose bits are set.
    fn chosen(&self, bits: usize) -> Vec<Key> {
        (0..KEYS).filter(|number| bits >> number & 1 == 1).map(|number| self.keys[number].clone()).collect()
    }

    async fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Register { .. }
            | Step::Beat { .. }
            | Step::Kill { .. }
            | Step::Close { .. }
            | Step::Tell { .. } => self.on_sessions(step).await,
            Step::Backup
            | Step::FailOver { .. }
            | Step::BeginEra { .. }
            | Step::EndQuarantine
            | Step::Prune { .. } => self.on_all(step).await,
            Step::Claim { .. }
            | Step::Unclaim { .. }
            | Step::Tombstone { .. }
            | Step::Reassign { .. }
            | Step::Grant(_)
            | Step::Confirm { .. }
            | Step::Vacate { .. } => self.on_groups(step).await,
            _ => self.on_programs(step).await,
        }
    }

    async fn on_sessions(&mut self, step: &Step) {
        let [real, double] = self.stores();
        match *step {
            Step::Register { slot, peers } => {
                let own = self.slots[slot];
                let answers = (real.beat(own, &[]).await.unwrap(), double.beat(own, &[]).await.unwrap());
                same(step, answers.0.alive, answers.1.alive);
                if !answers.1.alive {
                    self.prepare().await;
                    self.register(slot, peers).await;
                }
            }
            Step::Beat { by, watch } => {
                let (own, watch) = (self.slots[by], [self.slots[watch]]);
                let seen = |answer: Result<leadergroup_lock::protocol::Beat, LockError>| {
                    let mut beat = answer.unwrap();
                    beat.sessions.sort_by_key(|seen| seen.id);
                    beat
                };
                same(step, seen(real.beat(own, &watch).await), seen(double.beat(own, &watch).await));
            }
            Step::Kill { victim, behind } => {
                let session = self.slots[victim];
                let count = self.beats(session);
                let observed = [(session, count.saturating_sub(behind)), (SessionId::new(), 1)];
                let dead = |answer: Result<Vec<SessionId>, LockError>| {
                    let mut dead = answer.unwrap();
                    dead.sort();
                    dead
                };
                let answers =
                    (real.mark_dead(&observed, None).await, double.mark_dead(&observed, None).await);
                same(step, dead(answers.0), dead(answers.1));
            }
            Step::Close { by } => {
                let own = self.slots[by];
                same(step, real.close(own).await, double.close(own).await);
            }
            Step::Tell { words } => {
                let words: Vec<String> = (0..words).map(|number| format!("word {}", number % 2)).collect();
                same(step, real.tell(PEERS, &words).await, double.tell(PEERS, &words).await);
                same(step, real.tell("others", &words).await, double.tell("others", &words).await);
            }
            _ => unreachable!("the other steps are not about sessions"),
        }
    }

    /// How many heartbeats the session has sent.
    fn beats(&self, session: SessionId) -> u64 {
        let sessions = self.memory.dump()["sessions"].as_array().cloned().unwrap_or_default();
        let row = sessions.iter().find(|row| row["id"] == session.to_string());
        row.and_then(|row| row["beat"].as_u64()).unwrap_or(1)
    }

    async fn on_all(&mut self, step: &Step) {
        let [real, double] = self.stores();
        match *step {
            Step::Backup => self.back_up().await,
            Step::FailOver { loses } => self.fail_over(loses).await,
            Step::BeginEra { floor } => self.begin_era(floor).await,
            Step::EndQuarantine => {
                let era = double.beat(SessionId::new(), &[]).await.unwrap().era;
                real.beat(SessionId::new(), &[]).await.unwrap();
                same(step, real.end_quarantine(era).await, double.end_quarantine(era).await);
            }
            Step::Prune { terms, at_once } => {
                let long = if at_once { Duration::ZERO } else { Duration::from_hours(1) };
                let retention = Retention { terms, idle_keys: long, dead_sessions: long };
                same(step, real.prune(retention).await, double.prune(retention).await);
            }
            _ => unreachable!("the other steps are about sessions or keys"),
        }
    }

    async fn on_groups(&mut self, step: &Step) {
        let [real, double] = self.stores();
        match *step {
            Step::Claim { by, group: own_group, keys, may_create, supersedes } => {
                let claim = |key| Claim {
                    key,
                    group: group(own_group),
                    may_create,
                    supersedes: supersedes.map(group),
                };
                let claims: Vec<Claim> = self.chosen(keys).into_iter().map(claim).collect();
                let own = self.slots[by];
                alike(step, real.claim(own, &claims).await, double.claim(own, &claims).await);
            }
            Step::Unclaim { by, keys } => {
                let (own, keys) = (self.slots[by], self.chosen(keys));
                same(step, real.unclaim(own, &keys).await, double.unclaim(own, &keys).await);
            }
            Step::Tombstone { by, group: of, keys, floor } => {
                let stone = |key| Tombstone { key, group: group(of), floor: Token::new(floor) };
                let stones: Vec<Tombstone> = self.chosen(keys).into_iter().map(stone).collect();
                let own = self.slots[by];
                same(step, real.tombstone(own, &stones).await, double.tombstone(own, &stones).await);
            }
            Step::Reassign { key, group: to, behind, floor, force } => {
                let token = self.token(key, behind.unwrap_or_default()).await;
                let request = Reassignment {
                    key: self.keys[key].clone(),
                    group: group(to),
                    expected: behind.map(|_| Token::new(token)),
                    floor: Token::new(floor),
                    reason: REASON.into(),
                    force,
                };
                same(step, real.reassign(&request).await, double.reassign(&request).await);
            }
            Step::Grant(ref wanted) => {
                let own = self.slots[wanted.by];
                let grant = self.grant(wanted).await;
                let ask = async |store: &Store| store.grant(own, grant.clone()).await;
                same(step, ask(&real).await, ask(&double).await);
            }
            Step::Confirm { by, key, behind } => {
                let token = Token::new(self.token(key, behind).await);
                let (own, key) = (self.slots[by], &self.keys[key]);
                same(step, real.confirm(own, key, token).await, double.confirm(own, key, token).await);
            }
            Step::Vacate { by, key, behind, one } => {
                let token = Token::new(self.token(key, behind).await);
                let fresh = Vacate {
                    key: self.keys[key].clone(),
                    token,
                    grant: self.grant_id(),
                    reason: REASON.into(),
                };
                let vacate = self.vacates.get(&key).filter(|_| one).cloned().unwrap_or(fresh);
                self.vacates.insert(key, vacate.clone());
                let own = self.slots[by];
                let ask = async |store: &Store| store.vacate(own, vacate.clone()).await;
                same(step, ask(&real).await, ask(&double).await);
            }
            _ => unreachable!("the other steps are not about groups"),
        }
    }

    async fn grant(&mut self, wanted: &crate::step::Grant) -> Grant {
        let present = self.row(wanted.key).await.map(|row| row.group);
        let fresh = Grant {
            key: self.keys[wanted.key].clone(),
            group: wanted.group.map(group).or(present).unwrap_or_default(),
            expected: Token::new(self.token(wanted.key, wanted.behind).await),
            floor: Token::new(wanted.floor),
            holder: holder(&format!("p{}", wanted.to)),
            grant: self.grant_id(),
            reason: REASON.into(),
        };
        let grant = self.grants.get(&wanted.key).filter(|_| wanted.again).cloned().unwrap_or(fresh);
        self.grants.insert(wanted.key, grant.clone());
        grant
    }

    async fn on_programs(&mut self, step: &Step) {
        let [real, double] = self.stores();
        match *step {
            Step::Ask(ref ask) => {
                let request = self.request(ask).await;
                let answers = (self.ask(&real, ask, &request).await, self.ask(&double, ask, &request).await);
                alike(step, answers.0, answers.1);
            }
            Step::AskTwice(ref one, ref two) => {
                if one.key == two.key {
                    return;
                }
                let requests = (self.request(one).await, self.request(two).await);
                // One of the two would begin a new era, and it is open whether the other one's answer has it.
                for store in [&real, &double] {
                    store.beat(SessionId::new(), &[]).await.unwrap();
                }
                let ask = async |store: &Store| {
                    tokio::join!(self.ask(store, one, &requests.0), self.ask(store, two, &requests.1))
                };
                let (real, double) = (ask(&real).await, ask(&double).await);
                alike(step, real.0, double.0);
                alike(step, real.1, double.1);
            }
            Step::Release { by, holder, key, behind } => {
                let row = self.row(key).await;
                let holds = row.and_then(|row| row.session).filter(|_| holder);
                let (own, token) =
                    (holds.unwrap_or(self.slots[by]), Token::new(self.token(key, behind).await));
                let key = &self.keys[key];
                let answers =
                    (real.release(own, key, token, REASON), double.release(own, key, token, REASON));
                same(step, answers.0.await, answers.1.await);
            }
            Step::Publish { by, holder, key, behind, change } => {
                let row = self.row(key).await;
                let holds = row.and_then(|row| row.session).filter(|_| holder);
                let (own, token) =
                    (holds.unwrap_or(self.slots[by]), Token::new(self.token(key, behind).await));
                let key = &self.keys[key];
                let ask = async |store: &Store| store.publish(own, key, token, change, "address").await;
                same(step, ask(&real).await, ask(&double).await);
            }
            Step::Transfer { by, key, behind, to, by_uid } => {
                let token = Token::new(self.token(key, behind).await);
                let holds = self.row(key).await.and_then(|row| row.session);
                let own = holds.filter(|_| by == 0).unwrap_or(self.slots[by]);
                let to = holder(&format!("p{to}"));
                let to = if by_uid { Successor::Uid(&to.uid) } else { Successor::Name(&to.name) };
                let key = &self.keys[key];
                let ask = async |store: &Store| store.transfer(own, key, token, to, "transferred").await;
                same(step, ask(&real).await, ask(&double).await);
            }
            Step::Force { key, behind } => {
                let (token, key) = (Token::new(self.token(key, behind).await), &self.keys[key]);
                let ask = async |store: &Store| store.force_release(key, token, "by force").await;
                same(step, ask(&real).await, ask(&double).await);
            }
            Step::GiveUp { by, key } => {
                let Some(asked) = self.asked.get(&(by, key)) else { return };
                let (own, key) = (self.slots[by], &self.keys[key]);
                same(
                    step,
                    real.give_up(own, key, asked.grant).await,
                    double.give_up(own, key, asked.grant).await,
                );
            }
            _ => unreachable!("the other steps are not about programs"),
        }
    }

    async fn request(&mut self, ask: &Ask) -> AcquireRequest {
        let (by, key) = (ask.by, ask.key);
        let fresh = AcquireRequest {
            grant: self.grant_id(),
            ..AcquireRequest::new(self.keys[key].clone(), holder(&format!("p{by}")), REASON)
        };
        let mut request = self.asked.get(&(by, key)).filter(|_| ask.again).cloned().unwrap_or(fresh);
        request.lock_delay = if ask.delay { DELAY } else { Duration::ZERO };
        request.sat_out = if ask.sat_out { Some(Token::new(self.token(key, 0).await)) } else { None };
        request.void_after =
            ask.void_after.map(|after| (self.beats(self.slots[by]) + after).saturating_sub(1));
        self.asked.insert((by, key), request.clone());
        request
    }

    async fn ask(&self, store: &Store, ask: &Ask, request: &AcquireRequest) -> Result<Attempt, LockError> {
        let wait = if ask.queue { Wait::InQueue } else { Wait::No };
        store.acquire(self.slots[ask.by], request, wait).await
    }
}

#[test]
fn random_operations_have_the_same_answers_and_effects_as_on_a_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A listener must be dropped inside of the runtime.
    let _inside = runtime.enter();
    let stage = std::cell::RefCell::new(runtime.block_on(Stage::new()));
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/memory.txt");
    let name = "equal::random_operations_have_the_same_answers_and_effects_as_on_a_server";
    random::run(name, regressions, 80, &steps(), |steps| {
        let mut stage = stage.borrow_mut();
        runtime.block_on(async {
            stage.clear().await;
            for step in &steps {
                stage.carry_out(step).await;
                stage.prepare().await;
                stage.compare().await;
            }
        });
        Ok(())
    });
}
