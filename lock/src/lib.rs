//! A lock in PostgreSQL for programs that must not run twice at the same time: sessions, leases, fencing tokens, and a
//! queue.
//!
//! - A *session* is one running process. One heartbeat keeps everything that it holds, so the cost does not grow with
//!   the number of keys.
//! - A *lock* is a row with a key. It names its *holder*, the *token* of the holder's term, and the session that may
//!   change it.
//! - A *token* grows with each change of holder, also after a failover that lost commits. Pass it to every store that
//!   is written to under the lock ([how]): only that stops a holder that was paused and resumes.
//!
//! Time in the database is for information only. A failure detector judges on a monotonic clock whether a session is
//! dead: its heartbeat counter did not change for its ttl. The session is then *marked* dead by compare-and-set on that
//! counter, and everything that it sends later is refused.
//!
//! A program on tokio uses a [`Client`], any other one a [`blocking::Client`]. It takes a key if it is free
//! ([`Client::try_lock`]), waits for it ([`Client::lock`]), or has work done while it is held
//! ([`Client::run_while_held`], [`Client::campaign`]). A [`Guard`] says when its key is lost, a fifth of the ttl before
//! others can have it. [`Store::observe`] tells other programs who the holder is.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Key, Store};
//!
//! let url = "postgres://app@db.example/app".into();
//! let store = Store::new(&DatabaseConfig { url, ..DatabaseConfig::default() })?;
//! store.migrate().await?;
//! let client = Client::connect(store, ClientConfig { name: "worker-1".into(), ..ClientConfig::default() }).await?;
//! let key = Key::new("nightly-report")?;
//! let wait = Duration::from_secs(60);
//! client.run_while_held(&key, wait, async |guard| work(guard.token().get()).await).await?;
//! client.shutdown().await?;
//! # Ok(())
//! # }
//! # async fn work(token: i64) {}
//! ```
//!
//! Read on: [what happens when ...][readme], [faults of the database][faults], [clients in other languages][sql], [when
//! not to use a lock][not].
//!
//! [how]: https://github.com/leadergroup/leadergroup/blob/main/docs/fencing.md
//! [readme]: https://github.com/leadergroup/leadergroup/blob/main/lock/README.md#what-happens-when-
//! [faults]: https://github.com/leadergroup/leadergroup/blob/main/docs/database-faults.md
//! [sql]: https://github.com/leadergroup/leadergroup/blob/main/lock/docs/sql-protocol.md
//! [not]: https://github.com/leadergroup/leadergroup/blob/main/lock/docs/when-not-to-use-a-lock.md
//!
//! # Features
//!
//! - `controller`: the module `controller`, for a program that decides which of *others* works, and the module
//!   `protocol`, the single steps that clients and controllers are made of.
//! - `memory`: a database in memory, for simulations and unit tests.
//! - `prometheus-client`: `LockMetrics`, for the registry of the crate of the same name.

// Controllers and programs share most of what is internal.
#![cfg_attr(not(feature = "controller"), allow(dead_code, unused_imports, unreachable_pub))]

pub mod admin;
mod clock;
#[cfg(feature = "controller")]
pub mod controller;
mod db;
mod error;
mod jitter;
#[cfg(feature = "memory")]
pub mod memory;
mod program;
#[cfg(feature = "prometheus-client")]
mod prometheus;
#[cfg(feature = "controller")]
pub mod protocol;
#[cfg(not(feature = "controller"))]
mod protocol;
mod session;
mod store;
mod types;

pub use clock::{Clock, monotonic};
pub use db::{
    config::{DatabaseConfig, Secret},
    fence::{FencePolicy, Overrun},
    observe::{Leader, Observer},
    pool::PoolState,
    provider::Provider,
    refusal::{Changed, Refusal},
    stats::LockStats,
};
pub use error::LockError;
pub use program::{
    acquire::Successor,
    blocking,
    client::Client,
    guard::{Guard, Transferred},
    held_term::Released,
    reason::{ClientError, Reason},
    tried::Tried,
    watcher::Watcher,
};
#[cfg(feature = "prometheus-client")]
pub use prometheus::LockMetrics;
pub use session::settings::ClientConfig;
pub use sqlx::postgres::{PgConnectOptions, PgSslMode};
pub use store::Store;
pub use types::{GrantId, Holder, Key, SessionId, Term, Token};
