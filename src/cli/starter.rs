//! Starts the command of `exec` in two steps: the process first waits until it has a guardian, and then becomes the
//! command.
//!
//! The process is this program in a hidden mode. At first its standard input is a socket. Over this socket `exec`
//! sends the standard input of the command, which is also the signal to start, and receives the error if the command
//! cannot be run.

use std::ffi::OsString;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use clap::Args;
use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};

/// The exit status that shells use for a command that cannot be run. Not visible to users: `exec` reports the error.
const EXIT_NOT_RUN: u8 = 127;

/// The running program, even if its file was replaced or removed.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Arguments of the hidden command.
#[derive(Clone, Debug, Args)]
pub struct StarterArgs {
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// A process that leads a new group and waits to become the command. It ends if this value is dropped before [`go`].
///
/// [`go`]: Self::go
pub(super) struct Starter {
    id: Pid,
    socket: UnixStream,
}

impl Starter {
    /// Starts the process. The system ends it, and later the command, when the calling thread ends.
    pub(super) fn spawn(command: &[OsString], environment: &[(&str, String)]) -> std::io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = Command::new(THIS_PROGRAM)
            .arg0("leadergroup")
            .args(["__start", "--"])
            .args(command)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(OwnedFd::from(theirs))
            .process_group(0)
            .spawn()?;
        Ok(Self { id: Pid::from_child(&child), socket })
    }

    /// The id of the process, of its group, and of the command that it becomes.
    pub(super) fn id(&self) -> Pid {
        self.id
    }

    /// Lets the process become the command. Returns the error if that fails.
    pub(super) fn go(mut self) -> std::io::Result<()> {
        let input = stdin();
        let files = [input.as_fd()];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let sent =
            retry_on_intr(|| sendmsg(&self.socket, &[IoSlice::new(b"g")], &mut control, SendFlags::NOSIGNAL));
        match sent {
            // The process was killed. Its exit status shows that, as for a killed command.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(error.into()),
        }
        let mut answer = Vec::new();
        match self.socket.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => return Err(error),
        }
        match answer.try_into() {
            Ok(error) => Err(Error::from_raw_os_error(i32::from_ne_bytes(error))),
            // The start of the command has closed the socket, or the process was killed.
            Err(_) => Ok(()),
        }
    }
}

/// Runs the process. Returns its exit status if it does not become the command.
pub fn start(args: &StarterArgs) -> u8 {
    // This setting remains when the process becomes the command. It covers the case that the guardian and `exec` are
    // killed at the same time: the system then kills at least the command. It has no effect if `exec` has already
    // ended, but then either the socket is closed or the guardian kills the group.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // A copy, because descriptor 0 becomes the command's standard input. The start of the command closes the copy.
    let Ok(socket) = stdin().as_fd().try_clone_to_owned() else { return EXIT_NOT_RUN };
    let mut socket = UnixStream::from(socket);
    let error = become_command(&socket, &args.command);
    let _ = socket.write_all(&error.raw_os_error().to_ne_bytes());
    EXIT_NOT_RUN
}

/// Becomes the command. Returns only if that fails.
fn become_command(socket: &UnixStream, command: &[OsString]) -> Errno {
    let [program, arguments @ ..] = command else { return Errno::NOENT };
    let error = match receive(socket) {
        Ok(input) => Command::new(program).args(arguments).stdin(Stdio::from(input)).exec(),
        Err(error) => return error,
    };
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

/// Receives the command's standard input, which arrives when the command may start.
fn receive(socket: &UnixStream) -> Result<OwnedFd, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    // Without a file, either `exec` has ended or this process cannot open more files.
    file.ok_or(Errno::MFILE)
}
