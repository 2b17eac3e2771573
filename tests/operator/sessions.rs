//! The replicas' sessions in the database, and which of them owns a group.

use crate::postgres::{Database, eventually};

/// The number that is the name of the replica that owns the database's only group, if one does: a group that moves has
/// no owner for a moment.
pub(crate) async fn owner(database: &Database) -> Option<usize> {
    let owner = "select coalesce(max(split_part(s.name, '/', 2)::int8), -1) from leadergroup.lock l \
                 join leadergroup.session s on s.id = l.session where not s.dead";
    usize::try_from(database.number(owner).await).ok()
}

/// The heartbeats of the living session that has the fewest.
pub(crate) async fn beats(database: &Database) -> i64 {
    database.number("select min(beat) from leadergroup.session where not dead").await
}

/// Waits for as many more heartbeats.
pub(crate) async fn later(database: &Database, count: i64) {
    let until = beats(database).await + count;
    eventually("some heartbeats", async || beats(database).await >= until).await;
}
