//! Real processes that hold a lock and are stopped for three times its ttl: never do two of them hold it, and later
//! writes of the stopped one are refused.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant, SystemTime};

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Key, Store, Token};
use rustix::process::Signal;
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::postgres::{DEADLINE, Database, eventually, migrated};
use crate::program::{Program, say, wait_for_order};

const TTL: Duration = Duration::from_secs(2);
const URL: &str = "FAULTS_HOLDER_URL";
const STEP_BY_STEP: &str = "FAULTS_HOLDER_STEP_BY_STEP";

/// A process that [holds the lock](the_program_that_is_paused) as often as it can.
pub struct Holder(Program);

impl Holder {
    /// Starts it with these variables in its environment.
    pub fn start(database: &Database, environment: &[(&str, String)]) -> Self {
        let all = environment.iter().cloned().chain([(URL, database.url())]);
        Self(Program::start("pauses::the_program_that_is_paused", all))
    }

    /// A holder that waits for an order before it checks whether it still holds the lock, and before it writes. It has
    /// the lock, and has written once.
    async fn step_by_step(database: &Database) -> Self {
        let mut holder = Self::start(database, &[(STEP_BY_STEP, "yes".to_owned())]);
        for word in ["held 1", "looks 1", "believes 1"] {
            assert_eq!(holder.says(), word);
            if word != "held 1" {
                holder.order();
            }
        }
        assert_eq!(holder.says(), "looks 1");
        assert_eq!(written(database, 1).await, 1);
        holder
    }
}

impl Deref for Holder {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl DerefMut for Holder {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.0
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
        // If libfaketime was used, it had no time to remove these.
        for name in ["sem.faketime_sem_", "faketime_shm_"] {
            let _ = std::fs::remove_file(format!("/dev/shm/{name}{}", self.id()));
        }
    }
}

/// A separate process, started by the tests below: it holds the lock as often as it can, and writes while it holds it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it is the program that the other tests start"]
async fn the_program_that_is_paused() {
    let url = std::env::var(URL).expect("this is started by other tests");
    let step_by_step = std::env::var(STEP_BY_STEP).is_ok();
    let database = DatabaseConfig { url: url.as_str().into(), ..DatabaseConfig::default() };
    let config =
        ClientConfig { name: "holder".into(), ttl: TTL, retry_interval: TTL / 20, ..ClientConfig::default() };
    let client = Client::connect(Store::new(&database).unwrap(), config).await.unwrap();
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    loop {
        let guard = client.lock(&Key::new("a").unwrap(), DEADLINE * 10).await.unwrap();
        let token = guard.token();
        say(&format!("held {token}"));
        let mut data = PgConnection::connect(&url).await.unwrap();
        loop {
            if step_by_step {
                say(&format!("looks {token}"));
                wait_for_order();
            }
            if guard.is_lost() {
                say(&format!("lost {token}"));
                break;
            }
            if step_by_step {
                say(&format!("believes {token}"));
                wait_for_order();
            } else {
                pace.tick().await;
            }
            match write(&mut data, token).await {
                Ok(()) => {}
                Err(error) if is_stale(&error) => {
                    say(&format!("refused {token}"));
                    break;
                }
                // Its transaction was terminated, because others waited for it.
                Err(error) => {
                    say(&format!("failed {token}: {error}"));
                    break;
                }
            }
        }
    }
}

async fn write(data: &mut PgConnection, token: Token) -> Result<(), sqlx::Error> {
    let mut transaction = data.begin().await?;
    transaction.execute(AssertSqlSafe(format!("select leadergroup.fence('a', {token})"))).await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    transaction
        .execute(AssertSqlSafe(format!("insert into public.work (token, at) values ({token}, {now})")))
        .await?;
    transaction.commit().await
}

fn is_stale(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("LG001")
}

/// A database with a table that the processes write to: their token, and their own time in seconds.
pub async fn with_a_table() -> Database {
    let (database, _store) = migrated().await;
    database.sql("create table public.work (id bigserial, token bigint not null, at bigint not null)").await;
    database.sql("grant all on public.work, public.work_id_seq to public").await;
    database
}

async fn written(database: &Database, token: i64) -> i64 {
    database.number(&format!("select count(*) from public.work where token = {token}")).await
}

/// Waits until the holder has written something, and continues to write.
async fn writes(database: &Database, token: i64) {
    let before = written(database, token).await;
    eventually("it writes", async || written(database, token).await > before).await;
}

/// Stops the process until another one has held the lock and three times the ttl has passed.
async fn pause(paused: &Holder, database: &Database, other: &Holder, next: i64) {
    paused.signal(Signal::STOP);
    let stopped = Instant::now();
    assert_eq!(other.says(), format!("held {next}"));
    writes(database, next).await;
    eventually("three times the ttl", async || stopped.elapsed() >= TTL * 3).await;
    paused.signal(Signal::CONT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_paused_finds_its_lock_lost_before_it_does_anything() {
    let database = with_a_table().await;
    let mut one = Holder::step_by_step(&database).await;
    let two = Holder::start(&database, &[]);
    let waits = "select count(*) from leadergroup.waiter";
    eventually("the other one waits", async || database.number(waits).await == 1).await;
    pause(&one, &database, &two, 2).await;
    one.order();
    assert_eq!(one.says(), "lost 1");
    writes(&database, 2).await;
    let mixed = "select count(*) from public.work as old join public.work as new \
                 on old.token < new.token and old.id > new.id";
    assert_eq!(database.number(mixed).await, 0, "a write of an old term after one of a later term");
}

/// It checked that it holds the lock, and was stopped between that and its write. Only the fence can help.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_paused_just_before_its_write_is_refused() {
    let database = with_a_table().await;
    let mut one = Holder::step_by_step(&database).await;
    one.order();
    assert_eq!(one.says(), "believes 1");
    let two = Holder::start(&database, &[]);
    pause(&one, &database, &two, 2).await;
    one.order();
    assert_eq!(one.says(), "refused 1");
    assert_eq!(written(&database, 1).await, 1);
    writes(&database, 2).await;
}
