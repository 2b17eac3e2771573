//! The pure core: who is to be active, and which step comes next.
//!
//! [`Group::step`] takes one event and the present moment and answers with effects; it performs no I/O, reads no clock
//! and draws no random number, so that every order of events can be tried in a test. It knows the API types and
//! nothing else: evidence arrives as a [`Standing`], the lock's row as a [`Row`], time as a `Duration` on a monotonic
//! clock.
//!
//! A change of holder goes through five steps, each an effect whose outcome leads to the next: *grant* (the lock's row
//! names the new holder and its token), *declare* (the group's status says so, by compare-and-set), *strip* (every
//! possible former active is standby, confirmed), *promote* (the holder is labelled active) and *confirm*. After a term
//! that was not confirmed its holder is fenced off between the first two. Whatever goes wrong on the way leads back to
//! one place: read the row and the declaration anew, and decide from what they say (`resume.rs`). Taking over from
//! another replica is that same path.

mod evaluate;
mod event;
mod fence;
mod group;
mod plan;
mod resume;
mod step;
#[cfg(test)]
mod tests;

pub use event::{Effect, Event, Finished, Grant, Outcome, Refusal, Ticket};
pub use group::{Group, Member, Phase, Policy, Role, Row, Standing, World};
pub use plan::{Plan, Rest};
