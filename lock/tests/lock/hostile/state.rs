//! Everything that the tables of the lock and of `fence_seen` say, and how two of these states differ.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

/// The group of the keys that programs hold.
pub const PROGRAMS: &str = "held by programs";

/// Times are left out: they are for people.
const READ: &str = "select jsonb_build_object(
        'meta', (select to_jsonb(m) - 'pruned_at' from leadergroup.meta as m),
        'sessions', (select coalesce(jsonb_agg(to_jsonb(s) - 'seen' - 'dead_at'), '[]') from leadergroup.session as s),
        'locks', (select coalesce(jsonb_agg(to_jsonb(l) - 'lock_timestamp'), '[]') from leadergroup.lock as l),
        'terms', (select coalesce(jsonb_agg(to_jsonb(t)), '[]') from leadergroup.term as t),
        'waiters', (select coalesce(jsonb_agg(to_jsonb(w)), '[]') from leadergroup.waiter as w),
        'marks', (select coalesce(jsonb_agg(to_jsonb(m)), '[]') from leadergroup.fence_mark as m)
    )::text";

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Meta {
    pub era: i64,
    pub era_id: Uuid,
    pub quarantine: bool,
    pub token_floor: i64,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Session {
    pub id: Uuid,
    pub beat: i64,
    pub ttl_ms: i64,
    pub dead: bool,
    pub closed: bool,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Lock {
    pub key: String,
    pub group_id: String,
    pub session: Option<Uuid>,
    pub token: i64,
    pub grant_id: Option<Uuid>,
    pub holder_uid: Option<String>,
    pub tombstone: bool,
    pub awaited: bool,
    pub delay_ms: i64,
    pub end_reason: Option<String>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Term {
    pub key: String,
    pub token: i64,
    pub session: Option<Uuid>,
    pub end_reason: Option<String>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Waiter {
    pub id: i64,
    pub key: String,
    pub grant_id: Uuid,
    pub session: Uuid,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Mark {
    pub key: String,
    pub token: i64,
    pub role: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Tables {
    meta: Meta,
    sessions: Vec<Session>,
    locks: Vec<Lock>,
    terms: Vec<Term>,
    waiters: Vec<Waiter>,
    marks: Vec<Mark>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub meta: Meta,
    pub sessions: BTreeMap<Uuid, Session>,
    pub locks: BTreeMap<String, Lock>,
    pub terms: BTreeMap<(String, i64), Term>,
    pub waiters: BTreeMap<i64, Waiter>,
    pub marks: BTreeMap<String, Mark>,
}

/// A row before and after: it was added, changed or removed.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    Meta(&'a Meta, &'a Meta),
    Session(Option<&'a Session>, Option<&'a Session>),
    Lock(Option<&'a Lock>, Option<&'a Lock>),
    Term(Option<&'a Term>, Option<&'a Term>),
    Waiter(Option<&'a Waiter>, Option<&'a Waiter>),
    Mark(Option<&'a Mark>, Option<&'a Mark>),
}

impl State {
    pub async fn read(connection: &mut PgConnection) -> Self {
        let text: String = sqlx::query_scalar(READ).fetch_one(connection).await.unwrap();
        let tables: Tables = serde_json::from_str(&text).unwrap();
        Self {
            meta: tables.meta,
            sessions: tables.sessions.into_iter().map(|session| (session.id, session)).collect(),
            locks: tables.locks.into_iter().map(|lock| (lock.key.clone(), lock)).collect(),
            terms: tables.terms.into_iter().map(|term| ((term.key.clone(), term.token), term)).collect(),
            waiters: tables.waiters.into_iter().map(|waiter| (waiter.id, waiter)).collect(),
            marks: tables.marks.into_iter().map(|mark| (mark.key.clone(), mark)).collect(),
        }
    }

    pub fn lives(&self, session: Option<Uuid>) -> bool {
        session.and_then(|session| self.sessions.get(&session)).is_some_and(|session| !session.dead)
    }

    /// Those who wait for the key and live, the first one first.
    pub fn queue<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Waiter> {
        self.waiters.values().filter(move |waiter| waiter.key == key && self.lives(Some(waiter.session)))
    }

    pub fn changes<'a>(&'a self, after: &'a Self) -> Vec<Change<'a>> {
        let mut found = Vec::new();
        if self.meta != after.meta {
            found.push(Change::Meta(&self.meta, &after.meta));
        }
        found.extend(pairs(&self.sessions, &after.sessions).map(|(old, new)| Change::Session(old, new)));
        found.extend(pairs(&self.locks, &after.locks).map(|(old, new)| Change::Lock(old, new)));
        found.extend(pairs(&self.terms, &after.terms).map(|(old, new)| Change::Term(old, new)));
        found.extend(pairs(&self.waiters, &after.waiters).map(|(old, new)| Change::Waiter(old, new)));
        found.extend(pairs(&self.marks, &after.marks).map(|(old, new)| Change::Mark(old, new)));
        found
    }
}

/// The rows that are not the same.
fn pairs<'a, K: Ord, V: PartialEq>(
    before: &'a BTreeMap<K, V>,
    after: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (Option<&'a V>, Option<&'a V>)> {
    let gone = before.iter().filter(|(key, _)| !after.contains_key(key)).map(|(_, old)| (Some(old), None));
    let here = after.iter().map(|(key, new)| (before.get(key), Some(new)));
    gone.chain(here.filter(|(old, new)| old != new))
}
