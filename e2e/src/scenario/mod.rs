//! Scenarios: a workload under a `LeaderGroup`, something that happens to it, and what must be true all the while.
//!
//! A [`Stage`] is a cluster with the operator on it and everything recorded; it is shared. A [`Scenario`] is one
//! namespace on it with a workload of its own. At its end the history of the namespace is checked for I1 to I4, and
//! what was measured goes into the [`Report`]. The scenarios themselves are tests: `tests/scenarios/`.

mod context;
mod diagnose;
mod operator;
mod report;
mod runner;
mod stage;
mod wait;
mod workload;

pub use context::{Active, STARTED, Scenario, TAKEOVER};
pub use operator::{NAMESPACE as OPERATOR_NAMESPACE, Operator, RELEASE, is_ready};
pub use report::{Line, Measured, Report, Seen, ms};
pub use runner::{Entry, Needs, run_all};
pub use stage::{Stage, beside, build_operator, target_folder};
pub use wait::{eventually, throughout};
pub use workload::{IMAGE, PORT, Workload};
