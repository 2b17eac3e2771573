//! The state of processes, as the kernel reports it: whether a signal took effect.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Pid;

/// The kernel carries a signal out within milliseconds, unless the process is frozen or waits for a disk.
const EFFECTIVE: Duration = Duration::from_secs(2);

/// Whether a process is stopped by a signal.
pub fn is_stopped(pid: Pid) -> bool {
    matches!(state(pid), Some('T' | 't'))
}

/// Whether a process has ended. It may be there until its parent has read its exit status.
pub fn has_ended(pid: Pid) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

/// The letter in `/proc/<pid>/stat`; `None` if there is no such process.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before it is in parentheses and may contain any character.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Waits, without giving the thread away, until a fault took effect. `missing` says what has not happened yet.
pub fn took_effect(mut missing: impl FnMut() -> Option<String>) -> Result<()> {
    let started = Instant::now();
    while let Some(what) = missing() {
        if started.elapsed() > EFFECTIVE {
            bail!("the fault did not take place: {what}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Signal, kill_process};

    use super::*;

    #[test]
    fn a_signal_is_seen_to_take_effect() -> Result<()> {
        let mut child = Command::new("sleep").arg("60").spawn()?;
        let pid = Pid::from_child(&child);
        assert!(!is_stopped(pid) && !has_ended(pid));
        for (signal, reached) in [(Signal::STOP, is_stopped as fn(Pid) -> bool), (Signal::KILL, has_ended)] {
            kill_process(pid, signal)?;
            took_effect(|| (!reached(pid)).then(|| "it runs".to_owned()))?;
        }
        child.wait()?;
        assert!(has_ended(pid) && !is_stopped(pid));
        Ok(())
    }

    #[test]
    fn a_fault_that_does_not_take_place_is_an_error() -> Result<()> {
        let mut child = Command::new("sleep").arg("60").spawn()?;
        let pid = Pid::from_child(&child);
        let error = took_effect(|| (!is_stopped(pid)).then(|| "it runs".to_owned()));
        child.kill()?;
        child.wait()?;
        assert_eq!(error.expect_err("no signal").to_string(), "the fault did not take place: it runs");
        Ok(())
    }
}
