//! One probe, from its place to its end.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Fuse, FusedFuture as _},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use leadergroup_lock::Clock;

use super::{
    super::probe::{ProbeFailure, ProbeOutcome, VoidCause},
    agent::Checked,
    delivery::Report,
    exchange::{self, Answer, Kept},
    network::Network,
    places::{Place, Places},
    stalls::Stalls,
    target::{ProbeEvent, ProbeStep, Target},
};

/// State shared by all targets.
pub(super) struct Shared {
    pub(super) reports: mpsc::Sender<Report>,
    pub(super) places: Places,
    pub(super) stalls: Arc<Stalls>,
    pub(super) network: Arc<dyn Network>,
    pub(super) clock: Clock,
    pub(super) tls: tokio_rustls::TlsConnector,
}

/// The connection, the request and the answer of one probe.
type Exchange = BoxFuture<'static, Answer>;

/// An exchange whose probe's timeout has passed, and when the probe was sent.
type Late = (Fuse<Exchange>, Duration);

/// Limit of the extension of a timeout for stalls, in timeouts. A process that runs for less than a tenth of the time
/// cannot judge a pod.
const MOST_MADE_GOOD: u32 = 9;

/// How long a probe may keep a place among those of pods that answer. A tenant chooses the interval and the timeout.
const LONGEST_AMONG_ANSWERED: Duration = Duration::from_secs(1);

/// One probe.
pub(super) struct One {
    pub(super) shared: Arc<Shared>,
    pub(super) uid: Arc<str>,
    pub(super) target: Arc<Target>,
    pub(super) seq: u64,
    /// Whether the connection is to be held afterwards.
    pub(super) keep: bool,
    /// Whether a connection was held when it was sent.
    pub(super) beside: bool,
    pub(super) occasion: Occasion,
    /// Whether the last probe was not answered, or is still waiting.
    pub(super) doubtful: bool,
    /// The place that it was given; without one it waits for a place itself.
    pub(super) place: Option<Place>,
    /// Set when it was sent in its turn.
    pub(super) sent: Arc<AtomicBool>,
    /// The target's last answer, if it is an agent.
    pub(super) checked: Arc<Checked>,
}

/// Why a probe is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// It is the pod's turn.
    Turn,
    /// The held connection was closed, or another replica asks about the pod.
    Hint,
}

/// How a probe ended, or its timeout.
pub(super) struct Ended {
    pub(super) seq: u64,
    pub(super) outcome: ProbeOutcome,
    pub(super) kept: Option<Kept>,
    /// When it was sent, and what listens for a late answer; false if the receiver of events was dropped.
    pub(super) late: Option<(Duration, BoxFuture<'static, bool>)>,
    pub(super) beside: bool,
    pub(super) occasion: Occasion,
}

impl One {
    /// Runs the probe until its timeout. None if the receiver of events was dropped.
    pub(super) async fn run(mut self) -> Option<Ended> {
        let (Answer { outcome, kept, .. }, late) = self.ask().await?;
        let (seq, beside, occasion) = (self.seq, self.beside, self.occasion);
        let late = late.map(|(exchange, sent_at)| (sent_at, self.listen(exchange, sent_at).boxed()));
        Some(Ended { seq, outcome, kept, late, beside, occasion })
    }

    async fn ask(&mut self) -> Option<(Answer, Option<Late>)> {
        let place = match self.place.take() {
            // Gives up before the next turn, which may find a place.
            None => self.shared.places.first(self.doubtful, self.target.interval * 3 / 4).await,
            given => given,
        };
        let sent_at = self.shared.clock.now();
        let Some(place) = place else {
            // Too many probes are in flight.
            return self.end(sent_at, ProbeOutcome::Void(VoidCause::Crowded)).await;
        };
        let mut connecting = self.shared.network.connect(self.target.address());
        let first = match futures::poll!(&mut connecting) {
            Poll::Ready(Err(error)) => return self.end(sent_at, exchange::of_io(&error)).await,
            first => first,
        };
        // What is found out of turn may have no meaning.
        if self.occasion == Occasion::Turn {
            self.sent.store(true, Ordering::Relaxed);
        }
        self.tell(sent_at, ProbeStep::Sent).await?;
        let (shared, target, keep) = (self.shared.clone(), self.target.clone(), self.keep);
        let checked = self.checked.clone();
        let accepted = Arc::new(AtomicBool::new(false));
        let accept = accepted.clone();
        let exchange = async move {
            let connected = match first {
                Poll::Ready(connected) => connected,
                Poll::Pending => connecting.await,
            };
            match connected {
                Ok(stream) => {
                    accept.store(true, Ordering::Relaxed);
                    exchange::ask(stream, target.ip, &target.probe, keep, &shared.tls, &checked).await
                }
                Err(error) => exchange::of_connecting(&error).into(),
            }
        };
        self.exchange(exchange.boxed(), place, &accepted, sent_at).await
    }

    /// Carries the exchange out until its timeout.
    async fn exchange(
        &self,
        exchange: Exchange,
        place: Place,
        accepted: &AtomicBool,
        sent_at: Duration,
    ) -> Option<(Answer, Option<Late>)> {
        let mut exchange = exchange.fuse();
        let (mut answer, _place) = self.answer_in(place, &mut exchange, sent_at).await;
        // The failure threshold counts probes that are an interval apart. One out of turn counts with the others only
        // if it can have no other reason than the one it was sent for.
        if self.occasion == Occasion::Hint
            && answer.outcome != ProbeOutcome::Success
            && !is_cut(answer.outcome)
        {
            answer.outcome = ProbeOutcome::Void(VoidCause::OutOfTurn);
        }
        if answer.outcome == ProbeOutcome::Unanswered && accepted.load(Ordering::Relaxed) {
            self.tell(sent_at, ProbeStep::Accepted).await?;
        }
        if let Some(promise) = answer.promise {
            self.tell(sent_at, ProbeStep::Promised(promise)).await?;
        }
        self.tell(sent_at, ProbeStep::Ended(answer.outcome)).await?;
        // An exchange may also end without an answer, because the network reports that there is no way to the pod.
        let is_open = answer.outcome == ProbeOutcome::Unanswered && !exchange.is_terminated();
        Some((answer, is_open.then_some((exchange, sent_at))))
    }

    /// Waits for the answer, in this place at first. Returns the place that it has in the end.
    async fn answer_in(
        &self,
        place: Place,
        exchange: &mut Fuse<Exchange>,
        sent_at: Duration,
    ) -> (Answer, Place) {
        let mut answer = pin!(self.answer(exchange, sent_at));
        if let Ok(answer) = timeout(self.target.interval.min(LONGEST_AMONG_ANSWERED), &mut answer).await {
            return (answer, place);
        }
        let place = if self.doubtful { place } else { self.shared.places.waits(place) };
        (answer.await, place)
    }

    /// Waits for the answer, at most for the timeout, counting only the time in which this process ran.
    async fn answer(&self, exchange: &mut Fuse<Exchange>, sent_at: Duration) -> Answer {
        let (stalls, timeout) = (&self.shared.stalls, self.target.probe.timeout);
        let stalled_before = stalls.total(sent_at);
        let (mut allowed, mut made_good) = (timeout, Duration::ZERO);
        let mut answer = loop {
            if let Ok(answer) = timeout_at(Instant::now() + allowed, &mut *exchange).await {
                break answer;
            }
            let stalled = stalls.total(self.shared.clock.now()).saturating_sub(stalled_before + made_good);
            if stalled.is_zero() {
                break ProbeOutcome::Unanswered.into();
            }
            made_good += stalled;
            if made_good > timeout * MOST_MADE_GOOD {
                break ProbeOutcome::Void(VoidCause::Stalled).into();
            }
            allowed = stalled;
        };
        // A pod may close the connection to a client that seems to be dead.
        if let ProbeOutcome::Unanswered | ProbeOutcome::Refused(ProbeFailure::Reset | ProbeFailure::Protocol) =
            answer.outcome
            && stalls.longest_since(sent_at, self.shared.clock.now()) >= timeout
        {
            answer.outcome = ProbeOutcome::Void(VoidCause::Stalled);
        }
        answer
    }

    /// Listens for an answer that is late. A refusal that is late does not count: the pod, or a proxy in front of it,
    /// is slow and unwell at the same time, and must not stay for ever.
    async fn listen(self, exchange: Fuse<Exchange>, sent_at: Duration) -> bool {
        let remaining = self.target.listen.saturating_sub(self.shared.clock.now().saturating_sub(sent_at));
        match timeout(remaining, exchange).await {
            Ok(Answer { outcome: ProbeOutcome::Success, promise, .. }) => {
                // What an agent has promised is true however late it is.
                if let Some(promise) = promise
                    && self.tell(sent_at, ProbeStep::Promised(promise)).await.is_none()
                {
                    return false;
                }
                self.tell(sent_at, ProbeStep::AnsweredLate).await.is_some()
            }
            _ => true,
        }
    }

    async fn end(&self, sent_at: Duration, outcome: ProbeOutcome) -> Option<(Answer, Option<Late>)> {
        self.tell(sent_at, ProbeStep::Ended(outcome)).await?;
        Some((outcome.into(), None))
    }

    /// None if the receiver of events was dropped.
    async fn tell(&self, sent_at: Duration, step: ProbeStep) -> Option<()> {
        let event = ProbeEvent { uid: self.uid.clone(), seq: self.seq, sent_at, step };
        let changes_nothing = matches!(
            step,
            ProbeStep::Sent | ProbeStep::Promised(_) | ProbeStep::Ended(ProbeOutcome::Success)
        ) && self.occasion == Occasion::Turn
            && !self.doubtful;
        self.shared.reports.send(Report { event, is_urgent: !changes_nothing }).await.ok()
    }
}

/// Whether the other side's kernel refused or cut the connection, as it does when the process has ended.
pub(super) fn is_cut(outcome: ProbeOutcome) -> bool {
    use ProbeFailure as F;
    matches!(outcome, ProbeOutcome::Refused(F::ConnectionRefused | F::Reset))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::{
        api::HoldConnection,
        health::{ProbeKind, ResolvedProbe},
    };

    #[tokio::test]
    async fn an_exchange_that_ended_without_an_answer_is_not_listened_to() {
        let (reports, mut told) = tokio::sync::mpsc::channel(8);
        let shared = Arc::new(Shared {
            reports,
            places: Places::new(1),
            stalls: Arc::new(Stalls::new(Clock::boottime().now())),
            network: Arc::new(super::super::network::Tcp),
            clock: Clock::boottime(),
            tls: super::super::tls::connector(),
        });
        let timeout = Duration::from_mins(1);
        let target = Arc::new(Target {
            ip: IpAddr::from([198, 18, 0, 1]),
            probe: ResolvedProbe { kind: ProbeKind::TcpSocket, port: 1, timeout },
            interval: timeout,
            listen: timeout,
            hold: HoldConnection::Never,
            threshold: 2,
            is_holder: true,
        });
        let one = One {
            shared,
            uid: "u".into(),
            target,
            seq: 1,
            keep: false,
            beside: false,
            occasion: Occasion::Turn,
            doubtful: false,
            place: None,
            sent: Arc::default(),
            checked: Arc::default(),
        };
        // As if the connection failed with "no route to host" after a while.
        let exchange = async {
            tokio::task::yield_now().await;
            ProbeOutcome::Unanswered.into()
        };
        let place = one.shared.places.first(false, timeout).await.expect("a place");
        let asked =
            one.exchange(exchange.boxed(), place, &AtomicBool::new(false), one.shared.clock.now()).await;
        assert!(asked.is_some_and(|(_, late)| late.is_none()));
        assert_eq!(
            told.recv().await.expect("a report").event.step,
            ProbeStep::Ended(ProbeOutcome::Unanswered)
        );
    }
}
