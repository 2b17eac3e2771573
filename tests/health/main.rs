//! The health room against real sockets, a stopped process, and orders of events that nobody thought of.

#![allow(clippy::unwrap_used)]

mod evidence;
mod facts;
mod late;
mod prober;
mod server;
mod stopped;
