//! Ours and its rivals, behind one face: attempt, release.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadergroup_lock::{Client, ClientConfig, Guard, Key};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};

use crate::machine::{connect, execute, store};
use crate::postgres::Database;

/// Both the rivals' leases and our sessions.
const TTL: Duration = Duration::from_secs(5);

/// PostgreSQL's word for a row that `NOWAIT` did not wait for.
const NOT_AVAILABLE: &str = "55P03";

/// A way to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This library, without waiting: attempt after attempt.
    Try,
    /// This library, waiting for its turn.
    Queue,
    /// This library, without waiting, all clients being tasks of one program that share its session and connections.
    Tasks,
    /// The baseline protocol: one table, locked as a whole by each attempt.
    Baseline,
    /// A row with an expiry, taken by one `INSERT ... ON CONFLICT`.
    Upsert,
    /// A session-level advisory lock, which commits nothing.
    Advisory,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Try => "ours, try",
            Self::Queue => "ours, FIFO",
            Self::Tasks => "ours, tasks",
            Self::Baseline => "baseline",
            Self::Upsert => "upsert lease",
            Self::Advisory => "advisory",
        }
    }
}

const TABLES: &str = "
    create table baseline (
        key text, owner text, lock_timestamp timestamp not null, ttl interval not null, primary key (key, holder)
    );
    create table upsert (key text primary key, owner text not null, expires_at timestamptz not null)
        with (fillfactor = 50)";

/// A database for one measurement of this kind.
pub(crate) async fn prepare(database: &Database, kind: Kind) -> Result<()> {
    match kind {
        Kind::Try | Kind::Queue | Kind::Tasks => store(database, 3)?.migrate().await?,
        Kind::Baseline | Kind::Upsert | Kind::Advisory => execute(database, TABLES).await?,
    }
    Ok(())
}

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Taken from nobody, or from one whose time was up.
    Taken,
    /// Held before, and kept.
    Kept,
    /// Somebody else's.
    Held,
}

/// One candidate, with a connection of its own unless it is a task of a program.
pub(crate) enum Contender {
    Ours { client: Client, queues: bool, guard: Option<Guard> },
    Task { client: Client, guard: Option<Guard> },
    Rival { kind: Kind, connection: PgConnection, holder: String },
}

impl Contender {
    pub(crate) async fn new(database: &Database, kind: Kind, holder: String) -> Result<Self> {
        ensure!(kind != Kind::Tasks, "a task needs its program");
        if !matches!(kind, Kind::Try | Kind::Queue) {
            return Ok(Self::Rival { kind, connection: connect(database).await?, holder });
        }
        // One for work, one for heartbeats, one for hints.
        let client = program(database, 3, holder).await?;
        Ok(Self::Ours { client, queues: kind == Kind::Queue, guard: None })
    }

    /// One of a program's tasks.
    pub(crate) fn task(program: &Client, holder: &str) -> Self {
        Self::Task { client: program.another_holder(holder), guard: None }
    }

    /// Takes the key, or finds out that it is held; whoever queues comes back with it.
    pub(crate) async fn attempt(&mut self, key: &Key) -> Result<Outcome> {
        match self {
            Self::Ours { client, queues, guard } => {
                *guard = if *queues {
                    Some(client.lock(key, Duration::from_mins(1)).await?)
                } else {
                    client.try_lock(key).await?
                };
                Ok(if guard.is_some() { Outcome::Taken } else { Outcome::Held })
            }
            Self::Task { client, guard } => {
                *guard = client.try_lock(key).await?;
                Ok(if guard.is_some() { Outcome::Taken } else { Outcome::Held })
            }
            Self::Rival { kind, connection, holder } => {
                let owner = owner.as_str();
                match kind {
                    Kind::Baseline => baseline(connection, key.as_str(), holder).await,
                    Kind::Upsert => upsert(connection, key.as_str(), holder).await,
                    _ => advisory(connection, key.as_str()).await,
                }
            }
        }
    }

    pub(crate) async fn release(&mut self, key: &Key) -> Result<()> {
        let (kind, connection, holder) = match self {
            Self::Ours { guard, .. } | Self::Task { guard, .. } => {
                guard.take().context("released without being held")?.release().await?;
                return Ok(());
            }
            Self::Rival { kind, connection, holder } => (kind, connection, holder),
        };
        let sql = match kind {
            Kind::Baseline => "delete from baseline where key = $1 and owner = $2",
            Kind::Upsert => "update upsert set expires_at = '-infinity' where key = $1 and owner = $2",
            _ => "select pg_advisory_unlock(hashtextextended($1, 0)) where $2 <> ''",
        };
        sqlx::query(sql).bind(key.as_str()).bind(owner.as_str()).execute(connection).await?;
        Ok(())
    }

    /// The end, in good order.
    pub(crate) async fn leave(self) -> Result<()> {
        match self {
            Self::Ours { client, guard, .. } => {
                drop(guard);
                client.shutdown().await?;
            }
            Self::Task { .. } => {}
            Self::Rival { connection, .. } => connection.close().await?,
        }
        Ok(())
    }
}

/// A program of ours with so many connections.
pub(crate) async fn program(database: &Database, connections: u32, name: String) -> Result<Client> {
    let config = ClientConfig { name, ttl: TTL, ..ClientConfig::default() };
    Ok(Client::connect(store(database, connections)?, config).await?)
}

/// One round of the protocol, statement by statement as it is published, with a key column for many groups.
pub(crate) async fn baseline(connection: &mut PgConnection, key: &str, holder: &str) -> Result<Outcome> {
    let mut transaction = connection.begin().await?;
    transaction.execute("lock table baseline in access exclusive mode").await?;
    let found: Option<(String, i64)> = match sqlx::query_as(
        "select holder, (extract(epoch from lock_timestamp + ttl) * 1000000)::bigint \
         from baseline where key = $1 limit 1 for update nowait",
    )
    .bind(key)
    .fetch_optional(&mut *transaction)
    .await
    {
        Ok(found) => found,
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(NOT_AVAILABLE) => {
            return Ok(Outcome::Held);
        }
        Err(error) => return Err(error.into()),
    };
    let now: i64 =
        sqlx::query_scalar("select (extract(epoch from now() at time zone 'utc') * 1000000)::bigint")
            .fetch_one(&mut *transaction)
            .await?;
    let outcome = match &found {
        Some((holder, _)) if holder == owner => {
            sqlx::query(
                "update baseline set lock_timestamp = now() at time zone 'utc' where key = $1 and owner = $2",
            )
            .bind(key)
            .bind(holder)
            .execute(&mut *transaction)
            .await?;
            Outcome::Kept
        }
        Some((_, expiry)) if *expiry >= now => Outcome::Held,
        expired => {
            if let Some((holder, _)) = expired {
                sqlx::query("delete from baseline where key = $1 and owner = $2")
                    .bind(key)
                    .bind(holder)
                    .execute(&mut *transaction)
                    .await?;
            }
            sqlx::query(
                "insert into baseline (key, holder, lock_timestamp, ttl) \
                 values ($1, $2, now() at time zone 'utc', interval '5 s')",
            )
            .bind(key)
            .bind(holder)
            .execute(&mut *transaction)
            .await?;
            Outcome::Taken
        }
    };
    transaction.commit().await?;
    Ok(outcome)
}

/// Takes or refreshes a lease.
pub(crate) async fn upsert(connection: &mut PgConnection, key: &str, holder: &str) -> Result<Outcome> {
    let taken = sqlx::query(
        "insert into upsert as u (key, holder, expires_at) values ($1, $2, now() + interval '5 s') \
         on conflict (key) do update set owner = excluded.holder, expires_at = excluded.expires_at \
         where u.expires_at < now() or u.holder = excluded.holder",
    )
    .bind(key)
    .bind(holder)
    .execute(connection)
    .await?;
    Ok(if taken.rows_affected() == 1 { Outcome::Taken } else { Outcome::Held })
}

async fn advisory(connection: &mut PgConnection, key: &str) -> Result<Outcome> {
    let taken: bool = sqlx::query_scalar("select pg_try_advisory_lock(hashtextextended($1, 0))")
        .bind(key)
        .fetch_one(connection)
        .await?;
    Ok(if taken { Outcome::Taken } else { Outcome::Held })
}
