//! The lock on a real PostgreSQL, by subject.

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod acquire;
mod application;
mod backup;
mod bank;
mod batches;
mod campaign;
mod cast;
mod claims;
mod client;
mod collation;
mod connections;
mod contention;
mod cost;
mod death;
mod delay;
mod documented;
mod eras;
mod examples;
mod fence;
mod fence_seen;
mod fitting;
mod foreign_locks;
mod forgotten;
mod grants;
mod hold_contract;
mod hold_model;
mod holders;
mod hostile;
mod hosts;
mod listening;
mod model;
mod neighbours;
mod opening;
mod orphans;
#[path = "../postgres/mod.rs"]
mod postgres;
mod processes;
#[path = "../program/mod.rs"]
mod program;
mod promotions;
mod provider;
mod pruning;
mod published;
mod quarantine;
mod random;
mod reasons;
mod reassign;
mod reconcile;
mod semaphore;
mod sessions;
mod silent;
mod stats;
mod terms;
mod trace;
mod transfer;
mod trouble;
mod url_file;
