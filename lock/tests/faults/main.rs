//! The lock while its database, the network or the clocks fail, one file for each subject. The tables in
//! docs/database-faults.md name the tests.

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[path = "../lock/cast.rs"]
#[allow(dead_code, reason = "the lock's own tests use the rest")]
mod cast;
mod clocks;
mod crash;
mod cuts;
mod disk;
mod failover;
mod kills;
mod latency;
mod max_hold;
mod network;
mod operations;
mod pauses;
mod pgbouncer;
mod pooler;
#[path = "../postgres/mod.rs"]
mod postgres;
#[path = "../program/mod.rs"]
mod program;
mod rds_proxy;
mod standby;
mod upgrade;

use leadergroup_lock_conformance::proxy;
