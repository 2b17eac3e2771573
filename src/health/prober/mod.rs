//! The prober: asks the pods themselves, on time, and says what came of it.
//!
//! One light task per target; a fresh connection per probe, as the kubelet does; at most `limit` probes in flight in all.
//! Redirects are not followed, certificates are not verified, and little of an answer is read: a tenant chooses the path
//! and the port, so nothing of what comes back goes further than its [`ProbeOutcome`](super::ProbeOutcome).
//!
//! The prober never says anything against a pod for a fault of its own: see [`ProbeOutcome::Void`](super::ProbeOutcome::Void) and [`stalls`].

mod exchange;
mod stalls;
mod task;
mod tls;

use std::{collections::HashMap, fmt, sync::Arc};

use tokio::{
    sync::{Semaphore, mpsc},
    task::AbortHandle,
};

use super::clock::Monotonic;
use stalls::Stalls;
use task::Shared;

pub use task::{ProbeEvent, ProbeStep, Target};

/// Probes any number of pods. Dropping it stops all of them.
pub struct Prober {
    shared: Arc<Shared>,
    targets: HashMap<Arc<str>, Running>,
    generation: u32,
    ticker: AbortHandle,
}

struct Running {
    target: Target,
    task: AbortHandle,
}

impl Prober {
    /// A prober that reports to `events` and has at most `limit` probes, thus connections, open at a time.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn new(events: mpsc::Sender<ProbeEvent>, limit: usize) -> Self {
        let permits = Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS));
        let stalls = Arc::new(Stalls::new(Monotonic::now()));
        let shared = Arc::new(Shared { events, permits, stalls: stalls.clone(), tls: tls::connector() });
        let ticker = tokio::spawn(stalls::watch(stalls)).abort_handle();
        Self { shared, targets: HashMap::new(), generation: 0, ticker }
    }

    /// Probes a pod from now on as `target` says, at once where nothing is known of what is asked. Returns the number that
    /// its probes begin at where the pod is asked at another address or in another way than before, for
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
        // A task that is being aborted may still number a probe or two: numbers of generations never mix.
        self.generation += 1;
        let first_seq = u64::from(self.generation) << 32;
        // Nothing is known of a new address, and its turn may be a whole interval away: the first probe goes out at once.
        let task = task::run(self.shared.clone(), uid.clone(), target.clone(), first_seq, elsewhere);
        let running = Running { target: target.clone(), task: tokio::spawn(task).abort_handle() };
        self.targets.insert(uid.clone(), running);
        elsewhere.then_some(first_seq)
    }

    /// Stops probing a pod.
    pub fn remove(&mut self, uid: &str) {
        self.targets.remove(uid);
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
