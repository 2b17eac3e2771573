//! Linux namespaces for the benchmark: a network namespace, so that thousands of pods have addresses that nothing else
//! on the machine can see, and a PID namespace, so that the kernel kills all processes when the benchmark ends, also
//! by a crash.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::network;

/// An environment variable that is set inside the namespaces.
const INSIDE: &str = "LEADERGROUP_FLEET_INSIDE";
/// The prefix of directories for temporary files; the process id follows.
const DIRECTORY: &str = "leadergroup-fleet-";

pub(crate) fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Runs this program again in new namespaces, and removes its temporary files at the end.
pub(crate) fn run_inside() -> Result<ExitCode> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the fleet benchmark makes a network namespace and needs root"
    );
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("handling signals")?;
    }
    let parent = env::temp_dir();
    remove_leftovers(&parent);
    let directory = parent.join(format!("{DIRECTORY}{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    let result = start(&directory).and_then(|mut child| wait(&mut child, &interrupted));
    fs::remove_dir_all(&directory).with_context(|| format!("removing {}", directory.display()))?;
    result
}

fn start(directory: &Path) -> Result<Child> {
    let own = env::current_exe().context("finding this program's file")?;
    Command::new("setpriv")
        // If this process is killed, `unshare` is killed too, and then everything inside.
        .args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc"])
        .args(["--kill-child", "--"])
        .arg(own)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .env("TMPDIR", directory)
        .spawn()
        .context("starting unshare through setpriv, of the package util-linux")
}

fn wait(child: &mut Child, interrupted: &AtomicBool) -> Result<ExitCode> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if interrupted.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            // The processes inside take a moment to disappear.
            std::thread::sleep(Duration::from_millis(500));
            return Ok(ExitCode::FAILURE);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Removes the temporary files of a run that was killed.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.strip_prefix(DIRECTORY)) else { continue };
        if !PathBuf::from("/proc").join(process).exists() {
            // Another run may remove them at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Configures the network, inside the namespaces.
pub(crate) fn set_up() -> Result<()> {
    network::set_up()
}
