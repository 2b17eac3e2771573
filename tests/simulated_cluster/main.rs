//! The whole operator under simulation: several replicas, real from their watches to their writes, with simulated
//! time, network, API server and database.

#![allow(missing_docs, unreachable_pub, reason = "modules of one test")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::struct_excessive_bools, reason = "the traits of a kind")]

mod agenda;
mod api_server;
#[path = "../apiserver/mod.rs"]
mod apiserver;
mod balance;
mod cluster;
mod comparison;
mod deadlines;
mod edits;
mod faults;
mod host;
mod log;
mod network;
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
mod wire;
