//! The lock on a real PostgreSQL, by subject.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod acquire;
mod bank;
mod cast;
mod claims;
mod client;
mod connections;
mod contention;
mod cost;
mod death;
mod delay;
mod eras;
mod examples;
mod fence;
mod fence_seen;
mod hold_contract;
mod hold_model;
mod holders;
mod hosts;
mod model;
mod obstacles;
mod opening;
#[path = "../postgres/mod.rs"]
mod postgres;
mod processes;
#[path = "../program/mod.rs"]
mod program;
mod quarantine;
mod reconcile;
mod remains;
mod sessions;
mod short_way;
mod spans;
mod stats;
mod terms;
mod together;
mod transfer;
mod trouble;
mod ttl;
mod url_file;
