//! The PostgreSQL server: Debian's, on its own machine, with a database for the operator.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use tokio::process::Command;

use crate::command::{output, output_with_input, run};
use crate::credentials::Credentials;
use crate::machine::{Machines, wait_until};
use crate::network::{DATABASE, DATABASE_ADDRESS};
use crate::programs::postgres_bin;
use crate::state::RUN_DIR;

pub(crate) const DAEMON: &str = "postgres";
/// The account of Debian's package.
pub(crate) const USER: &str = "postgres";
/// The role, and the database, of the operator.
const NAME: &str = "leadergroup";
/// Creating a database takes a second or two, more on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// The database server and its faults.
#[derive(Debug, Clone)]
pub struct Database {
    machines: Machines,
    password: String,
}

impl Database {
    pub(crate) fn new(machines: Machines, password: String) -> Self {
        Self { machines, password }
    }

    /// Creates the data directory, starts the server, and creates the operator's role and database.
    pub(crate) async fn create(&self, credentials: &Credentials) -> Result<()> {
        let (bin, data) = (postgres_bin()?, data());
        let folder = folder();
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        run("chown", [&format!("{USER}:"), &folder.display().to_string()]).await?;
        // The file must be readable only for initdb, which does not run as root.
        let password_file = folder.join("password");
        fs::write(&password_file, "")?;
        run("chown", [&format!("{USER}:"), &password_file.display().to_string()]).await?;
        run("chmod", ["600", &password_file.display().to_string()]).await?;
        fs::write(&password_file, &self.password)?;
        let mut initdb = as_user(&bin.join("initdb"));
        initdb
            .args([
                "--username=postgres",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg(format!("--pwfile={}", password_file.display()))
            .arg(format!("--pgdata={}", data.display()));
        output(initdb, LIMIT).await.context("making the database")?;
        for (from, to) in [("postgres.crt", "server.crt"), ("postgres.key", "server.key")] {
            let to = data.join(to);
            fs::copy(credentials.path(from), &to)
                .with_context(|| format!("cannot write {}", to.display()))?;
            run("chown", [&format!("{USER}:"), &to.display().to_string()]).await?;
        }
        let hba = data.join("pg_hba.conf");
        let mut rules = fs::read_to_string(&hba)?;
        rules.push_str("\nhost all,replication all 198.18.0.0/15 scram-sha-256\n");
        fs::write(&hba, rules)?;
        self.machines.start_in(DATABASE, DAEMON, None, Self::argv(&data, Vec::new())?, true).await?;
        self.ready().await?;
        let password = &self.password;
        self.sql("postgres", &format!("CREATE ROLE {NAME} LOGIN PASSWORD '{password}'")).await?;
        self.sql("postgres", &format!("CREATE DATABASE {NAME} OWNER {NAME}")).await?;
        Ok(())
    }

    /// The command line of a server on a data directory. `through` runs it, as the server's account.
    pub(crate) fn argv(data: &Path, through: Vec<String>) -> Result<Vec<String>> {
        let mut argv: Vec<String> =
            ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", "--"].map(str::to_owned).into();
        argv.extend(through);
        argv.push(postgres_bin()?.join("postgres").display().to_string());
        argv.extend(["-D".to_owned(), data.display().to_string()]);
        for setting in [
            format!("listen_addresses={DATABASE_ADDRESS}"),
            // Each server has its own socket, by its port.
            format!("unix_socket_directories={}", folder().display()),
            // TLS is available but not required.
            "ssl=on".to_owned(),
            "log_line_prefix=%m [%p] %u ".to_owned(),
        ] {
            argv.extend(["-c".to_owned(), setting]);
        }
        Ok(argv)
    }

    pub(crate) fn machines(&self) -> &Machines {
        &self.machines
    }

    pub(crate) fn password(&self) -> &str {
        &self.password
    }

    /// Waits until the server accepts connections.
    pub async fn ready(&self) -> Result<()> {
        let program = postgres_bin()?.join("pg_isready").display().to_string();
        wait_until("PostgreSQL to take connections", LIMIT, async || {
            Ok(run(&program, ["-q", "-t", "2", "-h", DATABASE_ADDRESS]).await.is_ok())
        })
        .await
    }

    /// Runs SQL as the superuser and returns the rows, one a line, columns separated by `|`.
    pub async fn sql(&self, database: &str, statement: &str) -> Result<String> {
        let mut psql = Command::new(postgres_bin()?.join("psql"));
        psql.args([
            "--no-psqlrc",
            "-qAt",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            DATABASE_ADDRESS,
            "-U",
            "postgres",
            "-d",
            database,
        ])
        .env("PGPASSWORD", &self.password)
        .env("PGCONNECT_TIMEOUT", "5");
        // Not as an argument, because a statement may contain a password.
        output_with_input(psql, statement, LIMIT).await
    }

    /// The connection URL of the operator's role, valid on the host and in every pod.
    pub fn url(&self) -> String {
        format!("postgres://{NAME}:{}@{DATABASE_ADDRESS}:5432/{NAME}", self.password)
    }

    /// The connection URL of the superuser.
    pub fn admin_url(&self) -> String {
        format!("postgres://postgres:{}@{DATABASE_ADDRESS}:5432/{NAME}", self.password)
    }

    /// Shuts the server down cleanly: ends sessions and writes everything ("fast").
    pub async fn stop(&self) -> Result<()> {
        self.machines.end_running(DAEMON, Signal::INT).await
    }

    /// Kills every process of the server's machine ("immediate"), so that it must recover at its next start.
    pub async fn kill(&self) -> Result<()> {
        self.machines.running(DAEMON).await?;
        self.machines.disown(DATABASE).await?;
        self.machines.cgroups.kill(&self.machines.cgroups.machine(DATABASE)).await?;
        self.machines.end(DAEMON, Signal::KILL).await
    }

    /// Starts the server again, and waits until it accepts connections.
    pub async fn start(&self) -> Result<()> {
        self.machines.start_again(DAEMON).await?;
        self.ready().await
    }

    /// Stop and start.
    pub async fn restart(&self) -> Result<()> {
        self.stop().await?;
        self.start().await
    }

    /// Freezes the server, with its connections open, until [`Database::resume`].
    pub async fn pause(&self) -> Result<()> {
        self.machines.cgroups.freeze_some(&self.machines.cgroups.machine(DATABASE)).await
    }

    /// Resumes a paused server.
    pub fn resume(&self) -> Result<()> {
        self.machines.cgroups.thaw(&self.machines.cgroups.machine(DATABASE))
    }
}

/// The directory of the server's files.
pub(crate) fn folder() -> PathBuf {
    Path::new(RUN_DIR).join("postgres")
}

/// The data directory.
pub(crate) fn data() -> PathBuf {
    folder().join("data")
}

/// A command of the server's account.
pub(crate) fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        // The parent death signal must be set again, because the change of user clears it.
        .args(["--reuid", USER, "--regid", USER, "--init-groups", "--pdeathsig", "KILL", "--"])
        .arg(program)
        .current_dir("/");
    command
}
