//! Scenarios: a workload with a `LeaderGroup`, faults, and the conditions that must hold all the time.
//!
//! A [`Stage`] is a shared cluster with the operator and a recording of everything. A [`Scenario`] is one namespace
//! on it with its own workload. At its end the history of the namespace and the calls of its clients are checked,
//! and the measurements are added to the [`Report`]. The scenarios themselves are tests in `tests/scenarios/`.

mod context;
mod diagnose;
mod failover;
mod kubelet;
mod operator;
mod quiet;
mod report;
mod rest;
mod runner;
mod service;
mod settings;
mod stage;
mod together;
mod wait;
mod workload;

pub(crate) use settings::faults_last;

pub use context::{Active, STARTED, Scenario, TAKEOVER, TOLD};
pub use failover::{CRASHED, DELETED};
pub use operator::{NAMESPACE as OPERATOR_NAMESPACE, Operator, RELEASE, is_ready};
pub use report::{Line, Measured, Report, Seen, ms};
pub use runner::{Entry, Needs, run_all};
pub use settings::{clients_changes, database_rounds, faults_setting, program_changes};
pub use stage::{Stage, beside, build_operator, target_folder};
pub use together::Together;
pub use wait::{eventually, throughout};
pub use workload::{IMAGE, LEAVES_AFTER, PORT, Workload, spread_over_nodes};
