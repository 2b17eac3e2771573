//! Which pod becomes the next holder, and what happens if it cannot.

use std::time::Duration;

use super::{
    event::Outcome,
    group::{Change, Group},
    step::Effects,
    world::{Member, Standing},
};
use crate::api::{PodRef, Reason, Role};

impl Group {
    /// The best pod to take over from `former`.
    pub(super) fn successor(&self, former: Option<&PodRef>) -> Option<PodRef> {
        self.best(former, former)
    }

    /// The best candidate but `except`, where `lost` is the pod to replace. Preferred, in this order:
    ///
    /// - a pod that is already labelled active,
    /// - a pod on another node than a silent holder,
    /// - a pod that the operator has stamped before: the API server lets it be changed,
    /// - a pod with the stamp of the declared term, so that this was so lately,
    /// - the oldest.
    fn best(&self, lost: Option<&PodRef>, except: Option<&PodRef>) -> Option<PodRef> {
        let lost = lost.and_then(|pod| self.member(&pod.uid));
        let lost_node =
            lost.filter(|member| member.standing == Standing::Silent).and_then(|member| member.node.as_ref());
        let token = Some(self.declared.token);
        let rank = |member: &&Member| {
            let on_lost_node = member.node.is_some() && member.node.as_ref() == lost_node;
            let unknown = !member.stamped_by_us || self.refusals.has(&member.pod.uid);
            let behind = unknown || member.stamp != token;
            let age = (member.created, member.pod.uid.clone());
            (member.role != Role::Active, on_lost_node, unknown, behind, age)
        };
        let except = except.map(|pod| pod.uid.as_str());
        let candidates = self
            .world
            .members
            .iter()
            .filter(|member| self.is_candidate(member) && Some(member.pod.uid.as_str()) != except);
        candidates.min_by_key(rank).map(|member| member.pod.clone())
    }

    /// Whether the pod could be labelled active now: there is fresh evidence that it works, and the API server has not
    /// just refused to change it.
    fn is_candidate(&self, member: &Member) -> bool {
        member.standing == Standing::Eligible
            && (member.role == Role::Active || !self.refusals.bars(&member.pod.uid))
    }

    /// Whether the holder of an unfinished term may be promoted.
    pub(super) fn is_fit(&self, holder: &PodRef) -> bool {
        let refused = self.refusals.bars(&holder.uid)
            && self.member(&holder.uid).is_some_and(|member| member.role != Role::Active);
        self.works(holder) && !refused
    }

    /// Whether the holder works. A holder that is already active needs no fresh evidence, as in a stable group: the lack
    /// of evidence may be our fault.
    pub(super) fn works(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_some_and(|member| {
            member.standing == Standing::Eligible
                || (member.role == Role::Active && self.case_against(holder).is_none())
        })
    }

    /// Whether a dry run has to show first that the API server lets this pod be labelled active: nothing shows it so
    /// far, and the attempt would cost another pod its label; or an earlier attempt failed.
    pub(super) fn needs_trial(&self, holder: &PodRef) -> bool {
        let unknown = self.accepted.as_ref() != Some(&holder.uid);
        self.member(&holder.uid).filter(|member| unknown && member.role != Role::Active).is_some_and(
            |member| {
                self.refusals.has(&holder.uid)
                    || (!member.stamped_by_us && self.strays(&holder.uid).next().is_some())
            },
        )
    }

    /// Handles the answer to a dry run. Before a change everything is weighed again, because the holder may have recovered
    /// in the meantime.
    pub(super) fn tried(&mut self, change: Change, outcome: Outcome, now: Duration, effects: &mut Effects) {
        if let Outcome::Refused(message) = outcome {
            return self.promotion_refused(change, message, now, effects);
        }
        if self.is_finished() {
            self.accepted = Some(change.holder.uid);
            self.settle(now);
        } else if self.is_fit(&change.holder) && self.may_begin() {
            self.ask_for_grant(change, effects);
        } else {
            self.pass_over(change, now, effects);
        }
    }

    /// Whether a change of holder may begin, or go on: a group that is being deleted or obstructed changes no holder,
    /// and a paused one begins no change.
    pub(super) fn may_begin(&self) -> bool {
        let held = self.world.policy.paused && self.is_finished();
        self.world.obstacle.is_none() && !self.world.deleting && !held
    }

    /// The holder of this change turned out to be unable to become active. The next candidate takes its place under a
    /// term of its own. A pod that carries the label already is not passed over: only evidence against it counts.
    pub(super) fn pass_over(&mut self, change: Change, now: Duration, effects: &mut Effects) {
        // A pod that the watch does not show may be active, too.
        let labelled = self.member(&change.holder.uid).is_none_or(|member| member.role == Role::Active)
            || (change.from.as_ref() == Some(&change.holder) && change.reason != Reason::LabelLost);
        let next = self.best(change.from.as_ref(), Some(&change.holder));
        match next.filter(|_| !labelled && !self.is_finished() && self.may_begin()) {
            Some(holder) => self.begin(Change { holder, ..change }, effects),
            None => self.settle(now),
        }
    }

    /// The API server refuses to label the holder of this change active.
    pub(super) fn promotion_refused(
        &mut self,
        change: Change,
        message: String,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(member) = self.world.members.iter().find(|member| member.pod.uid == change.holder.uid)
        else {
            return self.back_off(now);
        };
        self.refusals.promotion(member, message);
        if member.role == Role::Active {
            // It keeps the label. Only its stamp is out of date.
            return self.back_off(now);
        }
        self.pass_over(change, now, effects);
    }

    /// The API server refuses to change these standbys; all others are stamped.
    pub(super) fn stamps_refused(&mut self, refused: Vec<(PodRef, String)>) {
        for (pod, message) in refused {
            if let Some(member) = self.world.members.iter().find(|member| member.pod.uid == pod.uid) {
                self.refusals.stamp(member, message);
            }
        }
    }
}
