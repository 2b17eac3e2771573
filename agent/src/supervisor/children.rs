//! The processes of the container: the program, and what it has started.

use std::{ffi::OsString, io, process, process::Command, thread, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait},
};

use crate::log::say;

/// The prefix of the variables that the program finds in its environment.
const PREFIX: &str = "LEADERGROUP_";
/// How long killed processes may take until they are gone. They run no more from the moment in which they are killed;
/// a large one takes a while to give its memory back.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);
/// The exit statuses that shells use for a program that does not exist, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// The program. It has ended once its first process has; what that has left behind is killed then.
pub(super) struct Program {
    process: Option<Pid>,
    status: Option<u8>,
}

/// A process that has ended and was reaped.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) process: Pid,
    pub(super) status: u8,
}

impl Program {
    /// Starts it, with these variables in its environment.
    pub(super) fn start(command: &[OsString], environment: &[(&str, String)]) -> io::Result<Self> {
        let [program, arguments @ ..] = command else { return Err(io::ErrorKind::NotFound.into()) };
        let environment = environment.iter().map(|(name, value)| (format!("{PREFIX}{name}"), value));
        let child = Command::new(program).args(arguments).envs(environment).spawn()?;
        Ok(Self { process: Some(Pid::from_child(&child)), status: None })
    }

    /// One that could not be started.
    pub(super) const fn failed(status: u8) -> Self {
        Self { process: None, status: Some(status) }
    }

    /// Sends its first process a signal, as the kubelet does. It is no error if that has just ended.
    pub(super) fn send(&self, signal: Signal) {
        if let Some(process) = self.process.filter(|_| self.status.is_none()) {
            let _ = kill_process(process, signal);
        }
    }

    /// Takes into account that a process has ended.
    pub(super) fn note(&mut self, ended: Ended) {
        if self.process == Some(ended.process) {
            self.status = Some(ended.status);
        }
    }

    /// Its exit status, once it has ended.
    pub(super) const fn status(&self) -> Option<u8> {
        self.status
    }
}

/// The next process that has ended, if there is one.
pub(super) fn reap() -> Result<Option<Ended>, Errno> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((process, status))) => return Ok(Some(Ended { process, status: code(status) })),
            Err(Errno::INTR) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Kills all processes but this one until none is left, and returns those that have ended. If only processes are left
/// that it may not kill, because they have another user, it ends itself: the kernel then kills all others.
pub(super) fn kill_all() -> Vec<Ended> {
    let mut all = Vec::new();
    let pauses = PATIENCE.as_millis() / PAUSE.as_millis();
    for _ in 0..pauses {
        // The group of process 1 stands for all processes. It is no error if there is none.
        let killed = kill_process_group(Pid::INIT, Signal::KILL);
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((process, status))) => all.push(Ended { process, status: code(status) }),
                Err(Errno::CHILD) => return all,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        if killed == Err(Errno::PERM) {
            break;
        }
        thread::sleep(PAUSE);
    }
    say("a process could not be killed: the container ends, and the kernel kills it");
    process::exit(i32::from(by_signal(Signal::KILL.as_raw())));
}

/// The exit status for a program that cannot be run.
pub(super) fn status_of(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN }
}

fn code(status: WaitStatus) -> u8 {
    let killed = || by_signal(status.terminating_signal().unwrap_or(0));
    status.exit_status().map_or_else(killed, |status| u8::try_from(status).unwrap_or(u8::MAX))
}

fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
