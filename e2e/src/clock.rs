//! A wall clock for single processes, which a test can set. The machine's clock stays as it is.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A wall clock that differs from the machine's by an offset, through libfaketime. Monotonic clocks are not changed.
#[derive(Debug, Clone)]
pub struct WallClock {
    offset: PathBuf,
}

impl WallClock {
    /// A clock that keeps its offset in this directory. It is right at first.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let clock = Self { offset: folder.join("clock-offset") };
        clock.set(0)?;
        Ok(clock)
    }

    /// The command line that runs a program under this clock, to be followed by the program and its arguments.
    pub fn prefix(&self) -> Result<Vec<String>> {
        let libraries = fs::read_dir("/usr/lib").context("listing /usr/lib")?.flatten();
        let library = libraries
            .map(|entry| entry.path().join("faketime/libfaketime.so.1"))
            .find(|path| path.exists())
            .context("libfaketime is missing: install the package faketime")?;
        Ok(vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.offset.display()),
            // Otherwise a new offset takes effect after 10 s.
            "FAKETIME_CACHE_DURATION=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        ])
    }

    /// Makes the clock differ from the machine's by this many seconds.
    pub fn set(&self, offset_seconds: i64) -> Result<()> {
        let next = self.offset.with_extension("next");
        fs::write(&next, format!("{offset_seconds:+}\n"))
            .and_then(|()| fs::rename(&next, &self.offset))
            .with_context(|| format!("cannot write {}", self.offset.display()))
    }
}

/// Removes what libfaketime has left in shared memory: a process that is killed has no time to remove it.
pub fn remove_remains() {
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process =
            ["faketime_shm_", "sem.faketime_sem_"].iter().find_map(|prefix| name.strip_prefix(prefix));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another cluster's clean-up may have been faster.
            let _ = fs::remove_file(entry.path());
        }
    }
}
