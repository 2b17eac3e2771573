//! A prober, and what it reports.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use leadergroup::{
    api::{HoldConnection, ProbeScheme},
    health::{ProbeEvent, ProbeKind, ProbeOutcome, ProbeStep, Prober, ResolvedProbe, Target, VoidCause},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::server::{OK, PATIENCE, Server};

/// An interval that never ends during a test. Each pod has its turn at a moment of the interval that follows from its
/// UID, so one of an hour would end during a test every now and then.
pub(crate) const NEVER: Duration = Duration::from_hours(10 * 365 * 24);

/// How often a probe is sent again because this process was stalled for its timeout, as happens on a busy machine.
const ATTEMPTS: usize = 5;

/// A target that is probed once.
pub(crate) fn target(address: SocketAddr, kind: ProbeKind, timeout: Duration) -> Target {
    Target {
        ip: address.ip(),
        probe: ResolvedProbe { kind, port: address.port(), timeout },
        interval: NEVER,
        listen: Duration::ZERO,
        hold: HoldConnection::Never,
        threshold: 2,
        is_holder: false,
    }
}

pub(crate) fn http() -> ProbeKind {
    ProbeKind::HttpGet { scheme: ProbeScheme::Http, path: "/ready".parse().unwrap(), headers: Vec::new() }
}

/// A prober, and what it reports. All waits of a test together have one time limit.
pub(crate) struct Probed {
    pub(crate) prober: Prober,
    events: mpsc::Receiver<ProbeEvent>,
    until: Instant,
}

impl Probed {
    /// A prober with so many places.
    pub(crate) fn new(limit: usize) -> Self {
        Self::with_queue(limit, 256)
    }

    /// A prober that reports to a queue of this length.
    pub(crate) fn with_queue(limit: usize, length: usize) -> Self {
        let (sender, events) = mpsc::channel(length);
        Self {
            prober: Prober::new(sender, limit).expect("a prober"),
            events,
            until: Instant::now() + PATIENCE * 3,
        }
    }

    pub(crate) fn set(&mut self, uid: &str, target: &Target) -> Option<u64> {
        self.prober.set_target(&Arc::from(uid), target)
    }

    pub(crate) async fn next(&mut self) -> ProbeEvent {
        let event = timeout_at(self.until, self.events.recv()).await;
        event.expect("an event in time").expect("the prober lives")
    }

    /// The outcomes of the next probes.
    pub(crate) async fn outcomes(&mut self, number: usize) -> Vec<ProbeOutcome> {
        let mut outcomes = Vec::new();
        while outcomes.len() < number {
            outcomes.extend(outcome(&self.next().await));
        }
        outcomes
    }

    /// Sets a new target, and returns what happens until so many of its probes have ended. If this process was stalled
    /// for the timeout of one, the target is set again.
    pub(crate) async fn probe(&mut self, uid: &str, target: &Target, number: usize) -> Vec<ProbeEvent> {
        let mut events = Vec::new();
        for _ in 0..ATTEMPTS {
            events.clear();
            self.prober.remove(uid);
            let first = self.set(uid, target).expect("it is new");
            while events.iter().filter_map(outcome).count() < number {
                events
                    .extend(Some(self.next().await).filter(|event| &*event.uid == uid && event.seq >= first));
            }
            if events
                .iter()
                .filter_map(outcome)
                .all(|outcome| outcome != ProbeOutcome::Void(VoidCause::Stalled))
            {
                break;
            }
        }
        events
    }

    /// The outcome of the first probe of a new target.
    pub(crate) async fn outcome(&mut self, uid: &str, target: &Target) -> ProbeOutcome {
        let events = self.probe(uid, target, 1).await;
        events.iter().find_map(outcome).expect("a probe has ended")
    }

    /// What is reported of other targets before a new one has been probed. The prober has one thread, which does by
    /// then what was due before.
    pub(crate) async fn followed_by(&mut self) -> Vec<ProbeEvent> {
        let server = Server::answering(OK).await;
        self.set("barrier", &target(server.address, http(), PATIENCE));
        let mut events = Vec::new();
        loop {
            let event = self.next().await;
            match (&*event.uid, event.step) {
                ("barrier", ProbeStep::Ended(_)) => return events,
                ("barrier", _) => {}
                _ => events.push(event),
            }
        }
    }

    /// Drops the prober, and waits until it reports no more.
    pub(crate) async fn end(self) -> Option<ProbeEvent> {
        let Self { prober, mut events, until } = self;
        drop(prober);
        timeout_at(until, events.recv()).await.expect("the prober lets go of the channel")
    }
}

pub(crate) fn outcome(event: &ProbeEvent) -> Option<ProbeOutcome> {
    match event.step {
        ProbeStep::Ended(outcome) => Some(outcome),
        _ => None,
    }
}
