//! Random sequences of operations on a real server, compared step by step with a small model of the contract in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use leadergroup_lock::{
    Changed, GrantId, Holder, Key, LockError, Refusal, SessionId, Store, Token,
    controller::{Claim, Claimed, Grant, Granted, LockRow, Tombstone, Vacate},
    protocol::EraId,
};
use proptest::prelude::*;

use crate::cast::{TTL, holder, key};
use crate::postgres::{Database, migrated};
use crate::random;

const SESSIONS: usize = 3;
const KEYS: usize = 2;
const GROUPS: usize = 2;

/// How many tokens an era has. In a new era, a key continues above as many tokens that may have been lost.
const JUMP: i64 = 1_000_000;

/// One operation. Sessions are numbered by slot; a slot's session is replaced when it is found dead.
#[derive(Debug, Clone)]
enum Step {
    Claim { by: usize, key: usize, group: usize, may_create: bool, supersedes: Option<usize> },
    Unclaim { by: usize, key: usize },
    Grant { by: usize, key: usize, group: Option<usize>, behind: i64, floor: i64, to: u8, again: bool },
    Confirm { by: usize, key: usize, behind: i64 },
    Vacate { by: usize, key: usize, behind: i64 },
    Tombstone { by: usize, key: usize, group: usize, floor: i64 },
    Beat { by: usize },
    Kill { victim: usize, behind: u64 },
    Close { by: usize },
    Register { slot: usize },
    NewEra,
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly the right token, sometimes an old one or one from the future.
    let behind = || prop_oneof![8 => Just(0_i64), 1 => Just(1), 1 => Just(-1)];
    // Mostly the group that has the key.
    let other_group = || prop::option::weighted(0.15, 0..GROUPS);
    let by = || 0..SESSIONS;
    let key = || 0..KEYS;
    prop_oneof![
        6 => (by(), key(), 0..GROUPS, prop::bool::weighted(0.8), prop::option::weighted(0.3, 0..GROUPS)).prop_map(
            |(by, key, group, may_create, supersedes)| Step::Claim { by, key, group, may_create, supersedes }
        ),
        1 => (by(), key()).prop_map(|(by, key)| Step::Unclaim { by, key }),
        8 => (by(), key(), other_group(), behind(), 0..12_i64, 0..3_u8, prop::bool::weighted(0.2)).prop_map(
            |(by, key, group, behind, floor, to, again)| Step::Grant { by, key, group, behind, floor, to, again }
        ),
        4 => (by(), key(), behind()).prop_map(|(by, key, behind)| Step::Confirm { by, key, behind }),
        2 => (by(), key(), behind()).prop_map(|(by, key, behind)| Step::Vacate { by, key, behind }),
        1 => (by(), key(), 0..GROUPS, 0..12_i64).prop_map(|(by, key, group, floor)| Step::Tombstone { by, key, group, floor }),
        2 => by().prop_map(|by| Step::Beat { by }),
        1 => (by(), prop_oneof![3 => Just(0_u64), 1 => Just(1)]).prop_map(|(victim, behind)| Step::Kill { victim, behind }),
        1 => by().prop_map(|by| Step::Close { by }),
        2 => by().prop_map(|slot| Step::Register { slot }),
        1 => Just(Step::NewEra),
    ]
}

/// The state of one key under the contract.
#[derive(Debug, Clone, Default)]
struct Row {
    group: usize,
    session: Option<SessionId>,
    token: i64,
    era: i64,
    grant: Option<GrantId>,
    holder: Option<Holder>,
    confirmed: i64,
    tombstone: bool,
    terms: Vec<(i64, Holder)>,
}

#[derive(Debug, Default)]
struct Model {
    sessions: Vec<SessionId>,
    /// The counter of each living session.
    living: BTreeMap<SessionId, u64>,
    rows: BTreeMap<usize, Row>,
    last_grant: BTreeMap<usize, Grant>,
    era: i64,
    era_id: Option<EraId>,
    /// Whether a failover has been seen, and its quarantine has not been ended.
    quarantine: bool,
}

fn name_of(number: usize) -> Key {
    key(&format!("key-{number}"))
}

fn group_of(number: usize) -> String {
    format!("group-{number}")
}

impl Model {
    async fn register(&mut self, store: &Store) -> SessionId {
        let (session, era) = store.register("model", TTL, None, None).await.unwrap();
        self.living.insert(session, 1);
        assert_eq!(*self.era_id.get_or_insert(era), era);
        session
    }

    fn lives(&self, session: Option<SessionId>) -> bool {
        session.is_some_and(|session| self.living.contains_key(&session))
    }

    /// The refusal of a change by `own` that does not depend on the row's content.
    fn not_ours(&self, own: SessionId, key: usize) -> Option<Refusal> {
        if !self.lives(Some(own)) {
            return Some(Refusal::SessionDead);
        }
        let Some(row) = self.rows.get(&key) else { return Some(Refusal::Missing) };
        (row.session != Some(own)).then_some(Refusal::Unclaimed { session: row.session })
    }

    fn claim(
        &mut self,
        own: SessionId,
        key: usize,
        step: &Claim,
        group: usize,
        supersedes: Option<usize>,
    ) -> Verdict {
        if !self.lives(Some(own)) {
            return Verdict::SessionDead;
        }
        let Some(row) = self.rows.get(&key).cloned() else {
            if !step.may_create {
                return Verdict::Other(Box::new(Claimed::Missing));
            }
            self.rows.insert(key, Row { group, session: Some(own), ..Row::default() });
            return Verdict::Ours;
        };
        let others = self.lives(row.session) && row.session != Some(own);
        let mut after = Row { session: Some(own), group, ..row.clone() };
        if row.tombstone {
            if row.group == group || !step.may_create {
                return Verdict::Other(Box::new(Claimed::Tombstone));
            }
            after.tombstone = false;
        } else if row.group != group {
            if others || supersedes != Some(row.group) {
                return Verdict::Other(Box::new(Claimed::Foreign { group: group_of(row.group) }));
            }
            after.holder = None;
        } else if let (true, Some(session)) = (others, row.session) {
            return Verdict::Other(Box::new(Claimed::By { session }));
        }
        self.rows.insert(key, after);
        Verdict::Ours
    }

    fn grant(&mut self, own: SessionId, key: usize, grant: &Grant) -> Result<i64, Refusal> {
        if let Some(refusal) = self.not_ours(own, key) {
            return Err(refusal);
        }
        let era = self.era;
        let row = self.rows.get_mut(&key).unwrap();
        if group_of(row.group) != grant.group {
            return Err(Refusal::Unclaimed { session: row.session });
        }
        if row.grant == Some(grant.grant) && row.holder.as_ref() == Some(&grant.holder) {
            return Ok(row.token);
        }
        if row.token != grant.expected.get() {
            return Err(Refusal::TokenChanged);
        }
        let above = row.token + (era - row.era) * JUMP;
        row.token = above.max(grant.floor.get()).max(era * JUMP) + 1;
        row.era = era;
        row.grant = Some(grant.grant);
        row.holder = Some(grant.holder.clone());
        row.terms.push((row.token, grant.holder.clone()));
        Ok(row.token)
    }

    fn confirm(&mut self, own: SessionId, key: usize, token: i64) -> Option<Refusal> {
        if let Some(refusal) = self.not_ours(own, key) {
            return Some(refusal);
        }
        let row = self.rows.get_mut(&key).unwrap();
        if row.token != token || row.holder.is_none() {
            return Some(Refusal::TokenChanged);
        }
        row.confirmed = token;
        None
    }

    fn vacate(&mut self, own: SessionId, key: usize, token: i64, grant: GrantId) -> Option<Refusal> {
        if let Some(refusal) = self.not_ours(own, key) {
            return Some(refusal);
        }
        let row = self.rows.get_mut(&key).unwrap();
        if row.token != token {
            return Some(Refusal::TokenChanged);
        }
        if row.holder.take().is_some() {
            row.grant = Some(grant);
        }
        None
    }

    fn tombstone(&mut self, own: SessionId, key: usize, group: usize, floor: i64) -> Option<Refusal> {
        if !self.lives(Some(own)) {
            return Some(Refusal::SessionDead);
        }
        let Some(row) = self.rows.get(&key) else {
            self.rows.insert(key, Row { group, token: floor, tombstone: true, ..Row::default() });
            return None;
        };
        if row.group != group {
            return Some(Refusal::Foreign { group: group_of(row.group) });
        }
        if row.session != Some(own) && self.lives(row.session) {
            return Some(Refusal::Unclaimed { session: row.session });
        }
        let row = self.rows.get_mut(&key).unwrap();
        if row.tombstone && row.token >= floor {
            return None;
        }
        (row.tombstone, row.session, row.holder, row.grant) = (true, None, None, None);
        row.token = row.token.max(floor);
        None
    }
}

/// The model's answer to a claim.
enum Verdict {
    SessionDead,
    Ours,
    Other(Box<Claimed>),
}

fn expected(refusal: Option<Refusal>) -> Changed {
    refusal.map_or(Changed::Done, Changed::Refused)
}

/// Carries out one step on both and compares the answers.
async fn carry_out(store: &Store, database: &Database, model: &mut Model, step: &Step) {
    match *step {
        Step::Claim { by, key, group, may_create, supersedes } => {
            let own = model.sessions[by];
            let claim = Claim {
                key: name_of(key),
                group: group_of(group),
                may_create,
                supersedes: supersedes.map(group_of),
            };
            let answer =
                store.claim(own, std::slice::from_ref(&claim)).await.map(|mut answers| answers.remove(0));
            match model.claim(own, key, &claim, group, supersedes) {
                Verdict::SessionDead => assert_eq!(answer, Err(LockError::SessionDead)),
                Verdict::Other(claimed) => assert_eq!(answer, Ok(*claimed)),
                Verdict::Ours => assert!(matches!(answer, Ok(Claimed::Ours(_))), "{answer:?}"),
            }
        }
        Step::Unclaim { by, key } => {
            let own = model.sessions[by];
            let refusal = match model.not_ours(own, key) {
                // No session has claimed it, as requested.
                Some(Refusal::Unclaimed { session: None }) => None,
                None => {
                    model.rows.get_mut(&key).unwrap().session = None;
                    None
                }
                other => other,
            };
            let answer = store.unclaim(own, &[name_of(key)]).await.unwrap();
            assert_eq!(answer, [expected(refusal)]);
        }
        Step::Grant { by, key, group, behind, floor, to, again } => {
            let own = model.sessions[by];
            let row = model.rows.get(&key);
            let token = row.map_or(0, |row| row.token);
            let fresh = Grant {
                key: name_of(key),
                group: group_of(group.or(row.map(|row| row.group)).unwrap_or_default()),
                expected: Token::new((token - behind).max(0)),
                floor: Token::new(floor),
                holder: holder(&format!("p{to}")),
                grant: GrantId::new(),
                reason: "model".into(),
            };
            let grant = model.last_grant.get(&key).filter(|_| again).cloned().unwrap_or(fresh);
            model.last_grant.insert(key, grant.clone());
            let answer = match store.grant(own, grant.clone()).await.unwrap() {
                Granted::Granted { token } => Ok(token.get()),
                Granted::Refused(refusal) => Err(refusal),
            };
            assert_eq!(answer, model.grant(own, key, &grant));
        }
        Step::Confirm { by, key, behind } => {
            let own = model.sessions[by];
            let token = (model.rows.get(&key).map_or(0, |row| row.token) - behind).max(0);
            let answer = store.confirm(own, &name_of(key), Token::new(token)).await.unwrap();
            assert_eq!(answer, expected(model.confirm(own, key, token)));
        }
        Step::Vacate { by, key, behind } => {
            let own = model.sessions[by];
            let token = (model.rows.get(&key).map_or(0, |row| row.token) - behind).max(0);
            let grant = GrantId::new();
            let vacate =
                Vacate { key: name_of(key), token: Token::new(token), grant, reason: "model".into() };
            let answer = store.vacate(own, vacate).await.unwrap();
            assert_eq!(answer, expected(model.vacate(own, key, token, grant)));
        }
        Step::Tombstone { by, key, group, floor } => {
            let own = model.sessions[by];
            let left = Tombstone { key: name_of(key), group: group_of(group), floor: Token::new(floor) };
            let answer = store.tombstone(own, &[left]).await.unwrap();
            assert_eq!(answer, [expected(model.tombstone(own, key, group, floor))]);
        }
        Step::Beat { .. } | Step::Kill { .. } | Step::Close { .. } | Step::Register { .. } | Step::NewEra => {
            carry_out_on_sessions(store, database, model, step).await;
        }
    }
}

async fn carry_out_on_sessions(store: &Store, database: &Database, model: &mut Model, step: &Step) {
    match *step {
        Step::Beat { by } => {
            let own = model.sessions[by];
            let beat = store.beat(own, &[]).await.unwrap();
            if let Some(count) = model.living.get_mut(&own) {
                *count += 1;
            }
            assert_eq!(beat.alive, model.living.contains_key(&own));
            assert!(model.living.get(&own).is_none_or(|count| *count == beat.count));
            assert!(beat.sessions.iter().all(|seen| !seen.dead && seen.ttl == TTL));
            let others: BTreeMap<_, _> = beat.sessions.iter().map(|seen| (seen.id, seen.beat)).collect();
            let mut living = model.living.clone();
            living.remove(&own);
            assert_eq!(others, living, "with so few of them all are neighbours");
            assert_eq!(Some(beat.era), model.era_id);
            let longest = if model.living.is_empty() { Duration::ZERO } else { TTL };
            assert_eq!(beat.quarantine, model.quarantine.then_some(longest));
        }
        Step::Kill { victim, behind } => {
            let victim = model.sessions[victim];
            let count = model.living.get(&victim).copied();
            let observed = count.unwrap_or(1).saturating_sub(behind);
            let dead = store.mark_dead(&[(victim, observed)], None).await.unwrap();
            if count == Some(observed) {
                model.living.remove(&victim);
            }
            assert_eq!(!dead.is_empty(), !model.living.contains_key(&victim));
        }
        Step::Close { by } => {
            let own = model.sessions[by];
            model.living.remove(&own);
            store.close(own).await.unwrap();
        }
        Step::Register { slot } => {
            if !model.lives(Some(model.sessions[slot])) {
                model.sessions[slot] = model.register(store).await;
            }
        }
        Step::NewEra => {
            database.sql("update leadergroup.meta set history = 'lost'").await;
            // A heartbeat or the next grant notices it; here a heartbeat does.
            let beat = store.beat(SessionId::new(), &[]).await.unwrap();
            assert_ne!(Some(beat.era), model.era_id);
            let era = database.number("select era from leadergroup.meta").await;
            assert!((1..=1_000).contains(&(era - model.era)), "from {} to {era}", model.era);
            (model.era, model.era_id, model.quarantine) = (era, Some(beat.era), true);
        }
        _ => unreachable!("the other steps are about rows"),
    }
}

/// Compares the database's rows with the model.
async fn compare(store: &Store, model: &Model) {
    let keys: Vec<Key> = (0..KEYS).map(name_of).collect();
    let rows: BTreeMap<Key, LockRow> =
        store.read(&keys).await.unwrap().into_iter().map(|row| (row.key.clone(), row)).collect();
    assert_eq!(rows.len(), model.rows.len());
    for (number, row) in &model.rows {
        let found = &rows[&name_of(*number)];
        assert_eq!(found.group, group_of(row.group));
        assert_eq!(found.session, row.session);
        assert_eq!(found.token.get(), row.token);
        assert_eq!(found.grant, row.grant);
        assert_eq!(found.holder, row.holder);
        assert_eq!(found.tombstone, row.tombstone);
        assert_eq!(found.confirmed, row.confirmed > 0 && row.confirmed == row.token);
        let pending: Vec<_> =
            found.pending.iter().map(|term| (term.token.get(), term.holder.clone())).collect();
        let expected: Vec<_> =
            row.terms.iter().filter(|(token, _)| *token >= row.confirmed).cloned().collect();
        assert_eq!(pending, expected);
    }
}

#[test]
fn random_operations_do_what_the_contract_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (database, store) = runtime.block_on(migrated());
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/model.txt");
    let name = "model::random_operations_do_what_the_contract_says";
    random::run(name, regressions, 60, &prop::collection::vec(step(), 1..50), |steps| {
        runtime.block_on(async {
            let clean = "delete from leadergroup.lock;
                         delete from leadergroup.term;
                         delete from leadergroup.session;
                         update leadergroup.meta set era = 0, quarantine = false, token_floor = 0";
            database.sql(clean).await;
            let mut model = Model::default();
            for _ in 0..SESSIONS {
                let session = model.register(&store).await;
                model.sessions.push(session);
            }
            for step in &steps {
                carry_out(&store, &database, &mut model, step).await;
                compare(&store, &model).await;
            }
        });
        Ok(())
    });
}
