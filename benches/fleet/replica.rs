//! One replica of the operator as a process of its own.

use std::{
    env,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

/// How a replica is started.
pub(crate) struct Settings {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) database_url: String,
}

/// A running replica.
pub(crate) struct Replica {
    pub(crate) name: &'static str,
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

/// The names of all replicas, which are also their names in the database.
pub(crate) const NAMES: [&str; 2] = ["first", "second"];

impl Replica {
    /// Starts the replica with this number. It appends to the log of its predecessor.
    pub(crate) fn start(number: usize, settings: &Settings) -> Result<Self> {
        let name = NAMES[number];
        let program = env::var_os("LEADERGROUP_BENCH_OPERATOR")
            .filter(|path| !path.is_empty())
            .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_leadergroup")), PathBuf::from);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9001 + u16::try_from(number)?));
        let log = env::temp_dir().join(format!("{name}.log"));
        // For example another allocator, or another log filter.
        let extra = env::var("LEADERGROUP_BENCH_REPLICA_ENV").unwrap_or_default();
        let child = Command::new(&program)
            .env_clear()
            .args(["run", "--replica", name, "--listen", &address.to_string()])
            .env("KUBECONFIG", &settings.kubeconfig)
            .env("LEADERGROUP_DATABASE_URL", &settings.database_url)
            .envs(extra.split_whitespace().filter_map(|variable| variable.split_once('=')))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(&log)?)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { name, child, address, log })
    }

    /// Waits until `/readyz` succeeds.
    pub(crate) async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        while !self.is_ready() {
            ensure!(self.child.try_wait()?.is_none(), "replica {} has ended: {}", self.name, self.tail());
            ensure!(begin.elapsed() < limit, "replica {} is not ready: {}", self.name, self.tail());
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Kills it, as a crash does.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM, and waits for its end.
    pub(crate) async fn terminate(mut self, limit: Duration) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "replica {} ended with {status}: {}", self.name, self.tail());
                return Ok(());
            }
            ensure!(begin.elapsed() < limit, "replica {} does not end: {}", self.name, self.tail());
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How many lines it and its predecessors logged.
    pub(crate) fn log_lines(&self) -> usize {
        fs::read_to_string(&self.log).map_or(0, |log| log.lines().count())
    }

    /// The last lines that it logged.
    pub(crate) fn tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return false };
        let mut answer = String::new();
        let asked = stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n")
            .and_then(|()| stream.read_to_string(&mut answer));
        asked.is_ok() && answer.starts_with("HTTP/1.1 200")
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
