//! Evidence: which pods work, which fail, and which have not been heard of.
//!
//! The room turns three sources into one [`Verdict`] per pod: the operator's own probes ([`Prober`]), the kubelet's word
//! as the API server repeats it ([`PodFacts`]), and the leases of the nodes ([`NodeLeases`]). Everything but the prober is
//! pure: it is told the time, a [`Duration`](std::time::Duration) on the clock of [`Monotonic`], and does no I/O.
//!
//! It knows the API types and Kubernetes' `Pod`; it decides nothing. Two rules hold throughout:
//!
//! * Only fresh, positive evidence makes a pod eligible.
//! * The absence of evidence counts against a pod only for as long as we ourselves were certainly looking.

mod clock;
mod evidence;
mod facts;
mod node;
mod probe;
mod prober;
mod probes;
mod thresholds;

pub use clock::Monotonic;
pub use evidence::{PodEvidence, Standing, Verdict};
pub use facts::{ContainerProblem, PodFacts, PodPhase, Readiness, Restarts};
pub use node::{LEASE_DURATION, NodeLease, NodeLeases, NodeWord};
pub use probe::{ProbeKind, ProbeOutcome, ProbeRefusal, Refusal, ResolvedProbe};
pub use prober::{ProbeEvent, ProbeStep, Prober, Target};
pub use thresholds::Thresholds;
