//! The whole operator under simulation: several replicas, real from their watches to their writes, with simulated
//! time, network, API server and database.
//!
//! In one group of each run the pods have agents (`agents`): the real machine of `leadergroup-agent` starts and ends
//! simulated programs, and no two of them may ever run at the same moment (I9).

#![allow(missing_docs, unreachable_pub, reason = "modules of one test")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::struct_excessive_bools, reason = "the traits of a kind")]

/// As in the operator itself. A third of a run's time would go to the usual one.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod agenda;
mod agents;
mod api_server;
#[path = "../apiserver/mod.rs"]
mod apiserver;
mod balance;
mod cluster;
mod comparison;
mod cores;
mod deadlines;
mod edits;
mod faults;
mod hooks;
mod host;
mod log;
mod network;
mod outages;
mod played;
mod recorded;
mod replica;
mod runs;
mod services;
mod shrinking;
mod simulation;
mod slices;
mod tests;
mod trace;
mod wall_clock;
mod wire;
