//! What is probed, and what is reported of it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use super::super::probe::{ProbeOutcome, ResolvedProbe};
use crate::api::{HoldConnection, Promise};

/// A pod to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The pod's own address.
    pub ip: IpAddr,
    /// The probe to run.
    pub probe: ResolvedProbe,
    /// How often.
    pub interval: Duration,
    /// For how long an answer is listened to, counted from when the probe was sent. One that comes after the probe's
    /// own timeout is reported as [`ProbeStep::AnsweredLate`].
    pub listen: Duration,
    /// Whether a connection is held open, to learn at once that the process has ended.
    pub hold: HoldConnection,
    /// How many probes are sent at once when the held connection is closed and they are refused: as many as make a pod
    /// failing.
    pub threshold: u32,
    /// Whether the pod is the holder. Its late answers are listened to first of all: without them it would be replaced.
    pub is_holder: bool,
}

impl Target {
    /// Where the probes are sent.
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.probe.port)
    }
}

/// An event of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeEvent {
    /// The UID of the pod.
    pub uid: Arc<str>,
    /// The sequence number of the probe, larger for every later probe of this pod.
    pub seq: u64,
    /// When it was sent, by the prober's clock.
    pub sent_at: Duration,
    /// The step.
    pub step: ProbeStep,
}

/// A step of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// It was sent.
    Sent,
    /// It still waits for its answer at the time `sent_at`, at which the pod had a turn. No other probe was sent in
    /// this turn, because there was no place for one.
    Waits,
    /// The agent has answered, with this promise. [`Self::Ended`] follows.
    Promised(Promise),
    /// It ended. A probe that could not be sent ends with [`ProbeOutcome::Void`] without [`Self::Sent`].
    Ended(ProbeOutcome),
    /// Its connection was accepted before its timeout, although no answer came: the program hangs, and its node does
    /// not. [`Self::Ended`] follows.
    Accepted,
    /// A good answer came after [`ProbeOutcome::Unanswered`] was reported. It shows that the pod is slow and not
    /// silent.
    AnsweredLate,
}
