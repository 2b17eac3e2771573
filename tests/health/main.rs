//! Tests of `src/health` with real sockets, a stopped process, and random orders of events.

#![allow(clippy::unwrap_used)]

mod evidence;
mod facts;
mod flooding;
mod forged;
mod grpc;
mod hold;
mod hostile;
mod late;
mod places;
mod probed;
mod prober;
mod reach;
mod server;
mod stopped;
