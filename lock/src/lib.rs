//! A lock in PostgreSQL for programs that must run one copy at a time: sessions, leases, fencing tokens, and a queue.
//!
//! - A *session* is one running process. One heartbeat keeps everything that it holds, so the cost does not grow with
//!   the number of keys.
//! - A *lock* is a row with a key. It names its *holder*, the *token* of the holder's term, and the session that may
//!   change it.
//! - A *token* grows with each change of holder and is never used twice, even when the database lost commits. Pass it
//!   to every store that is written to under the lock, in SQL (`leadergroup.fence(key, token)`) or elsewhere: only that
//!   stops a holder that was paused and resumes.
//!
//! Time in the database is for information only. A failure detector judges on a monotonic clock whether a session is
//! dead: its heartbeat counter did not change for its ttl. The session is then *marked* dead by compare-and-set on that
//! counter, and everything that it sends later is refused.
//!
//! A program uses a [`Client`], or [`blocking::Client`] without an async runtime:
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
//! client.run_while_held(&key, Duration::from_secs(60), async |guard| work(guard.token().get()).await).await?;
//! client.shutdown().await?;
//! # Ok(())
//! # }
//! # async fn work(token: i64) {}
//! ```
//!
//! Programs in other languages call the same SQL functions; `docs/sql-protocol.md` describes them.
//!
//! # Features
//!
//! - `controller`: the module `controller`, for a program that decides which of *others* works, and the module
//!   `protocol`, the single steps that clients and controllers are made of.
//! - `memory`: a database in memory, for simulations and unit tests.
//! - `prometheus-client`: `LockMetrics`, for the registry of the crate of the same name.
//!
//! # Controllers
//!
//! With the feature `controller`: a controller that decides which of *others* works, as a Kubernetes operator does,
//! keeps a session with a `Membership`, claims keys, and grants them to holders:
//!
#![cfg_attr(feature = "controller", doc = "```no_run")]
#![cfg_attr(not(feature = "controller"), doc = "```ignore")]
//! # async fn example(store: leadergroup_lock::Store) -> Result<(), leadergroup_lock::LockError> {
//! use leadergroup_lock::controller::{Claim, Claimed, Grant, Membership, SessionConfig};
//! use leadergroup_lock::{GrantId, Holder, Key};
//!
//! let config = SessionConfig { name: "controller-1".into(), ..SessionConfig::default() };
//! let (membership, _events) = Membership::join(store.clone(), config).await?;
//! let (own, key) = (membership.session(), Key::new("web")?);
//! let claim = Claim { key: key.clone(), group: "shop".into(), may_create: true, supersedes: None };
//! if let Claimed::Ours(row) = &store.claim(own, &[claim]).await?[0] {
//!     let holder = Holder { uid: "4711".into(), namespace: "shop".into(), name: "web-0".into() };
//!     let grant = Grant {
//!         key,
//!         group: "shop".into(),
//!         expected: row.token,
//!         floor: row.token,
//!         holder,
//!         grant: GrantId::new(),
//!         reason: "started".into(),
//!     };
//!     println!("{:?}", store.grant(own, &[grant]).await?[0]);
//! }
//! # Ok(())
//! # }
//! ```

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

pub use clock::monotonic;
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
};
#[cfg(feature = "prometheus-client")]
pub use prometheus::LockMetrics;
pub use session::settings::ClientConfig;
pub use sqlx::postgres::{PgConnectOptions, PgSslMode};
pub use store::Store;
pub use types::{GrantId, Holder, Key, LockRow, SessionId, Term, Token};
