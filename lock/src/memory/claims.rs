//! Who may change a row, as `sql/claim.sql`, `sql/unclaim.sql` and `sql/reassign.sql` decide it.

use serde_json::json;
use uuid::Uuid;

use super::tables::{Lock, PROGRAMS};
use super::transaction::{Answer, Transaction};

/// The columns of a batch of claims: keys, groups, whether rows may be created, and superseded groups.
type Claims = (Uuid, i32, Vec<String>, Vec<String>, Vec<bool>, Vec<Option<String>>);

/// The arguments of a reassignment: key, protocol, group, token, floor, reason, and force.
type Reassignment = (String, i32, String, Option<i64>, i64, String, bool);

impl Transaction<'_> {
    pub(super) fn claim(&mut self, (own, protocol, keys, groups, may_create, supersedes): Claims) -> Answer {
        let lives = self.tables.lives(Some(own));
        let mut rows = Vec::with_capacity(keys.len());
        let asked = keys.iter().zip(&groups).zip(may_create).zip(&supersedes);
        for (place, (((key, group), may_create), supersedes)) in (1..).zip(asked) {
            let old = self.tables.lock(key).cloned();
            let found = self.judge_claim(own, protocol, group, may_create, supersedes.as_ref(), old.as_ref());
            let changes = matches!(found, "take" | "revive" | "create");
            if lives && changes && !self.busy {
                self.carry_out_claim(found, own, protocol, key, group)?;
            }
            let verdict = match found {
                _ if !lives => "dead",
                _ if changes && self.busy => "busy",
                _ if changes => "ours",
                found => found,
            };
            let old = old.as_ref();
            rows.push(json!({
                "place": place,
                "verdict": verdict,
                "session": old.and_then(|old| old.session).filter(|_| found == "claimed"),
                "group_id": old.map(|old| &old.group_id).filter(|_| matches!(found, "foreign" | "tombstone")),
                "protocol": old.map(|old| old.protocol).filter(|_| found == "newer"),
            }));
        }
        Ok(rows)
    }

    fn judge_claim(
        &self,
        own: Uuid,
        protocol: i32,
        group: &str,
        may_create: bool,
        supersedes: Option<&String>,
        old: Option<&Lock>,
    ) -> &'static str {
        let Some(old) = old else { return if may_create { "create" } else { "missing" } };
        let is_own = old.session == Some(own);
        let lives = self.tables.lives(old.session);
        if old.protocol > protocol {
            "newer"
        } else if old.tombstone && (old.group_id == group || !may_create) {
            "tombstone"
        } else if old.tombstone {
            "revive"
        } else if old.group_id != group && (supersedes != Some(&old.group_id) || !is_own && lives) {
            "foreign"
        } else if old.group_id != group {
            "revive"
        } else if is_own {
            "ours"
        } else if lives {
            "claimed"
        } else {
            "take"
        }
    }

    fn carry_out_claim(
        &mut self,
        verdict: &str,
        own: Uuid,
        protocol: i32,
        key: &str,
        group: &str,
    ) -> Result<(), super::failure::Failure> {
        let now = self.now;
        if verdict == "create" {
            let created = Lock { session: Some(own), protocol, ..Lock::new(key, group, now) };
            self.tables.insert_lock(created);
            return Ok(());
        }
        self.tables.update_lock(key, |lock| {
            lock.session = Some(own);
            group.clone_into(&mut lock.group_id);
            lock.tombstone = false;
            if verdict == "revive" {
                lock.holder = None;
                lock.lock_timestamp = now;
                lock.end_reason = Some("its group was replaced".to_owned());
            }
        })
    }

    pub(super) fn unclaim(&mut self, (own, protocol, keys): (Uuid, i32, Vec<String>)) -> Answer {
        let lives = self.tables.lives(Some(own));
        let mut rows = Vec::with_capacity(keys.len());
        for (place, key) in (1..).zip(&keys) {
            let old = self.tables.lock(key).cloned();
            let old = old.as_ref();
            let is_own = old.is_some_and(|old| old.session == Some(own) && old.protocol <= protocol);
            let changed = lives && is_own && !self.busy;
            if changed {
                self.tables.update_lock(key, |lock| lock.session = None)?;
            }
            let verdict = match old {
                _ if !lives => "dead",
                None => "missing",
                Some(_) if changed => "done",
                Some(old) if old.protocol > protocol => "newer",
                Some(Lock { session: None, .. }) => "done",
                Some(old) if old.session != Some(own) => "unclaimed",
                Some(_) => "busy",
            };
            rows.push(json!({
                "place": place,
                "verdict": verdict,
                "session": old.and_then(|old| old.session),
                "group_id": old.map(|old| &old.group_id),
                "protocol": old.map(|old| old.protocol),
                "changed": changed,
            }));
        }
        Ok(rows)
    }

    pub(super) fn reassign(
        &mut self,
        (key, protocol, group, token, floor, reason, force): Reassignment,
    ) -> Answer {
        let now = self.now;
        let old = self.tables.lock(&key).cloned();
        let found = match &old {
            None if token.is_none() => "create",
            None => "missing",
            Some(old) if old.protocol > protocol => "newer",
            Some(old) if old.group_id == PROGRAMS => "foreign",
            Some(old) if Some(old.token) != token => "changed",
            // Nobody has it yet: its owner keeps it.
            Some(old) if old.group_id == group && old.holder.is_none() && !old.tombstone => "raise",
            Some(old) if self.tables.lives(old.session) && !force => "unclaimed",
            Some(_) => "take",
        };
        let changes = matches!(found, "create" | "raise" | "take") && !self.busy;
        if changes && found == "create" {
            self.tables.insert_lock(Lock { token: floor, protocol, ..Lock::new(&key, &group, now) });
        } else if changes {
            self.tables.update_lock(&key, |lock| {
                lock.group_id = group;
                lock.token = lock.token.max(floor);
                lock.tombstone = false;
                lock.grant_id = None;
                lock.holder = None;
                lock.session = lock.session.filter(|_| found == "raise");
                lock.lock_timestamp = now;
                lock.end_reason = Some(reason);
            })?;
            let owner = old.as_ref().and_then(|old| old.session).filter(|_| found == "take");
            if let Some(owner) = owner.and_then(|owner| self.tables.living(owner)) {
                owner.revoked += 1;
            }
        }
        let verdict = match found {
            "create" | "raise" | "take" if changes => "done",
            "create" | "raise" | "take" => "busy",
            found => found,
        };
        Ok(vec![json!({
            "verdict": verdict,
            "token": self.tables.lock(&key).map(|lock| lock.token).filter(|_| changes),
            "session": old.as_ref().and_then(|old| old.session),
            "group_id": old.as_ref().map(|old| &old.group_id),
            "protocol": old.as_ref().map(|old| old.protocol),
        })])
    }
}
