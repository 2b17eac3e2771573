//! How a program's key becomes free, or passes to the next waiter, as in `migrations/0006_release.sql`.

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::failure::Failure;
use super::programs::{Next, requests, with};
use super::tables::{Lock, PROGRAMS, Waiter};
use super::transaction::{Answer, Transaction};
use crate::protocol::PROTOCOL;

#[derive(Debug, Deserialize)]
struct Released {
    key: String,
    token: i64,
    reason: String,
}

/// The term that ends, and who shall be next, if that was named.
struct Ending<'a> {
    session: Option<Uuid>,
    key: &'a str,
    token: i64,
    reason: &'a str,
    successor_uid: Option<&'a str>,
    successor_name: Option<&'a str>,
}

impl Ending<'_> {
    fn names_successor(&self) -> bool {
        self.successor_uid.is_some() || self.successor_name.is_some()
    }

    fn suits(&self, waiter: &Waiter) -> bool {
        self.successor_uid.is_none_or(|uid| uid == waiter.holder.uid)
            && self.successor_name.is_none_or(|name| name == waiter.holder.name)
    }
}

/// How a term ended: the verdict, and the request to wake with its session.
struct Ended {
    verdict: &'static str,
    next: Option<(Option<Uuid>, Option<Uuid>)>,
    group_id: Option<String>,
    protocol: Option<i32>,
}

impl Ended {
    fn row(&self) -> Value {
        let next = self.next.unwrap_or_default();
        json!({
            "verdict": self.verdict,
            "next_grant": next.0,
            "next_session": next.1,
            "group_id": self.group_id,
            "protocol": self.protocol,
            "blockers": null,
        })
    }
}

impl Transaction<'_> {
    pub(super) fn release(&mut self, (own, releases): (Uuid, String)) -> Answer {
        let releases: Vec<Released> = requests(&releases)?;
        let now = self.now;
        let mut rows = Vec::new();
        for (place, asked) in (1_i64..).zip(&releases) {
            let is_free_to_go = |lock: &Lock| {
                lock.session == Some(own)
                    && lock.token == asked.token
                    && lock.holder.is_some()
                    && !lock.awaited
                    && lock.group_id == PROGRAMS
                    && !lock.tombstone
                    && lock.protocol <= PROTOCOL.cast_signed()
            };
            if self.busy
                || !self.tables.lives(Some(own))
                || !self.tables.lock(&asked.key).is_some_and(is_free_to_go)
            {
                continue;
            }
            self.tables.update_lock(&asked.key, |lock| leave(lock, &asked.reason, now))?;
            rows.push(json!({ "place": place, "verdict": "done" }));
        }
        if let ([asked], true) = (&releases[..], rows.is_empty()) {
            let ended = self.end_hold(&Ending {
                session: Some(own),
                key: &asked.key,
                token: asked.token,
                reason: &asked.reason,
                successor_uid: None,
                successor_name: None,
            })?;
            rows.push(with(ended.row(), "place", 1.into()));
        }
        Ok(rows)
    }

    pub(super) fn transfer(
        &mut self,
        (session, key, token, reason, uid, name): (
            Option<Uuid>,
            String,
            i64,
            String,
            Option<String>,
            Option<String>,
        ),
    ) -> Answer {
        let ended = self.end_hold(&Ending {
            session,
            key: &key,
            token,
            reason: &reason,
            successor_uid: uid.as_deref(),
            successor_name: name.as_deref(),
        })?;
        Ok(vec![ended.row()])
    }

    pub(super) fn give_up(&mut self, (own, key, grant_id): (Uuid, String, Uuid)) -> Answer {
        if self.tables.lock(&key).is_none() {
            // On a server, this waits for a creation of the row that is under way.
            self.tables.insert_lock(Lock::new(&key, PROGRAMS, self.now));
        }
        let queue = self.tables.queue(&key);
        let own_places = queue.filter(|waiter| waiter.grant_id == grant_id && waiter.session == own);
        let own_places: Vec<i64> = own_places.map(|waiter| waiter.id).collect();
        self.tables.remove_waiters(&own_places);
        let lock = self.tables.lock(&key);
        let granted = lock.filter(|lock| lock.session == Some(own) && lock.grant_id == Some(grant_id));
        let Some(token) = granted.map(|lock| lock.token) else { return Ok(vec![json!({})]) };
        let ended = self.end_hold(&Ending {
            session: Some(own),
            key: &key,
            token,
            reason: "no longer wanted",
            successor_uid: None,
            successor_name: None,
        })?;
        Ok(vec![ended.row()])
    }

    /// `leadergroup.end_hold`
    fn end_hold(&mut self, ending: &Ending<'_>) -> Result<Ended, Failure> {
        let forced = ending.session.is_none();
        let nothing = |verdict| Ended { verdict, next: None, group_id: None, protocol: None };
        let old = self.tables.lock(ending.key).cloned();
        if forced && self.busy && old.is_some() {
            return Ok(nothing("busy"));
        }
        if !forced && !self.tables.lives(ending.session) {
            return Ok(nothing("dead"));
        }
        let Some(old) = old else { return Ok(nothing("missing")) };
        let of_programs = old.group_id == PROGRAMS;
        let mut verdict = if old.protocol > PROTOCOL.cast_signed() {
            "newer"
        } else if old.tombstone {
            "tombstone"
        } else if !of_programs && !forced {
            "foreign"
        } else if old.token != ending.token || old.session != ending.session && !forced {
            "changed"
        } else if old.holder.is_none() {
            if forced { "free" } else { "changed" }
        } else {
            "done"
        };
        let mut next = None;
        if matches!(verdict, "changed" | "free") && self.ended_so(ending) {
            // A repeated call. The next holder may not have been woken yet.
            (verdict, next) = ("done", Some((old.grant_id, old.session)));
        } else if verdict == "done" {
            if let Some(owner) = old.session.filter(|_| forced).and_then(|owner| self.tables.living(owner)) {
                owner.revoked += 1;
            }
            if of_programs {
                let (taken, installed) = self.hand_on(ending)?;
                if ending.names_successor() && !installed {
                    verdict = if taken.is_none() { "no-successor" } else { "busy" };
                }
                next = taken.map(|(grant, session)| (Some(grant), Some(session)));
            } else {
                let now = self.now;
                self.tables.update_lock(ending.key, |lock| leave(lock, ending.reason, now))?;
            }
        }
        Ok(Ended { verdict, next, group_id: Some(old.group_id), protocol: Some(old.protocol) })
    }

    /// Whether the history has this end already.
    fn ended_so(&self, ending: &Ending<'_>) -> bool {
        self.tables.terms(ending.key).any(|term| {
            term.token == ending.token
                && term.end_reason.as_deref() == Some(ending.reason)
                && (ending.session.is_none() || term.session == ending.session)
        })
    }

    /// `leadergroup.hand_on`: the request and the session that were chosen, and whether they got the key.
    fn hand_on(&mut self, ending: &Ending<'_>) -> Result<(Option<(Uuid, Uuid)>, bool), Failure> {
        let (key, named) = (ending.key, ending.names_successor());
        let chosen = self.tables.living_queue(key).find(|waiter| ending.suits(waiter)).cloned();
        let begun = match &chosen {
            Some(waiter) => {
                let next = Next {
                    session: waiter.session,
                    grant_id: waiter.grant_id,
                    holder: &waiter.holder,
                    reason: &waiter.reason,
                    delay_ms: waiter.delay_ms,
                };
                self.begin_term(key, &next, Some(ending.reason))?
            }
            None => None,
        };
        let taken = chosen.as_ref().map(|waiter| (waiter.grant_id, waiter.session));
        if named && begun.is_none() {
            return Ok((taken, false));
        }
        if let (Some(waiter), Some(_)) = (&chosen, begun) {
            let is_gone = |other: &&Waiter| {
                other.id == waiter.id
                    || other.id < waiter.id && !named && !self.tables.lives(Some(other.session))
            };
            let gone: Vec<i64> = self.tables.queue(key).filter(is_gone).map(|waiter| waiter.id).collect();
            self.tables.remove_waiters(&gone);
        } else {
            let now = self.now;
            self.tables.update_lock(key, |lock| leave(lock, ending.reason, now))?;
        }
        self.note_whether_awaited(key)?;
        Ok((taken, begun.is_some()))
    }
}

/// Ends the term without a next one.
fn leave(lock: &mut Lock, reason: &str, now: i64) {
    (lock.holder, lock.session, lock.grant_id) = (None, None, None);
    (lock.lock_timestamp, lock.end_reason) = (now, Some(reason.to_owned()));
}
