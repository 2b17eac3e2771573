//! Statements that only read, as in `sql/`.

use serde_json::{Value, json};
use uuid::Uuid;

use super::tables::{Lock, PROGRAMS, Term};
use super::transaction::{Answer, Transaction};
use crate::Holder;

/// A limit, as an argument.
pub(super) fn limit(limit: i64) -> usize {
    usize::try_from(limit).unwrap_or_default()
}

fn uid(holder: Option<&Holder>) -> Option<&str> {
    holder.map(|holder| holder.uid.as_str())
}

fn namespace(holder: Option<&Holder>) -> Option<&str> {
    holder.map(|holder| holder.namespace.as_str())
}

fn name(holder: Option<&Holder>) -> Option<&str> {
    holder.map(|holder| holder.name.as_str())
}

impl Transaction<'_> {
    pub(super) fn rows_of(&self, (session,): (Uuid,)) -> Answer {
        let of = self.tables.locks().values().filter(|lock| lock.session == Some(session));
        let row = |lock: &Lock| json!({ "key": lock.key, "token": lock.token, "holder_uid": uid(lock.holder.as_ref()) });
        Ok(of.map(row).collect())
    }

    pub(super) fn unclaimed(&self, (after, most): (String, i64)) -> Answer {
        let free = self
            .tables
            .locks()
            .values()
            .filter(|lock| lock.key > after && !lock.tombstone && !self.tables.lives(lock.session));
        let row = |lock: &Lock| json!({ "key": lock.key, "group_id": lock.group_id });
        Ok(free.take(limit(most)).map(row).collect())
    }

    pub(super) fn held(&self, (keys,): (Vec<String>,)) -> Answer {
        let era_id = self.tables.meta.era_id;
        let held = self
            .tables
            .locks()
            .values()
            .filter(|lock| keys.contains(&lock.key) && lock.session.is_some() && lock.holder.is_some());
        let mut rows: Vec<Value> = held
            .map(|lock| {
                json!({ "era_id": era_id, "key": lock.key, "token": lock.token, "session": lock.session })
            })
            .collect();
        if rows.is_empty() {
            rows.push(json!({ "era_id": era_id }));
        }
        Ok(rows)
    }

    pub(super) fn read(&self, (keys,): (Vec<String>,)) -> Answer {
        let mut rows = Vec::new();
        for lock in self.tables.locks().values().filter(|lock| keys.contains(&lock.key)) {
            let ended = self.tables.terms(&lock.key).cloned();
            let mut pending: Vec<Term> = ended.chain(lock.term()).collect();
            pending.retain(|term| term.token >= lock.confirmed_token);
            pending.sort_by_key(|term| term.token);
            let holder = lock.holder.as_ref();
            let row = json!({
                "key": lock.key,
                "group_id": lock.group_id,
                "session": lock.session,
                "token": lock.token,
                "grant_id": lock.grant_id,
                "holder_uid": uid(holder),
                "holder_namespace": namespace(holder),
                "holder_name": name(holder),
                "confirmed": lock.is_confirmed(),
                "tombstone": lock.tombstone,
            });
            if pending.is_empty() {
                rows.push(row.clone());
            }
            rows.extend(
                pending.iter().map(|term| with_term(row.clone(), term, term.token == lock.confirmed_token)),
            );
        }
        Ok(rows)
    }

    fn info(&self, lock: &Lock) -> Value {
        let holder = lock.holder.as_ref();
        let session = self.tables.session(lock.session);
        json!({
            "key": lock.key,
            "group_id": lock.group_id,
            "token": lock.token,
            "holder_uid": uid(holder),
            "holder_namespace": namespace(holder),
            "holder_name": name(holder),
            "confirmed": lock.is_confirmed(),
            "tombstone": lock.tombstone,
            "lock_timestamp_us": lock.lock_timestamp,
            "session": session.map(|session| session.id),
            "session_name": session.map(|session| &session.name),
            "session_dead": session.map(|session| session.dead),
            "session_seen_us": session.map(|session| session.seen),
            "session_ttl_ms": session.map(|session| session.ttl_ms),
            "session_silent_ms": session.map(|session| (self.now - session.seen) / 1_000),
            "abandoned": lock.group_id == PROGRAMS && session.is_none_or(|session| session.dead),
            "data": self.tables.published(lock),
        })
    }

    pub(super) fn show(&self, (key,): (String,)) -> Answer {
        Ok(self.tables.lock(&key).map(|lock| self.info(lock)).into_iter().collect())
    }

    pub(super) fn list(&self, (after, prefix, most): (String, String, i64)) -> Answer {
        let of = self.tables.locks().values();
        let of = of.filter(|lock| lock.key > after && lock.key.starts_with(&prefix));
        Ok(of.take(limit(most)).map(|lock| self.info(lock)).collect())
    }

    pub(super) fn history(&self, (key, most): (String, i64)) -> Answer {
        let present = self.tables.lock(&key).and_then(Lock::term);
        let mut terms: Vec<Term> = self.tables.terms(&key).cloned().chain(present).collect();
        terms.sort_by_key(|term| std::cmp::Reverse(term.token));
        let rows = terms.iter().take(limit(most)).map(|term| {
            let row = json!({
                "session": term.session,
                "end_reason": term.end_reason,
                "ended_at_us": term.ended_at,
            });
            with_term(row, term, term.confirmed)
        });
        Ok(rows.collect())
    }

    pub(super) fn waiters(&self, (key, most): (String, i64)) -> Answer {
        let rows = self.tables.living_queue(&key).take(limit(most)).map(|waiter| {
            json!({
                "holder_uid": waiter.holder.uid,
                "holder_namespace": waiter.holder.namespace,
                "holder_name": waiter.holder.name,
                "reason": waiter.reason,
                "session": waiter.session,
                "asked_at_us": waiter.asked_at,
            })
        });
        Ok(rows.collect())
    }

    pub(super) fn summary(&self) -> Vec<Value> {
        let locks = || self.tables.locks().values();
        let waiters = self.tables.waiters.values();
        vec![json!({
            "living_sessions": self.tables.sessions.values().filter(|session| !session.dead).count(),
            "locks": locks().filter(|lock| !lock.tombstone).count(),
            "held": locks().filter(|lock| lock.holder.is_some()).count(),
            "waiting": waiters.filter(|waiter| self.tables.lives(Some(waiter.session))).count(),
        })]
    }
}

/// The row with the columns of a term.
fn with_term(mut row: Value, term: &Term, confirmed: bool) -> Value {
    row["term_token"] = term.token.into();
    row["term_grant_id"] = json!(term.grant_id);
    row["term_holder_uid"] = term.holder.uid.as_str().into();
    row["term_holder_namespace"] = term.holder.namespace.as_str().into();
    row["term_holder_name"] = term.holder.name.as_str().into();
    row["term_reason"] = json!(term.reason);
    row["term_granted_at_us"] = term.granted_at.into();
    row["term_confirmed"] = confirmed.into();
    row
}
