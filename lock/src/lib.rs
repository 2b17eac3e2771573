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
//! Time in the database is for information only. A [`FailureDetector`] judges on a monotonic clock whether a session is
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
//! - `controller`: for a program that decides which of *others* works.
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
//! use leadergroup_lock::{Claim, Claimed, Grant, GrantId, Holder, Key, Membership, SessionConfig};
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

mod acquire;
mod applicant;
mod batch;
pub mod blocking;
mod campaign;
#[cfg(feature = "controller")]
mod claim;
mod client;
mod clock;
mod config;
mod database;
mod error;
mod failure_detector;
mod fence;
#[cfg(feature = "controller")]
mod grant;
mod guard;
mod heartbeat;
mod held_term;
#[cfg(feature = "prometheus-client")]
mod histograms;
mod holding;
mod jitter;
mod lease;
mod link;
mod listen;
mod lookout;
#[cfg(feature = "memory")]
pub mod memory;
mod migrations;
mod outlook;
mod pool;
mod pooler;
mod process;
#[cfg(feature = "prometheus-client")]
mod prometheus;
mod prune;
mod quarantine;
mod query;
mod reason;
#[cfg(feature = "controller")]
mod reassign;
mod reconcile;
mod refusal;
mod route;
mod rows;
mod schema;
mod session;
mod set_ttl;
mod settings;
mod statement;
mod stats;
mod store;
mod target;
#[cfg(feature = "controller")]
mod terms;
mod trace;
mod turns;
mod types;
mod unfinished;
mod url;
mod wait;

pub use acquire::{AcquireRequest, Acquired, Attempt, HolderSession, Successor, Transfer, Wait};
#[cfg(feature = "controller")]
pub use claim::{Claim, Claimed, ClaimedRow, Unclaimed};
pub use client::Client;
pub use clock::{Clock, monotonic};
pub use config::{DatabaseConfig, Secret};
pub use error::LockError;
pub use failure_detector::FailureDetector;
pub use fence::{FENCE_SEEN_SQL, FencePolicy, Overrun};
#[cfg(feature = "controller")]
pub use grant::{Grant, Granted, Vacate};
pub use guard::{Guard, Transferred};
#[cfg(feature = "controller")]
pub use heartbeat::{BeatEvent, Membership, Peer, SessionEvent};
pub use held_term::Released;
pub use listen::Hint;
#[cfg(feature = "controller")]
pub use listen::LONGEST_MESSAGE;
pub use pool::PoolState;
#[cfg(feature = "prometheus-client")]
pub use prometheus::LockMetrics;
pub use prune::{Pruned, Retention, housekeeping};
pub use quarantine::Quarantine;
pub use query::{LONGEST_LIST, LockInfo, SessionInfo, Summary, TermInfo, WaiterInfo};
pub use reason::{ClientError, Reason};
#[cfg(feature = "controller")]
pub use reassign::{Reassigned, Reassignment};
pub use refusal::{Changed, Refusal};
pub use schema::{Health, install_sql};
pub use settings::{ClientConfig, SessionConfig};
pub use stats::LockStats;
pub use store::Store;
#[cfg(feature = "controller")]
pub use terms::Tombstone;
pub use types::{
    Beat, EraId, GrantId, Holder, Key, LockRow, MAX_TEXT_BYTES, MOST_WAITERS, PROTOCOL, SessionId,
    SessionSeen, Term, Token,
};
