//! Which replica works for which group: the second pure core, beside the election.
//!
//! The *owner* of a group is the replica that runs its election. The lock's row names it, and a replica that is not
//! named there can change no holder, whatever it assumes. This room decides when a replica claims a group and when it
//! gives one away, which replica is the *deputy*, and what replicas ask each other about holders that they do not hear.
//! It uses the lock's types, performs no I/O and reads no clock.
//!
//! [`Group::step`] takes an [`Event`] and the present time, and returns an [`Effect`]. The phase says who owns the
//! group, as far as this replica knows. These are the phases, and all ways from one to another; a test compares this
//! table with the code.
//!
//! | phase | the group | ends with |
//! |---|---|---|
//! | `Unowned` | has no owner, as far as is known | `Turn` → `Claiming` |
//! | `Claiming` | is claimed; the answer is on its way | `Answered` → `Ours`, `Elsewhere`, `Yielded`, `Foreign`, `Refused`, `Given`, `Unowned` |
//! | `Ours` | is this replica's | `Beat` → `Given`, `Unowned`; `PassOn`, `SessionEnded`, `Lost` → `Unowned` |
//! | `Given` | was given to the replica that it falls to, which is not known to have claimed it | `Turn` → `Claiming` |
//! | `Elsewhere` | is another replica's | `GivenUp` → `Yielded`; `Turn` → `Unowned`, `Claiming` |
//! | `Yielded` | was another replica's, which lives and may have given it up | `Turn` → `Claiming`, `Unowned` |
//! | `Foreign` | has no row: its key is another group's | `Turn` → `Claiming` |
//! | `Refused` | has no row: it may not take its key | `Turn` → `Claiming` |
//!
//! All replicas compute from the living sessions which of them each group falls to ([`owner`]), so that usually one of
//! them claims a free group. If that one does not, the others do after half of the session's ttl. One that does not
//! hear the holder, and one that gave the group away because of its pods, wait longer. One whose session has outlived
//! an outage of the database claims at once what it owned. Two claims at the same time do no harm: the row goes to one
//! of them.

mod assignment;
mod batches;
mod event;
mod group;
mod opinion;
mod sessions;
mod unclaimed;

pub use assignment::{deputy, owner, stable_hash};
pub use batches::Batches;
pub use event::{Answer, Effect, Event, Failure, Inside, Outside, Replica, Room, Why};
pub use group::{Claim, Group, Origin, Owner, Phase, Probing, Vacancy};
pub use opinion::{Opinion, Untold, What};
pub use sessions::{Sessions, Yielded};
pub use unclaimed::Unclaimed;
