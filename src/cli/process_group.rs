//! A command and the processes that it starts: their signals and their end. Independent of locks.

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

/// How often to check for the end of processes that are not children of this one: there is no notification for them.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A process group whose leader is the command. It ends with its last process, not with the command.
pub(super) struct ProcessGroup {
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
    /// There is no such program, or no permission to run it.
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
    #[error(
        "the command is not run, because this program could not wait for it: {0}; check the limit of open files"
    )]
    Wait(Error),
}

impl ProcessGroup {
    /// Starts a command. It ends when this process or the calling thread ends.
    pub(super) fn start(command: &[OsString], environment: &[(&str, String)]) -> Result<Self, StartError> {
        let ends = signal(SignalKind::child()).map_err(StartError::Wait)?;
        // Processes that lose their parent become children of this process, which then reaps them. Otherwise another
        // process would have to do it, and a group with unreaped processes looks alive. If the system refuses this,
        // that other process most likely reaps them.
        let _ = set_child_subreaper(Some(getpid()));
        // The guardian must be ready before the command starts.
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

    /// Sends a signal to the whole group. It is no error if the group has just ended, which is the purpose of most
    /// signals.
    pub(super) fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.id, signal);
        if [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal) {
            // A suspended process receives the signal only after SIGCONT.
            let _ = kill_process_group(self.id, Signal::CONT);
        }
    }

    /// The command's exit status once it has ended, even if it has left processes running.
    pub(super) fn leader(&self) -> Option<u8> {
        self.status
    }

    /// The exit status once the command and all processes in its group have ended: the command's own, or 128 plus the
    /// number of the signal that ended it. If the guardian ends first, the group is killed, and the status is that of
    /// SIGKILL.
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

    /// Kills the group: without a guardian it would outlive this process if that is killed, too.
    fn guardian_ended(&mut self) {
        self.guardian = None;
        if kill_process_group(self.id, Signal::KILL).is_ok() {
            self.unguarded = true;
            eprintln!("leadergroup: the guardian of the command was killed; the command is killed as well");
        }
    }

    /// Completes when [`ended`](Self::ended) should be called again. May be cancelled.
    pub(super) async fn changed(&mut self) {
        let _ = timeout(LOOK_AGAIN, self.ends.recv()).await;
    }
}

/// The exit status for the end by a signal.
pub(super) fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

fn code(status: WaitStatus) -> u8 {
    let by_signal = || 128 + status.terminating_signal().unwrap_or(0);
    u8::try_from(status.exit_status().unwrap_or_else(by_signal)).unwrap_or(u8::MAX)
}
