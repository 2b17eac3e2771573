//! For administrators and their tools: installing and checking the schema, listing locks, releasing one by force,
//! pruning. Programs that only use locks do not need it. The calls themselves are methods of [`Store`](crate::Store).

pub use crate::db::{
    fence::FENCE_SEEN_SQL,
    prune::{Pruned, Retention, housekeeping},
    query::{LONGEST_LIST, LockInfo, SessionInfo, Summary, TermInfo, WaiterInfo},
    schema::{Health, install_sql},
};
