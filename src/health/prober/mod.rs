//! The prober: probes the pods on time and reports the outcomes.
//!
//! There is one task per target and a new connection per probe, as in the kubelet, and at most `limit` probes are in
//! flight. Redirects are not followed, certificates are not verified, and only the beginning of a response is read. A
//! tenant chooses the path and the port, so nothing of the response is used except for the [`ProbeOutcome`].
//!
//! A failure in the prober itself never counts against a pod: see [`ProbeOutcome::Void`] and [`stalls`].

mod exchange;
mod stalls;
mod task;
mod tls;

use std::{collections::HashMap, fmt, net::IpAddr, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::AbortHandle,
};

use super::{Monotonic, ProbeOutcome, ResolvedProbe};
use stalls::Stalls;

/// A pod to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The pod's own address.
    pub ip: IpAddr,
    /// The probe to run.
    pub probe: ResolvedProbe,
    /// How often.
    pub interval: Duration,
    /// For how long an answer is listened to, counted from when the probe was sent. One that comes after the probe's own
    /// timeout is reported as [`ProbeStep::AnsweredLate`].
    pub listen: Duration,
}

/// An event of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeEvent {
    /// The UID of the pod.
    pub uid: Arc<str>,
    /// The sequence number of the probe, larger for every later probe of this pod.
    pub seq: u64,
    /// When it was sent, as a time of [`Monotonic`].
    pub sent_at: Duration,
    /// The step.
    pub step: ProbeStep,
}

/// A step of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// It was sent.
    Sent,
    /// It ended. A probe that could not be sent ends with [`ProbeOutcome::Void`] without [`Self::Sent`].
    Ended(ProbeOutcome),
    /// An answer came after [`ProbeOutcome::Unanswered`] was reported. It shows that the pod lives, not that it is fit.
    AnsweredLate,
}

/// Probes any number of pods. Dropping it stops all of them.
pub struct Prober {
    shared: Arc<Shared>,
    targets: HashMap<Arc<str>, Running>,
    generation: u32,
    ticker: AbortHandle,
}

/// State shared by all targets.
struct Shared {
    events: mpsc::Sender<ProbeEvent>,
    permits: Semaphore,
    /// For probes after their timeout, which may still be answered. They must not keep others from being sent.
    late_permits: Semaphore,
    stalls: Stalls,
    tls: tokio_rustls::TlsConnector,
}

struct Running {
    target: Target,
    task: AbortHandle,
    poke: Arc<Notify>,
}

impl Prober {
    /// A prober that reports to `events` and has at most `limit` probes, thus connections, open at a time; and a
    /// quarter of that for probes that are listened to after their timeout.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn new(events: mpsc::Sender<ProbeEvent>, limit: usize) -> Self {
        let permits = Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS));
        let shared = Arc::new(Shared {
            events,
            permits,
            late_permits: Semaphore::new((limit / 4).clamp(1, Semaphore::MAX_PERMITS)),
            stalls: Stalls::new(Monotonic::now()),
            tls: tls::connector(),
        });
        let ticker = tokio::spawn(stalls::watch(shared.clone())).abort_handle();
        Self { shared, targets: HashMap::new(), generation: 0, ticker }
    }

    /// Starts or changes the probing of a pod. If the address or the request is new, a probe is sent at once, and the
    /// first sequence number of the new probes is returned, for
    /// [`PodEvidence::retarget`](super::PodEvidence::retarget).
    pub fn set_target(&mut self, uid: &Arc<str>, target: &Target) -> Option<u64> {
        let before = self.targets.get(uid).map(|running| &running.target);
        if before == Some(target) {
            return None;
        }
        let elsewhere = before.is_none_or(|before| {
            (before.ip, before.probe.port, &before.probe.kind)
                != (target.ip, target.probe.port, &target.probe.kind)
        });
        // A task that is being aborted may still send a probe or two, so each generation has its own range of
        // sequence numbers.
        self.generation += 1;
        let first_seq = u64::from(self.generation) << 32;
        let poke = Arc::new(Notify::new());
        if elsewhere {
            // Probe at once: the pod's turn may be a whole interval away.
            poke.notify_one();
        }
        let task = task::run(self.shared.clone(), uid.clone(), target.clone(), first_seq, poke.clone());
        let running = Running { target: target.clone(), task: tokio::spawn(task).abort_handle(), poke };
        self.targets.insert(uid.clone(), running);
        elsewhere.then_some(first_seq)
    }

    /// Stops probing a pod.
    pub fn remove(&mut self, uid: &str) {
        self.targets.remove(uid);
    }

    /// Sends a probe at once, in addition to the regular ones, unless too many are in flight.
    pub fn probe_now(&self, uid: &str) {
        if let Some(running) = self.targets.get(uid) {
            running.poke.notify_one();
        }
    }

    /// How many pods are probed.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether no pod is probed.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.ticker.abort();
    }
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").field("targets", &self.targets.len()).finish_non_exhaustive()
    }
}
