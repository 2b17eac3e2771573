//! Scenarios: a workload under a `LeaderGroup`, something that happens to it, and what must be true all the while.
//!
//! A [`Stage`] is a cluster with the operator on it and everything recorded; it is shared. A [`Scenario`] is one
//! namespace on it with a workload of its own. At its end the history of the namespace is checked for I1 to I4, and
//! what was measured goes into the [`Report`].

mod report;
mod wait;
mod workload;

pub use report::{Line, Measured, Report, ms};
pub use wait::{eventually, throughout};
pub use workload::{IMAGE, PORT, Workload};
