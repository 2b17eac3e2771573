//! The prober: probes the pods on time and reports the outcomes.
//!
//! There is one task per target and a new connection per probe, as in the kubelet. How many are open at a time is
//! limited, for each target and for all ([`places`]). All tasks share one thread, because waking another one for each
//! step is expensive (`benches/prober.rs`). So the bytes that one exchange may receive are limited, too ([`received`]).
//!
//! Redirects are not followed, certificates are not verified, and only the beginning of a response is read. A tenant
//! chooses the path and the port, so nothing of the response is used except for the
//! [`ProbeOutcome`](super::ProbeOutcome).
//!
//! A failure in the prober itself never counts against a pod: see [`ProbeOutcome::Void`](super::ProbeOutcome::Void) and
//! [`stalls`].

mod agent;
mod delivery;
mod exchange;
mod grpc;
mod hold;
mod network;
mod places;
mod received;
mod single;
mod stalls;
mod target;
mod task;
mod tls;

use std::{collections::HashMap, fmt, io, sync::Arc, thread, time::Duration};

use tokio::{
    runtime::{self, Handle},
    sync::{Notify, mpsc, oneshot},
    task::AbortHandle,
};

use crate::api::HoldConnection;
use leadergroup_lock::Clock;
use network::Tcp;
use places::Places;
use single::Shared;
use stalls::Stalls;

pub(crate) use exchange::is_failure_of_this_machine;
#[cfg(test)]
pub(crate) use network::Tcp as MachineNetwork;
pub use network::{Network, Stream};
pub use target::{ProbeEvent, ProbeStep, Target};

/// How long an event that changes nothing waits for others at most.
const LONGEST_WAIT: Duration = Duration::from_millis(10);

/// Probes any number of pods. Dropping it stops all of them.
pub struct Prober {
    shared: Arc<Shared>,
    targets: HashMap<Arc<str>, Running>,
    generation: u32,
    runtime: Handle,
    /// The thread ends when this is dropped.
    _running: oneshot::Sender<()>,
}

struct Running {
    target: Target,
    /// Asks for a probe out of turn.
    early: Arc<Notify>,
    task: AbortHandle,
}

impl Prober {
    /// A prober that reports to `events` and has at most `limit` probes, thus connections, open at a time; as many
    /// again for the probes of pods that did not answer the last one; as many for probes that are listened to after
    /// their timeout; and a quarter of that for connections held open.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(events: mpsc::Sender<ProbeEvent>, limit: usize) -> io::Result<Self> {
        let tasks = runtime::Builder::new_current_thread().enable_all().build()?;
        let (prober, run) = Self::on(tasks.handle().clone(), Arc::new(Tcp), Clock::boottime(), events, limit);
        thread::Builder::new().name("prober".to_owned()).spawn(move || tasks.block_on(run))?;
        Ok(prober)
    }

    /// The same in the present runtime, over this network and by this clock, for a simulation.
    pub fn simulated(
        network: Arc<dyn Network>,
        clock: Clock,
        events: mpsc::Sender<ProbeEvent>,
        limit: usize,
    ) -> Self {
        let (prober, run) = Self::on(Handle::current(), network, clock, events, limit);
        tokio::spawn(run);
        prober
    }

    /// A prober whose tasks run on `runtime`, and what has to run there as long as it lives.
    fn on(
        runtime: Handle,
        network: Arc<dyn Network>,
        clock: Clock,
        events: mpsc::Sender<ProbeEvent>,
        limit: usize,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (reports, told) = mpsc::channel(events.max_capacity());
        let stalls = Arc::new(Stalls::new(clock.now()));
        let (places, tls) = (Places::new(limit), tls::connector());
        let shared = Arc::new(Shared { reports, places, stalls: stalls.clone(), network, clock, tls });
        let (running, stopped) = oneshot::channel();
        let run = async move {
            tokio::select! {
                biased;
                _ = stopped => {}
                () = stalls::watch(stalls, clock) => {}
                () = delivery::deliver(told, events, LONGEST_WAIT) => {}
            }
        };
        (Self { shared, targets: HashMap::new(), generation: 0, runtime, _running: running }, run)
    }

    /// The network through which it probes.
    pub(crate) fn network(&self) -> Arc<dyn Network> {
        self.shared.network.clone()
    }

    /// Starts or changes the probing of a pod. A probe is sent at once if a connection is to be held, or if the address
    /// or the request is new. If it is, the first sequence number of the new probes is returned, for
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
        // Probe a new address at once: its turn may be a whole interval away. A connection is held only after an
        // answer. The probes of a pod that becomes the holder begin again.
        let at_once = elsewhere || target.is_holder || target.hold != HoldConnection::Never;
        let early = Arc::new(Notify::new());
        let task =
            task::run(self.shared.clone(), uid.clone(), target.clone(), first_seq, at_once, early.clone());
        let running =
            Running { target: target.clone(), early, task: self.runtime.spawn(task).abort_handle() };
        self.targets.insert(uid.clone(), running);
        elsewhere.then_some(first_seq)
    }

    /// Sends a probe out of turn, if the pod is probed. An answer counts like any other. The lack of one does not.
    pub fn probe_now(&self, uid: &str) {
        if let Some(running) = self.targets.get(uid) {
            running.early.notify_one();
        }
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

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").field("targets", &self.targets.len()).finish_non_exhaustive()
    }
}
