//! I6: which active pods must be replaced during random faults, and how soon.
//!
//! A failover can be asked for only if nothing but its own fault disturbs it. So most faults of a run give no deadline:
//! the next one begins too soon, or the one before has taken away what the failover needs.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Kind, LONG, Plan, Target, Targets};
use crate::{history::Deadline, moment::Moment};

/// The operator's own ttl, and the time between two of its heartbeats: `settings` in the chart's values.
const SESSION: Duration = Duration::from_secs(4);
const BEAT: Duration = Duration::from_secs(1);

/// After this time without a sign of life the operator gives up a watch (`READ_TIMEOUT` in
/// `src/operator/index/watch_health.rs`).
const WATCH_HANGS: Duration = Duration::from_secs(30);

/// A fault that took place.
#[derive(Clone)]
pub struct Struck {
    /// What it was.
    pub plan: Plan,
    /// When it took place.
    pub from: Moment,
    /// When the next fault was about to begin, or the mending.
    pub until: Moment,
}

/// The failovers of a run that can be asked for.
pub struct Due {
    /// How long the active pods may be silent.
    silence_timeout: Duration,
    /// Until when the operator may see late what happens.
    late_until: Moment,
    deadlines: Vec<Deadline>,
}

impl Due {
    /// None yet. The active pods of all groups may be silent for so long.
    pub fn new(silence_timeout: Duration) -> Self {
        Self { silence_timeout, late_until: Moment::default(), deadlines: Vec::new() }
    }

    /// Adds those of a round: its faults, one after the other, with the targets that were listed before. Everything
    /// worked then, and was mended at `mended`. A pod may have been replaced between the list and its fault:
    /// [`Deadline::of_holders`] tells.
    pub fn add(&mut self, targets: &Targets, faults: &[Struck], mended: Moment) {
        for (index, fault) in faults.iter().enumerate().filter(|(_, fault)| fault.from >= self.late_until) {
            let earlier = &faults[..index];
            let failing = fault.plan.disturbed(targets);
            for pod in targets.pods.iter().filter(|pod| pod.works && pod.active && failing.contains(&pod.uid))
            {
                let hinders = |one: &Struck| one.plan.stands_in_the_way_of(&pod.group);
                if !earlier.iter().any(hinders) && fault.plan.leaves_what_replaces(pod, targets) {
                    self.deadlines.extend(fault.deadline(&pod.uid, self.silence_timeout));
                }
            }
        }
        let late = faults.iter().map(|fault| fault.news_is_late_until(targets, mended));
        self.late_until = late.fold(self.late_until, Moment::max);
    }

    /// Takes all of them out.
    pub fn take(&mut self) -> Vec<Deadline> {
        std::mem::take(&mut self.deadlines)
    }
}

impl Struck {
    /// The deadline of an active pod that it makes fail, if it is over before anything else is disturbed.
    fn deadline(&self, uid: &str, silence_timeout: Duration) -> Option<Deadline> {
        let reason = self.plan.kind.certain_reason()?;
        // The group's owner may be lost together with its pod. The next one sees the last heartbeat of its session up
        // to a heartbeat later, and waits for the session's ttl from then on. The pod's silence does not wait for that:
        // the deputy has probed it all the time. So the longer of the two counts, not their sum.
        let owner = if self.plan.nodes.is_empty() { Duration::ZERO } else { SESSION + BEAT };
        // No certain failure is noticed by refusals.
        let deadline = Deadline::usual(uid, self.from, reason, silence_timeout.max(owner), Duration::ZERO);
        (deadline.from.plus(deadline.within) <= self.until).then_some(deadline)
    }

    /// Until when a replica may see late what happens. A watch whose packets were lost hangs for as long again as they
    /// were lost, because the other side sends them again after growing pauses; the operator itself reckons with twice
    /// that time. Connections that are refused or closed are made again within a second.
    fn news_is_late_until(&self, targets: &Targets, mended: Moment) -> Moment {
        use Kind as K;
        let loses_packets = matches!(
            self.plan.kind,
            K::NodeCutOff | K::NodeFromApiServer | K::NodeToApiServer | K::ApiServerToNode
        );
        let there = targets.replicas.iter().any(|replica| self.plan.nodes.contains(&replica.node));
        let lasted = mended.since(self.from);
        if loses_packets && there { mended.plus((lasted * 2).min(WATCH_HANGS)) } else { Moment::default() }
    }
}

impl Kind {
    /// For which reason active pods are replaced that certainly fail because of it.
    ///
    /// - Not a killed program: it is soon up again. After an outage of the API server or of a watch, a restart that is
    ///   seen late does not count against a pod that answers.
    /// - Not a path between two nodes: another replica may hear the pods.
    /// - Not a cordon or a request: the pods work, so the change may be put off.
    fn certain_reason(self) -> Option<&'static str> {
        use Kind as K;
        match self {
            K::PodDeleted | K::PodDeletedByForce => Some("PodDeleted"),
            K::PodFrozen | K::PodPaused | K::NodePowerOff | K::NodeCutOff | K::NodeFrozen => Some("Silent"),
            _ => None,
        }
    }
}

impl Plan {
    /// Whether a failover of this group during the next fault may be late because of this one: it disturbs the group
    /// itself, or what every failover needs. The next fault disturbs none of its nodes.
    fn stands_in_the_way_of(&self, group: &str) -> bool {
        match (self.kind, &self.pod) {
            // Failovers need neither.
            (Kind::NodeCordoned | Kind::ProxyPaused, _) => false,
            (_, Some(pod)) => pod.group == group,
            _ => true,
        }
    }

    /// Whether another pod of the group and a replica are on nodes that it does not disturb.
    fn leaves_what_replaces(&self, pod: &Target, targets: &Targets) -> bool {
        let stays = |node: &String| !self.nodes.contains(node);
        let is_next = |other: &Target| {
            other.works && other.group == pod.group && other.uid != pod.uid && stays(&other.node)
        };
        targets.pods.iter().any(is_next) && targets.replicas.iter().any(|replica| stays(&replica.node))
    }
}

/// What a run that lasted so long has shown about I6, by the number of its deadlines. An error if it should have shown
/// something.
pub fn proved(deadlines: usize, lasts: Duration) -> Result<String> {
    let nothing = "no failover could be asked for: this run proves nothing about I6";
    ensure!(lasts < LONG || deadlines > 0, nothing);
    Ok(if deadlines == 0 {
        nothing.to_owned()
    } else {
        format!("deadlines of failovers checked (I6): {deadlines}")
    })
}

#[cfg(test)]
mod tests;
