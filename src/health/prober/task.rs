//! The task of one target: its schedule and its probes in flight.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::Notify,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use super::{
    super::probe::{ProbeKind, ProbeOutcome},
    agent::Checked,
    delivery::Report,
    exchange::Kept,
    hold::Hold,
    places::{MOST_LATE, Place},
    single::{Ended, Occasion, One, Shared, is_cut},
    target::{ProbeEvent, ProbeStep, Target},
};
use crate::api::HoldConnection;

/// Turns begin at multiples of this many nanoseconds, so that the thread wakes up once for several pods.
const SLOT: u64 = 10_000_000;
/// How many probes of one target wait for an answer at a time, besides one out of turn: as many as the longest timeout
/// has turns.
const MOST_WAITING: usize = 4;

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
        task.send(Occasion::Turn, None);
    }
    while task.turn(&early).await.is_some() {}
}

/// One target: its schedule, and its probes in flight.
struct Task {
    shared: Arc<Shared>,
    uid: Arc<str>,
    target: Arc<Target>,
    ticks: Interval,
    seq: u64,
    in_flight: FuturesUnordered<BoxFuture<'static, Option<Ended>>>,
    /// The probes in flight, the youngest last: their sequence numbers, and whether they were sent in their turn.
    waiting: Vec<(u64, Arc<AtomicBool>)>,
    /// Whether one of them was sent out of turn.
    hinted: bool,
    late: FuturesUnordered<BoxFuture<'static, bool>>,
    /// When the last probe was sent that is or was listened to after its timeout.
    late_from: Option<Duration>,
    /// Whether the last probe was not answered.
    unanswered: bool,
    hold: Hold,
    /// The last answer, if the target is an agent.
    checked: Arc<Checked>,
    /// How many more refused probes are sent at once, because the held connection was closed.
    hurried: u32,
}

impl Task {
    fn new(shared: Arc<Shared>, uid: Arc<str>, target: Target, first_seq: u64) -> Self {
        let interval = target.interval.max(Duration::from_millis(1));
        let mut ticks =
            interval_at(Instant::now() + until_turn(&uid, interval, shared.clock.now()), interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            shared,
            uid,
            target: Arc::new(target),
            ticks,
            seq: first_seq,
            in_flight: FuturesUnordered::new(),
            waiting: Vec::new(),
            hinted: false,
            late: FuturesUnordered::new(),
            late_from: None,
            unanswered: false,
            hold: Hold::new(interval),
            checked: Arc::default(),
            hurried: 0,
        }
    }

    /// Waits for the next thing to happen. None if the receiver of events was dropped.
    async fn turn(&mut self, early: &Notify) -> Option<()> {
        tokio::select! {
            biased;
            Some(ended) = self.in_flight.next() => self.ended(ended?),
            Some(heard) = self.late.next() => return heard.then_some(()),
            () = self.hold.lost() => self.hurry(),
            () = early.notified() => self.hint(),
            _ = self.ticks.tick() => return self.take_turn().await,
        }
        Some(())
    }

    /// Sends a probe, if there is a place for it. None if the receiver of events was dropped.
    async fn take_turn(&mut self) -> Option<()> {
        if self.waiting.is_empty() {
            self.send(Occasion::Turn, None);
        } else if let Some(place) = self.further() {
            self.send(Occasion::Turn, Some(place));
        } else if let Some(&(seq, _)) =
            self.waiting.iter().rev().find(|(_, sent)| sent.load(Ordering::Relaxed))
        {
            let event = ProbeEvent {
                uid: self.uid.clone(),
                seq,
                sent_at: self.shared.clock.now(),
                step: ProbeStep::Waits,
            };
            return self.shared.reports.send(Report { event, is_urgent: false }).await.ok();
        }
        Some(())
    }

    /// A place for a probe beside those that wait, if they are few.
    fn further(&self) -> Option<Place> {
        let number = self.waiting.len();
        (number < MOST_WAITING).then(|| self.shared.places.further(number, self.target.is_holder))?
    }

    /// Sends a probe out of turn, unless there is one already. Of those that follow a hint, each waits for the one
    /// before.
    fn hint(&mut self) {
        if !self.hinted {
            self.hinted = true;
            self.send(Occasion::Hint, None);
        }
    }

    /// Sends a probe. Without a place it waits for one itself.
    fn send(&mut self, occasion: Occasion, place: Option<Place>) {
        let sent = Arc::new(AtomicBool::new(false));
        let one = One {
            shared: self.shared.clone(),
            uid: self.uid.clone(),
            target: self.target.clone(),
            seq: self.seq,
            keep: self.wants_connection(),
            beside: self.hold.is_held(),
            occasion,
            doubtful: self.unanswered || !self.waiting.is_empty(),
            place,
            sent: sent.clone(),
            checked: self.checked.clone(),
        };
        self.in_flight.push(one.run().boxed());
        self.waiting.push((self.seq, sent));
        self.seq += 1;
    }

    /// The held connection was closed: if the process ended, probes are refused, and as many as count follow at once.
    fn hurry(&mut self) {
        if self.hurried == 0 {
            self.hurried = self.target.threshold;
            self.hint();
        }
    }

    /// A probe has ended, or its timeout has.
    fn ended(&mut self, ended: Ended) {
        self.waiting.retain(|(seq, _)| *seq != ended.seq);
        if let Some((sent_at, late)) = ended.late {
            self.listen(sent_at, late);
        }
        if ended.occasion == Occasion::Hint {
            self.hinted = false;
            self.hurried = if is_cut(ended.outcome) { self.hurried.saturating_sub(1) } else { 0 };
            if self.hurried > 0 {
                self.hint();
            }
        }
        if !matches!(ended.outcome, ProbeOutcome::Void(_)) {
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

    /// Listens for the answer of a probe that was sent at this time and whose timeout has passed. If the pod needs
    /// longer than the timeout for each answer, the answers that come first are those that are listened to already.
    fn listen(&mut self, sent_at: Duration, late: BoxFuture<'static, bool>) {
        let apart = self.target.listen / MOST_LATE;
        if self.late_from.is_some_and(|last| sent_at < last + apart) {
            return;
        }
        let Some(place) = self.shared.places.late(self.late.len(), self.target.is_holder) else { return };
        self.late_from = Some(sent_at);
        let listened = async move {
            let _place = place;
            late.await
        };
        self.late.push(listened.boxed());
    }

    /// The pod has answered: holds a connection, if one is wanted.
    fn hold_on(&mut self, kept: Option<Kept>) {
        if !self.wants_connection() {
            return;
        }
        let (places, target) = (&self.shared.places, &self.target);
        let on_trial = match kept {
            Some(kept) => self.hold.keep(kept, places),
            None if opens_one_of_its_own(target) && !self.hold.is_held() => {
                let connecting = self.shared.network.connect(target.address());
                self.hold.open(connecting, target.probe.timeout, places)
            }
            None => false,
        };
        if on_trial && self.waiting.len() < MOST_WAITING {
            self.send(Occasion::Turn, None);
        }
    }

    fn wants_connection(&self) -> bool {
        self.target.hold != HoldConnection::Never && self.hold.is_welcome(Instant::now())
    }
}

/// Whether a connection besides those of the probes may be held. A gRPC server expects clients that stay connected.
fn opens_one_of_its_own(target: &Target) -> bool {
    let is_expected = match target.probe.kind {
        ProbeKind::Grpc { .. } => true,
        ProbeKind::HttpGet { .. } | ProbeKind::TcpSocket | ProbeKind::Agent => false,
    };
    target.hold == HoldConnection::Always || is_expected
}

/// The time until this pod's turn. Each pod has its own place in the interval, so that not all are probed at once.
fn until_turn(uid: &str, interval: Duration, now: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).max(1);
    let interval = nanos(interval);
    let turn = hasher.finish() % interval / SLOT * SLOT;
    let now = nanos(now) % interval;
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
            let turn = until_turn(&format!("0b5f31a4-{n}"), interval, Duration::ZERO);
            let tenth = tenths.get_mut((turn.as_millis() / 1_000) as usize);
            *tenth.expect("a turn within the interval") += 1;
        }
        assert!(tenths.iter().all(|count| (800..1_200).contains(count)), "{tenths:?}");
    }
}
