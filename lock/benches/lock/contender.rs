//! Our lock and its rivals, behind one interface: attempt, release.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadergroup_lock::{Client, ClientConfig, Guard, Key};
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use crate::machine::{connect, execute, store};
use crate::postgres::Database;
use crate::rivals::{self, Lease, Outcome};

/// The ttl of the rivals' leases and of our sessions.
const TTL: Duration = Duration::from_secs(5);

/// A way to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This library, without waiting: attempt after attempt.
    Try,
    /// This library, waiting in the queue.
    Queue,
    /// This library, without waiting; all clients are tasks of one program and share its session and connections.
    Tasks,
    /// The baseline protocol: one table, locked as a whole by each attempt.
    Baseline,
    /// A row with an expiry, taken by one `INSERT ... ON CONFLICT`.
    Upsert(Lease),
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
            Self::Upsert(Lease::Plain) => "upsert lease",
            Self::Upsert(Lease::AsyncRelease) => "lease, async release",
            Self::Upsert(Lease::Token) => "lease, token",
            Self::Advisory => "advisory",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Try | Self::Queue | Self::Tasks)
    }
}

/// A database for one measurement of this kind.
pub(crate) async fn prepare(database: &Database, kind: Kind) -> Result<()> {
    if kind.is_ours() {
        Ok(store(database, 3)?.migrate().await?)
    } else {
        execute(database, rivals::TABLES).await
    }
}

/// One candidate, with its own connection unless it is a task of a program.
pub(crate) enum Contender {
    Ours { client: Client, queues: bool, guard: Option<Guard> },
    Task { client: Client, guard: Option<Guard> },
    Rival { kind: Kind, connection: PgConnection, holder: String },
}

impl Contender {
    pub(crate) async fn new(database: &Database, kind: Kind, holder: String) -> Result<Self> {
        ensure!(kind != Kind::Tasks, "a task needs its program");
        if !kind.is_ours() {
            return Ok(Self::Rival { kind, connection: connect(database).await?, holder });
        }
        // One for work, one for heartbeats, one for hints.
        let client = program(database, 3, holder).await?;
        Ok(Self::Ours { client, queues: kind == Kind::Queue, guard: None })
    }

    /// A candidate that is a task of a program.
    pub(crate) fn task(program: &Client, holder: &str) -> Self {
        Self::Task { client: program.another_holder(holder), guard: None }
    }

    /// Takes the key, or finds that it is held. A candidate that queues returns with the key.
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
            Self::Rival { kind, connection, holder } => match kind {
                Kind::Baseline => rivals::baseline(connection, key.as_str(), holder).await,
                Kind::Upsert(lease) => rivals::upsert(connection, *lease, key.as_str(), holder).await,
                _ => rivals::advisory(connection, key.as_str()).await,
            },
        }
    }

    pub(crate) async fn release(&mut self, key: &Key) -> Result<()> {
        let (kind, connection, holder) = match self {
            Self::Ours { guard, .. } | Self::Task { guard, .. } => {
                let _ = guard.take().context("released without being held")?.release().await?;
                return Ok(());
            }
            Self::Rival { kind, connection, holder } => (kind, connection, holder),
        };
        let sql = match kind {
            Kind::Baseline => rivals::BASELINE_RELEASE,
            Kind::Upsert(lease) => lease.release_sql(),
            _ => rivals::ADVISORY_RELEASE,
        };
        sqlx::query(sql).bind(key.as_str()).bind(holder.as_str()).execute(connection).await?;
        Ok(())
    }

    /// Ends it in order.
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

/// A client of our lock with this many connections.
pub(crate) async fn program(database: &Database, connections: u32, name: String) -> Result<Client> {
    let config = ClientConfig { name, ttl: TTL, ..ClientConfig::default() };
    Ok(Client::connect(store(database, connections)?, config).await?)
}
