//! What the process tells about itself: metrics, logs, and whether it lives and is ready.
//!
//! The room knows nothing of the others. They hold its handles ([`Metrics`], [`Liveness`], [`Readiness`]), all of them
//! cheap to clone, and say what happens; [`Server`] answers those who ask.

mod endpoints;
mod liveness;
mod lock;
mod logs;
mod metrics;
mod panics;
mod process;

pub use endpoints::{BindError, Endpoints, Server};
pub use liveness::{Check, Liveness, Readiness};
pub use lock::LockReading;
pub use logs::{FilterError, LogFormat, UnknownLogFormat, init_logs, log_subscriber};
pub use metrics::{ApiOutcome, GroupReading, GroupState, LockOutcome, Metrics};
pub use panics::end_on_panic;
