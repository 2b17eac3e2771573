//! For controllers, which decide which of *others* works: memberships, claims, grants, tombstones, hand-overs of rows.
//!
//! Uses `session` and `db`. Programs do not need it.

pub(crate) mod claim;
pub(crate) mod grant;
pub(crate) mod reassign;
pub(crate) mod terms;

pub use crate::session::heartbeat::{BeatEvent, Membership, Peer, SessionEvent};
pub use crate::session::listen::{Hint, LONGEST_MESSAGE};
pub use crate::session::settings::SessionConfig;
pub use claim::{Claim, Claimed, ClaimedRow, Unclaimed};
pub use grant::{Grant, Granted, Vacate};
pub use reassign::{Reassigned, Reassignment};
pub use terms::Tombstone;
