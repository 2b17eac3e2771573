//! Failover to a standby that lacks the last commits, and old backups, on real servers: no token is used twice.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leadergroup_lock::{
    Changed, Client, ClientConfig, DatabaseConfig, LockError, Released, SessionId, Store, Token,
    controller::{Grant, Granted},
    protocol::{AcquireRequest, Acquired, Wait},
};
use tokio::time::timeout;

use crate::cast::{TTL, end_quarantine, grant, grant_one, granted, holder, key, row, session, take};
use crate::postgres::{DEADLINE, Database, Server, eventually, migrated};

/// By at least this much, the first token of a new era is larger than the last one in the database.
const JUMP: i64 = 1_000_000;
/// By at most this much: tokens must never run out.
const LONGEST_JUMP: i64 = 1_000 * JUMP;

/// Copies a server's files.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// Whether this is the first token in the era after the one that began the present term.
fn has_jumped(token: Token, from: i64) -> bool {
    (from + JUMP + 1..=from + LONGEST_JUMP + 1).contains(&token.get())
}

/// Grants the key in a new era.
async fn grant_with_a_jump(store: &Store, own: SessionId, grant: Grant) {
    let from = grant.expected.get();
    let granted = grant_one(store, own, grant).await;
    assert!(matches!(granted, Granted::Granted { token } if has_jumped(token, from)), "{granted:?}");
}

/// The timeline that the database's era began with.
async fn timeline(database: &Database) -> i64 {
    database.number("select ('x' || right(history, 8))::bit(32)::bigint from leadergroup.meta").await
}

/// The program's URL is changed in its file, as it would be for a service name that moves.
struct MovingUrl {
    file: tempfile::NamedTempFile,
}

impl MovingUrl {
    fn of(database: &Database) -> Self {
        let url = Self { file: tempfile::NamedTempFile::new().unwrap() };
        url.leads_to(database);
        url
    }

    fn leads_to(&self, database: &Database) {
        std::fs::write(self.file.path(), database.url()).unwrap();
    }

    fn config(&self, like: &Database) -> DatabaseConfig {
        DatabaseConfig { url: "".into(), url_file: Some(self.file.path().into()), ..like.config() }
    }
}

fn keep(name: &str, ttl: Duration) -> ClientConfig {
    let retry_interval = Duration::from_millis(200);
    ClientConfig { name: name.into(), ttl, retry_interval, ..ClientConfig::default() }
}

/// Promotes a copy of a server that lacks the last three grants of key `a`. `primary_dies`: the server is killed before
/// that.
async fn failover(primary_dies: bool) {
    let primary = Server::start(&[]);
    let before = primary.database().await;
    let store = before.store();
    store.migrate().await.unwrap();
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    take(&store, own, &key("fresh")).await;
    assert_eq!(grant_one(&store, own, grant(&key("a"), 0, "p0")).await, granted(1));
    let free = AcquireRequest::new(key("free"), holder("p"), "test");
    let one = Acquired::Granted { token: Token::new(1) };
    assert_eq!(store.acquire(own, &free, Wait::No).await.unwrap().outcome, one);
    assert_eq!(store.release(own, &key("free"), Token::new(1), "done").await.unwrap(), Changed::Done);
    let standby = primary.standby();
    // It receives no later grants.
    standby.set("primary_conninfo", "");
    for token in 1..4 {
        assert_eq!(grant_one(&store, own, grant(&key("a"), token, "lost")).await, granted(token + 1));
    }
    standby.launch();
    let after = standby.database_called(&before.name);
    let url = MovingUrl::of(&before);
    let config = url.config(&before);
    let moving = Store::new(&config).unwrap();
    let beat = moving.beat(own, &[]).await.unwrap();
    assert!(beat.alive && beat.quarantine.is_none());
    assert_eq!(timeline(&before).await, 1);
    let first_era = beat.era;

    let read_only = after.store();
    assert_eq!(read_only.beat(own, &[]).await.unwrap_err(), LockError::ReadOnly, "a standby grants nothing");
    let wish = AcquireRequest::new(key("held"), holder("p"), "test");
    assert_eq!(
        read_only.acquire(own, &wish, Wait::No).await.map(|attempt| attempt.outcome).unwrap_err(),
        LockError::ReadOnly
    );
    if primary_dies {
        primary.kill();
    }
    standby.psql("select pg_promote()");
    let early = after.store().acquire(own, &free, Wait::No).await.unwrap().outcome;
    assert_eq!(
        early,
        Acquired::Quarantine,
        "a lost grant may have had the next token, and no heartbeat has been here yet"
    );
    url.leads_to(&after);
    eventually("the program has found the new primary", async || {
        moving.beat(own, &[]).await.is_ok_and(|beat| beat.era != first_era)
    })
    .await;
    assert_eq!(timeline(&after).await, 2);
    let beat = moving.beat(own, &[]).await.unwrap();
    assert!(beat.alive, "sessions that the new primary has live on");
    assert_eq!(beat.quarantine, Some(TTL), "no longer than the longest ttl of all sessions");
    let seen = row(&moving, &key("a")).await;
    assert_eq!(seen.token, Token::new(1), "the last three grants are lost");
    let next = Grant { expected: seen.token, ..grant(&key("a"), 1, "p1") };
    grant_with_a_jump(&moving, own, next).await;
    grant_with_a_jump(&moving, own, grant(&key("fresh"), 0, "p1")).await;
    // A connection that was open all the time shows the new era as well.
    assert_eq!(read_only.beat(own, &[]).await.unwrap().era, beat.era);

    if !primary_dies {
        // Two databases now, and a program that still uses the old one: it grants, but never what the new one grants.
        for token in 4..8 {
            assert_eq!(grant_one(&store, own, grant(&key("a"), token, "old")).await, granted(token + 1));
        }
        let tokens = "select coalesce(max(token), 0) from leadergroup.terms where holder_name <> 'p1'";
        assert!((8..JUMP).contains(&before.number(tokens).await));
        let late = "select min(token) from leadergroup.terms where holder_name = 'p1'";
        assert!(after.number(late).await > JUMP);
        assert_eq!(store.beat(own, &[]).await.unwrap().era, first_era, "the old one is still in its era");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lacks_the_last_commits_hands_no_token_out_twice() {
    failover(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_primaries_hand_no_token_out_twice() {
    failover(false).await;
}

/// The URL names both servers, so that nothing has to be changed or restarted.
#[tokio::test(flavor = "multi_thread")]
async fn the_new_primary_is_found_by_a_url_that_names_both() {
    let primary = Server::start(&[]);
    let (before, migrated) = primary.migrated().await;
    let standby = primary.standby();
    standby.launch();
    let after = standby.database_called(&before.name);
    let (own, era) = migrated.register("replica", TTL, None, None).await.unwrap();
    let stores = [before.url_with(&after), after.url_with(&before)]
        .map(|url| Store::new(&DatabaseConfig { url: url.into(), ..before.config() }).unwrap());
    for store in &stores {
        let beat = store.beat(own, &[]).await.unwrap();
        assert!(beat.alive && beat.era == era && beat.quarantine.is_none());
        store.check().await.unwrap();
    }
    let sessions = "select count(*) from leadergroup.session";
    eventually("the standby has the session", async || after.number(sessions).await == 1).await;
    primary.kill();
    for store in &stores {
        let error = store.beat(own, &[]).await.unwrap_err();
        assert!(matches!(error, LockError::Interrupted { .. } | LockError::NoHost { .. }), "{error}");
        let error = store.beat(own, &[]).await.unwrap_err();
        assert!(matches!(error, LockError::NoHost { .. }), "{error}");
    }
    standby.psql("select pg_promote()");
    let mut eras = BTreeSet::new();
    for store in &stores {
        let beat = store.beat(own, &[]).await.unwrap();
        assert!(beat.alive && beat.era != era && beat.quarantine == Some(TTL));
        eras.insert(beat.era.as_uuid());
        assert!(store.check().await.unwrap().writable);
    }
    assert_eq!(eras.len(), 1, "one new era for all");
    assert_eq!(timeline(&after).await, 2);
}

/// Two programs hold a lock when the database fails over. The new primary lacks the session and the grant of one of
/// them, and only the grant of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_term_was_lost_learns_it_and_the_next_token_is_larger() {
    let primary = Server::start(&[]);
    let before = primary.database().await;
    before.store().migrate().await.unwrap();
    let url = MovingUrl::of(&before);
    let config = url.config(&before);
    let keep = |name: &str| keep(name, DEADLINE);
    let known = Client::connect(Store::new(&config).unwrap(), keep("known")).await.unwrap();
    let kept = known.lock(&key("kept"), DEADLINE).await.unwrap();
    let standby = primary.standby();
    standby.set("primary_conninfo", "");
    let unknown = Client::connect(Store::new(&config).unwrap(), keep("unknown")).await.unwrap();
    let beats = async |name: &str| {
        before.number(&format!("select beat from leadergroup.session where name = '{name}'")).await
    };
    eventually("both know the present history", async || {
        beats("known").await > 2 && beats("unknown").await > 2
    })
    .await;
    let lost =
        [unknown.lock(&key("a"), DEADLINE).await.unwrap(), known.lock(&key("b"), DEADLINE).await.unwrap()];
    primary.kill();
    standby.launch();
    standby.psql("select pg_promote()");
    let after = standby.database_called(&before.name);
    url.leads_to(&after);
    for held in &lost {
        assert_eq!(held.token(), Token::new(1));
        timeout(DEADLINE, held.lost()).await.expect("the holder learns it");
    }
    let impatient = ClientConfig { confirm_death: false, ..keep("other") };
    let other = Client::connect(after.store(), impatient).await.unwrap();
    assert!(
        other.try_lock(&key("a")).await.unwrap().is_none(),
        "for as long as a program may rely on a lost grant"
    );
    end_quarantine(&after).await;
    for name in ["a", "b"] {
        let next = other.lock(&key(name), DEADLINE).await.unwrap();
        assert!(has_jumped(next.token(), 0), "{:?}", next.token());
        assert!(!next.is_lost());
        assert_eq!(next.release().await.unwrap(), Released::Done);
    }
    assert!(lost.iter().all(leadergroup_lock::Guard::is_lost));
    assert!(!kept.is_lost(), "a grant that the standby had received is kept");
}

/// The holder's grant was lost, and the holder is cut off, so that it cannot notice: its lease ends before the next
/// holder begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_by_a_lost_grant_stops_before_the_next_one_begins() {
    let primary = Server::start(&[]);
    let before = primary.database().await;
    before.store().migrate().await.unwrap();
    let url = MovingUrl::of(&before);
    let config = url.config(&before);
    let keep = |name: &str| keep(name, Duration::from_secs(5));
    let cut_off = Client::connect(Store::new(&config).unwrap(), keep("cut off")).await.unwrap();
    let standby = primary.standby();
    standby.set("primary_conninfo", "");
    standby.launch();
    let held = cut_off.lock(&key("a"), DEADLINE).await.unwrap();
    // From now on its URL leads nowhere.
    primary.kill();
    standby.psql("select pg_promote()");
    let after = standby.database_called(&before.name);
    let other = Client::connect(after.store(), keep("other")).await.unwrap();
    let next = other.lock(&key("a"), DEADLINE).await.unwrap();
    assert!(held.is_lost(), "two hold the lock");
    timeout(DEADLINE, held.lost()).await.expect("the guard is lost");
    assert!(has_jumped(next.token(), 0) && !next.is_lost());
    // When it finds the new primary, nothing remains of the old term.
    url.leads_to(&after);
    let again = tokio::spawn(async move { cut_off.lock(&key("a"), DEADLINE).await.unwrap() });
    let waiters = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || after.number(waiters).await == 1).await;
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    assert!(!next.is_lost());
    let last = next.token().get();
    assert_eq!(next.release().await.unwrap(), Released::Done);
    assert_eq!(again.await.unwrap().token(), Token::new(last + 1), "one jump for each era");
}

/// One program notices that the quarantine is over. The others are woken.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_quarantine_wakes_those_who_wait() {
    let (database, store) = migrated().await;
    let (ttl, retry_interval) = (Duration::from_hours(1), Duration::from_mins(10));
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    let client = Client::connect(database.store(), config).await.unwrap();
    let (_, era) = store.register("replica", TTL, None, None).await.unwrap();
    database.sql("update leadergroup.meta set quarantine = true").await;
    let waiting = tokio::spawn(async move { client.lock(&key("a"), ttl).await.unwrap().token() });
    eventually("it listens", async || database.listening().await == 1).await;
    let waiters = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || database.number(waiters).await == 1).await;
    store.end_quarantine(era).await.unwrap();
    assert_eq!(timeout(DEADLINE, waiting).await.expect("it is woken").unwrap(), Token::new(1));
}

/// The same server, restored to an old state of its files: nothing in them shows it. A person who has a larger token
/// sets it, as the floor of a grant, or for all keys at once.
#[tokio::test]
async fn files_put_back_on_the_same_timeline_need_a_floor_or_a_word() {
    let server = Server::start(&[]);
    let (database, store) = server.migrated().await;
    let (own, era) = store.register("replica", TTL, None, None).await.unwrap();
    take(&store, own, &key("a")).await;
    assert_eq!(grant_one(&store, own, grant(&key("a"), 0, "p0")).await, granted(1));
    // In turns: after each release, the next one gets the key.
    let hold = async || {
        let wish = AcquireRequest::new(key("b"), holder("p"), "test");
        let Acquired::Granted { token } = store.acquire(own, &wish, Wait::No).await.unwrap().outcome else {
            panic!("the key is free");
        };
        assert_eq!(store.release(own, &key("b"), token, "done").await.unwrap(), Changed::Done);
        token
    };
    assert_eq!(hold().await, Token::new(1));
    server.stop();
    let backup = server.data().with_file_name("backup");
    copy(&server.data(), &backup);
    server.launch();
    assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "lost")).await, granted(2));
    assert_eq!((hold().await, hold().await), (Token::new(2), Token::new(3)));
    server.kill();
    std::fs::remove_dir_all(server.data()).unwrap();
    copy(&backup, &server.data());
    server.launch();
    let beat = store.beat(own, &[]).await.unwrap();
    assert!(beat.alive && beat.era == era && beat.quarantine.is_none(), "no client runs that could tell");
    let seen = row(&store, &key("a")).await;
    let next = Grant { expected: seen.token, floor: Token::new(2), ..grant(&key("a"), 1, "p1") };
    assert_eq!(grant_one(&store, own, next).await, granted(3));
    // As docs/database-faults.md says.
    database.sql("select leadergroup.begin_era()").await;
    let beat = store.beat(own, &[]).await.unwrap();
    assert!(beat.alive && beat.era != era && beat.quarantine == Some(TTL));
    end_quarantine(&database).await;
    let next = hold().await;
    assert!(has_jumped(next, 1), "{next}");
    grant_with_a_jump(&store, own, grant(&key("a"), 3, "p2")).await;
}

/// The same while clients run: a heartbeat shows each of them that the database has counted more before.
#[tokio::test(flavor = "multi_thread")]
async fn files_put_back_while_clients_run_begin_an_era() {
    let server = Server::start(&[]);
    let (database, _store) = server.migrated().await;
    let client = Client::connect(database.store(), keep("one", DEADLINE * 10)).await.unwrap();
    let kept = client.try_lock(&key("kept")).await.unwrap().unwrap();
    server.stop();
    let backup = server.data().with_file_name("backup");
    copy(&server.data(), &backup);
    server.launch();
    let gone = client.lock(&key("gone"), DEADLINE).await.unwrap();
    let beats = "select beat from leadergroup.session";
    let before = database.number(beats).await;
    eventually("it beats more often than the files know", async || database.number(beats).await > before + 5)
        .await;
    server.kill();
    std::fs::remove_dir_all(server.data()).unwrap();
    copy(&backup, &server.data());
    server.launch();
    timeout(DEADLINE, gone.lost()).await.expect("the grant is not in these files");
    assert!(!kept.is_lost(), "this one is");
    let era = database.number("select era from leadergroup.meta where quarantine").await;
    assert!(era > 0);
    end_quarantine(&database).await;
    let next = client.lock(&key("gone"), DEADLINE).await.unwrap();
    assert!(next.token() > Token::new(era * JUMP), "{}", next.token());
}
