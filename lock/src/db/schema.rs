//! The schema in the database: migrating it, and whether this program can work with it.

use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor as _, Row as _};
use tokio::time::timeout;

use crate::db::migrations::{MIGRATIONS, Migration, VERSION};
use crate::db::pool::Lane;
use crate::db::pooler::Settings;
use crate::db::statement::{Bind, Row, Statement, get};
use crate::{LockError, Store};

/// How long a migration may take, including the wait for another one.
const MIGRATION_LIMIT: Duration = Duration::from_mins(2);

/// How long a migration may wait for a table. All later users of the table wait behind it, including heartbeats.
const TABLE_LIMIT: &str = "set local lock_timeout = '300ms'";

/// The pause before the migration tries again, so that heartbeats get through.
const TABLE_PAUSE: Duration = Duration::from_secs(1);

/// Serialises migrations; any number, but the same in all versions.
const MIGRATION_LOCK: i64 = 7_810_769_283_150_411_335;

/// What says which steps have been applied.
const BOOKKEEPING: &str = "create table if not exists leadergroup.schema_version (
    version integer primary key,
    works_with integer not null,
    applied_at timestamptz not null default now()
)";

/// Reads the version.
const READ_VERSION: Statement = Statement {
    name: "schema version",
    sql: "select max(version) as version, max(works_with) as works_with from leadergroup.schema_version",
};

const LOOK: Statement = Statement { name: "check", sql: include_str!("../sql/check.sql") };

/// The result of [`Store::check`](Store::check).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// PostgreSQL's version, as in `15.18`.
    pub server_version: String,
    /// Whether the database accepts writes (it is not a standby, and its transactions are not read-only).
    pub writable: bool,
    /// The schema's version; `None` before the first `migrate`.
    pub schema_version: Option<u32>,
    /// The oldest program version that the schema can work with.
    pub works_with: Option<u32>,
    /// The version that this program brings along.
    pub program_version: u32,
    /// Privileges that the role lacks, in words; empty if it lacks none.
    pub missing_privileges: Vec<String>,
    /// Publications that replicate the tables of the lock; before these are there, publications of all tables. The lock
    /// works here, but replication into a database that has the schema stops, or grants tokens again.
    pub publications: Vec<String>,
    /// How long the check took.
    pub round_trip: Duration,
}

impl Health {
    /// Returns the first problem that keeps the lock from working, with its remedy; `Ok` if there is none.
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

/// The versions that the database has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    version: Option<u32>,
    works_with: Option<i32>,
}

impl Found {
    /// Reads the answer to [`READ_VERSION`].
    fn from_row(row: &Row) -> Result<Self, LockError> {
        Ok(Self {
            version: get::<Option<i32>>(row, "version")?.map(i32::unsigned_abs),
            works_with: get(row, "works_with")?,
        })
    }

    /// Checks whether this program can work with it.
    pub(crate) fn check(self) -> Result<(), LockError> {
        check_works_with(self.works_with)?;
        match self.version {
            Some(version) if version >= VERSION => Ok(()),
            found => Err(LockError::SchemaOld { found: found.unwrap_or(0), needed: VERSION }),
        }
    }
}

/// Checks whether this program is new enough for a schema that needs this version.
pub(crate) fn check_works_with(needed: Option<i32>) -> Result<(), LockError> {
    let needed = needed.unwrap_or(0).unsigned_abs();
    if needed > VERSION {
        return Err(LockError::SchemaNew { needed, known: VERSION });
    }
    Ok(())
}

impl Store {
    /// Checks whether the database can be reached, accepts writes, has the schema, and lets this role use it. An `Err`
    /// means that the check itself failed; see [`Health::verdict`] for its result.
    pub async fn check(&self) -> Result<Health, LockError> {
        let start = Instant::now();
        let row = &self.database.row(LOOK, Bind::new()).await?;
        let mut health = Health {
            server_version: get(row, "server_version")?,
            writable: get(row, "writable")?,
            schema_version: None,
            works_with: None,
            program_version: VERSION,
            missing_privileges: get(row, "missing")?,
            publications: get(row, "publications")?,
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
        Found::from_row(&self.database.row(READ_VERSION, Bind::new()).await?)
    }

    /// Brings the schema up to this program's version. Several programs may call this at the same time: an advisory
    /// lock admits one at a time. A newer schema is left alone; one that is too new for this program is an error.
    pub async fn migrate(&self) -> Result<(), LockError> {
        let health = self.check().await?;
        if !health.writable {
            return Err(LockError::ReadOnly);
        }
        if !health.publications.is_empty() {
            tracing::warn!(
                publications = health.publications.join(", "),
                "logical replication must not include the schema `leadergroup`; publish other tables or schemas by name"
            );
        }
        match health.verdict() {
            Ok(()) => return Ok(()),
            Err(LockError::SchemaOld { .. }) => {}
            Err(error) => return Err(error),
        }
        // A connection of its own: a change of the schema may take longer than any other statement.
        let limit = MIGRATION_LIMIT.as_millis().to_string();
        let route = self.database.pool.route().await?;
        let settings = self.database.pool.settings(Lane::Work).clone();
        let settings = settings.with("statement_timeout", limit.clone()).with("lock_timeout", limit);
        let migration = async {
            let mut connection = self.database.pool.open(&route, &settings).await?.connection;
            while let Err(error) = apply(&mut connection, &settings).await {
                if !is_locked(&error) {
                    return Err(LockError::from_statement(&error, "migrate", MIGRATION_LIMIT));
                }
                tracing::info!(
                    "tables that must be changed are in use, for instance by a backup; trying again"
                );
                tokio::time::sleep(TABLE_PAUSE).await;
            }
            // The work is done; it does not matter whether the server receives the goodbye.
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

/// Applies all missing steps in one transaction: afterwards, either the schema is what this program needs, or nothing
/// was changed. Leaves nothing behind on the connection, which may lead through a pooler.
async fn apply(connection: &mut PgConnection, settings: &Settings) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with(AssertSqlSafe(settings.begin())).await?;
    sqlx::query("select pg_advisory_xact_lock($1)")
        .bind(MIGRATION_LOCK)
        .persistent(false)
        .execute(&mut *transaction)
        .await?;
    transaction.execute(TABLE_LIMIT).await?;
    // `create schema if not exists` would require the privilege to create one even when there is nothing to create.
    let exists: bool =
        transaction.fetch_one("select to_regnamespace('leadergroup') is not null").await?.try_get(0)?;
    if !exists {
        transaction.execute("create schema leadergroup").await?;
    }
    transaction.execute(BOOKKEEPING).await?;
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

/// The whole schema as one file for psql, for databases that [`Store::migrate`] cannot reach. It applies the steps that
/// are missing, in one transaction, and records them as `migrate` does.
pub fn install_sql() -> String {
    let mut file = format!(
        "-- The schema of the leadergroup lock, version {VERSION}. Run it as the role that is to own the schema:\n\
         --   psql --no-psqlrc --file=this-file DATABASE\n\
         -- It applies the steps that are missing, in one transaction. `leadergroup migrate` does the same.\n\
         \\set ON_ERROR_STOP on\n\
         begin;\n\
         select pg_advisory_xact_lock({MIGRATION_LOCK});\n\
         {TABLE_LIMIT};\n\
         select to_regnamespace('leadergroup') is null as missing \\gset\n\
         \\if :missing\n\
         create schema leadergroup;\n\
         \\endif\n\
         {BOOKKEEPING};\n"
    );
    for (version, Migration { sql, works_with }) in (1..).zip(&MIGRATIONS) {
        file.push_str(&format!(
            "\nselect coalesce(max(version), 0) < {version} as missing from leadergroup.schema_version \\gset\n\
             \\if :missing\n\
             {sql}\
             insert into leadergroup.schema_version (version, works_with) values ({version}, {works_with});\n\
             \\endif\n"
        ));
    }
    file.push_str("\ncommit;\n");
    file
}
