//! Pruning, as `migrations/0007_prune.sql` does it.

use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::queries::limit;
use super::tables::{Lock, PROGRAMS};
use super::transaction::{Answer, Transaction};

/// Most keys that one statement removes, and most terms that such a key may have.
const MOST: usize = 100;

impl Transaction<'_> {
    /// The time so many milliseconds ago, in microseconds.
    fn ago(&self, ms: i64) -> i64 {
        self.now.saturating_sub(ms.saturating_mul(1_000))
    }

    pub(super) fn begin_pruning(&mut self, (every_ms,): (i64,)) -> Answer {
        let recent = self.ago(every_ms)..=self.ago(-every_ms);
        if recent.contains(&self.tables.meta.pruned_at) {
            return Ok(Vec::new());
        }
        self.tables.meta.pruned_at = self.now;
        Ok(vec![json!({ "due": true })])
    }

    /// The keys after this one.
    fn page(&self, after: &str, most: i64) -> Vec<String> {
        let keys = self.tables.locks().keys().filter(|key| key.as_str() > after);
        keys.take(limit(most)).cloned().collect()
    }

    pub(super) fn prune_terms(&mut self, (after, page, kept, most): (String, i64, i64, i64)) -> Answer {
        let page = self.page(&after, page);
        let mut old = Vec::new();
        for key in &page {
            let confirmed = self.tables.lock(key).map_or(0, |lock| lock.confirmed_token);
            let last = self.tables.terms(key).rev().nth(limit(kept - 1)).map_or(0, |term| term.token);
            let oldest_kept = confirmed.min(last);
            let gone = self.tables.terms(key).filter(|term| term.token < oldest_kept);
            old.extend(gone.map(|term| (key.clone(), term.token)));
        }
        old.truncate(limit(most));
        for (key, token) in &old {
            self.tables.remove_term(key, *token);
        }
        Ok(vec![json!({ "last_key": page.last(), "removed": old.len() })])
    }

    pub(super) fn prune_keys(&mut self, (after, page, idle_ms): (String, i64, i64)) -> Answer {
        let page = self.page(&after, page);
        let before = self.ago(idle_ms);
        let is_idle = |lock: &&Lock| {
            let is_free = lock.holder.is_none() && lock.session.is_none() && !lock.awaited;
            let is_left = lock.session.is_some()
                && lock.delay_ms == 0
                && !lock.awaited
                && self.tables.session(lock.session).is_none()
                && self.tables.queue(&lock.key).next().is_none();
            lock.group_id == PROGRAMS
                && lock.lock_timestamp < before
                && (is_free || is_left)
                && self.tables.terms(&lock.key).count() <= MOST
        };
        let idle = page.iter().filter_map(|key| self.tables.lock(key)).filter(is_idle);
        let idle: Vec<String> = idle.take(MOST).map(|lock| lock.key.clone()).collect();
        self.tables.remove_locks(&idle);
        let is_unawaited = |lock: &&Lock| lock.awaited && self.tables.queue(&lock.key).next().is_none();
        let unawaited = page.iter().filter_map(|key| self.tables.lock(key)).filter(is_unawaited);
        let unawaited: Vec<String> = unawaited.map(|lock| lock.key.clone()).collect();
        for key in &unawaited {
            self.note_whether_awaited(key)?;
        }
        Ok(vec![json!({ "last_key": page.last(), "removed": idle.len() })])
    }

    pub(super) fn prune_sessions(&mut self, (dead_ms, most): (i64, i64)) -> Answer {
        let before = self.ago(dead_ms);
        let sessions = &mut self.tables.sessions;
        let gone = sessions.values().filter(|session| session.dead);
        let gone = gone.filter(|session| session.dead_at.is_some_and(|at| at < before));
        let gone: Vec<Uuid> = gone.take(limit(most)).map(|session| session.id).collect();
        if !gone.is_empty() {
            Arc::make_mut(sessions).retain(|id, _| !gone.contains(id));
        }
        Ok(vec![json!({ "removed": gone.len() })])
    }

    pub(super) fn prune_waiters(&mut self, (most,): (i64,)) -> Answer {
        let waiters = self.tables.waiters.values();
        let mut forgotten: Vec<_> = waiters
            .filter(|waiter| !self.tables.lives(Some(waiter.session)))
            .map(|waiter| (waiter.key.clone(), waiter.id))
            .collect();
        forgotten.sort();
        forgotten.truncate(limit(most));
        let gone: Vec<i64> = forgotten.into_iter().map(|(_, id)| id).collect();
        self.tables.remove_waiters(&gone);
        Ok(vec![json!({ "removed": gone.len() })])
    }
}
