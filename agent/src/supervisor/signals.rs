//! The signals of the supervisor. The kernel discards signals to process 1 that have no handler.

use std::{
    io::{self, Read as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::Signal;
use signal_hook::{flag, low_level::pipe};

/// The signals that are passed on to the program.
const PASSED_ON: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TERM, Signal::WINCH];

/// The signals that have arrived.
pub(super) struct Signals {
    arrived: Vec<(Signal, Arc<AtomicBool>)>,
    /// Readable when one of them, or the end of a child, has arrived.
    pipe: UnixStream,
}

impl Signals {
    /// Receives signals from now on.
    pub(super) fn receive() -> io::Result<Self> {
        let (pipe, written) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let mut arrived = Vec::new();
        for signal in PASSED_ON {
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: when the pipe can be read, the flag is set.
            flag::register(signal.as_raw(), flag.clone())?;
            pipe::register(signal.as_raw(), written.try_clone()?)?;
            arrived.push((signal, flag));
        }
        pipe::register(Signal::CHILD.as_raw(), written)?;
        Ok(Self { arrived, pipe })
    }

    /// Those that have arrived since the last call and are passed on.
    pub(super) fn take(&mut self) -> Vec<Signal> {
        let mut bytes = [0; 64];
        while matches!(self.pipe.read(&mut bytes), Ok(1..)) {}
        let arrived = self.arrived.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        arrived.map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
