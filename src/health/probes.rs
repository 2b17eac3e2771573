//! The record of one pod's probes: what counts of it is a handful of numbers, whatever the number of probes.

use std::time::Duration;

use super::{probe::ProbeOutcome, thresholds::Thresholds};

/// What is kept of the probes of one pod.
///
/// Everything is keyed by the probe's number, so that answers that arrive late, twice or in another order leave the same
/// record behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    /// Probes with a smaller number went to another address.
    first_seq: u64,
    /// What was asked before this went out on a network that led nowhere: that nobody answered says nothing.
    connected_since: Duration,
    /// The present time without a gap in our own sending.
    run: Option<Run>,
    /// The last probe that was answered well.
    success: Option<Sent>,
    /// The last probe that ended in any way that says something about the pod.
    last_ended: u64,
    /// The last probes that were refused since the last success, by number; as many as the threshold.
    refused: Vec<u64>,
    /// The last probes that nobody answered since the last success, by number; as many as the threshold.
    unanswered: Vec<u64>,
}

/// A time in which probes went out without a gap of twice the retry interval or more.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: Duration,
    until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: u64,
    at: Duration,
}

impl Probes {
    pub(super) fn starting_at(first_seq: u64) -> Self {
        Self { first_seq, ..Self::default() }
    }

    /// Our own network led nowhere until `now`: all windows start anew.
    pub(super) fn cut_off_until(&mut self, now: Duration) {
        self.connected_since = self.connected_since.max(now);
        self.run = None;
        self.refused.clear();
        self.unanswered.clear();
    }

    pub(super) fn sent(&mut self, seq: u64, at: Duration, retry_interval: Duration) {
        if seq < self.first_seq || at < self.connected_since {
            return;
        }
        match &mut self.run {
            Some(run) if at < run.until + retry_interval * 2 => run.until = run.until.max(at),
            run => {
                *run = Some(Run { from: at, until: at });
                self.refused.clear();
                self.unanswered.clear();
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        seq: u64,
        at: Duration,
        outcome: ProbeOutcome,
        retry_interval: Duration,
        keep: usize,
    ) {
        if seq < self.first_seq || outcome == ProbeOutcome::Void {
            return;
        }
        self.sent(seq, at, retry_interval);
        self.last_ended = self.last_ended.max(seq);
        let in_run = self.run.is_some_and(|run| at >= run.from);
        let after_success = self.success.is_none_or(|success| seq > success.seq);
        match outcome {
            ProbeOutcome::Success if after_success => {
                self.success = Some(Sent { seq, at });
                self.refused.retain(|other| *other > seq);
                self.unanswered.retain(|other| *other > seq);
            }
            ProbeOutcome::Refused(_) if after_success && in_run => insert(&mut self.refused, seq, keep),
            ProbeOutcome::Unanswered if after_success && in_run => insert(&mut self.unanswered, seq, keep),
            _ => {}
        }
    }

    /// Whether as many probes as count were refused since the last success, and we are still asking.
    pub(super) fn refused(&self, thresholds: &Thresholds, now: Duration) -> bool {
        self.refused_until(thresholds).is_some_and(|until| now < until)
    }

    /// Until when the refusals count if nothing more happens: a pod that we have stopped asking may long have recovered.
    fn refused_until(&self, thresholds: &Thresholds) -> Option<Duration> {
        (self.refused.len() >= needed(thresholds)).then(|| self.asked_until(thresholds))?
    }

    /// When it is too long ago that we ourselves have sent a probe.
    fn asked_until(&self, thresholds: &Thresholds) -> Option<Duration> {
        self.run.map(|run| run.until + thresholds.retry_interval * 2)
    }

    /// When the last probe was sent, if it was answered well.
    pub(super) fn proof(&self) -> Option<Duration> {
        self.success.filter(|success| success.seq == self.last_ended).map(|success| success.at)
    }

    /// Since when nobody has answered, if that is long enough to mean something.
    pub(super) fn silent_since(&self, thresholds: &Thresholds, now: Duration) -> Option<Duration> {
        let (from, until) = self.silence(thresholds)?;
        let since = self.window()?;
        (now >= from && now < until).then_some(since)
    }

    pub(super) fn turning_points(&self, thresholds: &Thresholds) -> impl Iterator<Item = Duration> + use<> {
        let proof = self.proof().map(|at| at + thresholds.freshness());
        let silence = self.silence(thresholds).map(|(from, until)| [from, until]);
        proof.into_iter().chain(self.refused_until(thresholds)).chain(silence.into_iter().flatten())
    }

    /// The time in which the pod counts as silent, if nothing more happens: from a full ttl of unanswered probes on, until
    /// we ourselves have not sent any for twice the retry interval.
    fn silence(&self, thresholds: &Thresholds) -> Option<(Duration, Duration)> {
        let until = self.asked_until(thresholds)?;
        (self.unanswered.len() >= needed(thresholds)).then_some((self.window()? + thresholds.ttl, until))
    }

    /// Where the time that counts as silence begins.
    fn window(&self) -> Option<Duration> {
        let run = self.run?;
        Some(self.success.map_or(run.from, |success| success.at.max(run.from)))
    }
}

/// How many bad answers in a row count, or how many missing ones.
pub(super) fn needed(thresholds: &Thresholds) -> usize {
    usize::try_from(thresholds.failure_threshold.max(1)).unwrap_or(usize::MAX)
}

/// Adds to an ordered set that keeps its largest `keep` members.
fn insert(set: &mut Vec<u64>, seq: u64, keep: usize) {
    if let Err(place) = set.binary_search(&seq) {
        set.insert(place, seq);
        let surplus = set.len().saturating_sub(keep);
        set.drain(..surplus);
    }
}
