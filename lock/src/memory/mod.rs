//! A database in memory, for simulations and for the unit tests of programs that use this crate.
//!
//! Everything above the statements is the real thing: [`Store`](crate::Store), [`Client`](crate::Client),
//! `Membership`, the pool with its time limits and repetitions. Below, the statements
//! run on plain data instead of SQL. A test compares random sequences of them with a PostgreSQL server: answers and
//! tables are equal.
//!
//! ```
//! # use std::time::Duration;
//! use leadergroup_lock::memory::MemoryDatabase;
//! use leadergroup_lock::{Client, ClientConfig, Key, Store};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let database = MemoryDatabase::new();
//! let client = Client::connect(Store::in_memory(&database), ClientConfig::default()).await?;
//! let guard = client.lock(&Key::new("nightly-report")?, Duration::from_secs(60)).await?;
//! assert_eq!(guard.token().get(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! Session ids and eras follow from the database's seed. With paused time and one thread, a run is repeatable as far as
//! the program itself is: [`GrantId::new`](crate::GrantId::new) and the pauses of a waiting [`Client`](crate::Client)
//! are random.

#![allow(clippy::unnecessary_wraps, reason = "a statement may fail, so all have one signature")]

mod claims;
mod client;
mod database;
mod failure;
mod grants;
mod network;
mod programs;
mod pruning;
mod queries;
mod random;
mod releases;
mod sessions;
mod signal;
mod tables;
mod transaction;

pub use crate::clock::Suspended;
pub use client::MemoryClient;
pub(crate) use client::{Connected, Heard};
pub use database::MemoryDatabase;
pub use network::{Call, End, Fate, Network};
