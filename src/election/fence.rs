//! The fence between two terms: once a later term is declared, no promotion of an earlier term takes effect.

use std::time::Duration;

use super::{
    event::Effect,
    group::Group,
    phase::{Change, Phase},
    step::Effects,
};
use crate::api::{PodRef, Reason, Role};

impl Group {
    /// Runs before step 2. A promotion of the previous term could still take effect after the new declaration, unless
    /// that term was confirmed, or is known to be unused. So its holder is written first, even if it is the new holder,
    /// too. A replica that reads the pod after this write sees the stamp; the promotion of a replica that has read the
    /// pod before fails.
    pub(super) fn fence(
        &mut self,
        change: Change,
        confirmed: bool,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        match self.to_fence().filter(|_| !confirmed) {
            Some(former) if self.carries_the_stamp(&former) => self.fenced(change, now, effects),
            // It is healthy: if it has become active in the meantime, it must stay active.
            Some(former) if self.case_against(&former).is_none() => {
                let token = self.known.declared.token;
                let pods = vec![self.seen(former, |member| member.to_stamp(token))];
                let effect = Effect::Stamp { token, pods };
                self.go(Phase::Fencing(change), effect, effects)
            }
            Some(former) => self.fence_off(change, former, effects),
            None => self.declare(change, confirmed, effects),
        }
    }

    fn to_fence(&self) -> Option<PodRef> {
        let unused = self.unused.has(self.known.declared.grant.as_deref());
        self.known.declared.holder.clone().filter(|holder| !unused || self.reads_as_active(holder))
    }

    fn fence_off(&mut self, change: Change, former: PodRef, effects: &mut Effects) -> Phase {
        let token = self.known.declared.token;
        let pods = vec![self.seen(former, |member| member.to_strip(token))];
        let effect = Effect::Strip { token, pods };
        self.go(Phase::Fencing(change), effect, effects)
    }

    /// Continues when the declared holder has lost its label, or all other pods have because it keeps its own.
    pub(super) fn fenced_off(&mut self, change: Change, now: Duration, effects: &mut Effects) -> Phase {
        let kept = self.known.declared.holder.clone().filter(|former| former.uid == change.holder.uid);
        match kept.filter(|former| !self.carries_the_stamp(former)) {
            // It is stamped even if the watch does not show its label any more, because the watch may have gone back.
            Some(former) => self.stamp_active(change, former, now, effects),
            None => self.declare(change, false, effects),
        }
    }

    /// The stamp of the declared holder was written, or the API server refuses it.
    pub(super) fn stamped_to_fence(
        &mut self,
        change: Change,
        refused: Vec<(PodRef, String)>,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        self.stamps_refused(refused);
        self.fenced(change, now, effects)
    }

    /// Continues when the declared holder is stamped, or was active when it should have been.
    fn fenced(&mut self, change: Change, now: Duration, effects: &mut Effects) -> Phase {
        match self.to_fence() {
            Some(former) if self.is_spent(&former) => self.declare(change, false, effects),
            Some(former) if self.reads_as_active(&former) && self.is_fit(&former) => {
                if former.uid == change.holder.uid {
                    return self.fence_active(change, former, now, effects);
                }
                let from = Some(former.clone());
                self.begin(Change { holder: former, reason: Reason::Resumed, from, began: now }, effects)
            }
            // Its stamp is not seen: it was refused, or the watch has gone back in time. A pod that works, or is to be
            // active again, must not lose a label for that.
            Some(former) if former.uid == change.holder.uid || self.case_against(&former).is_none() => {
                self.back_off(now)
            }
            Some(former) => self.fence_off(change, former, effects),
            None => self.declare(change, false, effects),
        }
    }

    /// The new holder is the former one and has kept its label. A late promotion of the declared term could still
    /// change its stamp, so it gets that term's stamp now, and keeps the label.
    ///
    /// The label may have been set by others while the pod of an earlier term is still active. So before the stamp is
    /// written, the declared term takes the label off every other pod, as in step 3.
    fn fence_active(
        &mut self,
        change: Change,
        former: PodRef,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        if self.carries_the_stamp(&former) {
            return self.declare(change, false, effects);
        }
        let (token, pods) = (self.known.declared.token, self.to_strip(&former.uid));
        if pods.is_empty() {
            return self.stamp_active(change, former, now, effects);
        }
        self.go(Phase::Fencing(change), Effect::Strip { token, pods }, effects)
    }

    fn stamp_active(&mut self, change: Change, pod: PodRef, now: Duration, effects: &mut Effects) -> Phase {
        let stamp =
            self.member(&pod.uid).filter(|member| member.stamped_by_us).and_then(|member| member.stamp);
        match stamp {
            // A later term was declared in the meantime, or the operator did not write this stamp. The declaration is
            // read again to find out.
            Some(stamp) if stamp > self.known.declared.token && self.known.suspect != Some(stamp) => {
                self.known.suspect = Some(stamp);
                self.back_off(now)
            }
            // The version that the watch shows may be from after a later declaration, and a write bound to it would be
            // late.
            _ => self.go(Phase::Fencing(change), Effect::Recheck(pod), effects),
        }
    }

    /// Continues when the declared holder, which keeps its label, and then the declaration and the row were read again.
    /// `stands` says that these are still the ones that were read before.
    pub(super) fn rechecked_to_fence(
        &mut self,
        change: Change,
        version: Option<String>,
        stands: bool,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let former = self.known.declared.holder.clone().filter(|former| self.reads_as_active(former));
        match (former, version.filter(|_| stands)) {
            (Some(former), Some(_)) if self.carries_the_stamp(&former) => {
                self.declare(change, false, effects)
            }
            (Some(pod), Some(version)) => {
                let token = self.known.declared.token;
                self.go(Phase::Fencing(change), Effect::Promote { token, pod, version }, effects)
            }
            _ => self.back_off(now),
        }
    }

    pub(super) fn reads_as_active(&self, pod: &PodRef) -> bool {
        self.member(&pod.uid).is_some_and(|member| member.role == Role::Active)
    }

    /// Whether neither the last confirmed term nor one since can have made this pod active. `confirmed` means that the
    /// declared term is confirmed: then the pods that it was to strip have lost the label. To be asked before the row
    /// names the pod as holder.
    pub(super) fn cannot_be_active(&self, pod: &PodRef, confirmed: bool) -> bool {
        let stripped = self.known.declared.strip.iter().filter(|_| !confirmed);
        let known = self.known.row.holder.iter().chain(&self.known.row.pending);
        let mut known = known.chain(&self.known.declared.holder).chain(stripped);
        !self.reads_as_active(pod) && (self.unused.spare(&pod.uid) || known.all(|known| known.uid != pod.uid))
    }

    /// Whether the declared term's holder carries its stamp and is not active: it was promoted and has lost its label
    /// since, or it was fenced. It must not be promoted under this term again, because that promotion could arrive
    /// late.
    pub(super) fn is_spent(&self, holder: &PodRef) -> bool {
        self.carries_the_stamp(holder) && !self.reads_as_active(holder)
    }

    /// Whether the pod carries the stamp of the declared term. Then no other promotion under this term changes
    /// anything: it is bound to a version before that stamp, or repeats it.
    fn carries_the_stamp(&self, pod: &PodRef) -> bool {
        let token = Some(self.known.declared.token);
        self.member(&pod.uid).is_some_and(|member| member.stamped_by_us && member.stamp == token)
    }
}
