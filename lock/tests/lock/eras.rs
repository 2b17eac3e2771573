//! Lost commits: when the database's history has changed, a new era begins, and no token is used twice.

use std::process::Command;

use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, Token, controller::Grant};
use tokio::time::timeout;

use crate::cast::{TTL, assert_jumped, grant, grant_one, granted, key, row, session, take, token_of};
use crate::postgres::{DEADLINE, Server, eventually, migrated};

const NEW_HISTORY: &str = "update leadergroup.meta set history = 'elsewhere/00000001'";

#[tokio::test]
async fn tokens_jump_when_the_history_is_another_one() {
    let (database, store) = migrated().await;
    let other = database.store();
    let own = session(&store).await;
    let (old, fresh) = (key("old"), key("fresh"));
    take(&store, own, &old).await;
    take(&store, own, &fresh).await;
    assert_eq!(grant_one(&store, own, grant(&old, 0, "p0")).await, granted(1));
    let before = store.beat(own, &[]).await.unwrap();
    assert_eq!(before.quarantine, None);
    assert_eq!(database.number("select era from leadergroup.meta").await, 0);
    assert_eq!(other.beat(own, &[]).await.unwrap().era, before.era);

    // As after a switch to another server: the recorded history is not the present one.
    database.sql(NEW_HISTORY).await;
    let after = store.beat(own, &[]).await.unwrap();
    assert!(after.alive);
    assert_ne!(after.era, before.era);
    assert_eq!(after.quarantine, Some(TTL));
    let present = "select count(*) from leadergroup.meta where history = leadergroup.read_history()";
    assert_eq!(database.number(present).await, 1);
    let era = database.number("select era from leadergroup.meta").await;
    assert!((1..=1_000).contains(&era), "{era}");
    assert_eq!(store.beat(own, &[]).await.unwrap().era, after.era, "it has begun once");
    // The other program did not notice it first, but its heartbeats show the era as well.
    assert_eq!(other.beat(own, &[]).await.unwrap().era, after.era);
    let (_, registered_in) = other.register("late", TTL, None, None).await.unwrap();
    assert_eq!(registered_in, after.era);

    let token = token_of(&grant_one(&store, own, grant(&old, 1, "p1")).await);
    assert_jumped(&database, 1, token).await;
    let next = token.get() + 1;
    assert_eq!(grant_one(&store, own, grant(&old, token.get(), "p2")).await, granted(next), "once");
    assert_jumped(&database, 0, token_of(&grant_one(&store, own, grant(&fresh, 0, "p1")).await)).await;
    assert_eq!(database.number("select era from leadergroup.meta").await, era);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_notices_by_itself_and_many_at_once_begin_one_era() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = crate::cast::keys(16);
    for key in &keys {
        take(&store, own, key).await;
    }
    database
        .sql(
            "create table leadergroup.begun (era_id uuid);
             create function leadergroup.note_era() returns trigger language plpgsql security definer as
                 'begin insert into leadergroup.begun values (new.era_id); return null; end';
             create trigger note_era after update of era_id on leadergroup.meta
                 for each row execute function leadergroup.note_era()",
        )
        .await;
    database.sql(NEW_HISTORY).await;
    let grants: Vec<_> = keys
        .iter()
        .map(|key| {
            let (store, grant) = (database.store(), grant(key, 0, "p0"));
            tokio::spawn(async move { store.grant(own, grant).await.unwrap() })
        })
        .collect();
    for grant in grants {
        assert_jumped(&database, 0, token_of(&grant.await.unwrap())).await;
    }
    assert_eq!(database.number("select count(*) from leadergroup.begun").await, 1);
}

/// For files that were restored as they were: nothing in them shows that commits were lost.
#[tokio::test]
async fn an_era_that_a_person_begins_is_like_any_other() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let before = store.beat(own, &[]).await.unwrap();
    for name in ["a", "b"] {
        take(&store, own, &key(name)).await;
    }
    assert_eq!(grant_one(&store, own, grant(&key("a"), 0, "p0")).await, granted(1));
    let era = database.number("select leadergroup.begin_era(7000000000)").await;
    assert!((1..=1_000).contains(&era), "{era}");
    let after = store.beat(own, &[]).await.unwrap();
    assert_ne!(after.era, before.era);
    assert_eq!(after.quarantine, Some(TTL));
    assert_jumped(&database, 1, token_of(&grant_one(&store, own, grant(&key("a"), 1, "p1")).await)).await;
    // A lost row continues above the floor.
    let fresh = token_of(&grant_one(&store, own, grant(&key("b"), 0, "p0")).await);
    assert!(fresh > Token::new(7_000_000_000), "{fresh}");
}

/// A floor is never lowered again, so one that leaves no room for tokens would end all grants.
#[tokio::test]
async fn an_era_cannot_be_begun_with_a_floor_that_leaves_no_room_for_tokens() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let before = store.beat(own, &[]).await.unwrap();
    let most = 1_i64 << 51;
    let mut admin = database.admin().await;
    for floor in [-1, most + 1, i64::MIN, i64::MAX] {
        let call = sqlx::query("select leadergroup.begin_era($1)").bind(floor);
        let refused = call.execute(&mut admin).await.unwrap_err();
        let refused = refused.into_database_error().expect("PostgreSQL answers");
        assert_eq!(refused.code().as_deref(), Some("22023"), "{floor}: {refused}");
        assert!(refused.message().contains(&format!("is not between 0 and {most}")), "{floor}: {refused}");
    }
    assert_eq!(store.beat(own, &[]).await.unwrap().era, before.era, "no era began");
    database.number(&format!("select leadergroup.begin_era({most})")).await;
    take(&store, own, &key("a")).await;
    let token = token_of(&grant_one(&store, own, grant(&key("a"), 0, "p0")).await);
    assert!(token > Token::new(most), "{token}");
}

/// A real case: the server returns to an old state and begins a new timeline, as a restored backup or a promoted
/// standby does. The grants in between are lost, and their tokens are not granted again.
#[tokio::test]
async fn a_server_restored_from_an_old_backup_hands_no_token_out_twice() {
    let server = Server::start(&[]);
    let (database, store) = server.migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    let before = store.beat(own, &[]).await.unwrap();
    let timeline = "select right(history, 8)::bigint from leadergroup.meta";
    assert_eq!(database.number(timeline).await, 1);

    server.stop();
    let backup = server.data().with_file_name("backup");
    copy(&server.data(), &backup);
    server.launch();
    for token in 1..4 {
        assert_eq!(grant_one(&store, own, grant(&key, token, "lost")).await, granted(token + 1));
    }
    server.kill();
    std::fs::remove_dir_all(server.data()).unwrap();
    copy(&backup, &server.data());
    std::fs::write(server.data().join("recovery.signal"), "").unwrap();
    server.set("restore_command", "false");
    server.launch();
    server.wait_writable();

    let seen = row(&store, &key).await;
    assert_eq!(seen.token, Token::new(1), "the last three grants are lost");
    let beat = store.beat(own, &[]).await.unwrap();
    assert!(beat.alive);
    assert_ne!(beat.era, before.era);
    assert_eq!(beat.quarantine, Some(TTL));
    assert_eq!(database.number(timeline).await, 2);
    let next = Grant { expected: seen.token, ..grant(&key, 1, "p1") };
    assert_jumped(&database, 1, token_of(&grant_one(&store, own, next).await)).await;
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// After a failover, the counters of the former server prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_s_death_marks_name_the_era_in_which_it_observed() {
    let (database, _store) = migrated().await;
    let arguments = "sessions uuid[], beats bigint[], era_id uuid default null";
    let noted = format!(
        "create table public.marks (era_id uuid);
         create schema unwatched;
         alter function leadergroup.mark_dead(uuid[], bigint[], uuid) set schema unwatched;
         create function leadergroup.mark_dead({arguments}) returns table (id uuid, marked boolean)
         language plpgsql security definer as $$
         begin
             insert into public.marks values (era_id);
             return query select d.id, d.marked from unwatched.mark_dead(sessions, beats, era_id) as d;
         end $$"
    );
    database.sql(&noted).await;
    let (ttl, retry_interval) = (Duration::from_secs(2), Duration::from_millis(200));
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    let dies = Client::connect(database.store(), config.clone()).await.unwrap();
    let _lives = Client::connect(database.store(), config).await.unwrap();
    drop(dies);
    let dead = "select count(*) from leadergroup.session where dead";
    eventually("the other one marks it", async || database.number(dead).await == 1).await;
    let marks = "select count(*) from public.marks where era_id is not distinct from (select era_id from leadergroup.meta)";
    assert!(database.number(marks).await > 0);
    let others = "select count(*) from public.marks where era_id is distinct from (select era_id from leadergroup.meta)";
    assert_eq!(database.number(others).await, 0);
}

/// A snapshot of the database's files was put back while programs run: the history shows nothing of it, but a counter
/// has gone back.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_counter_goes_back_begins_an_era() {
    let (database, store) = migrated().await;
    let config = ClientConfig { retry_interval: Duration::from_millis(200), ..ClientConfig::default() };
    let (one, two) = (
        Client::connect(database.store(), config.clone()).await.unwrap(),
        Client::connect(database.store(), config).await.unwrap(),
    );
    let kept = one.try_lock(&key("kept")).await.unwrap().unwrap();
    let gone = two.try_lock(&key("gone")).await.unwrap().unwrap();
    let beats = "select min(beat) from leadergroup.session";
    eventually("both have sent some heartbeats", async || database.number(beats).await > 5).await;
    // The grant of a key was lost, too.
    database
        .sql(
            "begin;
             update leadergroup.lock set holder_uid = null, holder_namespace = null, holder_name = null,
                                         session = null, grant_id = null where key = 'gone';
             update leadergroup.session set beat = 2;
             commit",
        )
        .await;
    timeout(DEADLINE, gone.lost()).await.expect("its grant is not there any more");
    assert!(!kept.is_lost());
    let era = database.number("select era from leadergroup.meta").await;
    assert!(era > 0);
    let next = one.lock(&key("gone"), DEADLINE).await.unwrap();
    assert!(next.token() > Token::new(era * 1_000_000), "{}", next.token());
    assert!(!kept.is_lost());
    assert_eq!(database.number("select era from leadergroup.meta").await, era, "one era for both");
    assert_eq!(row(&store, &key("kept")).await.token, Token::new(1));
}
