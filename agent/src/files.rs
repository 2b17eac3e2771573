//! Files that are written under another name and then renamed, so that no reader finds an incomplete one.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// Where to write the new version of a file, in the same directory.
pub(crate) fn unfinished(file: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(".new");
    file.with_file_name(name)
}

/// Removes a file, if it exists.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
