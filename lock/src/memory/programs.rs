//! Keys that programs hold directly, as `migrations/0005_acquire.sql` hands them out. No transaction of an application
//! is ever under way here, so every fence is open.

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::failure::Failure;
use super::tables::{Lock, PROGRAMS, Waiter};
use super::transaction::{Answer, Transaction};
use crate::{
    Holder,
    protocol::{MOST_WAITERS, PROTOCOL},
};

/// One request, in the form that `leadergroup.acquire` reads.
#[derive(Debug, Clone, Deserialize)]
struct Asked {
    key: String,
    grant_id: Uuid,
    #[serde(flatten)]
    holder: Holder,
    reason: String,
    wait: bool,
    delay_ms: Option<i64>,
    sat_out: Option<i64>,
    void_after: Option<i64>,
}

/// What a request would find (`leadergroup.look`).
#[derive(Debug, Clone, Default)]
struct Look {
    verdict: &'static str,
    token: Option<i64>,
    delay_ms: Option<i64>,
    /// The request's own place in the queue.
    place: Option<i64>,
    group_id: Option<String>,
    protocol: Option<i32>,
    holder: Option<(Uuid, i64, Option<i64>)>,
}

/// A term that begins for a program.
pub(super) struct Next<'a> {
    pub(super) session: Uuid,
    pub(super) grant_id: Uuid,
    pub(super) holder: &'a Holder,
    pub(super) reason: &'a str,
    pub(super) delay_ms: i64,
}

/// An array of objects, as the text that the statements get.
pub(super) fn requests<T: serde::de::DeserializeOwned>(text: &str) -> Result<Vec<T>, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::new("22023", error.to_string()))
}

impl Transaction<'_> {
    /// `leadergroup.publish`
    pub(super) fn publish(
        &mut self,
        (own, key, token, change, data): (Uuid, String, i64, i64, String),
    ) -> Answer {
        let holds = self.tables.lives(Some(own))
            && self.tables.lock(&key).is_some_and(|lock| {
                lock.token == token
                    && lock.session == Some(own)
                    && lock.holder.is_some()
                    && lock.group_id == PROGRAMS
            });
        if holds {
            self.tables.publish(&key, token, change, data);
        }
        Ok(vec![json!({ "holds": holds })])
    }

    pub(super) fn acquire(&mut self, (own, asked, _, _): (Uuid, String, i32, Option<i32>)) -> Answer {
        let asked: Vec<Asked> = requests(&asked)?;
        let mut rows = Vec::new();
        let mut rest = Vec::new();
        for (place, asked) in (1_i64..).zip(asked) {
            if !self.may_take(own, &asked) {
                rest.push((place, asked));
                continue;
            }
            let token = self.begin_term(&asked.key, &asked.next(own), None)?;
            let era_id = self.tables.meta.era_id;
            rows.push(json!({ "place": place, "verdict": "granted", "token": token, "era_id": era_id }));
        }
        let is_alone = rows.len() + rest.len() == 1;
        for (place, asked) in rest {
            let look = self.look(own, &asked, true);
            let stays = look.verdict == "held"
                && (!asked.wait || look.place.is_some())
                && self.tables.lives(Some(own));
            let row = if look.verdict == "granted" || stays {
                let waits = look.verdict == "held" && asked.wait;
                let verdict = if waits { "waiting" } else { look.verdict };
                let era_id = Some(self.tables.meta.era_id);
                Look { delay_ms: None, group_id: None, protocol: None, ..look }.row(verdict, era_id)
            } else if is_alone {
                self.acquire_one(own, &asked)?
            } else {
                continue;
            };
            rows.push(with(row, "place", place.into()));
        }
        Ok(rows)
    }

    /// Whether the key is free and has no waiters.
    fn may_take(&self, own: Uuid, asked: &Asked) -> bool {
        let meta = &self.tables.meta;
        let is_free = |lock: &Lock| {
            lock.session.is_none()
                && lock.holder.is_none()
                && !lock.awaited
                && lock.group_id == PROGRAMS
                && !lock.tombstone
                && lock.protocol <= PROTOCOL.cast_signed()
        };
        self.tables.lock(&asked.key).is_some_and(is_free)
            && !self.busy
            && self.is_in_its_era()
            && !meta.quarantine
            && self.tables.lives(Some(own))
            && !self.is_void(own, asked)
    }

    fn is_void(&self, own: Uuid, asked: &Asked) -> bool {
        let beat = self.tables.session(Some(own)).map(|own| own.beat);
        asked.void_after.zip(beat).is_some_and(|(void_after, beat)| void_after < beat)
    }

    fn look(&self, own: Uuid, asked: &Asked, quarantine: bool) -> Look {
        let own_places = self.tables.queue(&asked.key);
        let mut own_places = own_places.filter(|w| w.grant_id == asked.grant_id && w.session == own);
        let place = own_places.next().map(|waiter| waiter.id);
        let Some(lock) = self.tables.lock(&asked.key) else {
            return Look { verdict: "missing", place, ..Look::default() };
        };
        let session = self.tables.session(lock.session);
        let lives = session.is_some_and(|session| !session.dead);
        let ended_uncleanly = lock.holder.is_some() && !session.is_some_and(|session| session.closed);
        let verdict = if lock.protocol > PROTOCOL.cast_signed() {
            "newer"
        } else if lock.tombstone {
            "tombstone"
        } else if lock.group_id != PROGRAMS {
            "foreign"
        } else if lives && lock.session == Some(own) && lock.grant_id == Some(asked.grant_id) {
            "granted"
        } else if lives {
            "held"
        } else if quarantine {
            "quarantine"
        } else if ended_uncleanly && lock.delay_ms > 0 && asked.sat_out != Some(lock.token) {
            "delayed"
        } else if lock.awaited
            && self.tables.living_queue(&lock.key).any(|waiter| place.is_none_or(|own| waiter.id < own))
        {
            "behind"
        } else {
            "free"
        };
        let holder = session.map(|session| {
            let silent = (!session.dead).then(|| (self.now - session.seen) / 1_000);
            (session.id, session.ttl_ms, silent)
        });
        Look {
            verdict,
            token: Some(lock.token),
            delay_ms: Some(lock.delay_ms),
            place,
            group_id: Some(lock.group_id.clone()),
            protocol: Some(lock.protocol),
            holder,
        }
    }

    /// A request that could not be answered at once (`leadergroup.acquire_one`).
    fn acquire_one(&mut self, own: Uuid, asked: &Asked) -> Result<Value, Failure> {
        if !asked.wait && self.busy {
            return Ok(json!({ "verdict": "busy", "blockers": "another transaction" }));
        }
        if !self.tables.lives(Some(own)) {
            return Ok(json!({ "verdict": "dead" }));
        }
        let quarantine = self.tables.meta.quarantine || !self.is_in_its_era();
        let era_id = self.is_in_its_era().then_some(self.tables.meta.era_id);
        if self.tables.lock(&asked.key).is_none() {
            self.tables.insert_lock(Lock::new(&asked.key, PROGRAMS, self.now));
        }
        let mut look = self.look(own, asked, quarantine);
        if self.is_void(own, asked) {
            return Ok(json!({ "verdict": "void", "era_id": era_id }));
        }
        let mut verdict = look.verdict;
        if verdict == "free" {
            look.token = self.begin_term(&asked.key, &asked.next(own), Some("its session ended"))?;
            verdict = if look.token.is_some() { "granted" } else { "busy" };
            if look.token.is_some() {
                let queue = self.tables.queue(&asked.key).map(|waiter| waiter.id);
                let before = queue.filter(|id| look.place.is_some_and(|own| *id <= own));
                let before: Vec<i64> = before.collect();
                self.tables.remove_waiters(&before);
                self.note_whether_awaited(&asked.key)?;
            }
        } else if asked.wait
            && look.place.is_none()
            && matches!(verdict, "held" | "delayed" | "behind" | "quarantine")
        {
            if self.queue_is_full(&asked.key) {
                return Ok(look.row("full", era_id));
            }
            self.tables.update_lock(&asked.key, |lock| lock.awaited = true)?;
            self.tables.queue_up(Waiter {
                key: asked.key.clone(),
                id: 0,
                grant_id: asked.grant_id,
                session: own,
                holder: asked.holder.clone(),
                reason: asked.reason.clone(),
                delay_ms: asked.delay_ms.unwrap_or_default(),
                asked_at: self.now,
            });
        }
        if verdict == "behind" {
            // The caller watches the first waiter.
            let first = self.tables.living_queue(&asked.key).next();
            look.holder = first
                .and_then(|first| self.tables.session(Some(first.session)))
                .map(|session| (session.id, session.ttl_ms, Some((self.now - session.seen) / 1_000)));
        }
        let verdict = match verdict {
            "held" | "behind" if asked.wait => "waiting",
            "held" | "behind" => "held",
            verdict => verdict,
        };
        Ok(look.row(verdict, era_id))
    }

    fn queue_is_full(&mut self, key: &str) -> bool {
        let most = MOST_WAITERS as usize;
        if self.tables.queue(key).count() < most {
            return false;
        }
        let gone = self.tables.queue(key).filter(|waiter| !self.tables.lives(Some(waiter.session)));
        let gone: Vec<i64> = gone.map(|waiter| waiter.id).collect();
        self.tables.remove_waiters(&gone);
        self.tables.queue(key).count() >= most
    }

    /// Grants the key, and returns the token. `None` in quarantine, and if the history has changed.
    pub(super) fn begin_term(
        &mut self,
        key: &str,
        next: &Next<'_>,
        end_reason: Option<&str>,
    ) -> Result<Option<i64>, Failure> {
        let Some(lock) = self.tables.lock(key).filter(|_| self.is_in_its_era()) else { return Ok(None) };
        if self.tables.meta.quarantine {
            return Ok(None);
        }
        let token = self.tables.next_token(lock, 0);
        let (era, now) = (self.tables.meta.era, self.now);
        self.tables.update_lock(key, |lock| {
            (lock.token, lock.confirmed_token, lock.era) = (token, token, era);
            (lock.session, lock.grant_id) = (Some(next.session), Some(next.grant_id));
            (lock.holder, lock.reason) = (Some(next.holder.clone()), Some(next.reason.to_owned()));
            (lock.delay_ms, lock.protocol, lock.lock_timestamp) = (next.delay_ms, 1, now);
            lock.end_reason = end_reason.map(str::to_owned);
        })?;
        Ok(Some(token))
    }

    pub(super) fn note_whether_awaited(&mut self, key: &str) -> Result<(), Failure> {
        let awaited = self.tables.queue(key).next().is_some();
        self.tables.update_lock(key, |lock| lock.awaited = awaited)
    }
}

impl Asked {
    fn next(&self, session: Uuid) -> Next<'_> {
        Next {
            session,
            grant_id: self.grant_id,
            holder: &self.holder,
            reason: &self.reason,
            delay_ms: self.delay_ms.unwrap_or_default(),
        }
    }
}

impl Look {
    /// The answer with this verdict.
    fn row(self, verdict: &str, era_id: Option<Uuid>) -> Value {
        json!({
            "verdict": verdict,
            "token": self.token,
            "delay_ms": self.delay_ms,
            "group_id": self.group_id,
            "protocol": self.protocol,
            "holder_session": self.holder.map(|(session, ..)| session),
            "holder_ttl_ms": self.holder.map(|(_, ttl, _)| ttl),
            "holder_silent_ms": self.holder.and_then(|(.., silent)| silent),
            "era_id": era_id,
        })
    }
}

/// The row with one more column.
pub(super) fn with(mut row: Value, column: &str, value: Value) -> Value {
    row[column] = value;
    row
}
