//! Terms that a controller grants to others, as `sql/grant.sql`, `sql/confirm.sql`, `sql/vacate.sql` and
//! `sql/tombstone.sql` change them.

use serde_json::{Value, json};
use uuid::Uuid;

use super::tables::Lock;
use super::transaction::{Answer, Transaction};
use crate::Holder;

/// The columns of a batch of grants: keys, expected tokens, floors, uids, namespaces, names, grant ids and reasons;
/// how long fenced transactions are waited for; and groups.
type Grants = (
    Uuid,
    i32,
    Vec<String>,
    Vec<i64>,
    Vec<i64>,
    Vec<String>,
    Vec<String>,
    Vec<String>,
    Vec<Uuid>,
    Vec<String>,
    Option<i32>,
    Option<i32>,
    Vec<String>,
);

/// The verdict about a row that is claimed for the group.
fn judge(old: &Lock, protocol: i32, expected: i64, (id, uid): (Uuid, &str)) -> &'static str {
    let is_holder = old.holder.as_ref().is_some_and(|holder| holder.uid == uid);
    if old.protocol > protocol {
        "newer"
    } else if old.tombstone {
        "tombstone"
    } else if old.grant_id == Some(id) && is_holder {
        "granted"
    } else if old.token != expected {
        "changed"
    } else {
        "grant"
    }
}

impl Transaction<'_> {
    pub(super) fn grant(&mut self, grants: Grants) -> Answer {
        let (
            own,
            protocol,
            keys,
            expected,
            floors,
            uids,
            namespaces,
            names,
            ids,
            reasons,
            patience,
            _,
            groups,
        ) = grants;
        // No transaction of an application is ever under way here, so the fence is always open.
        let gate = patience.map(|_| "open");
        let (now, era) = (self.now, self.tables.meta.era);
        let mut rows = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            let old = self.tables.lock(key).cloned();
            let is_of_another = old.as_ref().is_some_and(|old| old.group_id != groups[index]);
            let claimed = old.as_ref().filter(|old| old.session == Some(own) && !is_of_another && !self.busy);
            let judged = claimed.map(|old| judge(old, protocol, expected[index], (ids[index], &uids[index])));
            let verdict = match self.verdict(own, protocol, old.as_ref(), judged, true) {
                "busy" if is_of_another => "unclaimed",
                verdict => verdict,
            };
            let mut token = old.as_ref().map(|old| old.token).filter(|_| judged.is_some());
            if let ("grant", Some(old)) = (verdict, &old) {
                let next = self.tables.next_token(old, floors[index]);
                token = Some(next);
                let holder = Holder {
                    uid: uids[index].clone(),
                    namespace: namespaces[index].clone(),
                    name: names[index].clone(),
                };
                self.tables.update_lock(key, |lock| {
                    (lock.token, lock.era, lock.grant_id) = (next, era, Some(ids[index]));
                    (lock.holder, lock.reason) = (Some(holder), Some(reasons[index].clone()));
                    (lock.lock_timestamp, lock.protocol) = (now, protocol);
                    lock.end_reason = Some(reasons[index].clone());
                })?;
            }
            let old = old.as_ref();
            rows.push(json!({
                "place": index + 1,
                "verdict": verdict,
                "session": old.and_then(|old| old.session).filter(|_| judged.is_none()),
                "protocol": old.map(|old| old.protocol).filter(|_| matches!(judged, None | Some("newer"))),
                "gate": gate,
                "blockers": null,
                "token": token,
            }));
        }
        Ok(rows)
    }

    /// The verdict about a row; `judged` is the one that depends on its content, if the own session has claimed it.
    fn verdict(
        &self,
        own: Uuid,
        protocol: i32,
        old: Option<&Lock>,
        judged: Option<&'static str>,
        in_present_era: bool,
    ) -> &'static str {
        match old {
            _ if !self.tables.lives(Some(own)) => "dead",
            _ if in_present_era && !self.is_in_its_era() => "history",
            None => "missing",
            Some(old) => judged.unwrap_or({
                if old.protocol > protocol {
                    "newer"
                } else if old.session != Some(own) {
                    "unclaimed"
                } else {
                    "busy"
                }
            }),
        }
    }

    pub(super) fn confirm(
        &mut self,
        (own, protocol, keys, tokens): (Uuid, i32, Vec<String>, Vec<i64>),
    ) -> Answer {
        let mut rows = Vec::with_capacity(keys.len());
        for (place, (key, token)) in (1..).zip(keys.iter().zip(tokens)) {
            let old = self.tables.lock(key).cloned();
            let judged = self.claimed(own, protocol, old.as_ref()).map(|row| match row {
                Err(refused) => refused,
                Ok(row) if row.token == token && row.holder.is_some() => "done",
                Ok(_) => "changed",
            });
            let verdict = self.verdict(own, protocol, old.as_ref(), judged, false);
            if verdict == "done" && old.as_ref().is_some_and(|old| old.confirmed_token < token) {
                self.tables.update_lock(key, |lock| lock.confirmed_token = token)?;
            }
            rows.push(changed(place, verdict, old.as_ref()));
        }
        Ok(rows)
    }

    pub(super) fn vacate(
        &mut self,
        (own, protocol, keys, tokens, ids, reasons): (
            Uuid,
            i32,
            Vec<String>,
            Vec<i64>,
            Vec<Uuid>,
            Vec<String>,
        ),
    ) -> Answer {
        let now = self.now;
        let mut rows = Vec::with_capacity(keys.len());
        let asked = keys.iter().zip(tokens).zip(ids).zip(reasons);
        for (place, (((key, token), id), reason)) in (1..).zip(asked) {
            let old = self.tables.lock(key).cloned();
            let judged = self.claimed(own, protocol, old.as_ref()).map(|row| match row {
                Err(refused) => refused,
                Ok(row) if row.token == token => "done",
                Ok(_) => "changed",
            });
            let verdict = self.verdict(own, protocol, old.as_ref(), judged, false);
            if verdict == "done" && old.as_ref().is_some_and(|old| old.holder.is_some()) {
                self.tables.update_lock(key, |lock| {
                    (lock.holder, lock.grant_id) = (None, Some(id));
                    (lock.lock_timestamp, lock.end_reason) = (now, Some(reason));
                })?;
            }
            rows.push(changed(place, verdict, old.as_ref()));
        }
        Ok(rows)
    }

    /// The row, if the own session has claimed it and it could be locked, or a refusal that does not depend on the
    /// token.
    fn claimed<'a>(
        &self,
        own: Uuid,
        protocol: i32,
        old: Option<&'a Lock>,
    ) -> Option<Result<&'a Lock, &'static str>> {
        let old = old.filter(|old| old.session == Some(own) && !self.busy)?;
        Some(match old {
            _ if old.protocol > protocol => Err("newer"),
            _ if old.tombstone => Err("tombstone"),
            old => Ok(old),
        })
    }

    pub(super) fn bury(
        &mut self,
        (own, protocol, keys, groups, floors): (Uuid, i32, Vec<String>, Vec<String>, Vec<i64>),
    ) -> Answer {
        let now = self.now;
        let lives = self.tables.lives(Some(own));
        let mut rows = Vec::with_capacity(keys.len());
        for (place, ((key, group), floor)) in (1..).zip(keys.iter().zip(groups).zip(floors)) {
            let old = self.tables.lock(key).cloned();
            let found = match &old {
                None => "create",
                Some(old) if old.protocol > protocol => "newer",
                Some(old) if old.group_id != group => "foreign",
                Some(old) if old.tombstone && old.token >= floor => "done",
                Some(old) if old.session != Some(own) && self.tables.lives(old.session) => "unclaimed",
                Some(_) => "bury",
            };
            let changes = lives && !self.busy;
            if changes && found == "create" {
                let row = Lock { token: floor, tombstone: true, protocol, ..Lock::new(key, &group, now) };
                self.tables.insert_lock(row);
            } else if changes && found == "bury" {
                self.tables.update_lock(key, |lock| {
                    (lock.tombstone, lock.session, lock.holder, lock.grant_id) = (true, None, None, None);
                    lock.token = lock.token.max(floor);
                    (lock.lock_timestamp, lock.end_reason) = (now, Some("group deleted".to_owned()));
                })?;
            }
            let verdict = match found {
                _ if !lives => "dead",
                "create" | "bury" if changes => "done",
                "create" | "bury" => "busy",
                found => found,
            };
            rows.push(changed(place, verdict, old.as_ref()));
        }
        Ok(rows)
    }
}

/// The answer about a row, which is given as it was before.
fn changed(place: i64, verdict: &str, old: Option<&Lock>) -> Value {
    json!({
        "place": place,
        "verdict": verdict,
        "session": old.and_then(|old| old.session),
        "group_id": old.map(|old| &old.group_id),
        "protocol": old.map(|old| old.protocol),
    })
}
