//! The task of one target: its schedule and its probes in flight.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::Notify,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use super::{
    super::{
        clock::Monotonic,
        probe::{ProbeKind, ProbeOutcome},
    },
    exchange::Kept,
    hold::Hold,
    single::{Ended, Occasion, One, Shared, is_cut},
    target::Target,
};
use crate::api::HoldConnection;

/// Turns begin at multiples of this many nanoseconds, so that the thread wakes up once for several pods.
const SLOT: u64 = 10_000_000;
/// How many probes of one target are listened to after their timeout.
const MOST_LATE: usize = 8;

/// Probes one target until the task is aborted or the receiver of events is dropped. With `at_once` the first probe
/// does not wait for the target's turn. `early` asks for a probe out of turn.
pub(super) async fn run(
    shared: Arc<Shared>,
    uid: Arc<str>,
    target: Target,
    first_seq: u64,
    at_once: bool,
    early: Arc<Notify>,
) {
    let mut task = Task::new(shared, uid, target, first_seq);
    if at_once {
        task.send(false);
    }
    while task.turn(&early).await.is_some() {}
}

/// One target: its schedule, and its probes in flight.
struct Task {
    shared: Arc<Shared>,
    uid: Arc<str>,
    target: Arc<Target>,
    ticks: Interval,
    /// How many probes may be in flight.
    most: usize,
    seq: u64,
    in_flight: FuturesUnordered<BoxFuture<'static, Option<Ended>>>,
    late: FuturesUnordered<BoxFuture<'static, bool>>,
    /// Whether the last probe was not answered.
    unanswered: bool,
    hold: Hold,
    /// How many more refused probes are sent at once, because the held connection was closed.
    hurried: u32,
}

impl Task {
    fn new(shared: Arc<Shared>, uid: Arc<str>, target: Target, first_seq: u64) -> Self {
        let interval = target.interval.max(Duration::from_millis(1));
        let mut ticks = interval_at(Instant::now() + until_turn(&uid, interval), interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let in_a_timeout = target.probe.timeout.as_nanos().div_ceil(interval.as_nanos());
        Self {
            shared,
            uid,
            target: Arc::new(target),
            ticks,
            // One more than fit into a timeout, for a probe that is requested at once.
            most: 1 + usize::try_from(in_a_timeout).unwrap_or(usize::MAX),
            seq: first_seq,
            in_flight: FuturesUnordered::new(),
            late: FuturesUnordered::new(),
            unanswered: false,
            hold: Hold::new(interval),
            hurried: 0,
        }
    }

    /// Waits for the next thing to happen. None if the receiver of events was dropped.
    async fn turn(&mut self, early: &Notify) -> Option<()> {
        tokio::select! {
            _ = self.ticks.tick() => self.send(false),
            Some(ended) = self.in_flight.next() => self.ended(ended?),
            Some(heard) = self.late.next() => return heard.then_some(()),
            () = self.hold.lost() => self.hurry(),
            () = early.notified() => self.send(true),
        }
        Some(())
    }

    /// Sends a probe, unless too many are in flight. Of those that follow a hint, each waits for the one before.
    fn send(&mut self, hint: bool) {
        if !hint && self.in_flight.len() >= self.most {
            return;
        }
        let occasion = match (hint, self.unanswered) {
            (true, _) => Occasion::Hint,
            (false, true) => Occasion::TurnOfUnanswered,
            (false, false) => Occasion::Turn,
        };
        let one = One {
            shared: self.shared.clone(),
            uid: self.uid.clone(),
            target: self.target.clone(),
            seq: self.seq,
            keep: self.wants_connection(),
            beside: self.hold.is_held(),
            occasion,
        };
        self.in_flight.push(one.run().boxed());
        self.seq += 1;
    }

    /// The held connection was closed: if the process ended, probes are refused, and as many as count follow at once.
    fn hurry(&mut self) {
        if self.hurried == 0 {
            self.hurried = self.target.threshold;
            self.send(true);
        }
    }

    /// A probe has ended, or its timeout has.
    fn ended(&mut self, ended: Ended) {
        // If the pod needs longer than the timeout for each answer, the answers that come first are those that are
        // listened to already.
        if let Some(late) = ended.late
            && self.late.len() < MOST_LATE
        {
            self.late.push(late);
        }
        if ended.occasion == Occasion::Hint {
            self.hurried = if is_cut(ended.outcome) { self.hurried.saturating_sub(1) } else { 0 };
            if self.hurried > 0 {
                self.send(true);
            }
        }
        if ended.outcome != ProbeOutcome::Void {
            self.unanswered = ended.outcome == ProbeOutcome::Unanswered;
        }
        match ended.outcome {
            ProbeOutcome::Success if ended.beside => self.hold.probed_beside(true),
            ProbeOutcome::Unanswered if ended.beside => self.hold.probed_beside(false),
            _ => {}
        }
        if ended.outcome == ProbeOutcome::Success {
            self.hold_on(ended.kept);
        }
    }

    /// The pod has answered: holds a connection, if one is wanted.
    fn hold_on(&mut self, kept: Option<Kept>) {
        if !self.wants_connection() {
            return;
        }
        let (permits, target) = (&self.shared.hold_permits, &self.target);
        let on_trial = match kept {
            Some(kept) => self.hold.keep(kept, permits),
            None if opens_one_of_its_own(target) && !self.hold.is_held() => {
                self.hold.open((target.ip, target.probe.port), target.probe.timeout, permits)
            }
            None => false,
        };
        if on_trial {
            self.send(false);
        }
    }

    fn wants_connection(&self) -> bool {
        self.target.hold != HoldConnection::Never && self.hold.is_welcome(Instant::now())
    }
}

/// Whether a connection besides those of the probes may be held. A gRPC server expects clients that stay connected.
fn opens_one_of_its_own(target: &Target) -> bool {
    target.hold == HoldConnection::Always || matches!(target.probe.kind, ProbeKind::Grpc { .. })
}

/// The time until this pod's turn. Each pod has its own place in the interval, so that not all are probed at once.
fn until_turn(uid: &str, interval: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).max(1);
    let interval = nanos(interval);
    let turn = hasher.finish() % interval / SLOT * SLOT;
    let now = nanos(Monotonic::now()) % interval;
    Duration::from_nanos((turn + interval - now) % interval)
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
