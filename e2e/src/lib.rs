//! The end-to-end side of LeaderGroup: a real cluster, a checker of its history, a client, and the scenarios.

pub mod history;
pub mod moment;
