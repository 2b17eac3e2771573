//! Copies the agent's own program into a directory, for an init container that fills an `emptyDir`. The containers of
//! the pod can then run it, whatever their images have in them.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use crate::files::{remove, unfinished};

/// The running program.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// What it is called in the directory.
const NAME: &str = "leadergroup-agent";
/// Everyone may read and run it.
const MODE: u32 = 0o555;

/// Copies the program in one step: a process that starts it in the meantime runs either the former program or the
/// complete new one.
pub fn install(directory: &Path) -> io::Result<()> {
    let program = directory.join(NAME);
    let unfinished = unfinished(&program);
    // One that an earlier init container has left behind.
    remove(&unfinished)?;
    let copied = copy(&unfinished).and_then(|()| fs::rename(&unfinished, program));
    if copied.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    copied
}

fn copy(to: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(to)?;
    io::copy(&mut File::open(THIS_PROGRAM)?, &mut file)?;
    // The umask does not count.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.sync_all()
}
