//! The schema: its version, its migrations, and its compatibility with this program.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection, Executor as _, Row as _};
use tokio::time::timeout;

use crate::pool::{Lane, Statement};
use crate::pooler::Settings;
use crate::store::{Bind, get};
use crate::{LockError, Store};

/// One step of the schema.
struct Migration {
    sql: &'static str,
    /// The oldest program (by the version of the schema it brings along) that can work with the result. Two versions of
    /// the program run side by side during an upgrade, so this only rises when that is impossible.
    works_with: u32,
}

/// All steps, a subject each; the first one makes version 1.
const MIGRATIONS: [Migration; 6] = [
    Migration { sql: include_str!("migrations/0001_era.sql"), works_with: 1 },
    Migration { sql: include_str!("migrations/0002_sessions.sql"), works_with: 1 },
    Migration { sql: include_str!("migrations/0003_locks.sql"), works_with: 1 },
    Migration { sql: include_str!("migrations/0004_fence.sql"), works_with: 1 },
    Migration { sql: include_str!("migrations/0005_acquire.sql"), works_with: 1 },
    Migration { sql: include_str!("migrations/0006_release.sql"), works_with: 1 },
];

/// The version that this program brings along and needs.
#[allow(clippy::cast_possible_truncation, reason = "the number of migrations is small")]
pub(crate) const VERSION: u32 = MIGRATIONS.len() as u32;

/// How long the migration may wait for another one and take itself.
const MIGRATION_LIMIT: Duration = Duration::from_mins(2);

/// How long the migration may wait for a table. All later users of the table wait behind it, heartbeats among them.
const TABLE_LIMIT: &str = "set local lock_timeout = '300ms'";

/// How long heartbeats get through before the migration tries again.
const TABLE_PAUSE: Duration = Duration::from_secs(1);

/// Serialises migrations; any number, but the same in all versions.
const MIGRATION_LOCK: i64 = 7_810_769_283_150_411_335;

/// Reads the version.
const READ_VERSION: Statement = Statement {
    name: "schema version",
    sql: "select max(version) as version, max(works_with) as works_with from leadergroup.schema_version",
};

const LOOK: Statement = Statement { name: "check", sql: include_str!("sql/check.sql") };

/// What [`Store::check`](Store::check) found out about the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// PostgreSQL's version, as in `15.18`.
    pub server_version: String,
    /// The database takes writes (it is no standby, and its transactions are not read-only).
    pub writable: bool,
    /// The schema's version; `None` before the first `migrate`.
    pub schema_version: Option<u32>,
    /// The oldest program version that the schema can work with.
    pub works_with: Option<u32>,
    /// The version that this program brings along.
    pub program_version: u32,
    /// Privileges that the role lacks, in words; empty when all is well.
    pub missing_privileges: Vec<String>,
    /// How long the check took.
    pub round_trip: Duration,
}

impl Health {
    /// The first thing that keeps the lock from working, with its remedy; `Ok` when it can work.
    pub fn verdict(&self) -> Result<(), LockError> {
        if !self.writable {
            return Err(LockError::ReadOnly);
        }
        if !self.missing_privileges.is_empty() {
            return Err(LockError::Privileges { detail: self.missing_privileges.join(", ") });
        }
        if let Some(needed) = self.works_with.filter(|needed| *needed > self.program_version) {
            return Err(LockError::SchemaNew { needed, known: self.program_version });
        }
        let found = self.schema_version.unwrap_or(0);
        if found < self.program_version {
            return Err(LockError::SchemaOld { found, needed: self.program_version });
        }
        Ok(())
    }
}

/// What the database has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    version: Option<u32>,
    works_with: Option<i32>,
}

impl Found {
    /// From the answer to [`READ_VERSION`].
    fn from_row(row: &PgRow) -> Result<Self, LockError> {
        Ok(Self {
            version: get::<Option<i32>>(row, "version")?.map(i32::unsigned_abs),
            works_with: get(row, "works_with")?,
        })
    }

    /// Whether this program can work with it.
    pub(crate) fn check(self) -> Result<(), LockError> {
        check_works_with(self.works_with)?;
        match self.version {
            Some(version) if version >= VERSION => Ok(()),
            found => Err(LockError::SchemaOld { found: found.unwrap_or(0), needed: VERSION }),
        }
    }
}

/// Whether a schema that asks for at least this program version asks too much.
pub(crate) fn check_works_with(needed: Option<i32>) -> Result<(), LockError> {
    let needed = needed.unwrap_or(0).unsigned_abs();
    if needed > VERSION {
        return Err(LockError::SchemaNew { needed, known: VERSION });
    }
    Ok(())
}

impl Store {
    /// Looks whether the database can be reached, takes writes, has the schema, and lets this role use it. An `Err` means
    /// that not even that could be found out; see [`Health::verdict`] for the rest.
    pub async fn check(&self) -> Result<Health, LockError> {
        let start = Instant::now();
        let row = &self.row(LOOK, Bind::new()).await?;
        let mut health = Health {
            server_version: get(row, "server_version")?,
            writable: get(row, "writable")?,
            schema_version: None,
            works_with: None,
            program_version: VERSION,
            missing_privileges: get(row, "missing")?,
            round_trip: start.elapsed(),
        };
        if get(row, "has_schema")? && health.missing_privileges.is_empty() {
            let found = self.schema_version().await?;
            health.schema_version = found.version;
            health.works_with = found.works_with.map(i32::unsigned_abs);
        }
        Ok(health)
    }

    /// The version of the schema, for the caller to check.
    pub(crate) async fn schema_version(&self) -> Result<Found, LockError> {
        Found::from_row(&self.row(READ_VERSION, Bind::new()).await?)
    }

    /// Brings the schema up to this program's version, step by step, each in a transaction. Several programs may do so at
    /// once: an advisory lock lets one at a time. A schema that is newer is left alone; one that is too new for this
    /// program is an error.
    pub async fn migrate(&self) -> Result<(), LockError> {
        let health = self.check().await?;
        if !health.writable {
            return Err(LockError::ReadOnly);
        }
        match health.verdict() {
            Ok(()) => return Ok(()),
            Err(LockError::SchemaOld { .. }) => {}
            Err(error) => return Err(error),
        }
        // A connection of its own: a change of the schema may take longer than any other statement.
        let limit = MIGRATION_LIMIT.as_millis().to_string();
        let route = self.pool.route().await?;
        let settings = self.pool.settings(Lane::Work).clone();
        let settings = settings.with("statement_timeout", limit.clone()).with("lock_timeout", limit);
        let migration = async {
            let mut connection = self.pool.open(&route, &settings).await?.connection;
            while let Err(error) = apply(&mut connection, &settings).await {
                if !is_locked(&error) {
                    return Err(LockError::from_statement(&error, "migrate", MIGRATION_LIMIT));
                }
                tracing::info!("the tables to change are in use, by a backup for instance; trying again");
                tokio::time::sleep(TABLE_PAUSE).await;
            }
            // The work is done; a server that does not hear the goodbye changes nothing.
            let _ = connection.close().await;
            Ok(())
        };
        timeout(MIGRATION_LIMIT, migration)
            .await
            .unwrap_or(Err(LockError::Timeout { statement: "migrate", after: MIGRATION_LIMIT }))?;
        self.schema_version().await?.check()
    }
}

/// Whether a table could not be locked in time.
fn is_locked(error: &sqlx::Error) -> bool {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    matches!(error, sqlx::Error::Database(error) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE))
}

/// Applies all missing steps in one transaction: either the schema is what this program needs, or nothing was changed.
/// Leaves nothing behind on the connection, which may be a pooler's.
async fn apply(connection: &mut PgConnection, settings: &Settings) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with(AssertSqlSafe(settings.begin())).await?;
    sqlx::query("select pg_advisory_xact_lock($1)")
        .bind(MIGRATION_LOCK)
        .persistent(false)
        .execute(&mut *transaction)
        .await?;
    transaction.execute(TABLE_LIMIT).await?;
    // `create schema if not exists` would ask for the right to create one even when there is nothing to create.
    let exists: bool =
        transaction.fetch_one("select to_regnamespace('leadergroup') is not null").await?.try_get(0)?;
    if !exists {
        transaction.execute("create schema leadergroup").await?;
    }
    transaction
        .execute(
            "create table if not exists leadergroup.schema_version (
                 version integer primary key,
                 works_with integer not null,
                 applied_at timestamptz not null default now()
             )",
        )
        .await?;
    let done: i32 = transaction
        .fetch_one("select coalesce(max(version), 0) from leadergroup.schema_version")
        .await?
        .try_get(0)?;
    for (version, migration) in (1..).zip(&MIGRATIONS).filter(|(version, _)| *version > done) {
        tracing::info!(version, "changing the database schema");
        transaction.execute(migration.sql).await?;
        sqlx::query("insert into leadergroup.schema_version (version, works_with) values ($1, $2)")
            .bind(version)
            .bind(i32::try_from(migration.works_with).unwrap_or(i32::MAX))
            .persistent(false)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}
