//! Telemetry: metrics, logs, traces, liveness and readiness of the process.
//!
//! This module uses no other module of the crate. The others report through its handles ([`Metrics`], [`Traces`],
//! [`Liveness`], [`ReadyChecks`]), which are cheap to clone. [`Server`] answers requests.

mod collector;
mod endpoints;
mod evidence;
mod groups;
mod liveness;
mod logs;
mod metrics;
mod panics;
mod process;
mod traces;

pub use endpoints::{BindError, Endpoints, Server};
pub use groups::{ChangeKind, GroupReading, ShownCondition};
pub use liveness::{Check, Liveness, ReadyChecks};
pub use logs::{FilterError, LogFormat, UnknownLogFormat, init_logs, log_subscriber};
pub use metrics::{ApiOutcome, GroupState, LockOperation, LockOutcome, Metrics};
pub use panics::end_on_panic;
#[cfg(test)]
pub(crate) use traces::recorded;
pub use traces::{Step, Timer, Trace, Traced, Traces, TracesError};
