//! Two versions of the program at once: one that was at work before the schema was changed goes on.

use leadergroup_lock::{LockError, SessionId, TOKEN_JUMP};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor, Row};
use tokio::time::timeout;

use crate::cast::{TTL, grant, grant_one, granted, key, session, take};
use crate::postgres::{DEADLINE, database, eventually};

const FIRST: &str = include_str!("../../src/migrations/0001_sessions_locks_terms.sql");

/// The first version's heartbeat.
const FIRST_BEAT: &str = "
    with mine as (
        update leadergroup.session set beat = beat + 1, seen = now() where id = $1 and not dead returning id, beat
    )
    select s.id, s.name, coalesce(mine.beat, s.beat) as beat, s.ttl_ms, s.dead, mine.id is not null as mine,
           m.era, m.system_identifier, m.timeline,
           (m.system_identifier, m.timeline) = (p.system_identifier, p.timeline) as same_history, v.works_with
    from (select max(works_with) as works_with from leadergroup.schema_version) as v
    cross join leadergroup.meta as m
    cross join leadergroup.present as p
    left join (leadergroup.session as s left join mine on mine.id = s.id) on not s.dead or s.id = $1";

/// What the first version of the program made.
const BEFORE: &str = "create schema leadergroup;
    create table leadergroup.schema_version (
        version integer primary key, works_with integer not null, applied_at timestamptz not null default now()
    );
    insert into leadergroup.schema_version (version, works_with) values (1, 1)";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_the_first_version_goes_on_while_and_after_the_schema_is_changed() {
    let database = database().await;
    let mut old = PgConnection::connect(&database.url()).await.unwrap();
    old.execute(BEFORE).await.unwrap();
    old.execute(FIRST).await.unwrap();
    let own = SessionId::new();
    sqlx::query("insert into leadergroup.session (id, name, ttl_ms) values ($1, 'old', 5000)")
        .bind(own.as_uuid())
        .execute(&mut old)
        .await
        .unwrap();
    sqlx::query("insert into leadergroup.lock (key, group_id, session, token, protocol) values ('a', 'group-1', $1, 7, 1)")
        .bind(own.as_uuid())
        .execute(&mut old)
        .await
        .unwrap();
    // The same statement, prepared once, on the same connection all the time.
    let mut beats = 1;
    let mut beat = async |old: &mut PgConnection| {
        let rows = sqlx::query(FIRST_BEAT).bind(own.as_uuid()).fetch_all(old).await.unwrap();
        beats += 1;
        let mine = rows.iter().find(|row| row.get("mine")).expect("it lives");
        assert_eq!(mine.get::<i64, _>("beat"), beats);
    };
    beat(&mut old).await;
    old.execute("update leadergroup.meta set era = 3").await.unwrap();

    let new = database.store();
    let refused = new.register("new", TTL).await.unwrap_err();
    assert_eq!(refused, LockError::SchemaOld { found: 1, needed: 3 });
    assert!(refused.to_string().contains("leadergroup migrate"), "{refused}");
    let mut reader = database.admin().await;
    reader.execute("begin; select from leadergroup.session, leadergroup.lock").await.unwrap();
    let migrations: Vec<_> = (0..2)
        .map(|_| {
            let store = database.store();
            tokio::spawn(async move { store.migrate().await })
        })
        .collect();
    // A backup reads the tables. The change waits for it, and heartbeats do not wait for the change.
    eventually("the change waits for the reader", async || database.waiting().await > 0).await;
    for _ in 0..3 {
        timeout(DEADLINE, beat(&mut old)).await.expect("heartbeats get through");
    }
    reader.execute("commit").await.unwrap();
    while !migrations.iter().all(tokio::task::JoinHandle::is_finished) {
        beat(&mut old).await;
    }
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
    beat(&mut old).await;
    assert_eq!(
        database.number("select era from leadergroup.settled").await,
        3,
        "an era that was there has settled"
    );

    // The new one leaves the old one's lock alone until that session ends, and goes on with its tokens.
    let session = session(&new).await;
    assert!(new.unclaimed(None, 10).await.unwrap().is_empty());
    assert!(new.beat(session, &[]).await.unwrap().sessions.iter().any(|seen| seen.id == own && !seen.dead));
    new.close(own).await.unwrap();
    take(&new, session, &key("a")).await;
    assert_eq!(grant_one(&new, session, grant(&key("a"), 7, "p1")).await, granted(3 * TOKEN_JUMP + 1));
}
