//! The container's log.
//!
//! The program writes to the same pipe. If nothing reads it, and it is full, a write to it would wait, and the
//! supervisor must not wait for anything while a lease ends. So a line that does not fit is lost.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    sync::OnceLock,
};

use rustix::fs::OFlags;

static LOG: OnceLock<Option<File>> = OnceLock::new();

/// Opens the log. This must be done before the process can no longer be traced: it then has no rights to its own files
/// in `/proc`.
pub(crate) fn open() {
    LOG.get_or_init(|| {
        // A description of its own: that of standard error is shared with the program, which does not expect that its
        // writes may fail.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        OpenOptions::new().append(true).custom_flags(flags).open("/proc/self/fd/2").ok()
    });
}

/// Writes a line, unless the log is full or is something that cannot be opened, such as a socket.
pub(crate) fn say(text: &str) {
    if let Some(Some(mut log)) = LOG.get().map(Option::as_ref) {
        // In one piece, so that it is not mixed with what the program writes.
        let _ = log.write(format!("leadergroup-agent: {text}\n").as_bytes());
    }
}
