//! One target: its rhythm, and its probes in flight.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval_at, timeout_at},
};

use super::{
    super::{Monotonic, ProbeOutcome, Refusal, ResolvedProbe},
    ProbeEvent, ProbeStep, Shared, Target, exchange,
};

/// Below this, an expired timer was not late, just rounded up.
const TIMER_SLACK: Duration = Duration::from_millis(10);
/// A process that runs for less than a tenth of the time cannot judge anyone.
const MOST_MADE_GOOD: u32 = 9;

/// Probes one target until it is aborted, or nobody listens any more.
pub(super) async fn run(
    shared: Arc<Shared>,
    uid: Arc<str>,
    target: Target,
    first_seq: u64,
    poke: Arc<Notify>,
) {
    let Target { ip, probe, interval } = target;
    let probe = Arc::new(probe);
    let interval = interval.max(Duration::from_millis(1));
    let mut ticks = interval_at(Instant::now() + until_turn(&uid, interval), interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // One more than fit into a timeout, for the one that is asked for at once.
    let most =
        1 + usize::try_from(probe.timeout.as_nanos().div_ceil(interval.as_nanos())).unwrap_or(usize::MAX);
    let mut in_flight: FuturesUnordered<BoxFuture<'static, bool>> = FuturesUnordered::new();
    let mut seq = first_seq;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = poke.notified() => {}
            Some(heard) = in_flight.next() => {
                if heard {
                    continue;
                }
                return;
            }
        }
        if in_flight.len() < most {
            let one = One { shared: shared.clone(), uid: uid.clone(), ip, probe: probe.clone(), seq };
            in_flight.push(one.run(interval).boxed());
            seq += 1;
        }
    }
}

/// How long until this pod's turn comes: each has its own place in the interval, so that not all are asked at once.
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
    /// Carries it out. False: nobody listens any more.
    async fn run(self, patience: Duration) -> bool {
        let waited = tokio::time::timeout(patience, self.shared.permits.acquire()).await;
        let mut sent_at = Monotonic::now();
        let Ok(Ok(_permit)) = waited else {
            // Too many are under way; the next turn comes at once.
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

    /// Waits for the outcome as long as the timeout, counting only the time in which we ran.
    async fn listen(&self, exchange: impl Future<Output = ProbeOutcome>, sent_at: Duration) -> ProbeOutcome {
        let mut exchange = pin!(exchange);
        let stalled_before = self.shared.stalls.total();
        let mut allowed = self.probe.timeout;
        let mut made_good = Duration::ZERO;
        let (outcome, late) = loop {
            let due = Monotonic::now() + allowed;
            if let Ok(outcome) = timeout_at(Instant::now() + allowed, &mut exchange).await {
                break (outcome, Duration::ZERO);
            }
            // The watch for stalls may run only after us: our own timer's delay tells as much.
            let late = Monotonic::now().saturating_sub(due);
            let late = if late > TIMER_SLACK { late } else { Duration::ZERO };
            if late >= self.probe.timeout {
                break (ProbeOutcome::Unanswered, late);
            }
            if made_good >= self.probe.timeout * MOST_MADE_GOOD {
                break (ProbeOutcome::Void, late);
            }
            let stalled = late.max(self.shared.stalls.total().saturating_sub(stalled_before + made_good));
            if stalled.is_zero() {
                break (ProbeOutcome::Unanswered, late);
            }
            made_good += stalled;
            allowed = stalled;
        };
        let stall = late.max(self.shared.stalls.longest_since(sent_at));
        match outcome {
            ProbeOutcome::Unanswered | ProbeOutcome::Refused(Refusal::Reset | Refusal::Protocol)
                if stall >= self.probe.timeout =>
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
