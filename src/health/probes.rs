//! The record of one pod's probes. Its size is bounded, whatever the number of probes.

use std::time::Duration;

use super::{
    probe::{ProbeOutcome, VoidCause},
    thresholds::Thresholds,
};

/// The record of the probes of one pod.
///
/// Everything is keyed by the sequence number of the probe, so that answers that arrive late, twice or in another
/// order give the same record.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    /// Probes with a smaller number went to another address.
    first_seq: u64,
    /// Probes that were sent before this time do not count, because this replica was cut off.
    connected_since: Duration,
    /// The current period without a gap in our own sending.
    run: Option<Run>,
    /// The last successful probe.
    success: Option<Sent>,
    /// The last probe that was answered after its timeout.
    late: Option<Sent>,
    /// The last unanswered probe, even if its loss is not evidence against the pod.
    lost: Option<Sent>,
    /// The last probe that ended with any evidence about the pod.
    last_ended: u64,
    /// The probes since then that failed for a reason of our own.
    void: Option<Void>,
    /// The last refused probes since the last success, by sequence number; at most as many as the threshold.
    refused: Vec<u64>,
    /// The last unanswered probes since the last success, by sequence number; at most as many as the threshold.
    unanswered: Vec<u64>,
}

/// A period in which probes were sent, or waited for their answers, without a gap of twice the interval or more.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: Duration,
    until: Duration,
}

/// Probes in a row that ended without evidence about the pod.
#[derive(Clone, Copy, Debug)]
struct Void {
    /// When the first of them was to be sent.
    since: Duration,
    /// The last one.
    last: Sent,
    /// Why it failed.
    cause: VoidCause,
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

    /// This replica was cut off until `now`: all counts restart.
    pub(super) fn cut_off_until(&mut self, now: Duration) {
        self.connected_since = self.connected_since.max(now);
        self.run = None;
        self.refused.clear();
        self.unanswered.clear();
    }

    pub(super) fn sent(&mut self, seq: u64, at: Duration, interval: Duration) {
        if seq < self.first_seq || at < self.connected_since {
            return;
        }
        match &mut self.run {
            Some(run) if at < run.until + interval * 2 => run.until = run.until.max(at),
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
        interval: Duration,
        keep: usize,
    ) {
        if seq < self.first_seq {
            return;
        }
        if let ProbeOutcome::Void(cause) = outcome {
            return self.failed(Sent { seq, at }, cause);
        }
        self.sent(seq, at, interval);
        self.last_ended = self.last_ended.max(seq);
        self.void.take_if(|void| void.last.seq <= seq);
        if outcome == ProbeOutcome::Unanswered && self.lost.is_none_or(|lost| seq > lost.seq) {
            self.lost = Some(Sent { seq, at });
        }
        let in_run = self.run.is_some_and(|run| at >= run.from);
        let after_success = self.success.is_none_or(|success| seq > success.seq);
        match outcome {
            ProbeOutcome::Success if after_success => {
                self.success = Some(Sent { seq, at });
                self.refused.retain(|other| *other > seq);
                self.unanswered.retain(|other| *other > seq);
            }
            ProbeOutcome::Refused(_) if after_success && in_run => insert(&mut self.refused, seq, keep),
            ProbeOutcome::Unanswered
                if after_success && in_run && self.late.is_none_or(|late| seq > late.seq) =>
            {
                insert(&mut self.unanswered, seq, keep);
            }
            _ => {}
        }
    }

    /// A probe failed for a reason of our own.
    fn failed(&mut self, probe: Sent, cause: VoidCause) {
        if cause == VoidCause::OutOfTurn || probe.seq <= self.last_ended {
            return;
        }
        let since = self.void.map_or(probe.at, |void| void.since.min(probe.at));
        if self.void.is_none_or(|void| probe.seq > void.last.seq) {
            self.void = Some(Void { since, last: probe, cause });
        }
    }

    pub(super) fn answered_late(&mut self, seq: u64, at: Duration) {
        if seq >= self.first_seq && self.late.is_none_or(|late| seq > late.seq) {
            self.late = Some(Sent { seq, at });
            self.unanswered.retain(|other| *other > seq);
        }
    }

    /// Whether enough probes were refused since the last success, and we are still probing.
    pub(super) fn refused(&self, thresholds: &Thresholds, now: Duration) -> bool {
        self.refused_until(thresholds).is_some_and(|until| now < until)
    }

    /// Until when the refusals count without further probes: a pod that is not probed any more may have recovered.
    fn refused_until(&self, thresholds: &Thresholds) -> Option<Duration> {
        (self.refused.len() >= needed(thresholds)).then(|| self.asked_until(thresholds))?
    }

    /// When the last probe sent by us is too old to count as still probing.
    fn asked_until(&self, thresholds: &Thresholds) -> Option<Duration> {
        self.run.map(|run| run.until + thresholds.interval * 2)
    }

    /// When the last probe was sent, if it succeeded.
    pub(super) fn proof(&self) -> Option<Duration> {
        self.success.filter(|success| success.seq == self.last_ended).map(|success| success.at)
    }

    /// When the last successful probe was sent, whatever followed.
    pub(super) fn succeeded_at(&self) -> Option<Duration> {
        self.success.map(|success| success.at)
    }

    pub(super) fn is_silent(&self, thresholds: &Thresholds, now: Duration) -> bool {
        self.silence(thresholds).is_some_and(|(from, until)| (from..until).contains(&now))
    }

    pub(super) fn turning_points(&self, thresholds: &Thresholds) -> impl Iterator<Item = Duration> + use<> {
        let proof = self.proof().map(|at| at + thresholds.freshness());
        let silence = self.silence(thresholds).map(|(from, until)| [from, until]);
        proof.into_iter().chain(self.refused_until(thresholds)).chain(silence.into_iter().flatten())
    }

    /// The period in which the pod counts as silent without further events: it begins after a full silence timeout of
    /// unanswered probes, and ends when we have not sent any probe for twice the interval.
    fn silence(&self, thresholds: &Thresholds) -> Option<(Duration, Duration)> {
        let until = self.asked_until(thresholds)?;
        (self.unanswered.len() >= needed(thresholds))
            .then_some((self.silent_since()? + thresholds.silence_timeout, until))
    }

    /// The start of the silence.
    pub(super) fn silent_since(&self) -> Option<Duration> {
        let run = self.run?;
        Some(self.heard_at().map_or(run.from, |at| run.from.max(at)))
    }

    /// When the last probe was sent that was answered, in time or late.
    pub(super) fn heard_at(&self) -> Option<Duration> {
        [self.success, self.late].into_iter().flatten().map(|sent| sent.at).max()
    }

    /// When the last answered probe was sent, or zero if none was answered; or since when probes have failed for a
    /// reason of our own. None if no probe has been lost since. A lost probe counts even if it is not evidence against
    /// the pod.
    pub(super) fn unheard_since(&self) -> Option<Duration> {
        let heard = [self.success, self.late].into_iter().flatten().map(|sent| sent.seq).max();
        let lost = self.lost.filter(|lost| heard.is_none_or(|heard| lost.seq > heard));
        lost.map(|_| self.heard_at().unwrap_or_default()).or_else(|| self.void.map(|void| void.since))
    }

    /// Why the probes fail for a reason of our own, if they have for half of the silence timeout, without a break.
    pub(super) fn hindrance(&self, thresholds: &Thresholds, now: Duration) -> Option<VoidCause> {
        let void = self.void?;
        let still = now < void.last.at + thresholds.interval * 4;
        (still && void.last.at >= void.since + thresholds.silence_timeout / 2).then_some(void.cause)
    }
}

/// How many consecutive refused probes, or unanswered probes, are needed.
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
