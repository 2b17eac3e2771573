//! Tests of one replica of the operator as a separate process, with a real API server and a real PostgreSQL: user
//! errors, and shutdown.

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]
#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

mod account;
#[path = "../apiserver/mod.rs"]
mod apiserver;
mod audit;
mod balance;
mod chart;
mod claims;
mod cli;
mod collector;
mod connections;
mod contested;
mod database;
mod endpoint_faults;
mod endpoints;
mod events;
mod explain;
mod failover;
mod flows;
mod groups;
mod injection;
mod keys;
mod kubelet;
mod late;
mod objects;
mod observed;
mod opinion;
mod overlap;
mod paths;
mod policies;
#[path = "../../lock/tests/postgres/mod.rs"]
mod postgres;
mod probes;
mod ready;
mod recovery;
mod refusals;
mod rendered;
mod replica;
mod reports;
mod requests;
mod rights;
mod sessions;
mod switchover;
mod templates;
mod traces;
mod versions;
mod web;
mod webhooks;
