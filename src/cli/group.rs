//! A command and the processes that it starts: their signals and their end. It knows nothing of locks.

use std::ffi::OsString;
use std::io::Error;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper,
    test_kill_process_group, wait,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::timeout;

use super::guardian::Guardian;
use super::starter::Starter;

/// Of processes that are not children of this one nobody tells when they end.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A process group with a command as its leader. It ends with the last of its processes, not with the command.
pub(super) struct Group {
    id: Pid,
    /// The command's exit status, once it has ended.
    status: Option<u8>,
    guardian: Option<Guardian>,
    /// Whether the group was killed because its guardian had ended.
    unguarded: bool,
    ends: Signals,
}

/// Why a command could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no such program, or it may not be run.
    #[error("{program:?} cannot be run: {source}; check its name, PATH and permissions")]
    Program {
        /// The program.
        program: OsString,
        /// The system's error.
        source: Error,
    },
    /// The guardian, or the process that becomes the command, could not be started.
    #[error(
        "the command is not run, because its guardian cannot be started: {0}; check that /proc is mounted, and the \
         limits of processes, open files and memory"
    )]
    Guardian(Error),
    /// The system does not let this program wait for its child.
    #[error("the command is not run, because it could not be waited for: {0}; check the limit of open files")]
    Wait(Error),
}

impl Group {
    /// Starts a command, which ends when this process ends, or the calling thread.
    pub(super) fn start(command: &[OsString], environment: &[(&str, String)]) -> Result<Self, StartError> {
        let ends = signal(SignalKind::child()).map_err(StartError::Wait)?;
        // What loses its parent becomes a child of this process. Otherwise it would be another one's to clear away, and a
        // group with dead processes in it looks alive. Where the system refuses, that other one most likely does it.
        let _ = set_child_subreaper(Some(getpid()));
        // The guardian has to be there before the command begins.
        let starter = Starter::spawn(command, environment).map_err(StartError::Guardian)?;
        let guardian = Guardian::spawn(starter.id()).map_err(StartError::Guardian)?;
        let id = starter.id();
        if let Err(source) = starter.go() {
            guardian.dismiss();
            return Err(StartError::Program {
                program: command.first().cloned().unwrap_or_default(),
                source,
            });
        }
        Ok(Self { id, status: None, guardian: Some(guardian), unguarded: false, ends })
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
    /// that ended it. If the guardian ended first, the group is killed, and the status says so.
    pub(super) fn ended(&mut self) -> Result<Option<u8>, Error> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((process, status))) if process == self.id => self.status = Some(code(status)),
                Ok(Some((process, _))) if self.guardian.as_ref().map(Guardian::id) == Some(process) => {
                    self.guardian_ended();
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(Errno::CHILD) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let Some(status) = self.status.filter(|_| test_kill_process_group(self.id) == Err(Errno::SRCH))
        else {
            return Ok(None);
        };
        if let Some(guardian) = self.guardian.take() {
            guardian.dismiss();
        }
        // The command itself may have ended with success before processes that it had left running were killed.
        Ok(Some(if self.unguarded { status_of(Signal::KILL) } else { status }))
    }

    /// Kills the group: without a guardian it would outlive this process if that is killed as well.
    fn guardian_ended(&mut self) {
        self.guardian = None;
        if kill_process_group(self.id, Signal::KILL).is_ok() {
            self.unguarded = true;
            eprintln!("leadergroup: the guardian of the command was killed; the command is killed as well");
        }
    }

    /// Completes when it is worth to ask again whether it has [`ended`](Self::ended). May be cancelled.
    pub(super) async fn changed(&mut self) {
        let _ = timeout(LOOK_AGAIN, self.ends.recv()).await;
    }
}

/// The exit status that stands for the end by a signal.
pub(super) fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

fn code(status: WaitStatus) -> u8 {
    let by_signal = || 128 + status.terminating_signal().unwrap_or(0);
    u8::try_from(status.exit_status().unwrap_or_else(by_signal)).unwrap_or(u8::MAX)
}
