//! For controllers, which decide which of *others* works: memberships, claims, grants, tombstones, hand-overs of rows.
//!
//! A controller, such as a Kubernetes operator, keeps a session with a [`Membership`], claims keys, and grants them to
//! holders:
//!
//! ```no_run
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
//!     println!("{:?}", store.grant(own, grant).await?);
//! }
//! # Ok(())
//! # }
//! ```

pub(crate) mod claim;
pub(crate) mod grant;
pub(crate) mod reassign;
pub(crate) mod terms;

pub use crate::session::heartbeat::{BeatEvent, Membership, Peer, SessionEvent};
pub use crate::session::listen::{Hint, LONGEST_MESSAGE};
pub use crate::session::settings::SessionConfig;
pub use crate::types::LockRow;
pub use claim::{Claim, Claimed, ClaimedRow, Unclaimed};
pub use grant::{Grant, Granted, Vacate};
pub use reassign::{Reassigned, Reassignment};
pub use terms::Tombstone;
