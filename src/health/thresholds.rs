//! The settings of a group that its evidence is measured by.

use std::time::Duration;

use crate::api::LeaderGroupSpec;

/// The settings of the group that apply to evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// How long a pod may be silent.
    pub silence_timeout: Duration,
    /// How often it is probed.
    pub interval: Duration,
    /// How long one probe may take.
    pub timeout: Duration,
    /// How many consecutive refusals make a pod failing. Also the least number of unanswered probes in a silence.
    pub failure_threshold: u32,
}

impl Thresholds {
    /// The thresholds of a group, for a pod whose probes may take `timeout` (the interval if it has no probe).
    pub fn of(spec: &LeaderGroupSpec, timeout: Option<Duration>) -> Self {
        Self {
            silence_timeout: spec.health.silence_timeout.0,
            interval: spec.health.interval.0,
            timeout: timeout.unwrap_or(spec.health.interval.0),
            failure_threshold: spec.health.failure_threshold,
        }
    }

    /// How old a successful probe may be: one probe may be lost or late, but nothing older than the silence timeout
    /// counts.
    pub(super) fn freshness(&self) -> Duration {
        (self.interval * 2 + self.timeout).min(self.silence_timeout)
    }
}
