//! The database in memory: it does what PostgreSQL does, and what a test wants it to do.

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
#![allow(clippy::large_futures, clippy::needless_pass_by_value, reason = "a test has no hot path")]
#![allow(clippy::struct_excessive_bools, reason = "the arguments of the statements")]

mod bare;
mod equal;
mod faults;
#[path = "../postgres/mod.rs"]
mod postgres;
mod processes;
#[path = "../lock/random.rs"]
mod random;
mod stage;
mod step;
mod tables;
