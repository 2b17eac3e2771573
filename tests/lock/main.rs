//! The lock on a real PostgreSQL, by subject.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod cast;
mod charge;
mod connections;
mod contention;
mod cost;
mod death;
mod epochs;
mod model;
#[path = "../postgres/mod.rs"]
mod postgres;
mod sessions;
mod terms;
mod trouble;
mod url_file;
