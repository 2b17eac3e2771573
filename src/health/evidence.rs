//! One pod's evidence, weighed: a pure state machine from probes and the kubelet's word to a [`Verdict`].

use std::time::Duration;

use super::{
    facts::{PodFacts, Readiness, Restarts},
    node::{LEASE_DURATION, NodeLease, NodeWord},
    probe::ProbeOutcome,
    probes::{Probes, needed},
    thresholds::Thresholds,
};
use crate::api::Reason;

/// What is asked about a pod: the same facts weigh differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds the lock: it has been ready, so whatever says that it is not ready counts against it.
    Holder,
    /// It does not. Before it was ready for the first time, not being ready says nothing against it.
    Candidate,
}

/// What the evidence says of a pod now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works: it could be, or stay, the active pod.
    Eligible {
        /// When the last proof of it was asked for.
        since: Duration,
    },
    /// Something says that it does not work.
    Failing(Reason),
    /// It has said nothing, although it was asked all the time.
    Silent {
        /// When the last probe that it answered was sent, or when we began to ask.
        since: Duration,
    },
    /// There is no fresh proof that it works, and nothing against it.
    Unknown,
    /// It is over, or about to be.
    Ended(Reason),
}

impl Verdict {
    /// Whether a holder of this verdict is to be replaced, and why.
    pub fn against(&self) -> Option<Reason> {
        match *self {
            Self::Failing(reason) | Self::Ended(reason) => Some(reason),
            Self::Silent { .. } => Some(Reason::Silent),
            Self::Eligible { .. } | Self::Unknown => None,
        }
    }
}

/// How long the control plane's "not ready, because the node was not heard" may stand before it counts although nothing
/// else confirms it: longer than kubelets take to report again after an outage of the API server.
const NODE_UNHEARD_GRACE: Duration = LEASE_DURATION;

/// All that is known of one pod.
///
/// Negative evidence by the passing of time alone comes from probes that we certainly sent, and from leases that we certainly
/// watched; never from the mere age of what the API server last told us.
#[derive(Clone, Debug)]
pub struct PodEvidence {
    thresholds: Thresholds,
    probes: Probes,
    word: Option<KubeletWord>,
    was_ready: bool,
    /// The most restarts of the main container that were seen: what is older may come later.
    restarts: Option<Restarts>,
    /// When a further one was seen.
    restarted: Option<Duration>,
    /// Until then the kubelet's word may tell of what is long over.
    late_until: Duration,
}

/// What is kept of [`PodFacts`].
#[derive(Clone, Copy, Debug)]
struct KubeletWord {
    readiness: Readiness,
    /// Since when the readiness is what it is, as we heard it.
    since: Duration,
    ended: Option<Reason>,
    container_down: bool,
    probed: bool,
}

impl PodEvidence {
    /// Nothing is known yet.
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            probes: Probes::default(),
            word: None,
            was_ready: false,
            restarts: None,
            restarted: None,
            late_until: Duration::ZERO,
        }
    }

    /// The group's settings changed.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
    }

    /// The pod's address or probe changed: probes with a smaller number went elsewhere and no longer count.
    pub fn retarget(&mut self, first_seq: u64) {
        self.probes = Probes::starting_at(first_seq);
    }

    /// Our own network led nowhere until `now`: the silence of that time is ours, not the pod's.
    pub fn cut_off_until(&mut self, now: Duration) {
        self.probes.cut_off_until(now);
    }

    /// The kubelet's word was held up on its way to us, and what arrives until `until` may be old: a restart that is first
    /// seen then may be long over, so that a proof from before we saw it may be the new run's.
    pub fn news_late_until(&mut self, until: Duration) {
        self.late_until = self.late_until.max(until);
    }

    /// A probe was sent. Numbers grow; `sent_at` is on [`Monotonic`](super::Monotonic)'s clock.
    pub fn probe_sent(&mut self, seq: u64, sent_at: Duration) {
        self.probes.sent(seq, sent_at, self.thresholds.retry_interval);
    }

    /// A probe ended. Order and repetition make no difference.
    pub fn probe_answered(&mut self, seq: u64, sent_at: Duration, outcome: ProbeOutcome) {
        let keep = needed(&self.thresholds);
        self.probes.answered(seq, sent_at, outcome, self.thresholds.retry_interval, keep);
    }

    /// A version of the pod was read or arrived on the watch.
    pub fn kubelet(&mut self, facts: &PodFacts, now: Duration) {
        let since = match &self.word {
            Some(word) if word.readiness == facts.readiness => word.since,
            _ => now,
        };
        self.was_ready |= facts.readiness == Readiness::Ready;
        self.count_restarts(facts.restarts.as_ref(), now);
        let ended = if facts.deleting {
            Some(Reason::PodDeleted)
        } else if facts.finished() {
            Some(Reason::PodFinished)
        } else if facts.disruption_target {
            Some(Reason::DisruptionTarget)
        } else {
            None
        };
        self.word = Some(KubeletWord {
            readiness: facts.readiness,
            since,
            ended,
            container_down: facts.container_problem.is_some(),
            probed: matches!(facts.probe, Ok(Some(_))),
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

    /// What all this says at `now`. `node` is the lease of the pod's node.
    pub fn verdict(&self, standing: Standing, node: &NodeLease, now: Duration) -> Verdict {
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
        if word.says_unready(node, now) {
            let counts = standing == Standing::Holder || self.was_ready;
            return if counts { Verdict::Failing(Reason::PodNotReady) } else { Verdict::Unknown };
        }
        if word.probed { self.by_probes(word, now) } else { self.by_lease(word, node, now) }
    }

    /// The next moment after `now` at which [`Self::verdict`] may change although nothing happens. None: not before
    /// something happens.
    pub fn next_deadline(&self, node: &NodeLease, now: Duration) -> Option<Duration> {
        let word = self.word.as_ref().filter(|word| word.ended.is_none() && !word.container_down)?;
        let restarting = self.restarting_until();
        let unheard = (word.readiness == Readiness::NodeUnheard).then(|| word.since + NODE_UNHEARD_GRACE);
        let probes = word.probed.then(|| self.probes.turning_points(&self.thresholds)).into_iter().flatten();
        let watch_lease = !word.probed || unheard.is_some();
        let silence = self.lease_silence(node);
        let lease = watch_lease.then(|| node.turning_points().chain(silence)).into_iter().flatten();
        let points = restarting.into_iter().chain(unheard).chain(probes).chain(lease);
        points.filter(|point| *point > now).min()
    }

    /// Until when a restart of the main container counts, unless the new run proves itself before. Not for ever: where
    /// somebody else probes the pod, no proof is heard of.
    fn restarting_until(&self) -> Option<Duration> {
        let restarted = self.restarted?;
        let proved = self.probes.proof().is_some_and(|sent_at| sent_at > restarted);
        (!proved).then(|| restarted + self.thresholds.freshness())
    }

    fn by_probes(&self, word: &KubeletWord, now: Duration) -> Verdict {
        if self.probes.refused(&self.thresholds, now) {
            return Verdict::Failing(Reason::ProbeRefused);
        }
        if let Some(since) = self.probes.silent_since(&self.thresholds, now) {
            return Verdict::Silent { since };
        }
        match self.probes.proof() {
            Some(sent_at)
                if word.readiness == Readiness::Ready && now < sent_at + self.thresholds.freshness() =>
            {
                Verdict::Eligible { since: sent_at }
            }
            _ => Verdict::Unknown,
        }
    }

    fn by_lease(&self, word: &KubeletWord, node: &NodeLease, now: Duration) -> Verdict {
        match node.word(now) {
            NodeWord::Moving(since) if word.readiness == Readiness::Ready => Verdict::Eligible { since },
            NodeWord::Still(since) if now >= since + self.thresholds.ttl => Verdict::Silent { since },
            _ => Verdict::Unknown,
        }
    }

    /// When the silence of a lease has lasted for the ttl, where that is the longer of the two.
    fn lease_silence(&self, node: &NodeLease) -> Option<Duration> {
        node.looked_from().map(|from| from + self.thresholds.ttl)
    }
}

impl KubeletWord {
    /// Whether someone who can be believed says that the pod is not ready.
    fn says_unready(&self, node: &NodeLease, now: Duration) -> bool {
        match self.readiness {
            Readiness::NotReady => true,
            // The control plane speaks for a kubelet that it does not hear. It is believed at once where we, too, saw
            // the lease stand still; otherwise the API server may just have been away, and the kubelet gets time.
            Readiness::NodeUnheard => {
                matches!(node.word(now), NodeWord::Still(_)) || now >= self.since + NODE_UNHEARD_GRACE
            }
            Readiness::Ready | Readiness::Unknown => false,
        }
    }
}
