//! Control groups: every process of the test cluster runs below our own group, with a subgroup for each machine.
//!
//! This makes a power-off atomic (freeze, kill, thaw), makes it possible to freeze a pod, and makes the clean-up
//! complete even if only the name of a dead cluster's group is known.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// The name of the top group, the same in every hierarchy.
pub const ROOT: &str = "leadergroup-e2e";
/// The subgroup of a machine's own daemons, beside the kubelet's `kubepods`.
const SYSTEM: &str = "system";
/// The controllers that are required to start a kubelet or to inject faults.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "freezer"];
/// How long killed processes may take to disappear.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// The mounted hierarchies of this machine.
#[derive(Debug, Clone)]
pub struct Cgroups {
    /// Mount points: one for each version 1 hierarchy, or the only one of version 2.
    mounts: Vec<PathBuf>,
    /// The version 2 hierarchy next to those of version 1. Container runtimes create groups there, too.
    hybrid: Option<PathBuf>,
    /// The hierarchy with the freezer, which is also used to find processes.
    freezer: PathBuf,
    version2: bool,
}

impl Cgroups {
    /// Finds the hierarchies. If a required one is missing, the error says what to do.
    pub fn find() -> Result<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
        let mut mounts = Vec::new();
        let mut missing: Vec<&str> = NEEDED.to_vec();
        let mut freezer = None;
        let mut unified = None;
        for line in table.lines() {
            let (Some(mount), Some((kind, options))) = (line.split(' ').nth(4), filesystem(line)) else {
                continue;
            };
            let mount = PathBuf::from(mount);
            match kind {
                "cgroup" => {
                    let controllers: Vec<&str> = options.split(',').collect();
                    missing.retain(|needed| !controllers.contains(needed));
                    if controllers.contains(&"freezer") {
                        freezer = Some(mount.clone());
                    }
                    if !mounts.contains(&mount) {
                        mounts.push(mount);
                    }
                }
                "cgroup2" => unified = Some(mount),
                _ => {}
            }
        }
        if let (Some(freezer), true) = (freezer, missing.is_empty()) {
            return Ok(Self { mounts, hybrid: unified, freezer, version2: false });
        }
        if let Some(mount) = unified {
            let controllers = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            // Version 2 needs no controller to freeze.
            missing.retain(|needed| {
                *needed != "freezer" && !controllers.split_whitespace().any(|has| has == *needed)
            });
            if missing.is_empty() {
                return Ok(Self {
                    mounts: vec![mount.clone()],
                    hybrid: None,
                    freezer: mount,
                    version2: true,
                });
            }
        }
        bail!(
            "the test cluster needs the cgroup controllers {}, and this machine lacks {}: mount them (version 1), or \
             start the machine or container with access to them (version 2, `--privileged --cgroupns=host`)",
            NEEDED.join(", "),
            missing.join(", ")
        )
    }

    /// Creates the groups of a machine in every hierarchy. Returns the files to which a process writes its id to join
    /// the machine.
    pub fn create_machine(&self, machine: &str) -> Result<Vec<PathBuf>> {
        let mut entries = Vec::new();
        for mount in &self.mounts {
            let mut path = mount.clone();
            for part in [ROOT, machine, SYSTEM] {
                if self.version2 {
                    pass_controllers_on(&path)?;
                }
                let parent = path.clone();
                path.push(part);
                create(&path)?;
                // A new cpuset is empty, and no process can join it before it has processors and memory.
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    if !self.version2 && path.join(file).exists() {
                        let value = read(&parent.join(file))?;
                        write(&path.join(file), value.trim())?;
                    }
                }
            }
            entries.push(path.join("cgroup.procs"));
        }
        Ok(entries)
    }

    /// The group of one machine in the hierarchy with the freezer.
    pub fn machine(&self, machine: &str) -> PathBuf {
        self.freezer.join(ROOT).join(machine)
    }

    /// The group of a pod, on any machine.
    pub fn pod(&self, uid: &str) -> Result<PathBuf> {
        let name = format!("pod{uid}");
        let all = groups(&self.freezer.join(ROOT));
        all.into_iter().find(|path| path.file_name().is_some_and(|last| last == name.as_str())).with_context(
            || format!("no pod with the UID {uid} runs on a node of the test cluster (no cgroup {name})"),
        )
    }

    /// The groups of a pod's containers, without its sandbox ("pause").
    pub fn containers(&self, pod_uid: &str) -> Result<Vec<PathBuf>> {
        let pod = self.pod(pod_uid)?;
        let mut containers = Vec::new();
        for group in groups(&pod) {
            let pids = own_processes(&group);
            let is_sandbox = pids.iter().any(|pid| {
                fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
                    .is_ok_and(|comm| comm.trim() == "pause")
            });
            if !pids.is_empty() && !is_sandbox {
                containers.push(group);
            }
        }
        Ok(containers)
    }

    /// Freezes every process below `group` until [`Cgroups::thaw`]. Returns when all are frozen.
    pub async fn freeze(&self, group: &Path) -> Result<()> {
        if self.version2 {
            write(&group.join("cgroup.freeze"), "1")?;
            return wait_for(group, "freeze", || {
                Ok(read(&group.join("cgroup.events"))?.lines().any(|line| line == "frozen 1"))
            })
            .await;
        }
        write(&group.join("freezer.state"), "FROZEN")?;
        // With version 1, a task in an uninterruptible call can keep the group half frozen; writing again retries.
        wait_for(group, "freeze", || {
            let state = read(&group.join("freezer.state"))?;
            if state.trim() == "FREEZING" {
                write(&group.join("freezer.state"), "FROZEN")?;
            }
            Ok(state.trim() == "FROZEN")
        })
        .await
    }

    /// The same for a fault: fails if there is nothing to freeze.
    pub async fn freeze_some(&self, group: &Path) -> Result<()> {
        if processes(group).is_empty() {
            bail!("the fault cannot take place: nothing runs in {}", group.display());
        }
        self.freeze(group).await
    }

    /// Lets the processes of a frozen group run again.
    pub fn thaw(&self, group: &Path) -> Result<()> {
        if self.version2 {
            write(&group.join("cgroup.freeze"), "0")
        } else {
            write(&group.join("freezer.state"), "THAWED")
        }
    }

    /// Lets everything below `group` that was frozen or stopped run again.
    pub fn thaw_all(&self, group: &Path) -> Result<()> {
        for path in groups(group).iter().map(PathBuf::as_path).chain([group]) {
            self.thaw(path)?;
        }
        signal(group, Signal::CONT);
        Ok(())
    }

    /// Kills all processes below `group` at once: none of them runs any more code after the first one was killed.
    /// Returns when all are gone. A group that does not exist counts as killed.
    pub async fn kill(&self, group: &Path) -> Result<()> {
        if !group.exists() {
            return Ok(());
        }
        // The processes are killed even if the freeze does not complete.
        let _ = self.freeze(group).await;
        let deadline = Instant::now() + KILL_LIMIT;
        loop {
            let pids = processes(group);
            for pid in &pids {
                // It may have ended already.
                let _ = kill_process(*pid, Signal::KILL);
            }
            for path in groups(group).iter().rev().map(PathBuf::as_path).chain([group]) {
                let _ = self.thaw(path);
            }
            if pids.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let ids: Vec<String> = pids.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
                bail!("processes {} in {} survive SIGKILL", ids.join(", "), group.display());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Removes the groups of a machine, or of all machines with `None`, in every hierarchy. Kills processes that are
    /// still in them.
    pub async fn remove(&self, machine: Option<&str>) -> Result<()> {
        for mount in self.mounts.iter().chain(&self.hybrid) {
            let mut top = mount.join(ROOT);
            if let Some(machine) = machine {
                top.push(machine);
            }
            // The kernel releases a group a moment after its last process has ended. And a daemon joins the
            // hierarchies one after the other, so one that is just starting may not have been in the freezer's group
            // when everything there was killed.
            let deadline = Instant::now() + KILL_LIMIT;
            while let Err(error) = remove_tree(&top) {
                signal(&top, Signal::KILL);
                if Instant::now() > deadline {
                    return Err(error).with_context(|| format!("cannot remove the cgroup {}", top.display()));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(())
    }

    /// Our groups that still exist, to check the clean-up.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        self.mounts
            .iter()
            .chain(&self.hybrid)
            .map(|mount| mount.join(ROOT))
            .filter(|path| path.exists())
            .collect()
    }
}

/// All processes in a group and below it.
pub fn processes(group: &Path) -> Vec<Pid> {
    let mut all = own_processes(group);
    for below in groups(group) {
        all.extend(own_processes(&below));
    }
    all
}

/// The command lines of the processes in a group and below it, with spaces between the arguments. A process that has
/// just ended is left out.
pub fn commands(group: &Path) -> Vec<String> {
    let line = |pid: Pid| fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok();
    let lines = processes(group).into_iter().filter_map(line);
    lines.map(|line| line.trim_end_matches('\0').replace('\0', " ")).collect()
}

/// Sends a signal to every process below a group, for example `Signal::STOP`. Returns how many there were.
pub fn signal(group: &Path, signal: Signal) -> usize {
    // It is no error if a process has just ended.
    processes(group).into_iter().filter(|pid| kill_process(*pid, signal).is_ok()).count()
}

fn own_processes(group: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw).collect()
}

/// The groups below `group`, parents before children.
fn groups(group: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![group.to_path_buf()];
    while let Some(path) = open.pop() {
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
                open.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn remove_tree(top: &Path) -> io::Result<()> {
    for path in groups(top).iter().rev().map(PathBuf::as_path).chain([top]) {
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Version 2: enables the controllers for the children of `group`.
fn pass_controllers_on(group: &Path) -> Result<()> {
    let available = read(&group.join("cgroup.controllers"))?;
    let wanted: Vec<String> = available.split_whitespace().map(|name| format!("+{name}")).collect();
    write(&group.join("cgroup.subtree_control"), &wanted.join(" "))
}

async fn wait_for(group: &Path, what: &str, mut reached: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + KILL_LIMIT;
    while !reached()? {
        if Instant::now() > deadline {
            bail!("{} did not {what} within {} s", group.display(), KILL_LIMIT.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// The type and the super options in a line of mountinfo; they come after the separator.
fn filesystem(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.split_once(" - ")?.1.split(' ');
    let kind = fields.next()?;
    Some((kind, fields.nth(1)?))
}

fn create(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error).with_context(|| {
            format!("cannot create the cgroup {}: are cgroups writable here?", path.display())
        }),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("cannot write {value:?} to {}", path.display()))
}
