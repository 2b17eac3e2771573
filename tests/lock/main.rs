//! The lock on a real PostgreSQL, by subject.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod cast;
mod charge;
#[path = "../postgres/mod.rs"]
mod postgres;
mod sessions;
mod terms;
