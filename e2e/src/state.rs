//! What is known of a cluster outside its processes: where its files are, the lock that keeps two clusters apart, and
//! the state file by which another process finds the running one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::network::Machine;
use crate::programs::Programs;

/// One cluster a machine: its network namespaces and cgroups have fixed names.
const LOCK: &str = "/run/leadergroup-e2e.lock";

/// The folder for what is built once: `$LEADERGROUP_CACHE`, else `$XDG_CACHE_HOME/leadergroup`, else `~/.cache/leadergroup`.
pub fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = set("LEADERGROUP_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("leadergroup")))
        .or_else(|| Some(set("HOME")?.join(".cache/leadergroup")))
        .context(
            "set LEADERGROUP_CACHE: neither it nor XDG_CACHE_HOME nor HOME says where to keep built programs",
        )?;
    fs::create_dir_all(&path)
        .with_context(|| format!("cannot create the cache folder {}", path.display()))?;
    path.canonicalize().with_context(|| format!("cannot resolve {}", path.display()))
}

/// The folder of a running cluster: state, sockets and data. Gone when the cluster is. Not below a home folder, because
/// the database server, which does not run as root, must get at its data.
pub const RUN_DIR: &str = "/var/lib/leadergroup-e2e";

/// The folder of the daemons' logs, which stay for diagnosis until the next start.
pub fn logs() -> Result<PathBuf> {
    Ok(cache()?.join("logs"))
}

/// A cluster as other processes see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Where the daemons' logs are.
    pub logs: PathBuf,
    /// The settings it was started with.
    pub config: Config,
    /// Its nodes.
    pub nodes: Vec<Machine>,
    /// The folders that hold its programs.
    pub programs: Programs,
    /// The password of the database's users.
    pub database_password: String,
}

impl State {
    /// Writes the state file, at once and whole.
    pub fn save(&self) -> Result<()> {
        let path = file();
        let next = path.with_extension("next");
        fs::write(&next, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", next.display()))?;
        fs::rename(&next, &path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The state of the cluster that runs on this machine.
    pub fn load() -> Result<Self> {
        let Some(pid) = Lock::holder()? else {
            bail!("no test cluster is running: start one with `make cluster` (or `leadergroup-e2e up`)");
        };
        let path = file();
        let text = fs::read(&path).with_context(|| {
            format!(
                "the test cluster (process {pid}) is still starting, or being taken down: {} is not there",
                path.display()
            )
        })?;
        serde_json::from_slice(&text)
            .with_context(|| format!("cannot read {}: of another version?", path.display()))
    }
}

/// The state file.
pub fn file() -> PathBuf {
    Path::new(RUN_DIR).join("state.json")
}

/// The supervisor's socket.
pub fn socket() -> PathBuf {
    Path::new(RUN_DIR).join("supervisor.sock")
}

/// The right to run a cluster on this machine, as long as it is held.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "dropping the file releases the lock")] File);

impl Lock {
    /// Takes the lock, or says who has it.
    pub fn take() -> Result<Self> {
        let file = open()?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let holder = fs::read_to_string(LOCK).unwrap_or_default();
            bail!(
                "a test cluster is running on this machine already (process {holder}): use it, or take it down with \
                 `make cluster-down` (or `leadergroup-e2e down`)"
            );
        }
        fs::write(LOCK, std::process::id().to_string()).with_context(|| format!("cannot write {LOCK}"))?;
        Ok(Self(file))
    }

    /// The process id of the supervisor that holds the lock now, if any does.
    pub fn holder() -> Result<Option<u32>> {
        if !Path::new(LOCK).exists() {
            return Ok(None);
        }
        let file = open()?;
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            return Ok(None);
        }
        let text = fs::read_to_string(LOCK).with_context(|| format!("cannot read {LOCK}"))?;
        text.trim().parse().map(Some).with_context(|| format!("{LOCK} holds no process id"))
    }
}

fn open() -> Result<File> {
    let file = File::options().create(true).read(true).write(true).truncate(false).open(LOCK);
    file.with_context(|| format!("cannot open {LOCK}: the test cluster needs root"))
}
