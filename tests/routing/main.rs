//! Tests of routing with a real API server: each write with its preconditions, and two concurrent writers, one of
//! them late.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[path = "../apiserver/mod.rs"]
mod apiserver;
mod endpoints;
mod groups;
mod history;
mod owners;
mod pods;
mod stage;
mod writers;
