//! Two versions of the program at once: one that was running before the schema was changed continues.

use leadergroup_lock::{LockError, SessionId, protocol::EraId};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor, Row};
use tokio::time::timeout;

use crate::cast::{TTL, grant, grant_one, granted, key, session, take};
use crate::postgres::{DEADLINE, database, eventually};

/// The migrations of an earlier version of the program.
const EARLIER: [&str; 3] = [
    include_str!("../../src/migrations/0001_era.sql"),
    include_str!("../../src/migrations/0002_sessions.sql"),
    include_str!("../../src/migrations/0003_locks.sql"),
];

/// What its `migrate` created first.
const BEFORE: &str = "create schema leadergroup;
    create table leadergroup.schema_version (
        version integer primary key, works_with integer not null, applied_at timestamptz not null default now()
    );
    insert into leadergroup.schema_version (version, works_with) values (1, 1), (2, 1), (3, 1)";

/// Makes the migration change the tables as well: it needs them exclusively from its first step on.
const NEEDS_THE_TABLES: &str =
    "create function public.lock_tables() returns event_trigger language plpgsql as $$
        begin
            lock table leadergroup.session, leadergroup.lock, leadergroup.meta in access exclusive mode;
        end $$;
    create event trigger lock_tables on ddl_command_start when tag in ('CREATE TABLE')
        execute function public.lock_tables()";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_an_earlier_version_goes_on_while_and_after_the_schema_is_changed() {
    let database = database().await;
    let mut old = PgConnection::connect(&database.url()).await.unwrap();
    old.execute(BEFORE).await.unwrap();
    for migration in EARLIER {
        old.execute(migration).await.unwrap();
    }
    database.sql(NEEDS_THE_TABLES).await;
    let own = SessionId::new();
    let registered = sqlx::query("select * from leadergroup.register($1, 'old', 5000)")
        .bind(own.as_uuid())
        .fetch_one(&mut old)
        .await
        .unwrap();
    let era = EraId::from(registered.get::<uuid::Uuid, _>("era_id"));
    sqlx::query(
        "insert into leadergroup.lock (key, group_id, session, token) values ('a', 'group-1', $1, 7)",
    )
    .bind(own.as_uuid())
    .execute(&mut old)
    .await
    .unwrap();
    // The same statement, prepared once, on the same connection all the time.
    let mut beats = 1;
    let mut beat = async |old: &mut PgConnection| {
        let rows = sqlx::query("select * from leadergroup.beat($1, $2)")
            .bind(own.as_uuid())
            .bind(Vec::<uuid::Uuid>::new())
            .fetch_all(old)
            .await
            .unwrap();
        beats += 1;
        let mine = &rows[0];
        assert_eq!((mine.get::<i64, _>("beat"), mine.get("dead")), (beats, false), "it lives");
        assert_eq!((mine.get::<i32, _>("works_with"), mine.get("quarantine")), (1, false));
        assert_eq!(EraId::from(mine.get::<uuid::Uuid, _>("era_id")), era);
    };
    beat(&mut old).await;
    database.sql("update leadergroup.meta set era = 3").await;

    let new = database.store();
    let refused = new.register("new", TTL, None, None).await.unwrap_err();
    assert_eq!(refused, LockError::SchemaOld { found: 3, needed: 8 });
    assert!(refused.to_string().contains("`Store::migrate`"), "{refused}");
    let mut reader = database.admin().await;
    reader
        .execute("begin; select from leadergroup.session, leadergroup.lock, leadergroup.meta")
        .await
        .unwrap();
    let migrations: Vec<_> = (0..2)
        .map(|_| {
            let store = database.store();
            tokio::spawn(async move { store.migrate().await })
        })
        .collect();
    // A backup reads the tables. The migration waits for it, and heartbeats do not wait for the migration.
    eventually("the change waits for the reader", async || database.waiting().await > 0).await;
    for _ in 0..3 {
        timeout(DEADLINE, beat(&mut old)).await.expect("heartbeats get through");
    }
    assert!(migrations.iter().all(|migration| !migration.is_finished()));
    reader.execute("commit").await.unwrap();
    while !migrations.iter().all(tokio::task::JoinHandle::is_finished) {
        beat(&mut old).await;
    }
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
    beat(&mut old).await;

    // The new program stays in the present era, sees the old session, and does not take its lock until that session
    // ends. The tokens then continue.
    let session = session(&new).await;
    assert!(new.unclaimed(None, 10).await.unwrap().is_empty());
    let seen = new.beat(session, &[]).await.unwrap();
    assert!(seen.era == era && seen.quarantine.is_none());
    assert!(seen.sessions.iter().any(|seen| seen.id == own && !seen.dead));
    new.close(own).await.unwrap();
    take(&new, session, &key("a")).await;
    assert_eq!(grant_one(&new, session, grant(&key("a"), 7, "p1")).await, granted(3_000_008));
}
