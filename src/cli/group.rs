//! A command and the processes that it starts: their signals and their end. It knows nothing of locks.

use std::ffi::OsString;
use std::io::Error;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper,
    test_kill_process_group, wait,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::timeout;

/// Of processes that are not children of this one nobody tells when they end.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A process group with a command as its leader. It ends with the last of its processes, not with the command.
pub(super) struct Group {
    id: Pid,
    /// The command's exit status, once it has ended.
    status: Option<u8>,
    ends: Signals,
}

impl Group {
    /// Starts a command.
    pub(super) fn start(command: &[OsString], environment: &[(&str, String)]) -> std::io::Result<Self> {
        let ends = signal(SignalKind::child())?;
        // What loses its parent becomes a child of this process. Otherwise it would be another one's to clear away, and a
        // group with dead processes in it looks alive. Where the system refuses, that other one most likely does it.
        let _ = set_child_subreaper(Some(getpid()));
        let [program, arguments @ ..] = command else { return Err(Errno::NOENT.into()) };
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .spawn()?;
        Ok(Self { id: Pid::from_child(&child), status: None, ends })
    }

    /// Sends a signal to all. It is not an error if they have just ended, which is what most signals are for.
    pub(super) fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.id, signal);
        if [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal) {
            // Who is suspended would see it only when told to go on.
            let _ = kill_process_group(self.id, Signal::CONT);
        }
    }

    /// The command's exit status once it has ended, whatever it has left running.
    pub(super) fn leader(&self) -> Option<u8> {
        self.status
    }

    /// The command's exit status once it and all that it started in its group have ended: its own, or 128 and the signal
    /// that ended it.
    pub(super) fn ended(&mut self) -> Result<Option<u8>, Error> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((process, status))) if process == self.id => self.status = Some(code(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(Errno::CHILD) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.status.filter(|_| test_kill_process_group(self.id) == Err(Errno::SRCH)))
    }

    /// Completes when it is worth to ask again whether it has [`ended`](Self::ended). May be cancelled.
    pub(super) async fn changed(&mut self) {
        let _ = timeout(LOOK_AGAIN, self.ends.recv()).await;
    }
}

fn code(status: WaitStatus) -> u8 {
    let by_signal = || 128 + status.terminating_signal().unwrap_or(0);
    u8::try_from(status.exit_status().unwrap_or_else(by_signal)).unwrap_or(u8::MAX)
}
