//! The migrations that this program brings along, and the version that they make.

/// One step of the schema.
pub(crate) struct Migration {
    pub(crate) sql: &'static str,
    /// The oldest program (by the version of the schema it brings along) that can work with the result. Two versions of
    /// the program run side by side during an upgrade, so this only rises when that is impossible.
    pub(crate) works_with: u32,
}

/// All steps, one subject each; the first one creates version 1.
pub(crate) const MIGRATIONS: [Migration; 8] = [
    Migration { sql: include_str!("../migrations/0001_era.sql"), works_with: 1 },
    Migration { sql: include_str!("../migrations/0002_sessions.sql"), works_with: 1 },
    Migration { sql: include_str!("../migrations/0003_locks.sql"), works_with: 1 },
    Migration { sql: include_str!("../migrations/0004_fence.sql"), works_with: 1 },
    Migration { sql: include_str!("../migrations/0005_acquire.sql"), works_with: 1 },
    Migration { sql: include_str!("../migrations/0006_release.sql"), works_with: 1 },
    Migration { sql: include_str!("../migrations/0007_prune.sql"), works_with: 1 },
    Migration { sql: include_str!("../migrations/0008_data.sql"), works_with: 1 },
];

/// The version that this program brings along and needs.
#[allow(clippy::cast_possible_truncation, reason = "the number of migrations is small")]
pub(crate) const VERSION: u32 = MIGRATIONS.len() as u32;
