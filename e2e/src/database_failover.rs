//! The failover of the database to a copy that lacks the last commits, as an asynchronous standby does, and the clock
//! of the server.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::clock::WallClock;
use crate::command::{output, run};
use crate::database::{DAEMON, Database, LIMIT, USER, as_user, data, folder};
use crate::machine::wait_until;
use crate::network::{DATABASE, DATABASE_ADDRESS};
use crate::programs::postgres_bin;

/// The daemon of the lost primary, while its rows are read.
const LOST_DAEMON: &str = "postgres-lost";
const LOST_PORT: u16 = 5433;

/// The former primary after a failover. It runs on another port, so that the commits that were lost can be read.
#[derive(Debug)]
pub struct LostPrimary {
    database: Database,
    /// How much of its log the copy lacks, in bytes.
    pub lost_bytes: i64,
}

impl Database {
    /// Copies the server, lets it go on for `lag`, kills it, and promotes the copy in its place: what was committed in
    /// the meantime is lost. Fails if nothing was.
    pub async fn fail_over(&self, lag: Duration) -> Result<LostPrimary> {
        let copy = folder().join("copy");
        let mut backup = as_user(&postgres_bin()?.join("pg_basebackup"));
        backup
            .args(["--host", DATABASE_ADDRESS, "--username", "postgres", "--wal-method=stream"])
            .args(["--checkpoint=fast", "--no-sync", "--pgdata"])
            .arg(&copy)
            .env("PGPASSWORD", self.password());
        output(backup, LIMIT).await.context("copying the database")?;
        tokio::time::sleep(lag).await;
        let written = self.log_position("pg_current_wal_lsn()").await?;
        self.kill().await?;
        fs::rename(data(), lost_data()).context("putting the lost primary aside")?;
        fs::rename(&copy, data()).context("putting the copy in its place")?;
        let signal = data().join("standby.signal");
        fs::write(&signal, "")?;
        run("chown", [&format!("{USER}:"), &signal.display().to_string()]).await?;
        self.start().await?;
        let copied = self.log_position("pg_last_wal_replay_lsn()").await?;
        let promoted = self.sql("postgres", "select pg_promote(true, 60)").await?;
        ensure!(promoted.trim() == "t", "the copy was not promoted");
        let lost_bytes = written - copied;
        ensure!(lost_bytes > 0, "the copy lacks nothing: it ends at {copied}, the primary at {written}");
        let mut argv = Self::argv(&lost_data(), Vec::new())?;
        argv.extend(["-p".to_owned(), LOST_PORT.to_string()]);
        self.machines().start_in(DATABASE, LOST_DAEMON, None, argv, false).await?;
        let lost = LostPrimary { database: self.clone(), lost_bytes };
        let program = postgres_bin()?.join("pg_isready").display().to_string();
        wait_until("the lost primary to take connections", LIMIT, async || {
            let port = LOST_PORT.to_string();
            Ok(run(&program, ["-q", "-t", "2", "-h", DATABASE_ADDRESS, "-p", &port]).await.is_ok())
        })
        .await?;
        Ok(lost)
    }

    async fn log_position(&self, function: &str) -> Result<i64> {
        let position = self.sql("postgres", &format!("select ({function} - '0/0')::bigint")).await?;
        position.trim().parse().with_context(|| format!("{function} is {position:?}"))
    }

    /// Restarts the server with a wall clock that [`WallClock::set`] changes.
    pub async fn restart_with_clock(&self) -> Result<WallClock> {
        let clock = WallClock::in_folder(&folder())?;
        let argv = Self::argv(&data(), clock.prefix()?)?;
        self.stop().await?;
        self.machines().start_in(DATABASE, DAEMON, None, argv, true).await?;
        self.ready().await?;
        Ok(clock)
    }

    /// By how many seconds the server's clock differs from this machine's.
    pub async fn clock_offset(&self) -> Result<i64> {
        let now = self.sql("postgres", "select extract(epoch from clock_timestamp())::bigint").await?;
        Ok(now.trim().parse::<i64>().context("the server's time")? - jiff::Timestamp::now().as_second())
    }
}

impl LostPrimary {
    /// The connection URL of its superuser.
    pub fn url(&self) -> String {
        self.database.admin_url().replace(":5432/", &format!(":{LOST_PORT}/"))
    }

    /// Stops it and removes its data.
    pub async fn remove(self) -> Result<()> {
        self.database.machines().end(LOST_DAEMON, Signal::QUIT).await?;
        fs::remove_dir_all(lost_data()).context("removing the lost primary")
    }
}

fn lost_data() -> PathBuf {
    folder().join("lost")
}
