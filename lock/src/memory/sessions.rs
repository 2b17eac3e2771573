//! Sessions and eras, as `migrations/0001_era.sql` and `0002_sessions.sql` define them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::tables::Session;
use super::transaction::{Answer, Transaction};
use crate::db::migrations::VERSION;

/// Most neighbours that a session watches.
const NEIGHBOURS: usize = 3;

impl Transaction<'_> {
    /// `leadergroup.present_era`
    fn present_era(&mut self) {
        if !self.is_in_its_era() {
            self.tables.meta.history = self.history.to_owned();
            let (step, era_id) = (self.random.step(), self.random.uuid());
            self.tables.begin_era(step, era_id);
        }
    }

    pub(super) fn era_row(&mut self) -> Value {
        self.present_era();
        let meta = &self.tables.meta;
        json!({ "era": meta.era, "era_id": meta.era_id, "quarantine": meta.quarantine })
    }

    pub(super) fn end_quarantine(&mut self, (era_id,): (Uuid,)) -> Answer {
        let meta = &self.tables.meta;
        let ends = meta.era_id == era_id && meta.quarantine && self.is_in_its_era();
        if ends {
            self.tables.meta.quarantine = false;
        }
        Ok(vec![json!({ "ended": ends })])
    }

    pub(super) fn register(
        &mut self,
        (id, name, ttl_ms, peers, place): (Uuid, String, i64, Option<String>, Option<String>),
    ) -> Answer {
        let era = self.era_row();
        let now = self.now;
        Arc::make_mut(&mut self.tables.sessions).entry(id).or_insert_with(|| Session {
            id,
            name,
            peers,
            place,
            beat: 1,
            ttl_ms,
            revoked: 0,
            dead: false,
            closed: false,
            registered_at: now,
            seen: now,
            dead_at: None,
        });
        Ok(vec![era])
    }

    pub(super) fn beat(&mut self, (own, watch): (Uuid, Vec<Uuid>)) -> Answer {
        let now = self.now;
        if let Some(session) = self.tables.living(own) {
            session.beat += 1;
            session.seen = now;
        }
        self.present_era();
        let (sessions, meta) = (&self.tables.sessions, &self.tables.meta);
        let longest = sessions.values().filter(|session| !session.dead).map(|session| session.ttl_ms).max();
        let row = |session: Option<&Session>, peer: bool| {
            json!({
                "id": session.map(|session| session.id),
                "name": session.map(|session| &session.name),
                "beat": session.map(|session| session.beat),
                "ttl_ms": session.map(|session| session.ttl_ms),
                "dead": session.is_none_or(|session| session.dead),
                "peer": peer,
                "place": session.and_then(|session| session.place.as_ref()),
                "revoked": session.map(|session| session.revoked),
                "era_id": meta.era_id,
                "quarantine": meta.quarantine,
                "longest_ttl_ms": longest.filter(|_| meta.quarantine),
                "works_with": 1,
            })
        };
        let peers = sessions.get(&own).and_then(|session| session.peers.as_ref());
        let is_peer = |other: &Session| peers.is_some() && other.peers.as_ref() == peers;
        let living = || sessions.values().filter(|other| !other.dead && other.id != own);
        let after = living().filter(|other| other.id > own).take(NEIGHBOURS);
        let before = living().filter(|other| other.id < own).take(NEIGHBOURS);
        let neighbours = after.chain(before).take(NEIGHBOURS).map(|other| other.id);
        let peers = living().filter(|other| is_peer(other)).map(|other| other.id);
        let watched = watch.into_iter().filter(|id| *id != own);
        let seen: BTreeSet<Uuid> = neighbours.chain(peers).chain(watched).collect();
        let others = seen.iter().filter_map(|id| sessions.get(id));
        let rows = others.map(|other| row(Some(other), is_peer(other)));
        Ok(std::iter::once(row(sessions.get(&own), true)).chain(rows).collect())
    }

    pub(super) fn commits_were_lost(&mut self, (era_id,): (Uuid,)) -> Answer {
        let begins = self.tables.meta.era_id == era_id;
        if begins {
            let (step, era_id) = (self.random.step(), self.random.uuid());
            self.tables.begin_era(step, era_id);
        }
        Ok(vec![json!({ "begun": begins })])
    }

    fn has_peers(&self, session: Uuid) -> bool {
        self.tables.session(Some(session)).is_some_and(|session| session.peers.is_some())
    }

    pub(super) fn mark_dead(
        &mut self,
        (sessions, beats, era_id): (Vec<Uuid>, Vec<i64>, Option<Uuid>),
    ) -> Answer {
        let now = self.now;
        let in_era = era_id.is_none_or(|era| era == self.tables.meta.era_id && self.is_in_its_era());
        let mut rows = Vec::new();
        for (id, beat) in sessions.into_iter().zip(beats) {
            let expired = self.tables.living(id).filter(|session| in_era && session.beat == beat);
            let marked = expired.map(|session| (session.dead, session.dead_at) = (true, Some(now))).is_some();
            if !self.tables.lives(Some(id)) {
                rows.push(json!({ "id": id, "marked": marked, "has_peers": self.has_peers(id) }));
            }
        }
        Ok(rows)
    }

    pub(super) fn close(&mut self, (own, in_order): (Uuid, bool)) -> Answer {
        let now = self.now;
        let living = self.tables.living(own);
        let ends = living.map(|own| (own.dead, own.dead_at, own.closed) = (true, Some(now), in_order));
        let closed = ends.is_some();
        Ok(vec![json!({ "closed": closed, "has_peers": self.has_peers(own) })])
    }

    pub(super) fn check(&self) -> Vec<Value> {
        vec![json!({
            "server_version": "in memory",
            "writable": !self.read_only,
            "has_schema": true,
            "missing": [],
            "publications": [],
        })]
    }

    pub(super) fn schema_version() -> Vec<Value> {
        vec![json!({ "version": VERSION, "works_with": 1 })]
    }
}
