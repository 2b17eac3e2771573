//! A ttl that changes while keys are held.

use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, Guard, SessionId, Token, monotonic};
use tokio::time::timeout;

use crate::cast::{Gate, TTL, dead_session, key, session};
use crate::postgres::{DEADLINE, Database, Server, eventually, migrated};

const SHORT: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_hours(1);

async fn client(database: &Database, name: &str, ttl: Duration) -> Client {
    let retry_interval = Duration::from_millis(200);
    let config = ClientConfig { name: name.into(), ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

async fn taken(client: &Client, name: &str) -> Guard {
    client.try_lock(&key(name)).await.unwrap().expect("free")
}

/// How many living sessions have this ttl.
async fn with_ttl(database: &Database, ttl: Duration) -> i64 {
    let millis = ttl.as_millis();
    database
        .number(&format!("select count(*) from leadergroup.session where not dead and ttl_ms = {millis}"))
        .await
}

#[tokio::test]
async fn another_ttl_comes_with_another_count() {
    let (database, store) = migrated().await;
    let (own, dead) = (session(&store).await, dead_session(&store).await);
    assert!(store.set_ttl(own, TTL * 2).await.unwrap().is_some());
    let beat = store.beat(own, &[]).await.unwrap();
    assert_eq!((beat.ttl, beat.count), (TTL * 2, 3));
    let other = session(&store).await;
    let beat = store.beat(other, &[own]).await.unwrap();
    let seen = beat.sessions.iter().find(|seen| seen.id == own).unwrap();
    assert_eq!((seen.ttl, seen.beat), (TTL * 2, 3), "and so others see it");
    assert_eq!(
        store.mark_dead(&[(own, 1)], None).await.unwrap(),
        [],
        "it cannot be marked dead by the older count"
    );
    for gone in [dead, SessionId::new()] {
        assert_eq!(store.set_ttl(gone, TTL).await.unwrap(), None);
    }
    assert!(store.set_ttl(own, Duration::ZERO).await.unwrap_err().to_string().contains("below 1 ms"));
    assert_eq!(with_ttl(&database, TTL * 2).await, 1);
}

/// A change of the ttl that arrives late.
#[tokio::test]
async fn a_change_that_comes_late_does_not_undo_a_later_one() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    assert!(store.set_ttl(own, SHORT).await.unwrap().is_some());
    let first = database.number("select ttl_change from leadergroup.session").await;
    let mut admin = database.admin().await;
    let again = async |admin: &mut sqlx::PgConnection| {
        sqlx::query("select * from leadergroup.set_ttl($1, $2, $3)")
            .bind(own.as_uuid())
            .bind(i64::try_from(SHORT.as_millis()).unwrap())
            .bind(first)
            .fetch_all(admin)
            .await
            .unwrap()
            .len()
    };
    assert_eq!(again(&mut admin).await, 1, "the same one may be repeated");
    assert!(store.set_ttl(own, LONG).await.unwrap().is_some());
    assert_eq!(again(&mut admin).await, 0);
    assert_eq!(with_ttl(&database, LONG).await, 1, "others would mark it dead before its holder expects it");
}

/// Both fall silent at the same time. The session with the longer ttl is not even suspected when the other one's death
/// is certain.
#[tokio::test(flavor = "multi_thread")]
async fn a_longer_ttl_keeps_the_lock_of_one_that_is_silent() {
    let (database, _store) = migrated().await;
    let [patient, control, watcher] = [
        client(&database, "patient", SHORT).await,
        client(&database, "control", SHORT).await,
        client(&database, "watcher", SHORT).await,
    ];
    let (held, other) = (taken(&patient, "a").await, taken(&control, "b").await);
    patient.set_ttl(LONG).await.unwrap();
    assert_eq!(with_ttl(&database, LONG).await, 1);
    database
        .sql(
            "create function public.silence() returns trigger language plpgsql as
             'begin raise ''no heartbeat gets through''; end';
             create trigger silence before update of beat on leadergroup.session
             for each row when (new.name <> 'watcher') execute function public.silence()",
        )
        .await;
    assert_eq!(watcher.lock(&key("b"), DEADLINE).await.unwrap().token(), Token::new(2));
    assert!(other.is_lost() && !held.is_lost());
    assert!(watcher.try_lock(&key("a")).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_ttl_lets_others_in_sooner_and_never_before_the_guard_knows() {
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database, "one", LONG).await, client(&database, "two", SHORT).await);
    let held = taken(&one, "a").await;
    one.set_ttl(SHORT).await.unwrap();
    assert!(!held.is_lost(), "it still beats");
    drop(one);
    assert_eq!(two.lock(&key("a"), DEADLINE).await.unwrap().token(), Token::new(2));
    assert!(held.is_lost(), "two hold the same lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_guards_go_by_the_shorter_ttl_and_the_change_is_made_later() {
    let server = Server::start(&[]);
    let database = server.database().await;
    database.store().migrate().await.unwrap();
    let shortened = client(&database, "shortened", LONG).await;
    let lengthened = client(&database, "lengthened", SHORT * 2).await;
    let (one, two) = (taken(&shortened, "a").await, taken(&lengthened, "b").await);
    server.stop();
    shortened.set_ttl(SHORT).await.unwrap_err();
    lengthened.set_ttl(LONG).await.unwrap_err();
    timeout(DEADLINE, one.lost()).await.expect("at once, because the outcome is unknown");
    timeout(DEADLINE, two.lost()).await.expect("the longer ttl was not stored");
    server.launch();
    for ttl in [SHORT, LONG] {
        eventually("the sessions that follow have it", async || with_ttl(&database, ttl).await >= 1).await;
    }
}

/// As after a failover to a replica that lacks the last commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_got_lost_is_made_again() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", SHORT).await;
    let held = taken(&one, "a").await;
    one.set_ttl(LONG).await.unwrap();
    database.sql("update leadergroup.session set ttl_ms = 4000").await;
    eventually("it is the wanted one again", async || with_ttl(&database, LONG).await == 1).await;
    assert!(!held.is_lost());
}

/// The same, while the repair has to wait: no lease lasts longer than the row allows.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_got_lost_shortens_the_lease_though_it_cannot_be_made_again_yet() {
    let (database, store) = migrated().await;
    let one = client(&database, "one", LONG).await;
    let held = taken(&one, "a").await;
    let gate = Gate::close_for(&database, "update of dead on leadergroup.session").await;
    store.register("dead", Duration::from_millis(500), None, None).await.unwrap();
    gate.somebody_waits().await;
    database.sql("update leadergroup.session set ttl_ms = 4000 where not dead and ttl_ms > 4000").await;
    let short = async || held.held_until().is_none_or(|until| until < monotonic() + SHORT);
    let mut tries = 0;
    while !short().await {
        tries += 1;
        assert!(
            tries < 30,
            "its lease lasts until {:?}",
            held.held_until().map(|until| until.saturating_sub(monotonic()))
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn three_heartbeats_have_to_fit_in() {
    let (database, _store) = migrated().await;
    let one = client(&database, "one", SHORT).await;
    let held = taken(&one, "a").await;
    let refused = one.set_ttl(Duration::from_millis(500)).await.unwrap_err().to_string();
    assert!(refused.contains("at most a third of `ttl`") && refused.contains("longer ttl"), "{refused}");
    assert_eq!(with_ttl(&database, SHORT).await, 1, "nothing was changed");
    assert!(!held.is_lost());
}
