//! The process that talks to the network, as the supervisor sees it.

use std::{
    ffi::OsString,
    io::{self, Read as _, Write as _},
    os::{fd::AsFd as _, fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, kill_process},
    time::Timespec,
};

use super::signals::Signals;
use crate::messages::{Lines, ToNetwork, ToSupervisor, line};

/// The running program, even if its file was replaced or removed.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// The name of the hidden command.
pub(crate) const NETWORK: &str = "__network";

/// A running network process. It is killed when this is dropped, unless it has ended, and reaped as any other child.
pub(super) struct NetworkProcess {
    id: Pid,
    socket: UnixStream,
    lines: Lines,
    /// It has closed the socket, or has sent something that is not a message.
    broken: bool,
    /// It was reaped: another process may have its id.
    ended: bool,
}

impl NetworkProcess {
    pub(super) fn start(arguments: &[OsString]) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let child = Command::new(THIS_PROGRAM)
            .arg(NETWORK)
            .args(arguments)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { id: Pid::from_child(&child), socket, lines: Lines::default(), broken: false, ended: false })
    }

    pub(super) fn id(&self) -> Pid {
        self.id
    }

    /// What it has sent. At most 64 KiB at a time, so that it cannot keep the supervisor from its other work.
    pub(super) fn receive(&mut self) -> Vec<ToSupervisor> {
        let mut bytes = [0; 4096];
        for _ in 0..16 {
            match self.socket.read(&mut bytes) {
                Ok(0) => self.broken = true,
                Ok(length) => {
                    self.lines.add(&bytes[..length]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {}
            }
            break;
        }
        let mut messages = Vec::new();
        while !self.broken {
            match self.lines.take() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return messages,
                Err(_) => self.broken = true,
            }
        }
        let _ = kill_process(self.id, Signal::KILL);
        messages
    }

    /// Sends a message. Returns whether it was sent: not if the process does not read. Whatever it misses would soon be
    /// out of date anyway.
    pub(super) fn send(&mut self, message: &ToNetwork) -> bool {
        let line = line(message);
        match self.socket.write(&line) {
            Ok(length) if length == line.len() => return true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Half a line would spoil the next one.
            _ => {
                self.broken = true;
                let _ = kill_process(self.id, Signal::KILL);
            }
        }
        false
    }

    /// Takes into account that it has ended and was reaped.
    pub(super) fn ended(mut self) {
        self.ended = true;
    }
}

impl Drop for NetworkProcess {
    fn drop(&mut self) {
        if !self.ended {
            let _ = kill_process(self.id, Signal::KILL);
        }
    }
}

/// Waits until a signal has arrived, the network process has sent something, or this time has passed.
pub(super) fn wait(
    signals: &Signals,
    network: Option<&NetworkProcess>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    let network = network.filter(|network| !network.broken);
    let mut all: Vec<PollFd<'_>> = std::iter::once(signals.as_fd())
        .chain(network.map(|network| network.socket.as_fd()))
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    // Rounded up: it would otherwise wake up a moment too early, again and again.
    let timeout = timeout.map(|timeout| timeout + Duration::from_micros(50));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut all, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
