//! Evidence: which pods work, which fail, and which are silent.
//!
//! This module combines three sources into one [`Verdict`](crate::api::Verdict) per pod: the operator's own probes
//! ([`Prober`]), the kubelet's reports that arrive through the API server ([`PodFacts`]), and the leases of the nodes
//! ([`NodeLeases`]). Everything except the prober is pure: it does no I/O and gets the time as an argument, a
//! [`Duration`](std::time::Duration) on one monotonic [`Clock`](leadergroup_lock::Clock).
//!
//! It depends on the API types and Kubernetes' `Pod`, and makes no decisions. Two rules apply throughout:
//!
//! * Only fresh, positive evidence makes a pod eligible.
//! * The absence of evidence counts against a pod only for the time in which we were certainly observing it.

mod evidence;
mod facts;
mod node;
mod opinion;
mod probe;
mod prober;
mod probes;
mod reach;
mod thresholds;

pub use evidence::{JudgedAs, PodEvidence};
pub use facts::{ContainerProblem, PodFacts, PodPhase, Readiness, Restarts};
pub use node::{LEASE_DURATION, NodeLease, NodeLeases, NodeWord};
pub use probe::{ProbeFailure, ProbeKind, ProbeOutcome, ProbeRefusal, ResolvedProbe, VoidCause};
pub(crate) use probe::{USER_AGENT, address};
#[cfg(test)]
pub(crate) use prober::MachineNetwork;
pub(crate) use prober::is_failure_of_this_machine;
pub use prober::{Network, ProbeEvent, ProbeStep, Prober, Stream, Target};
pub use reach::Reach;
pub use thresholds::Thresholds;
