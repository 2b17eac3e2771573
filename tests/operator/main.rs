//! Tests of one replica of the operator as a separate process, with a real API server and a real PostgreSQL: user
//! errors, and shutdown.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

mod account;
#[path = "../apiserver/mod.rs"]
mod apiserver;
mod database;
mod groups;
mod objects;
#[path = "../../lock/tests/postgres/mod.rs"]
mod postgres;
mod replica;
mod rights;
