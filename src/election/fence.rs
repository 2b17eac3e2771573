//! The fence between two terms: no promotion of a term takes effect once a later one is declared for another pod.

use std::time::Duration;

use super::{
    event::Effect,
    group::{Change, Group, Phase},
    step::Effects,
};
use crate::api::{PodRef, Reason, Role};

impl Group {
    /// Before step 2. Between the declaration and its strips a promotion of the term before it could still take effect,
    /// unless that term is known to be over: confirmed, or of the same pod. So its holder is written to first. Who reads
    /// the pod after that finds it stamped, who has read it before is refused.
    pub(super) fn fence(&mut self, change: Change, settled: bool, effects: &mut Effects) {
        match self.to_fence(&change).filter(|_| !settled) {
            // It is well: if it has turned active meanwhile it is to stay so.
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

    /// The declared holder was stamped, unless it was found to be active.
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

    /// Whether the declared term's holder carries its stamp and is not active. Either it was promoted, and lost its label
    /// since, or it was fenced off. It is not promoted under this term again: that might come late.
    pub(super) fn is_spent(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_some_and(|member| {
            member.role != Role::Active && member.stamped_by_us && member.stamp == Some(self.declared.token)
        })
    }
}
