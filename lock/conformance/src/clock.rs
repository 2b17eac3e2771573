//! A time of day that can be set, for one process: a server, or a client. Its monotonic clocks are left alone.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// A time of day, kept by libfaketime.
#[derive(Debug)]
pub struct Clock {
    directory: tempfile::TempDir,
    library: PathBuf,
}

impl Clock {
    /// A clock that is right at first. An error if libfaketime is not installed.
    pub fn new() -> Result<Self> {
        let library = std::fs::read_dir("/usr/lib")?
            .flatten()
            .map(|entry| entry.path().join("faketime/libfaketime.so.1"))
            .find(|path| path.exists())
            .context("libfaketime is missing: install the package faketime")?;
        let directory = tempfile::tempdir()?;
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
        let clock = Self { directory, library };
        clock.set(0)?;
        Ok(clock)
    }

    /// The variables that the process needs in its environment.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.directory.path().join("offset").display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Makes the clock differ from the true time by this many seconds.
    pub fn set(&self, offset: i64) -> Result<()> {
        let path = self.directory.path();
        let (new, file) = (path.join("new"), path.join("offset"));
        std::fs::write(&new, format!("{offset:+}\n"))?;
        Ok(std::fs::rename(new, file)?)
    }
}
