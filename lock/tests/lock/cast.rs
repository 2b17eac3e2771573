//! Helpers of the lock's tests: keys, holders, changes, and short forms of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use leadergroup_lock::{
    Changed, GrantId, Holder, Key, Reason, SessionId, Store, Token, Tried,
    admin::Pruned,
    controller::{Claim, Claimed, Grant, Granted, LockRow, Tombstone, Vacate},
};
use sqlx::Executor;
use tracing_subscriber::fmt::MakeWriter;

use crate::postgres::{Database, eventually};

pub const TTL: Duration = Duration::from_secs(5);
pub const GROUP: &str = "group-1";
/// By how much tokens jump for each unit by which the era's number grows.
pub const TOKEN_JUMP: i64 = 1_000_000;

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// `count` keys, in the database's order.
pub fn keys(count: usize) -> Vec<Key> {
    (0..count).map(|number| key(&format!("key-{number:05}"))).collect()
}

/// What pruning says that removed so many terms, keys and sessions.
pub fn removed_of(terms: u64, keys: u64, sessions: u64) -> Pruned {
    let mut pruned = Pruned::default();
    (pruned.terms, pruned.keys, pruned.sessions) = (terms, keys, sessions);
    pruned
}

/// Why a try did not get the key.
pub fn why<G>(tried: Tried<G>) -> Reason {
    match tried {
        Tried::Held(_) => panic!("it is held"),
        Tried::NotHeld(reason) => reason,
    }
}

pub fn holder(name: &str) -> Holder {
    Holder { uid: format!("uid-{name}"), namespace: "default".into(), name: name.into() }
}

pub fn claim(key: &Key) -> Claim {
    Claim { key: key.clone(), group: GROUP.into(), may_create: true, supersedes: None }
}

pub fn grant(key: &Key, expected: i64, to: &str) -> Grant {
    Grant {
        key: key.clone(),
        group: GROUP.into(),
        expected: Token::new(expected),
        floor: Token::ZERO,
        holder: holder(to),
        grant: GrantId::new(),
        reason: "test".into(),
    }
}

pub fn vacate(key: &Key, token: i64) -> Vacate {
    Vacate { key: key.clone(), token: Token::new(token), grant: GrantId::new(), reason: "gone".into() }
}

pub fn tombstone(key: &Key, group: &str) -> Tombstone {
    Tombstone { key: key.clone(), group: group.into(), floor: Token::ZERO }
}

pub fn granted(token: i64) -> Granted {
    Granted::Granted { token: Token::new(token) }
}

/// The token that was granted.
pub fn token_of(answer: &Granted) -> Token {
    let Granted::Granted { token } = answer else { panic!("{answer:?}") };
    *token
}

/// Checks the first token of a key in the present era; `last` is the key's largest token before.
pub async fn assert_jumped(database: &Database, last: i64, token: Token) {
    let era = database.number("select era from leadergroup.meta").await;
    let floor = (last + TOKEN_JUMP).max(era * TOKEN_JUMP);
    let allowed = floor + 1..floor + TOKEN_JUMP;
    assert!(allowed.contains(&token.get()), "{token} in era {era}, after {last}");
}

pub async fn session(store: &Store) -> SessionId {
    store.register("replica", TTL, None, None).await.unwrap().0
}

/// A session that others have marked dead.
pub async fn dead_session(store: &Store) -> SessionId {
    let session = session(store).await;
    assert_eq!(store.mark_dead(&[(session, 1)], None).await.unwrap(), [session]);
    session
}

pub async fn claim_one(store: &Store, own: SessionId, claim: Claim) -> Claimed {
    store.claim(own, &[claim]).await.unwrap().remove(0)
}

/// Claims a key that no living session has claimed, and creates its row if there is none.
pub async fn take(store: &Store, own: SessionId, key: &Key) -> LockRow {
    match claim_one(store, own, claim(key)).await {
        Claimed::Ours(row) => row,
        other => panic!("{key}: {other:?}"),
    }
}

pub async fn grant_one(store: &Store, own: SessionId, grant: Grant) -> Granted {
    store.grant(own, grant).await.unwrap()
}

/// Grants that as many tasks ask for at the same time, so that they go to the server together.
pub async fn grant_all(store: &Store, own: SessionId, grants: &[Grant]) -> Vec<Granted> {
    together(grants.iter().cloned().map(|grant| {
        let store = store.clone();
        async move { grant_one(&store, own, grant).await }
    }))
    .await
}

/// Confirmations of the same token, together.
pub async fn confirm_all(store: &Store, own: SessionId, keys: &[Key], token: i64) -> Vec<Changed> {
    together(keys.iter().cloned().map(|key| {
        let store = store.clone();
        async move { store.confirm(own, &key, Token::new(token)).await.unwrap() }
    }))
    .await
}

/// Has each call made by a task of its own, as in a program.
async fn together<T: Send + 'static>(
    calls: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = calls.map(tokio::spawn).collect();
    join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

pub async fn row(store: &Store, key: &Key) -> LockRow {
    store.read(std::slice::from_ref(key)).await.unwrap().remove(0)
}

/// Makes changes wait, inside their transactions, for an advisory lock that the test holds.
pub struct Gate<'a> {
    database: &'a Database,
    holder: sqlx::postgres::PgConnection,
}

impl<'a> Gate<'a> {
    /// Closed for every grant.
    pub async fn close(database: &'a Database) -> Self {
        Self::close_for(database, "update of token on leadergroup.lock").await
    }

    /// Closed for this event.
    pub async fn close_for(database: &'a Database, event: &str) -> Self {
        Self::build(database, event).await;
        Self::shut(database).await
    }

    /// Creates an open gate.
    pub async fn build(database: &Database, event: &str) {
        database
            .sql(&format!(
                "create function leadergroup.gate() returns trigger language plpgsql as \
                 'begin perform pg_catalog.pg_advisory_xact_lock(4711); return new; end';
                 create trigger gate before {event} for each row execute function leadergroup.gate()",
            ))
            .await;
    }

    /// Closes the gate that was built.
    pub async fn shut(database: &'a Database) -> Self {
        let mut gate = Self { database, holder: database.admin().await };
        gate.close_again().await;
        gate
    }

    pub async fn close_again(&mut self) {
        self.holder.execute("select pg_advisory_lock(4711)").await.unwrap();
    }

    pub async fn somebody_waits(&self) {
        eventually("a change waits at the gate", async || self.database.waiting().await > 0).await;
    }

    pub async fn open(&mut self) {
        self.holder.execute("select pg_advisory_unlock(4711)").await.unwrap();
    }
}

/// As if the time had passed in which a program may rely on a grant that the database has lost.
pub async fn end_quarantine(database: &Database) {
    database.sql("update leadergroup.meta set quarantine = false").await;
}

/// What was logged.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
