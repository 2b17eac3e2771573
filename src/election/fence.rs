//! The fence between two terms: once a later term is declared for another pod, no promotion of an earlier term takes
//! effect.

use std::time::Duration;

use super::{
    event::Effect,
    group::{Change, Group, Phase},
    step::Effects,
};
use crate::api::{PodRef, Reason, Role};

impl Group {
    /// Runs before step 2. A promotion of the previous term could still take effect between the new declaration and
    /// its strips, unless that term was confirmed or has the same holder. So its holder is written first. A replica
    /// that reads the pod after this write sees the stamp; the promotion of a replica that has read the pod before
    /// fails.
    pub(super) fn fence(&mut self, change: Change, settled: bool, effects: &mut Effects) {
        match self.to_fence(&change).filter(|_| !settled) {
            // It is healthy: if it has become active in the meantime, it must stay active.
            Some(former) if self.case_against(&former).is_none() => {
                let effect = Effect::Stamp { token: self.declared.token, pods: vec![former] };
                self.go(Phase::Fencing(change), effect, effects);
            }
            Some(former) => self.fence_off(change, former, effects),
            None => self.declare(change, settled, effects),
        }
    }

    fn to_fence(&self, change: &Change) -> Option<PodRef> {
        self.declared.holder.clone().filter(|former| former.uid != change.holder.uid)
    }

    fn fence_off(&mut self, change: Change, former: PodRef, effects: &mut Effects) {
        let effect = Effect::Strip { token: self.declared.token, pods: vec![former] };
        self.go(Phase::Fencing(change), effect, effects);
    }

    /// Handles the outcome of the stamp: the declared holder is stamped now, unless it was active.
    pub(super) fn fenced(&mut self, change: Change, now: Duration, effects: &mut Effects) {
        match self.to_fence(&change) {
            Some(former) if self.is_spent(&former) => self.declare(change, false, effects),
            Some(former) if self.reads_as_active(&former) && self.is_fit(&former) => {
                let from = Some(former.clone());
                self.begin(Change { holder: former, reason: Reason::Resumed, from, began: now }, effects);
            }
            Some(former) => self.fence_off(change, former, effects),
            None => self.declare(change, false, effects),
        }
    }

    fn reads_as_active(&self, pod: &PodRef) -> bool {
        self.member(&pod.uid).is_some_and(|member| member.role == Role::Active)
    }

    /// Whether the declared term's holder carries its stamp and is not active: it was promoted and has lost its label
    /// since, or it was fenced. It must not be promoted under this term again, because that promotion could arrive
    /// late.
    pub(super) fn is_spent(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_some_and(|member| {
            member.role != Role::Active && member.stamped_by_us && member.stamp == Some(self.declared.token)
        })
    }
}
