//! Tests of `kubectl leadergroup` with a real API server: each command of the built program, as a user runs it.

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]
#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

#[path = "../apiserver/mod.rs"]
mod apiserver;
mod changes;
mod doctor;
mod errors;
mod status;
mod world;
