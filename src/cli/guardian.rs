//! The guardian of the command of `exec`: a small process that kills the command's group once `exec` has ended.
//!
//! The command remains a child of `exec`, not of the guardian, so exit statuses, signals and job control are the same
//! as without a guardian. The guardian reads from a socket whose other end only `exec` has. The system closes that
//! end when `exec` ends, whatever the cause, and the guardian reads end-of-file. A parent death signal
//! (`PR_SET_PDEATHSIG`) alone is not enough, because it reaches the command but no process that the command started.
//! The guardian does not lead the command's group, because timeout(1) and others leave a group that they do not lead.

use std::io::{Error, ErrorKind, Read as _, Write as _, stderr, stdin};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::signal;

use super::starter::THIS_PROGRAM;

/// Signals that do not end the guardian. A service manager sends them to all processes of a service at once, and the
/// command, to which `exec` passes them on, decides what they do.
const HARMLESS: [i32; 7] = [
    signal::SIGTERM,
    signal::SIGINT,
    signal::SIGHUP,
    signal::SIGQUIT,
    signal::SIGUSR1,
    signal::SIGUSR2,
    signal::SIGTSTP,
];

/// Arguments of the hidden command.
#[derive(Clone, Debug, Args)]
pub struct GuardianArgs {
    /// The command's process group. 1 is excluded because it would mean all processes.
    #[arg(value_parser = clap::value_parser!(i32).range(2..))]
    pub group: i32,
}

/// A running guardian. It kills the group when this value is dropped, unless it was dismissed before.
pub(super) struct Guardian {
    id: Pid,
    _socket: UnixStream,
}

impl Guardian {
    /// Starts a guardian, and returns when it is ready.
    pub(super) fn spawn(group: Pid) -> std::io::Result<Self> {
        let (mut socket, theirs) = UnixStream::pair()?;
        let child = Command::new(THIS_PROGRAM)
            .arg0("leadergroup")
            .arg("__guard")
            .arg(group.as_raw_nonzero().to_string())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            // In its own group, so that Ctrl-C in the terminal or a signal to the process group of `exec` does not
            // reach it.
            .process_group(0)
            .spawn()?;
        socket.read_exact(&mut [0]).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Error::other("it ended at once"),
            _ => error,
        })?;
        Ok(Self { id: Pid::from_child(&child), _socket: socket })
    }

    /// The process id.
    pub(super) fn id(&self) -> Pid {
        self.id
    }

    /// Ends the guardian. After the end of the group it could kill a new group with the same id.
    pub(super) fn dismiss(self) {
        let _ = kill_process(self.id, Signal::KILL);
    }
}

/// Runs the guardian. Returns its exit status.
pub fn guard(args: &GuardianArgs) -> u8 {
    for signal in HARMLESS {
        // The flag is never read: the handler only replaces the default action.
        if signal_hook::flag::register(signal, Arc::default()).is_err() {
            return 1;
        }
    }
    let (Ok(socket), Some(group)) = (stdin().as_fd().try_clone_to_owned(), Pid::from_raw(args.group)) else {
        return 1;
    };
    let mut socket = UnixStream::from(socket);
    // An error means that `exec` has ended, like end-of-file.
    let _ = socket.write_all(b"r");
    let _ = socket.read_to_end(&mut Vec::new());
    if kill_process_group(group, Signal::KILL).is_ok() {
        let _ = writeln!(stderr(), "leadergroup: exec was killed or crashed; its command is killed");
    }
    0
}
