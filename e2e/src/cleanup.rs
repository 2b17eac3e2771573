//! Checks that this machine can run a cluster, prepares it, and removes everything of a cluster.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::cgroup::Cgroups;
use crate::clock;
use crate::command::run;
use crate::machine::wait_until;
use crate::network;
use crate::node;
use crate::state::{Lock, RUN_DIR};

/// Time limit for removing files.
const REMOVE_LIMIT: Duration = Duration::from_secs(30);

/// Checks that this machine can run a cluster. If not, the error says what to do.
pub async fn check_machine() -> Result<Cgroups> {
    if !cfg!(target_os = "linux") {
        bail!("the test cluster needs Linux");
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the test cluster needs root (it makes network namespaces, cgroups and mounts): run it as root"
        );
    }
    let cgroups = Cgroups::find()?;
    if Lock::holder()?.is_none() && network::namespaces().is_empty() {
        let routes = run("ip", ["-4", "route", "show"]).await.unwrap_or_default();
        if let Some(route) =
            routes.lines().find(|line| line.starts_with("198.18.") || line.starts_with("198.19."))
            && !route.contains("lg-host")
        {
            bail!("the test cluster uses 198.18.0.0/15, and this machine has another route to it: {route}");
        }
    }
    Ok(cgroups)
}

/// Removes everything of a cluster except the logs: processes, namespaces, links, mounts, cgroups and files. It is no
/// error if some of it does not exist. The cluster must not be in use.
pub async fn remove_all() -> Result<()> {
    if let Ok(cgroups) = Cgroups::find() {
        let group = cgroups.machine("");
        cgroups.kill(&group).await.context("killing the cluster's processes")?;
        cgroups.remove(None).await?;
    }
    network::remove_all().await?;
    clock::remove_remains();
    let created = fs::read_to_string(created_file()).unwrap_or_default();
    for path in created.lines().map(Path::new) {
        // Only if it is still empty; otherwise another program uses it now.
        let _ = fs::remove_dir(path);
    }
    // A process that was just killed may have added a file in the meantime.
    wait_until("the run folder to be removed", REMOVE_LIMIT, async || match fs::remove_dir_all(RUN_DIR) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {RUN_DIR}"))
        }
        _ => Ok(true),
    })
    .await
}

/// Creates the run directory, an empty directory for logs, and the mount points for the nodes' own directories.
pub fn prepare(logs: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(logs);
    fs::create_dir_all(logs).with_context(|| format!("cannot create {}", logs.display()))?;
    fs::create_dir_all(RUN_DIR).with_context(|| format!("cannot create {RUN_DIR}"))?;
    let created = node::create_mount_points()?;
    let text: String = created.iter().map(|path| format!("{}\n", path.display())).collect();
    fs::write(created_file(), text).context("cannot note what was created")
}

/// The remains of a cluster on this machine. Empty after a clean shutdown.
pub fn leftovers() -> Vec<String> {
    let mut found: Vec<String> =
        network::namespaces().iter().map(|name| format!("network namespace {name}")).collect();
    if let Ok(cgroups) = Cgroups::find() {
        found.extend(cgroups.leftovers().iter().map(|path| format!("cgroup {}", path.display())));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.lines().filter(|line| line.contains(RUN_DIR)).map(|line| format!("mount {line}")));
    if network::host_link_exists() {
        found.push("the host's link to the cluster".to_owned());
    }
    if Path::new(RUN_DIR).exists() {
        found.push(RUN_DIR.to_owned());
    }
    found.extend(processes().into_iter().map(|text| format!("process {text}")));
    found
}

/// Processes whose command line shows that they belong to a cluster.
fn processes() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Ok(command) = fs::read(entry.path().join("cmdline")) else { continue };
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(RUN_DIR) || command.contains("-address /run/containerd/containerd.sock") {
            found.push(format!("{}: {command}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

fn created_file() -> PathBuf {
    Path::new(RUN_DIR).join("created-folders")
}
