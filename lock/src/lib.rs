//! The lock room: sessions, locks and fencing tokens in PostgreSQL, for any program that wants exactly one active owner
//! of a key. It knows PostgreSQL and nothing else; that the owners happen to be pods is the operator's business.
//!
//! - A *session* is one running process. One heartbeat keeps all its locks, so the cost does not grow with their number.
//! - A *lock* is a row with a key. It names its *owner* (the holder), the *token* of the owner's term and the session *in
//!   charge*: the process that may change it. Charge and ownership are apart: taking charge of a row whose session died
//!   never changes the holder.
//! - A *token* grows with each change of holder and is never used twice, even when the database lost commits.
//!
//! Time in the database is for information only. Whether a session is dead is judged by an [`Observer`] on a monotonic
//! clock: its counter did not change for its ttl. It is then *marked* dead by compare-and-set on that counter, and
//! whatever it sends later is refused.
//!
//! There are two ways in. A program that is itself to work one at a time takes a [`Client`]: it holds a session in the
//! background and gives out [`Guard`]s, for keys taken at once ([`Client::try_lock`]) or waited for in order
//! ([`Client::lock`]).
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
//! let guard = client.lock(&Key::new("nightly-report")?, Duration::from_secs(60)).await?;
//! tokio::select! {
//!     () = guard.lost() => eprintln!("stop: others may be at work soon"),
//!     () = work(guard.token().get()) => {}
//! }
//! client.shutdown().await?;
//! # Ok(())
//! # }
//! # async fn work(token: i64) {}
//! ```
//!
//! A program that decides who of *others* is to work, as the operator does, uses the [`Store`] itself: it
//! [registers](Store::register) a session and keeps it by [heartbeats](Store::beat), takes [charge](Store::claim) of
//! keys, and [grants](Store::grant) them to owners.
//!
//! ```no_run
//! # async fn example(store: leadergroup_lock::Store) -> Result<(), leadergroup_lock::LockError> {
//! use std::time::Duration;
//! use leadergroup_lock::{Claim, Claimed, Grant, GrantId, Key, Owner};
//!
//! let own = store.register("controller-1", Duration::from_secs(5)).await?;
//! let key = Key::new("web")?;
//! let claim = Claim { key: key.clone(), group: "shop".into(), may_create: true, supersedes: None };
//! if let Claimed::Ours(row) = &store.claim(own, &[claim]).await?[0] {
//!     let owner = Owner { uid: "4711".into(), namespace: "shop".into(), name: "web-0".into() };
//!     let grant = Grant {
//!         key,
//!         expected: row.token,
//!         floor: row.token,
//!         owner,
//!         grant: GrantId::new(),
//!         reason: "started".into(),
//!     };
//!     println!("{:?}", store.grant(own, &[grant]).await?[0]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Whatever is written under a lock should show the [`Token`] of its term to a fence, in SQL
//! (`leadergroup.fence(key, token)`) or wherever it writes to: only that stops a holder that was paused and goes on.

mod belief;
mod charge;
mod client;
mod config;
mod doubt;
mod error;
mod fence;
mod guard;
mod hints;
mod hold;
mod inspect;
mod keeper;
mod model;
mod observer;
mod obstacle;
mod pool;
mod pooler;
mod read;
mod remains;
mod schema;
mod session;
mod settler;
mod short;
mod spans;
mod stats;
mod store;
mod target;
mod term;
mod tidy;
mod together;
mod verdict;
mod waiting;
mod wish;

pub use belief::{Belief, monotonic};
pub use client::{Client, ClientConfig, ClientError};
pub use config::{DatabaseConfig, Secret};
pub use error::LockError;
pub use fence::{FENCE_SEEN_SQL, FencePolicy, Overrun};
pub use guard::{Guard, HandedOver, Released};
pub use hold::{HOLD_GROUP, MOST_WAITERS};
pub use inspect::{Census, ChargeInfo, LONGEST_LIST, LockInfo, TermInfo, WaiterInfo};
pub use model::{
    Beat, Changed, Claim, Claimed, Epoch, Grant, GrantId, Granted, Health, Held, Hint, Key, LockRow,
    MAX_TEXT_BYTES, Owner, PROTOCOL, Pruned, Refusal, SessionId, SessionSeen, TOKEN_JUMP, Term, Token,
    Tombstone, Unclaimed, Vacate,
};
pub use observer::Observer;
pub use obstacle::Obstacle;
pub use settler::Settler;
pub use stats::{LockStats, PoolState};
pub use store::Store;
pub use wish::{Acquired, HandOver, Heir, Wish};

pub use tidy::tidy;
