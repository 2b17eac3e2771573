//! The evidence about one pod: a pure state machine that turns probes and the kubelet's report into a [`Verdict`].

use std::time::Duration;

use super::{
    facts::{PodFacts, Readiness, Restarts},
    node::{LEASE_DURATION, NodeLease, NodeWord},
    opinion::SecondOpinion,
    probe::{ProbeKind, ProbeOutcome, VoidCause},
    probes::{Probes, needed},
    thresholds::Thresholds,
};
use crate::api::{Reason, Verdict};

/// After this time without an answer a ready pod is one that another replica may hear, also if the silence timeout is
/// longer.
const MISSED: Duration = Duration::from_secs(30);

/// Whether the pod is the holder. The same facts count differently then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedAs {
    /// It holds the lock. It has been ready, so any report that it is not ready counts against it.
    Holder,
    /// It does not hold the lock. Until it has been ready once, not being ready does not count against it.
    Candidate,
}

/// How long the control plane must report "not ready because the node was not heard" before it counts without any
/// other confirmation. Longer than kubelets take to report again after an outage of the API server.
const NODE_UNHEARD_GRACE: Duration = LEASE_DURATION;

/// All evidence about one pod.
///
/// Time alone counts against a pod only while probes were certainly sent or leases certainly watched; never because
/// the last report from the API server is old.
#[derive(Clone, Debug)]
pub struct PodEvidence {
    thresholds: Thresholds,
    probes: Probes,
    opinion: SecondOpinion,
    word: Option<KubeletWord>,
    was_ready: bool,
    /// The largest restart count of the main container so far. Older reports may arrive later.
    restarts: Option<Restarts>,
    /// When the count was last seen to grow.
    restarted: Option<Duration>,
    /// Reports of the kubelet that arrive before this time may be old.
    late_until: Duration,
    /// When the pod had last been heard as its silence began anew, because this replica had reached nobody.
    spared: Option<Duration>,
}

/// The parts of [`PodFacts`] that are kept.
#[derive(Clone, Copy, Debug)]
struct KubeletWord {
    readiness: Readiness,
    /// When we first saw the current readiness.
    since: Duration,
    ended: Option<Reason>,
    container_down: bool,
    probed: bool,
    /// Whether its agent is probed.
    supervised: bool,
}

impl PodEvidence {
    /// A pod without any evidence yet.
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            probes: Probes::default(),
            opinion: SecondOpinion::default(),
            word: None,
            was_ready: false,
            restarts: None,
            restarted: None,
            late_until: Duration::ZERO,
            spared: None,
        }
    }

    /// Applies changed settings of the group.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
    }

    /// The pod's address or probe changed: probes with a smaller number no longer count.
    pub fn retarget(&mut self, first_seq: u64) {
        self.probes = Probes::starting_at(first_seq);
    }

    /// This replica was cut off until `now`: the silence of that time is no evidence against the pod.
    pub fn cut_off_until(&mut self, now: Duration) {
        self.probes.cut_off_until(now);
    }

    /// This replica reached no pod on any other node between these times, this one among them. If that lasted for more
    /// than a turn of probes, and the pod was heard until then, its silence begins now; once, until it is heard again.
    pub fn unreached_between(&mut self, since: Duration, now: Duration) {
        let turns = self.thresholds.interval * 2;
        let was_heard = self.probes.silent_since().is_some_and(|silent| since < silent + turns);
        let heard_at = Some(self.probes.heard_at().unwrap_or_default());
        if was_heard && now >= since + turns && self.spared != heard_at {
            self.spared = heard_at;
            self.probes.cut_off_until(now);
        }
    }

    /// Reports of the kubelet were delayed, and those that arrive before `until` may be old. A restart that is first
    /// seen in this time may be long over, and an earlier successful probe may be one of the new container.
    pub fn news_late_until(&mut self, until: Duration) {
        self.late_until = self.late_until.max(until);
    }

    /// A probe was sent, or still waits for its answer at `sent_at`. Sequence numbers grow; `sent_at` is a time of
    /// the clock that all decisions use.
    pub fn probe_sent(&mut self, seq: u64, sent_at: Duration) {
        self.probes.sent(seq, sent_at, self.thresholds.interval);
    }

    /// A probe ended. These calls may come in any order and repeatedly.
    pub fn probe_answered(&mut self, seq: u64, sent_at: Duration, outcome: ProbeOutcome) {
        let keep = needed(&self.thresholds);
        self.probes.answered(seq, sent_at, outcome, self.thresholds.interval, keep);
        // For good: a restart that is over must not count again when the pod's probe changes.
        if self.probes.succeeded_at() > self.restarted {
            self.restarted = None;
        }
    }

    /// A probe that counted as unanswered was answered after all. This ends a silence, and proves nothing else.
    pub fn probe_answered_late(&mut self, seq: u64, sent_at: Duration) {
        self.probes.answered_late(seq, sent_at);
    }

    /// Why this replica cannot judge the pod, if its probes have failed for a reason of its own for half of the silence
    /// timeout.
    pub fn hindrance(&self, now: Duration) -> Option<VoidCause> {
        self.probes.hindrance(&self.thresholds, now)
    }

    /// Whether the pod may work although this replica does not hear it: for a while no probe was answered, and
    /// Kubernetes has reported that the pod is ready. `cut_off`: this replica reaches no pod on any other node.
    pub fn is_missed(&self, cut_off: bool, now: Duration) -> bool {
        let patience = self.thresholds.silence_timeout.min(MISSED).max(self.thresholds.freshness());
        let over = |since: Duration| now >= since + patience;
        let is_ready = |word: &KubeletWord| {
            word.readiness == Readiness::Ready && word.ended.is_none() && !word.container_down
        };
        self.word.as_ref().is_some_and(|word| is_ready(word) && over(word.since))
            && (cut_off || self.probes.unheard_since().is_some_and(over))
    }

    /// Whether this replica's last probe was not answered.
    pub fn is_unheard(&self) -> bool {
        self.probes.unheard_since().is_some()
    }

    /// Whether other replicas are to be asked now whether they hear the pod: half of the silence timeout before it
    /// counts as silent, and again whenever as much time has passed. An answer counts until the answer to the next
    /// question.
    pub fn asks_others(&mut self, now: Duration) -> bool {
        let half = self.thresholds.silence_timeout / 2;
        let doubtful = self.probes.unheard_since().is_some_and(|since| now >= since + half);
        doubtful && self.opinion.ask(now, half)
    }

    /// Another replica hears the pod, or can judge it better than this one.
    pub fn vouched_for(&mut self, now: Duration) {
        self.opinion.vouched(self.probes.heard_at(), self.thresholds.silence_timeout, now);
    }

    /// This replica owns the pod's group, and has just been told that another one hears the pod. After some minutes of
    /// this the answers no longer count: the other one would have taken the group.
    pub fn relies_on_others(&mut self, now: Duration) {
        self.opinion.rely(now);
    }

    /// Another replica asks whether this one hears the pod. `blind`: that one cannot judge it, for reasons of its own,
    /// so that a verdict against the pod is an answer as well. Returns whether to probe the pod at once.
    pub fn asked(&mut self, blind: bool, now: Duration) -> bool {
        self.opinion.asked(blind, now, self.thresholds.interval)
    }

    /// Whether the question of another replica can be answered with yes now, which ends it. `against`: there is
    /// evidence against the pod. After the silence timeout the question has expired.
    pub fn vouches(&mut self, against: bool, now: Duration) -> bool {
        let oldest = now.saturating_sub(self.thresholds.silence_timeout);
        self.opinion.answers(self.probes.heard_at(), against, oldest)
    }

    /// A version of the pod was read or arrived on the watch.
    pub fn kubelet(&mut self, facts: &PodFacts, now: Duration) {
        let since = match &self.word {
            Some(word) if word.readiness == facts.readiness => word.since,
            _ => now,
        };
        self.was_ready |= facts.readiness == Readiness::Ready;
        self.count_restarts(facts.restarts.as_ref(), now);
        self.word = Some(KubeletWord {
            readiness: facts.readiness,
            since,
            ended: facts.ended(),
            container_down: facts.container_problem.is_some(),
            probed: matches!(facts.probe, Ok(Some(_))),
            supervised: matches!(&facts.probe, Ok(Some(probe)) if probe.kind == ProbeKind::Agent),
        });
    }

    fn count_restarts(&mut self, seen: Option<&Restarts>, now: Duration) {
        let Some(seen) = seen else { return };
        match &mut self.restarts {
            Some(known) if known.container == seen.container => {
                if seen.count > known.count {
                    known.count = seen.count;
                    if now >= self.late_until {
                        self.restarted = Some(now);
                    }
                }
            }
            known => *known = Some(seen.clone()),
        }
    }

    /// The verdict at `now`. `node` is the lease of the pod's node.
    pub fn verdict(&self, judged_as: JudgedAs, node: &NodeLease, now: Duration) -> Verdict {
        let Some(word) = &self.word else { return Verdict::Unknown };
        if let Some(reason) = word.ended {
            return Verdict::Ended(reason);
        }
        if word.container_down {
            return Verdict::Failing(Reason::ContainerTerminated);
        }
        if self.restarting_until().is_some_and(|until| now < until) {
            return Verdict::Failing(Reason::ContainerRestarted);
        }
        // The program of a new holder needs time to start, and its pod is not ready until then.
        let may_start = word.supervised && judged_as == JudgedAs::Holder;
        if word.says_unready(node, now) && !may_start {
            let counts = judged_as == JudgedAs::Holder || self.was_ready;
            return if counts { Verdict::Failing(Reason::PodNotReady) } else { Verdict::Unknown };
        }
        if word.probed { self.by_probes(word, now) } else { self.by_lease(word, node, now) }
    }

    /// When a pod with the verdict *silent* last answered a probe. If it never did, since when it has been probed. If
    /// it cannot be probed, since when the lease of its node has not changed.
    pub fn silent_since(&self, node: &NodeLease, now: Duration) -> Option<Duration> {
        let word = self.word.as_ref()?;
        match node.word(now) {
            _ if word.probed => self.probes.heard_at().or_else(|| self.probes.silent_since()),
            NodeWord::Still(since) => Some(since),
            NodeWord::Moving(_) | NodeWord::Unknown => None,
        }
    }

    /// The next time after `now` at which [`Self::verdict`] may change without a new event. None if it cannot.
    pub fn next_deadline(&self, node: &NodeLease, now: Duration) -> Option<Duration> {
        let word = self.word.as_ref().filter(|word| word.ended.is_none() && !word.container_down)?;
        let restarting = self.restarting_until();
        let unheard = (word.readiness == Readiness::NodeUnheard).then(|| word.since + NODE_UNHEARD_GRACE);
        let probes = word.probed.then(|| self.probes.turning_points(&self.thresholds)).into_iter().flatten();
        let elsewhere = word.probed.then(|| self.heard_elsewhere()).flatten();
        let elsewhere = elsewhere.map(|(from, until)| [from, until]).into_iter().flatten();
        let watch_lease = !word.probed || unheard.is_some();
        let silence = self.lease_silence(node);
        let lease = watch_lease.then(|| node.turning_points().chain(silence)).into_iter().flatten();
        let points = restarting.into_iter().chain(unheard).chain(probes).chain(elsewhere).chain(lease);
        points.filter(|point| *point > now).min()
    }

    /// Until when a restart of the main container counts, unless a later probe succeeds before. This is limited
    /// because the pod may be probed by another replica, whose results this one does not see.
    fn restarting_until(&self) -> Option<Duration> {
        self.restarted.map(|restarted| restarted + self.thresholds.freshness())
    }

    fn by_probes(&self, word: &KubeletWord, now: Duration) -> Verdict {
        if self.probes.refused(&self.thresholds, now) {
            return Verdict::Failing(Reason::ProbeRefused);
        }
        if self.heard_elsewhere().is_some_and(|(from, until)| (from..until).contains(&now)) {
            return Verdict::HeardElsewhere;
        }
        if self.probes.is_silent(&self.thresholds, now) {
            return Verdict::Silent;
        }
        match self.probes.proof() {
            Some(sent_at)
                if word.readiness == Readiness::Ready && now < sent_at + self.thresholds.freshness() =>
            {
                Verdict::Eligible
            }
            _ => Verdict::Unknown,
        }
    }

    /// From when to when another replica is believed that it hears the pod, which this one does not hear.
    fn heard_elsewhere(&self) -> Option<(Duration, Duration)> {
        let silence_timeout = self.thresholds.silence_timeout;
        Some((self.probes.unheard_since()? + silence_timeout, self.opinion.believed_until(silence_timeout)))
    }

    fn by_lease(&self, word: &KubeletWord, node: &NodeLease, now: Duration) -> Verdict {
        match node.word(now) {
            NodeWord::Moving(_) if word.readiness == Readiness::Ready => Verdict::Eligible,
            NodeWord::Still(since) if now >= since + self.thresholds.silence_timeout => Verdict::Silent,
            _ => Verdict::Unknown,
        }
    }

    /// When the lease has not changed for the silence timeout, for a silence timeout longer than the lease duration.
    fn lease_silence(&self, node: &NodeLease) -> Option<Duration> {
        node.looked_from().map(|from| from + self.thresholds.silence_timeout)
    }
}

impl KubeletWord {
    /// Whether there is a credible report that the pod is not ready.
    fn says_unready(&self, node: &NodeLease, now: Duration) -> bool {
        match self.readiness {
            Readiness::NotReady => true,
            // The control plane reports this for a kubelet that it does not hear. It counts at once if we, too,
            // observed that the lease did not change. Otherwise the API server may just have been unavailable, and
            // the kubelet gets time to report.
            Readiness::NodeUnheard => {
                matches!(node.word(now), NodeWord::Still(_)) || now >= self.since + NODE_UNHEARD_GRACE
            }
            Readiness::Ready | Readiness::Unknown => false,
        }
    }
}
