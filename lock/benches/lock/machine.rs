//! The server for all measurements, with durable settings, and the resources that it used.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use leadergroup_lock::{DatabaseConfig, Store};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

use crate::postgres::{Database, Server};

/// The settings of a server that must not lose a commit. The others are PostgreSQL's defaults.
const SETTINGS: [(&str, &str); 4] =
    [("fsync", "on"), ("max_connections", "400"), ("shared_buffers", "256MB"), ("max_wal_size", "4GB")];

/// Settings that are printed, because they matter when figures are compared.
const TOLD: [&str; 9] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_connections",
    "max_wal_size",
    "autovacuum",
];

/// The unit of times in `/proc/*/stat`; on all common platforms Linux uses a hundredth of a second for it.
const TICK: Duration = Duration::from_millis(10);

/// The types by which `statfs` reports a file system in memory, where commits cost nothing.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// A running server, and how long to measure.
pub(crate) struct Bench {
    server: Server,
    /// Time for one measurement.
    pub(crate) time: Duration,
}

impl Bench {
    /// Starts the server. With `explain`, plans of statements that take at least that many milliseconds are written to
    /// its log.
    pub(crate) fn start(time: Duration, explain: Option<&str>) -> Result<Self> {
        let directory = std::env::temp_dir();
        let system =
            rustix::fs::statfs(&directory).context("looking at the directory for temporary files")?;
        #[allow(clippy::unnecessary_cast, reason = "its type depends on the platform")]
        let kind = system.f_type as i64;
        ensure!(
            !IN_MEMORY.contains(&kind),
            "{} is in memory, where commits cost nothing: set TMPDIR to a directory on a disk",
            directory.display()
        );
        let explained = explain.map(|milliseconds| {
            [
                ("session_preload_libraries", "auto_explain"),
                ("auto_explain.log_analyze", "on"),
                ("auto_explain.log_nested_statements", "on"),
                ("auto_explain.log_min_duration", milliseconds),
            ]
        });
        let settings: Vec<_> = SETTINGS.into_iter().chain(explained.into_iter().flatten()).collect();
        Ok(Self { server: Server::start(&settings), time })
    }

    /// The server's log.
    pub(crate) fn log(&self) -> String {
        self.server.log()
    }

    /// The settings.
    pub(crate) async fn describe(&self) -> Result<serde_json::Value> {
        let database = self.server.database().await;
        let mut admin = database.admin().await;
        let mut told = serde_json::Map::new();
        for name in TOLD {
            let setting: String =
                sqlx::query_scalar("select current_setting($1)").bind(name).fetch_one(&mut admin).await?;
            told.insert(name.to_owned(), setting.into());
        }
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        told.insert("cores".to_owned(), cores.into());
        told.insert("seconds".to_owned(), self.time.as_secs_f64().into());
        Ok(told.into())
    }

    /// An empty database, so that no measurement is affected by an earlier one.
    pub(crate) async fn empty(&self) -> Database {
        self.server.database().await
    }

    /// A database with the lock's tables.
    pub(crate) async fn migrated(&self) -> Result<Database> {
        let database = self.server.database().await;
        store(&database, 8)?.migrate().await?;
        Ok(database)
    }

    /// Starts to measure what the server uses.
    pub(crate) async fn meter(&self) -> Result<Meter> {
        let pid = std::fs::read_to_string(self.server.data().join("postmaster.pid"))?;
        let postmaster = pid.lines().next().unwrap_or_default().trim().parse()?;
        let mut admin = self.server.database().await.admin().await;
        let started = sample(postmaster, &mut admin).await?;
        Ok(Meter { postmaster, admin, started })
    }
}

/// A program's store, with this many connections in total.
pub(crate) fn store(database: &Database, connections: u32) -> Result<Store> {
    let config = DatabaseConfig {
        max_open_connections: connections,
        max_idle_connections: connections,
        ..database.config()
    };
    Ok(Store::new(&config)?)
}

/// A connection like that of any application.
pub(crate) async fn connect(database: &Database) -> Result<PgConnection> {
    Ok(PgConnection::connect(&database.url()).await?)
}

/// Runs statements, in a transaction of their own, as the role that programs log in as.
pub(crate) async fn execute(database: &Database, sql: &str) -> Result<()> {
    connect(database).await?.execute(AssertSqlSafe(sql.to_owned())).await?;
    Ok(())
}

/// The readings at the start of a measurement.
pub(crate) struct Meter {
    postmaster: u32,
    admin: PgConnection,
    started: Sample,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    cpu: Duration,
    wal: i64,
}

/// What the server used in a span of time.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) time: Duration,
    /// CPU time of all the server's processes together.
    pub(crate) cpu: Duration,
    /// Bytes of write-ahead log.
    pub(crate) wal: i64,
}

impl Meter {
    pub(crate) async fn stop(mut self) -> Result<Usage> {
        let Sample { at, cpu, wal } = sample(self.postmaster, &mut self.admin).await?;
        Ok(Usage {
            time: at - self.started.at,
            cpu: cpu.saturating_sub(self.started.cpu),
            wal: wal - self.started.wal,
        })
    }
}

impl Usage {
    /// CPU time as a share of one core.
    pub(crate) fn cores(self) -> f64 {
        self.cpu.as_secs_f64() / self.time.as_secs_f64()
    }

    /// Bytes of write-ahead log a second.
    pub(crate) fn wal_rate(self) -> f64 {
        self.wal as f64 / self.time.as_secs_f64()
    }
}

async fn sample(postmaster: u32, admin: &mut PgConnection) -> Result<Sample> {
    let wal: i64 = admin
        .fetch_one("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        .await?
        .try_get(0)?;
    Ok(Sample { at: Instant::now(), cpu: cpu(postmaster)?, wal })
}

/// The CPU time of the server's living processes, in nanoseconds, and of the ended ones.
fn cpu(postmaster: u32) -> Result<Duration> {
    let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"))?;
    let mut nanoseconds = 0;
    for pid in children.split_whitespace().chain([postmaster.to_string().as_str()]) {
        // A process that has ended meanwhile is counted among the ended ones.
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/schedstat")) else { continue };
        nanoseconds += text.split_whitespace().next().unwrap_or_default().parse::<u64>()?;
    }
    let stat = std::fs::read_to_string(format!("/proc/{postmaster}/stat"))?;
    // After the name, which may contain any character, come the fields from the third on. Fields 16 and 17 are those of
    // ended children.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = fields.iter().skip(13).take(2).map(|field| field.parse::<u64>()).sum::<Result<u64, _>>()?;
    Ok(Duration::from_nanos(nanoseconds) + TICK * u32::try_from(ticks)?)
}
