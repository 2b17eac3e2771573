//! Tests of `src/health` with real sockets, a stopped process, and random orders of events.

#![allow(clippy::unwrap_used)]

mod evidence;
mod facts;
mod late;
mod prober;
mod server;
mod stopped;
