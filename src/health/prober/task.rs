//! The task of one target: its schedule and its probes in flight.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, Fuse, FusedFuture as _},
    stream::FuturesUnordered,
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, MissedTickBehavior, interval_at, timeout_at},
};

use super::{
    super::{
        clock::Monotonic,
        probe::{ProbeFailure, ProbeOutcome, ResolvedProbe},
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
    /// A good answer came after [`ProbeOutcome::Unanswered`] was reported. It shows that the pod is slow and not silent.
    AnsweredLate,
}

/// State shared by all targets.
pub(super) struct Shared {
    pub(super) events: mpsc::Sender<ProbeEvent>,
    pub(super) permits: Semaphore,
    /// For probes after their timeout, which may still be answered. They must not keep others from being sent.
    pub(super) late_permits: Semaphore,
    pub(super) stalls: Arc<Stalls>,
    pub(super) tls: tokio_rustls::TlsConnector,
}

/// Limit of the extension of a timeout for stalls, in timeouts. A process that runs for less than a tenth of the time
/// cannot judge a pod.
const MOST_MADE_GOOD: u32 = 9;
/// How many probes of one target are listened to after their timeout.
const MOST_LATE: usize = 8;

/// Probes one target until the task is aborted or the receiver of events is dropped. With `at_once` the first probe
/// does not wait for the target's turn.
pub(super) async fn run(shared: Arc<Shared>, uid: Arc<str>, target: Target, first_seq: u64, at_once: bool) {
    let Target { ip, probe, interval, listen } = target;
    let probe = Arc::new(probe);
    let interval = interval.max(Duration::from_millis(1));
    let mut ticks = interval_at(Instant::now() + until_turn(&uid, interval), interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // One more than fit into a timeout, for a probe that is requested at once.
    let most =
        1 + usize::try_from(probe.timeout.as_nanos().div_ceil(interval.as_nanos())).unwrap_or(usize::MAX);
    let mut in_flight: FuturesUnordered<BoxFuture<'static, Ended>> = FuturesUnordered::new();
    let mut late: FuturesUnordered<BoxFuture<'static, bool>> = FuturesUnordered::new();
    let mut seq = first_seq;
    let mut due = at_once;
    loop {
        if !due {
            tokio::select! {
                _ = ticks.tick() => {}
                Some(ended) = in_flight.next() => {
                    match ended {
                        Ended::Unheard => return,
                        // If the pod needs longer than the timeout for each answer, the answers that come first are
                        // those that are listened to already.
                        Ended::Unanswered(exchange) if late.len() < MOST_LATE => late.push(exchange),
                        Ended::Answered | Ended::Unanswered(_) => {}
                    }
                    continue;
                }
                Some(heard) = late.next() => {
                    if heard {
                        continue;
                    }
                    return;
                }
            }
        }
        due = false;
        if in_flight.len() < most {
            let one = One { shared: shared.clone(), uid: uid.clone(), ip, probe: probe.clone(), seq, listen };
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

/// The connection, the request and the answer of one probe.
type Exchange = BoxFuture<'static, ProbeOutcome>;

/// One probe.
struct One {
    shared: Arc<Shared>,
    uid: Arc<str>,
    ip: IpAddr,
    probe: Arc<ResolvedProbe>,
    seq: u64,
    listen: Duration,
}

/// How a probe went until its timeout.
enum Asked {
    /// It has an outcome.
    Answered,
    /// It has not, and may still be answered. When it was sent.
    Unanswered(Fuse<Exchange>, Duration),
}

/// How a probe left the number of those in flight.
enum Ended {
    /// With an outcome.
    Answered,
    /// Without an answer in time. The future listens for a late one; it is false if the receiver of events was dropped.
    Unanswered(BoxFuture<'static, bool>),
    /// The receiver of events was dropped.
    Unheard,
}

impl One {
    /// Runs the probe until its timeout.
    async fn run(self, patience: Duration) -> Ended {
        match self.ask(patience).await {
            None => Ended::Unheard,
            Some(Asked::Answered) => Ended::Answered,
            Some(Asked::Unanswered(exchange, sent_at)) => {
                Ended::Unanswered(self.listen(exchange, sent_at).boxed())
            }
        }
    }

    /// Nothing if the receiver of events was dropped.
    async fn ask(&self, patience: Duration) -> Option<Asked> {
        let waited = tokio::time::timeout(patience, self.shared.permits.acquire()).await;
        let mut sent_at = Monotonic::now();
        let Ok(Ok(_permit)) = waited else {
            // Too many probes are in flight; the next turn is due now.
            return self.end(sent_at, ProbeOutcome::Void).await;
        };
        sent_at = Monotonic::now();
        let mut connecting = Box::pin(exchange::connect(self.ip, self.probe.port));
        let first = match futures::poll!(&mut connecting) {
            Poll::Ready(Err(error)) => return self.end(sent_at, exchange::of_io(&error)).await,
            first => first,
        };
        self.tell(sent_at, ProbeStep::Sent).await?;
        let (shared, ip, probe) = (self.shared.clone(), self.ip, self.probe.clone());
        let exchange = async move {
            let connected = match first {
                Poll::Ready(connected) => connected,
                Poll::Pending => connecting.await,
            };
            match connected {
                Ok(stream) => exchange::ask(stream, ip, &probe, &shared.tls).await,
                Err(error) => exchange::of_io(&error),
            }
        };
        self.exchange(exchange.boxed(), sent_at).await
    }

    /// Carries the exchange out until its timeout.
    async fn exchange(&self, exchange: Exchange, sent_at: Duration) -> Option<Asked> {
        let mut exchange = exchange.fuse();
        let outcome = self.outcome(&mut exchange, sent_at).await;
        self.end(sent_at, outcome).await?;
        // An exchange may also end without an answer, because the network reports that there is no way to the pod.
        Some(match outcome {
            ProbeOutcome::Unanswered if !exchange.is_terminated() => Asked::Unanswered(exchange, sent_at),
            _ => Asked::Answered,
        })
    }

    /// Waits for the outcome, at most for the timeout, counting only the time in which this process ran.
    async fn outcome(&self, exchange: &mut Fuse<Exchange>, sent_at: Duration) -> ProbeOutcome {
        let (stalls, timeout) = (&self.shared.stalls, self.probe.timeout);
        let stalled_before = stalls.total(sent_at);
        let (mut allowed, mut made_good) = (timeout, Duration::ZERO);
        let outcome = loop {
            if let Ok(outcome) = timeout_at(Instant::now() + allowed, &mut *exchange).await {
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
            ProbeOutcome::Unanswered
            | ProbeOutcome::Refused(ProbeFailure::Reset | ProbeFailure::Protocol)
                if stalls.longest_since(sent_at, Monotonic::now()) >= timeout =>
            {
                ProbeOutcome::Void
            }
            outcome => outcome,
        }
    }

    /// Listens for an answer that is late. A refusal that is late does not count: the pod, or a proxy in front of it, is
    /// slow and unwell at the same time, and must not stay for ever.
    async fn listen(self, exchange: Fuse<Exchange>, sent_at: Duration) -> bool {
        let remaining = self.listen.saturating_sub(Monotonic::now().saturating_sub(sent_at));
        let Ok(_permit) = self.shared.late_permits.try_acquire() else { return true };
        match tokio::time::timeout(remaining, exchange).await {
            Ok(ProbeOutcome::Success) => self.tell(sent_at, ProbeStep::AnsweredLate).await.is_some(),
            _ => true,
        }
    }

    async fn end(&self, sent_at: Duration, outcome: ProbeOutcome) -> Option<Asked> {
        self.tell(sent_at, ProbeStep::Ended(outcome)).await.map(|()| Asked::Answered)
    }

    /// Nothing if the receiver of events was dropped.
    async fn tell(&self, sent_at: Duration, step: ProbeStep) -> Option<()> {
        let event = ProbeEvent { uid: self.uid.clone(), seq: self.seq, sent_at, step };
        self.shared.events.send(event).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::ProbeKind;

    #[tokio::test]
    async fn an_exchange_that_ended_without_an_answer_is_not_listened_to() {
        let (events, mut told) = tokio::sync::mpsc::channel(8);
        let shared = Arc::new(Shared {
            events,
            permits: Semaphore::new(1),
            late_permits: Semaphore::new(1),
            stalls: Arc::new(Stalls::new(Monotonic::now())),
            tls: super::super::tls::connector(),
        });
        let timeout = Duration::from_mins(1);
        let probe = Arc::new(ResolvedProbe { kind: ProbeKind::TcpSocket, port: 1, timeout });
        let ip = IpAddr::from([198, 18, 0, 1]);
        let one = One { shared, uid: "u".into(), ip, probe, seq: 1, listen: timeout };
        // As if the connection failed with "no route to host" after a while.
        let exchange = async {
            tokio::task::yield_now().await;
            ProbeOutcome::Unanswered
        };
        let asked = one.exchange(exchange.boxed(), Monotonic::now()).await;
        assert!(matches!(asked, Some(Asked::Answered)));
        assert_eq!(told.recv().await.expect("an event").step, ProbeStep::Ended(ProbeOutcome::Unanswered));
    }

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
