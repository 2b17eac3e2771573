//! The task of one target: its schedule and its probes in flight.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, MissedTickBehavior, interval_at, timeout_at},
};

use super::{
    super::{
        clock::Monotonic,
        probe::{ProbeOutcome, Refusal, ResolvedProbe},
    },
    exchange,
    stalls::Stalls,
};

/// A pod to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The pod's own address.
    pub ip: IpAddr,
    /// The probe to run.
    pub probe: ResolvedProbe,
    /// How often.
    pub interval: Duration,
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
}

/// State shared by all targets.
pub(super) struct Shared {
    pub(super) events: mpsc::Sender<ProbeEvent>,
    pub(super) permits: Semaphore,
    pub(super) stalls: Arc<Stalls>,
    pub(super) tls: tokio_rustls::TlsConnector,
}

/// Limit of the extension of a timeout for stalls, in timeouts. A process that runs for less than a tenth of the time
/// cannot judge a pod.
const MOST_MADE_GOOD: u32 = 9;

/// Probes one target until the task is aborted or the receiver of events is dropped. With `at_once` the first probe
/// does not wait for the target's turn.
pub(super) async fn run(shared: Arc<Shared>, uid: Arc<str>, target: Target, first_seq: u64, at_once: bool) {
    let Target { ip, probe, interval } = target;
    let probe = Arc::new(probe);
    let interval = interval.max(Duration::from_millis(1));
    let mut ticks = interval_at(Instant::now() + until_turn(&uid, interval), interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // One more than fit into a timeout, for a probe that is requested at once.
    let most =
        1 + usize::try_from(probe.timeout.as_nanos().div_ceil(interval.as_nanos())).unwrap_or(usize::MAX);
    let mut in_flight: FuturesUnordered<BoxFuture<'static, bool>> = FuturesUnordered::new();
    let mut seq = first_seq;
    let mut due = at_once;
    loop {
        if !due {
            tokio::select! {
                _ = ticks.tick() => {}
                Some(heard) = in_flight.next() => {
                    if heard {
                        continue;
                    }
                    return;
                }
            }
        }
        due = false;
        if in_flight.len() < most {
            let one = One { shared: shared.clone(), uid: uid.clone(), ip, probe: probe.clone(), seq };
            in_flight.push(one.run(interval).boxed());
            seq += 1;
        }
    }
}

/// The time until this pod's turn. Each pod has its own place in the interval, so that not all are probed at once.
fn until_turn(uid: &str, interval: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).max(1);
    let interval = nanos(interval);
    let turn = hasher.finish() % interval;
    let now = nanos(Monotonic::now()) % interval;
    Duration::from_nanos((turn + interval - now) % interval)
}

/// One probe.
struct One {
    shared: Arc<Shared>,
    uid: Arc<str>,
    ip: IpAddr,
    probe: Arc<ResolvedProbe>,
    seq: u64,
}

impl One {
    /// Runs the probe. False if the receiver of events was dropped.
    async fn run(self, patience: Duration) -> bool {
        let waited = tokio::time::timeout(patience, self.shared.permits.acquire()).await;
        let mut sent_at = Monotonic::now();
        let Ok(Ok(_permit)) = waited else {
            // Too many probes are in flight; the next turn is due now.
            return self.tell(sent_at, ProbeStep::Ended(ProbeOutcome::Void)).await;
        };
        sent_at = Monotonic::now();
        let mut connecting = Box::pin(exchange::connect(self.ip, self.probe.port));
        let first = futures::poll!(&mut connecting);
        let outcome = match first {
            std::task::Poll::Ready(Err(error)) => exchange::of_io(&error),
            first => {
                if !self.tell(sent_at, ProbeStep::Sent).await {
                    return false;
                }
                let exchange = async {
                    let connected = match first {
                        std::task::Poll::Ready(connected) => connected,
                        std::task::Poll::Pending => connecting.await,
                    };
                    match connected {
                        Ok(stream) => exchange::ask(stream, self.ip, &self.probe, &self.shared.tls).await,
                        Err(error) => exchange::of_io(&error),
                    }
                };
                self.listen(exchange, sent_at).await
            }
        };
        self.tell(sent_at, ProbeStep::Ended(outcome)).await
    }

    /// Waits for the outcome, at most for the timeout, counting only the time in which this process ran.
    async fn listen(&self, exchange: impl Future<Output = ProbeOutcome>, sent_at: Duration) -> ProbeOutcome {
        let mut exchange = pin!(exchange);
        let (stalls, timeout) = (&self.shared.stalls, self.probe.timeout);
        let stalled_before = stalls.total(sent_at);
        let (mut allowed, mut made_good) = (timeout, Duration::ZERO);
        let outcome = loop {
            if let Ok(outcome) = timeout_at(Instant::now() + allowed, &mut exchange).await {
                break outcome;
            }
            let stalled = stalls.total(Monotonic::now()).saturating_sub(stalled_before + made_good);
            if stalled.is_zero() {
                break ProbeOutcome::Unanswered;
            }
            made_good += stalled;
            if made_good > timeout * MOST_MADE_GOOD {
                break ProbeOutcome::Void;
            }
            allowed = stalled;
        };
        match outcome {
            // A pod may close the connection to a client that seems to be dead.
            ProbeOutcome::Unanswered | ProbeOutcome::Refused(Refusal::Reset | Refusal::Protocol)
                if stalls.longest_since(sent_at, Monotonic::now()) >= timeout =>
            {
                ProbeOutcome::Void
            }
            outcome => outcome,
        }
    }

    async fn tell(&self, sent_at: Duration, step: ProbeStep) -> bool {
        let event = ProbeEvent { uid: self.uid.clone(), seq: self.seq, sent_at, step };
        self.shared.events.send(event).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turns_of_many_pods_are_spread_over_the_interval() {
        let interval = Duration::from_secs(10);
        let mut tenths = [0; 10];
        for n in 0..10_000 {
            let turn = until_turn(&format!("0b5f31a4-{n}"), interval);
            let tenth = tenths.get_mut((turn.as_millis() / 1_000) as usize);
            *tenth.expect("a turn within the interval") += 1;
        }
        assert!(tenths.iter().all(|count| (800..1_200).contains(count)), "{tenths:?}");
    }
}
