//! Which pod becomes the next holder, and what happens if it cannot.

use std::{cmp::Reverse, time::Duration};

use super::{
    event::Outcome,
    group::Group,
    phase::{Change, Phase},
    refusal::Refusal,
    request::{MOVE_PAUSE, TRIAL_PAUSE},
    step::Effects,
    world::Member,
};
use crate::api::{PodRef, Reason, Role, Verdict};

/// What is reported of a pod whose promotion failed again and again.
const UNANSWERED: &str =
    "the API server gave no conclusive answer to several attempts to make this pod active";

/// How long an accepted dry run counts. The change that it was made for follows at once, or after a read of the holder.
/// What is begun later is tried again: a webhook or a right may be another by then.
const ACCEPTED_FOR: Duration = Duration::from_secs(10);

impl Group {
    /// The best pod to take over from `former`.
    pub(super) fn successor(&self, former: Option<&PodRef>) -> Option<PodRef> {
        self.best(former, |member| Some(&member.pod) != former)
    }

    /// The best candidate of those that `may` follow, where `lost` is the pod to replace. Preferred, in this order:
    ///
    /// - a pod that is already labelled active,
    /// - a pod on another node than a silent holder,
    /// - a pod whose writes were not refused, and whose last dry run was answered,
    /// - a pod whose node is not about to be emptied,
    /// - a pod that has not failed lately,
    /// - a pod of its workload's newest revision: a rollout deletes all others, so this one costs a single change of
    ///   holder,
    /// - a pod of the highest priority,
    /// - a pod that the operator has stamped before: the API server lets it be changed,
    /// - a pod with the stamp of the declared term, so that this was so lately,
    /// - the oldest.
    ///
    /// The first five concern the service now or soon, so they come before the revision. The stamps come after it,
    /// because the first new pod may have none yet when the rollout deletes the holder. No label is lost for that: a
    /// dry run shows first whether such a pod can be changed ([`Self::needs_trial`]).
    pub(super) fn best(&self, lost: Option<&PodRef>, may: impl Fn(&Member) -> bool) -> Option<PodRef> {
        let lost = lost.and_then(|pod| self.member(&pod.uid));
        let lost_node =
            lost.filter(|member| member.verdict == Verdict::Silent).and_then(|member| member.node.as_ref());
        let token = Some(self.known.declared.token);
        let rank = |member: &&Member| {
            let on_lost_node = member.node.is_some() && member.node.as_ref() == lost_node;
            let refused =
                self.refusals.has(&member.pod.uid) || self.trials.unanswered.contains(&member.pod.uid);
            let outdated = self.is_outdated(member, lost);
            let unknown = !member.stamped_by_us;
            let behind = unknown || member.stamp != token;
            let age = (member.created, member.pod.uid.clone());
            let lapsed = self.lapses.has(&member.pod.uid);
            let standing = (member.role != Role::Active, on_lost_node, refused, member.leaving, lapsed);
            (standing, outdated, Reverse(member.priority), unknown, behind, age)
        };
        let candidates = self.world.members.iter().filter(|member| self.is_candidate(member) && may(member));
        candidates.min_by_key(rank).map(|member| member.pod.clone())
    }

    /// Whether the pod is of an older revision than the one that a rollout leads to: that of the youngest pod of its
    /// workload, or of the group if the workload is not known. Not if `lost` is of that newest revision and does not
    /// work: other pods of it may fail in the same way, and keep the rollout from going on, while those of an older one
    /// still work.
    pub(super) fn is_outdated(&self, pod: &Member, lost: Option<&Member>) -> bool {
        let workload = |member: &Member| member.workload.as_ref().map(|workload| workload.name.clone());
        let of_workload = |member: &&Member| pod.workload.is_none() || workload(member) == workload(pod);
        let controlled = self.world.members.iter().filter(|member| member.revision.is_some());
        let youngest = controlled.filter(of_workload).max_by_key(|member| (member.created, &member.pod.uid));
        let Some(newest) = youngest.map(|member| &member.revision) else { return false };
        let failed = lost.is_some_and(|lost| {
            lost.revision == *newest && matches!(lost.verdict, Verdict::Failing(_) | Verdict::Silent)
        });
        !failed && pod.revision != *newest
    }

    /// Whether the pod could be labelled active now: there is fresh evidence that it works, and the API server has not
    /// just refused to change it.
    pub(super) fn is_candidate(&self, member: &Member) -> bool {
        member.verdict == Verdict::Eligible
            && !self.is_far_ahead(member)
            && (member.role == Role::Active || !self.refusals.bars(&member.pod.uid))
    }

    /// Whether the holder of an unfinished term may be promoted.
    pub(super) fn is_fit(&self, holder: &PodRef) -> bool {
        let refused = self.refusals.bars(&holder.uid)
            && self.member(&holder.uid).is_some_and(|member| member.role != Role::Active);
        self.works(holder) && !refused
    }

    /// Whether there is fresh evidence that this pod works.
    pub(super) fn is_proven(&self, uid: &str) -> bool {
        self.member(uid).is_some_and(|member| member.verdict == Verdict::Eligible)
    }

    /// Whether the holder works. A holder that is already active needs no fresh evidence, as in a stable group: the
    /// lack of evidence may be our fault. Neither does one whose program may start: its pod is not ready until the
    /// program is. But a pod that another group selects as well gets no label for that.
    pub(super) fn works(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_some_and(|member| {
            let may_start = self.may_run(holder) && member.verdict != Verdict::Contested;
            let was_chosen = member.role == Role::Active || may_start;
            (member.verdict == Verdict::Eligible && !self.is_far_ahead(member))
                || (was_chosen && self.case_against(holder).is_none())
        })
    }

    /// Whether the pod works, and may not become active, because another group selects it, too.
    pub(super) fn is_contested(&self, pod: &PodRef) -> bool {
        self.member(&pod.uid).is_some_and(|member| member.verdict == Verdict::Contested)
    }

    /// Whether the silent holder that this change replaces answers again, and still has its label. A fault of the
    /// operator's own network can look like silence, and delay the grant until it is over.
    pub(super) fn is_heard_again(&self, change: &Change) -> bool {
        let former = change.from.as_ref().filter(|_| change.reason == Reason::Silent);
        former
            .and_then(|former| self.member(&former.uid))
            .is_some_and(|member| member.verdict == Verdict::Eligible && member.role == Role::Active)
    }

    /// The former holder of this change keeps the role, under a term of its own.
    pub(super) fn stay(&mut self, change: Change, now: Duration, effects: &mut Effects) -> Phase {
        match change.from.filter(|_| self.may_begin()) {
            Some(holder) => {
                let from = Some(holder.clone());
                self.begin(Change { holder, from, reason: Reason::Resumed, began: now }, effects)
            }
            None => self.settle(now),
        }
    }

    /// Whether a dry run has to show first that the API server lets this pod be labelled active: nothing shows it so
    /// far, or nothing is urgent, and the attempt would cost another pod its label; or an earlier attempt failed.
    pub(super) fn needs_trial(&self, holder: &PodRef, reason: Reason) -> bool {
        let unknown = self.trials.accepted.as_ref().is_none_or(|(uid, _)| *uid != holder.uid);
        self.member(&holder.uid).filter(|member| unknown && member.role != Role::Active).is_some_and(
            |member| {
                let weighs = reason.is_planned() || !member.stamped_by_us;
                self.refusals.has(&holder.uid) || (weighs && self.strays(&holder.uid).next().is_some())
            },
        )
    }

    /// Handles the answer to a dry run. Before a change everything is weighed again, because the holder may have
    /// recovered in the meantime.
    pub(super) fn tried(
        &mut self,
        change: Change,
        outcome: Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        match outcome {
            Outcome::Accepted => {}
            Outcome::Refused(message) => {
                return self.promotion_refused(change, Refusal::by_api_server(message), now, effects);
            }
            Outcome::HolderRefused(message) => return self.holder_refused(&change, message, now),
            _ => return self.trial_unanswered(change, now, effects),
        }
        if self.known.is_finished() {
            // No token was used, so a lost label can be put back at once.
            self.trials.accepted = Some((change.holder.uid, now + ACCEPTED_FOR));
            self.pacing.relabels = now;
            self.settle(now)
        } else if self.is_fit(&change.holder) && self.may_begin() {
            self.ask_for_grant(change, effects)
        } else {
            self.pass_over(change, now, effects)
        }
    }

    /// A failover does not wait for the dry run of a planned change. The answer is of no use then: nothing was written.
    pub(super) fn cut_trial_short(&mut self, now: Duration) {
        let Phase::Trying(change) = &self.phase else { return };
        let planned = change.reason.is_planned() && self.known.is_finished();
        if planned && change.from.as_ref().is_some_and(|from| self.case_against(from).is_some()) {
            self.calls.awaiting = None;
            self.phase = self.settle(now);
        }
    }

    /// The API server refuses to take the label off the holder of a planned change. The holder works and keeps it. What
    /// was planned is weighed again after a pause.
    pub(super) fn holder_refused(&mut self, change: &Change, message: String, now: Duration) -> Phase {
        let former = |member: &&Member| change.from.as_ref() == Some(&member.pod);
        if let Some(member) = self.world.members.iter().find(former) {
            self.refusals.stamp(member, message);
        }
        self.settle(now)
    }

    /// A promotion had no definite answer. It is repeated, because it may have taken effect. After several failures
    /// another candidate takes the place of the pod, as after a refusal, if there is one.
    pub(super) fn promotion_failed(&mut self, change: &Change, now: Duration) -> Phase {
        let holder = &change.holder;
        let others = self.fails_repeatedly() && self.successor(Some(holder)).is_some();
        let standby = |member: &&Member| member.pod == *holder && member.role != Role::Active;
        if let Some(member) = self.world.members.iter().find(standby).filter(|_| others) {
            self.refusals.promotion(member, Refusal::by_api_server(UNANSWERED.to_owned()));
        }
        self.back_off(now)
    }

    /// A dry run had no definite answer. It may be this pod alone that a webhook does not answer for, so a pod that
    /// needs no dry run takes its place, if there is still a reason to change the holder.
    pub(super) fn trial_unanswered(&mut self, change: Change, now: Duration, effects: &mut Effects) -> Phase {
        if change.reason.is_planned() && self.known.is_finished() {
            return self.plan_unanswered(&change, now);
        }
        let fails = |holder: &PodRef| self.case_against(holder).is_some();
        let goes_on = !self.known.is_finished()
            || change.reason == Reason::LabelLost
            || self.known.row.holder.as_ref().is_none_or(fails);
        let next = self.best(change.from.as_ref(), |member| {
            member.pod.uid != change.holder.uid && !self.needs_trial(&member.pod, change.reason)
        });
        match next.filter(|_| goes_on && self.may_begin()) {
            Some(holder) => self.begin(Change { holder, ..change }, effects),
            None => self.back_off(now),
        }
    }

    /// The same before a planned change. The change is weighed again, as its cause may be over. Pods that were not
    /// tried yet are preferred then. If there are none, a pause follows.
    fn plan_unanswered(&mut self, change: &Change, now: Duration) -> Phase {
        let uid = &change.holder.uid;
        let again = self.trials.unanswered.contains(uid);
        self.trials.unanswered.push(uid.clone());
        let leads_on = change.reason == Reason::NodeCordoned
            || (change.reason == Reason::Switchover && self.names_no_pod());
        let may = |member: &Member| {
            self.may_follow(member, change.reason) && !self.trials.unanswered.contains(&member.pod.uid)
        };
        let other = change.from.as_ref().and_then(|from| self.successor_that_stays(from, may));
        let fails = change.from.as_ref().is_none_or(|from| self.case_against(from).is_some());
        if fails || (leads_on && !again && other.is_some()) {
            return self.settle(now);
        }
        self.trials.unanswered.clear();
        // The holder works. Its group stays ready for a failover meanwhile.
        match change.reason {
            Reason::Switchover => self.last_request.paused_until = now + TRIAL_PAUSE,
            _ => self.pacing.moves = now + MOVE_PAUSE,
        }
        self.settle(now)
    }

    /// Whether a change of holder may begin, or go on: a group that is being deleted or obstructed changes no holder,
    /// and a paused one begins no change.
    pub(super) fn may_begin(&self) -> bool {
        let held = self.world.policy.paused && self.known.is_finished();
        self.world.obstacle.is_none() && !self.world.deleting && !held
    }

    /// The holder of this change turned out to be unable to become active. The next candidate takes its place under a
    /// term of its own. A pod that carries the label already is not passed over: only evidence against it counts.
    pub(super) fn pass_over(&mut self, change: Change, now: Duration, effects: &mut Effects) -> Phase {
        // A pod may be active although the watch does not show it, unless a read has shown that it lost its label.
        let labelled = self.member(&change.holder.uid).is_none_or(|member| member.role == Role::Active)
            || (change.reason != Reason::LabelLost && !self.cannot_be_active(&change.holder, false));
        // Before a change has begun everything is weighed again, unless the group has no active pod to weigh.
        let goes_on = !self.known.is_finished() || change.reason == Reason::LabelLost;
        if labelled || !goes_on {
            return self.settle(now);
        }
        let stays = |former: &PodRef| self.reads_as_active(former) && self.works(former);
        if change.reason.is_planned() && change.from.as_ref().is_some_and(stays) {
            return self.stay(change, now, effects);
        }
        let next = self.best(change.from.as_ref(), |member| member.pod.uid != change.holder.uid);
        match next.filter(|_| self.may_begin()) {
            Some(holder) => self.begin(Change { holder, ..change }, effects),
            None => self.settle(now),
        }
    }

    /// The API server refuses to label the holder of this change active, or its hook has failed.
    pub(super) fn promotion_refused(
        &mut self,
        change: Change,
        refusal: Refusal,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let Some(member) = self.world.members.iter().find(|member| member.pod.uid == change.holder.uid)
        else {
            return self.back_off(now);
        };
        self.refusals.promotion(member, refusal);
        if member.role == Role::Active {
            // It keeps the label. Only its stamp is out of date.
            return self.back_off(now);
        }
        self.pass_over(change, now, effects)
    }
}
