//! The tables, as `migrations/` creates them, and the rules that triggers keep there.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::failure::Failure;
use crate::Holder;

/// The group of the keys that programs hold directly.
pub(super) const PROGRAMS: &str = "held by programs";

/// By how much tokens grow for each unit of the era's number.
const JUMP: i64 = 1_000_000;

/// Everything that is stored. Each table is shared with the snapshots before it until it is changed.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    pub(super) meta: Meta,
    pub(super) sessions: Arc<BTreeMap<Uuid, Session>>,
    locks: Arc<BTreeMap<String, Lock>>,
    terms: Arc<BTreeMap<(String, i64), Term>>,
    /// By key, with the token of the term and the number of the publication.
    published: Arc<BTreeMap<String, (i64, i64, String)>>,
    /// By their ids, which are also their order.
    pub(super) waiters: Arc<BTreeMap<i64, Waiter>>,
    next_waiter: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Meta {
    pub(super) history: String,
    pub(super) era: i64,
    pub(super) era_id: Uuid,
    pub(super) quarantine: bool,
    pub(super) token_floor: i64,
    pub(super) pruned_at: i64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Session {
    pub(super) id: Uuid,
    pub(super) name: String,
    pub(super) peers: Option<String>,
    pub(super) place: Option<String>,
    pub(super) beat: i64,
    pub(super) ttl_ms: i64,
    pub(super) revoked: i64,
    pub(super) dead: bool,
    pub(super) closed: bool,
    pub(super) registered_at: i64,
    pub(super) seen: i64,
    pub(super) dead_at: Option<i64>,
}

#[derive(Debug, Clone, Serialize)]
#[allow(clippy::struct_field_names, reason = "the columns' names")]
pub(super) struct Lock {
    pub(super) key: String,
    pub(super) group_id: String,
    pub(super) session: Option<Uuid>,
    pub(super) token: i64,
    pub(super) era: i64,
    pub(super) grant_id: Option<Uuid>,
    pub(super) holder: Option<Holder>,
    pub(super) reason: Option<String>,
    pub(super) confirmed_token: i64,
    pub(super) tombstone: bool,
    pub(super) protocol: i32,
    pub(super) delay_ms: i64,
    pub(super) awaited: bool,
    pub(super) lock_timestamp: i64,
    pub(super) end_reason: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Term {
    pub(super) key: String,
    pub(super) token: i64,
    pub(super) grant_id: Option<Uuid>,
    pub(super) group_id: String,
    pub(super) session: Option<Uuid>,
    pub(super) holder: Holder,
    pub(super) reason: Option<String>,
    pub(super) granted_at: i64,
    pub(super) confirmed: bool,
    /// None while the term lasts, as in the view `leadergroup.terms`.
    pub(super) ended_at: Option<i64>,
    pub(super) end_reason: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Waiter {
    pub(super) key: String,
    pub(super) id: i64,
    pub(super) grant_id: Uuid,
    pub(super) session: Uuid,
    pub(super) holder: Holder,
    pub(super) reason: String,
    pub(super) delay_ms: i64,
    pub(super) asked_at: i64,
}

impl Lock {
    /// A row with the columns' defaults.
    pub(super) fn new(key: &str, group: &str, now: i64) -> Self {
        Self {
            key: key.to_owned(),
            group_id: group.to_owned(),
            session: None,
            token: 0,
            era: 0,
            grant_id: None,
            holder: None,
            reason: None,
            confirmed_token: 0,
            tombstone: false,
            protocol: 1,
            delay_ms: 0,
            awaited: false,
            lock_timestamp: now,
            end_reason: None,
        }
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed_token > 0 && self.confirmed_token == self.token
    }

    /// The term of the present holder.
    pub(super) fn term(&self) -> Option<Term> {
        Some(Term {
            key: self.key.clone(),
            token: self.token,
            grant_id: self.grant_id,
            group_id: self.group_id.clone(),
            session: self.session,
            holder: self.holder.clone()?,
            reason: self.reason.clone(),
            granted_at: self.lock_timestamp,
            confirmed: self.confirmed_token == self.token,
            ended_at: None,
            end_reason: None,
        })
    }
}

impl Tables {
    /// The tables after the migrations.
    pub(super) fn new(history: String, era_id: Uuid) -> Self {
        Self {
            meta: Meta { history, era: 0, era_id, quarantine: false, token_floor: 0, pruned_at: i64::MIN },
            sessions: Arc::default(),
            locks: Arc::default(),
            terms: Arc::default(),
            published: Arc::default(),
            waiters: Arc::default(),
            next_waiter: 1,
        }
    }

    /// The rows of all tables.
    pub(super) fn dump(&self) -> Value {
        let (sessions, locks) = (self.sessions.values(), self.locks.values());
        let (terms, waiters) = (self.terms.values(), self.waiters.values());
        let published = |(key, (token, change, data)): (&String, &(i64, i64, String))| json!({ "key": key, "token": token, "change": change, "data": data });
        json!({
            "meta": self.meta,
            "sessions": sessions.collect::<Vec<_>>(),
            "locks": locks.collect::<Vec<_>>(),
            "terms": terms.collect::<Vec<_>>(),
            "waiters": waiters.collect::<Vec<_>>(),
            "published": self.published.iter().map(published).collect::<Vec<_>>(),
        })
    }

    /// Whether nothing was changed since one was cloned from the other.
    pub(super) fn are_same(&self, other: &Self) -> bool {
        self.meta == other.meta
            && Arc::ptr_eq(&self.sessions, &other.sessions)
            && Arc::ptr_eq(&self.locks, &other.locks)
            && Arc::ptr_eq(&self.terms, &other.terms)
            && Arc::ptr_eq(&self.published, &other.published)
            && Arc::ptr_eq(&self.waiters, &other.waiters)
    }

    pub(super) fn locks(&self) -> &BTreeMap<String, Lock> {
        &self.locks
    }

    /// What the present holder has published.
    pub(super) fn published(&self, lock: &Lock) -> Option<&str> {
        let (token, _, data) = self.published.get(&lock.key)?;
        (lock.holder.is_some() && lock.token == *token).then_some(data)
    }

    /// Stores it, unless something was published later.
    pub(super) fn publish(&mut self, key: &str, token: i64, change: i64, data: String) {
        let known = self.published.get(key).map(|(token, change, _)| (*token, *change));
        if known.is_none_or(|known| known <= (token, change)) {
            Arc::make_mut(&mut self.published).insert(key.to_owned(), (token, change, data));
        }
    }

    pub(super) fn lock(&self, key: &str) -> Option<&Lock> {
        self.locks.get(key)
    }

    pub(super) fn session(&self, id: Option<Uuid>) -> Option<&Session> {
        self.sessions.get(&id?)
    }

    /// Whether there is such a session, and it is not dead.
    pub(super) fn lives(&self, session: Option<Uuid>) -> bool {
        self.session(session).is_some_and(|session| !session.dead)
    }

    /// The session, to be changed, if it lives.
    pub(super) fn living(&mut self, session: Uuid) -> Option<&mut Session> {
        if !self.lives(Some(session)) {
            return None;
        }
        Arc::make_mut(&mut self.sessions).get_mut(&session)
    }

    /// The terms of a key that have ended, the earliest first.
    pub(super) fn terms(&self, key: &str) -> impl DoubleEndedIterator<Item = &Term> {
        self.terms.range((key.to_owned(), i64::MIN)..=(key.to_owned(), i64::MAX)).map(|(_, term)| term)
    }

    /// The largest token in the history of a key.
    pub(super) fn last_token(&self, key: &str) -> Option<i64> {
        self.terms(key).next_back().map(|term| term.token)
    }

    pub(super) fn remove_term(&mut self, key: &str, token: i64) {
        Arc::make_mut(&mut self.terms).remove(&(key.to_owned(), token));
    }

    /// The waiters for a key, the next one first.
    pub(super) fn queue(&self, key: &str) -> impl Iterator<Item = &Waiter> {
        self.waiters.values().filter(move |waiter| waiter.key == key)
    }

    /// The same without those of dead sessions.
    pub(super) fn living_queue(&self, key: &str) -> impl Iterator<Item = &Waiter> {
        self.queue(key).filter(|waiter| self.lives(Some(waiter.session)))
    }

    pub(super) fn remove_waiters(&mut self, gone: &[i64]) {
        if !gone.is_empty() {
            Arc::make_mut(&mut self.waiters).retain(|id, _| !gone.contains(id));
        }
    }

    /// Adds a waiter at the end of its queue.
    pub(super) fn queue_up(&mut self, mut waiter: Waiter) {
        waiter.id = self.next_waiter;
        self.next_waiter += 1;
        Arc::make_mut(&mut self.waiters).insert(waiter.id, waiter);
    }

    /// The next token of a row, as `leadergroup.next_token` computes it.
    pub(super) fn next_token(&self, lock: &Lock, floor: i64) -> i64 {
        let Meta { era, token_floor, .. } = self.meta;
        let jump = if lock.era == era { 0 } else { (era - lock.era).max(1) * JUMP };
        let above = [
            lock.token + jump,
            era * JUMP,
            self.last_token(&lock.key).unwrap_or_default(),
            floor,
            if lock.token == 0 { token_floor } else { 0 },
        ];
        1 + above.into_iter().max().unwrap_or_default()
    }

    /// Begins an era after `step` others, as in `leadergroup.present_era`.
    pub(super) fn begin_era(&mut self, step: i64, era_id: Uuid) {
        self.meta.era += step;
        self.meta.era_id = era_id;
        self.meta.quarantine = true;
        self.meta.token_floor += self.meta.token_floor.signum() * step * JUMP;
    }

    /// Adds a row, unless there is one for the key. (Trigger `keep_token_of_new_row`.)
    pub(super) fn insert_lock(&mut self, mut lock: Lock) {
        if self.locks.contains_key(&lock.key) {
            return;
        }
        if lock.token > 0 {
            let last = self.last_token(&lock.key).unwrap_or_default();
            lock.token = lock.token.max(last).max(self.meta.token_floor);
        }
        Arc::make_mut(&mut self.locks).insert(lock.key.clone(), lock);
    }

    /// Changes a row. A term that ends enters the history. (Triggers `keep_token_of_row` and `end_term`.)
    pub(super) fn update_lock(&mut self, key: &str, change: impl FnOnce(&mut Lock)) -> Result<(), Failure> {
        let Some(lock) = Arc::make_mut(&mut self.locks).get_mut(key) else { return Ok(()) };
        let old = lock.clone();
        change(lock);
        if lock.token < old.token {
            let (from, to) = (old.token, lock.token);
            return Err(Failure::new(
                "23514",
                format!("the token of {key:?} must not go back from {from} to {to}"),
            ));
        }
        if let Some(term) = old.term().filter(|_| lock.holder.is_none() || lock.token != old.token) {
            let ended =
                Term { ended_at: Some(lock.lock_timestamp), end_reason: lock.end_reason.clone(), ..term };
            Arc::make_mut(&mut self.terms).entry((key.to_owned(), ended.token)).or_insert(ended);
        }
        Ok(())
    }

    /// Removes rows with their history. (Trigger `raise_token_floor`.)
    pub(super) fn remove_locks(&mut self, keys: &[String]) {
        for key in keys {
            if let Some(gone) = Arc::make_mut(&mut self.locks).remove(key) {
                self.meta.token_floor = self.meta.token_floor.max(gone.token);
            }
            Arc::make_mut(&mut self.terms).retain(|(of, _), _| of != key);
            Arc::make_mut(&mut self.published).remove(key);
        }
    }
}
