//! The state of a cluster outside its processes: the locations of its files, the lock that prevents a second cluster,
//! and the state file that other processes use to find the running cluster.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::network::Machine;
use crate::programs::Programs;

/// Only one cluster per machine, because its network namespaces and cgroups have fixed names.
const LOCK: &str = "/run/leadergroup-e2e.lock";

/// The cache directory for built programs: `$LEADERGROUP_CACHE`, otherwise `$XDG_CACHE_HOME/leadergroup`, otherwise
/// `~/.cache/leadergroup`.
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

/// The directory of a running cluster: state, sockets and data. Removed with the cluster. Not below a home directory,
/// because the database server, which does not run as root, must have access to its data.
pub const RUN_DIR: &str = "/var/lib/leadergroup-e2e";

/// The directory of the daemons' logs, which are kept until the next start.
pub fn logs() -> Result<PathBuf> {
    Ok(cache()?.join("logs"))
}

/// A cluster as other processes see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// The directory of the daemons' logs.
    pub logs: PathBuf,
    /// Its configuration.
    pub config: Config,
    /// Its nodes.
    pub nodes: Vec<Machine>,
    /// The locations of its programs.
    pub programs: Programs,
    /// The password of the database's users.
    pub database_password: String,
}

impl State {
    /// Writes the state file atomically.
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

/// The exclusive right to run a cluster on this machine, held until this value is dropped.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "dropping the file releases the lock")] File);

impl Lock {
    /// Takes the lock. The error names the holder.
    pub fn take() -> Result<Self> {
        let file = open()?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let holder = fs::read_to_string(LOCK).unwrap_or_default();
            bail!(
                "a test cluster is already running on this machine (process {holder}): use it, or take it down with \
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
