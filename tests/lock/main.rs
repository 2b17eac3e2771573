//! The lock on a real PostgreSQL, by subject.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod cast;
mod charge;
mod connections;
#[path = "../postgres/mod.rs"]
mod postgres;
mod sessions;
mod terms;
