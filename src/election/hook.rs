//! The pods' hooks: by these requests a program without an agent learns which role its pod has.
//!
//! In a change of holder they come between the strip and the promotion. First the pods that may have been active are
//! told that they are standbys, then the new holder that it is active, and then it is labelled. A request may be
//! repeated, by this replica or by the next owner, under the same term or a later one. So the token in it tells the pod
//! which one counts.
//!
//! While the group is stable, each pod that works is told its role in the background, unless it was told that role
//! since its container started: a pod that was silent when it lost the role, one whose container was started again, and
//! one whose request failed. A replica that has just become the owner tells all pods, because only they know what they
//! were told before.

use std::time::Duration;

use super::{
    change::distinct,
    event::{Effect, Outcome, Ticket},
    group::Group,
    phase::{Change, Phase},
    refusal::Refusal,
    step::Effects,
    told::Told,
    world::Member,
};
use crate::api::{OnHookFailure, PodRef, Reason, Role, Verdict};

impl Group {
    /// Between steps 3 and 4: tells the pods that may have been active that they are standbys, and then the new holder
    /// that it is active. Proceeds to step 4 if there is no pod to tell.
    pub(super) fn tell(
        &mut self,
        role: Role,
        change: Change,
        witness: Option<String>,
        effects: &mut Effects,
    ) -> Phase {
        let holder = &change.holder;
        if role == Role::Active {
            self.hooks.set(&holder.uid, Told { role, restarts: None });
        } else {
            self.note_former(&holder.uid);
        }
        let pods: Vec<_> = match role {
            _ if self.world.policy.hooks.of(role).is_none() => Vec::new(),
            Role::Active => vec![holder.clone()],
            _ => self.to_demote(&holder.uid),
        };
        if pods.is_empty() {
            return self.all_told(role, change, witness, effects);
        }
        self.hooks.ask(None, self.asked(role, &pods));
        let effect = Effect::Tell { role, token: self.known.declared.token, reason: change.reason, pods };
        self.go(Phase::Telling { change, witness, role }, effect, effects)
    }

    fn all_told(
        &mut self,
        role: Role,
        change: Change,
        witness: Option<String>,
        effects: &mut Effects,
    ) -> Phase {
        match (role, witness) {
            (Role::Standby, witness) => self.tell(Role::Active, change, witness, effects),
            (_, Some(version)) => self.promote(change, version, 0, effects),
            (_, None) => self.recheck(change, 0, effects),
        }
    }

    /// Notes the pods that may have been active before the declared term, or may have been told so.
    fn note_former(&mut self, holder: &str) {
        self.hooks.refresh(&self.world.members);
        for pod in self.known.former() {
            if pod.uid != holder && self.world.members.iter().any(|member| member.pod == *pod) {
                self.hooks.note_active(&pod.uid);
            }
        }
    }

    /// Notes the pods that are labelled active without being the holder. They lose the label now.
    pub(super) fn note_strays(&mut self, holder: &str) {
        let strays: Vec<_> = self.strays(holder).map(|member| member.pod.uid.clone()).collect();
        for uid in strays {
            self.hooks.note_active(&uid);
        }
    }

    /// The pods that are to be told that they are standbys. A silent one does not answer, and would only delay the
    /// change; nor does one whose containers have ended. A pod that the watch does not show may have left the selector,
    /// and work all the same.
    fn to_demote(&self, holder: &str) -> Vec<PodRef> {
        let members = self.world.members.iter().filter(|member| {
            let answers = !matches!(member.verdict, Verdict::Silent | Verdict::Ended(Reason::PodFinished));
            answers && self.hooks.may_act_as_active(&member.pod.uid)
        });
        let unseen = self.known.former().filter(|pod| self.member(&pod.uid).is_none());
        let all = members.map(|member| &member.pod).chain(unseen).filter(|pod| pod.uid != holder);
        distinct(all.cloned().collect())
    }

    fn asked(&self, role: Role, pods: &[PodRef]) -> Vec<(String, Told)> {
        let restarts = |pod: &PodRef| self.member(&pod.uid).map(|member| member.restarts);
        pods.iter().map(|pod| (pod.uid.clone(), Told { role, restarts: restarts(pod) })).collect()
    }

    /// The pods of this change have answered, or have not.
    pub(super) fn told(
        &mut self,
        change: Change,
        witness: Option<String>,
        role: Role,
        outcome: Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let Outcome::Told(failed) = outcome else {
            self.hooks.unanswered(now);
            return self.back_off(now);
        };
        self.hooks.answered(&failed, now);
        self.forget_refused_demotions();
        // The pods had time to answer, in which a promotion may have become forbidden.
        if !self.may_begin() {
            return self.settle(now);
        }
        if !self.is_fit(&change.holder) {
            return self.pass_over(change, now, effects);
        }
        let aborts = self.world.policy.hooks.of(role) == Some(OnHookFailure::Abort);
        let mut failed = failed.into_iter().filter(|_| aborts);
        if role == Role::Active {
            return match failed.next().filter(|(holder, _)| !self.reads_as_active(holder)) {
                Some((_, why)) => self.promotion_refused(change, Refusal::by_hook(why), now, effects),
                // A pod that is labelled active already keeps the label.
                None => self.all_told(role, change, witness, effects),
            };
        }
        match failed.find(|(pod, _)| self.may_return(&change, pod)) {
            Some((former, why)) => {
                if let Some(member) = self.world.members.iter().find(|member| member.pod == former) {
                    self.refusals.demotion(member, why);
                }
                self.stay(change, now, effects)
            }
            None => self.all_told(role, change, witness, effects),
        }
    }

    /// Whether this pod, which cannot be demoted, is the former holder of a planned change and may become active again.
    fn may_return(&self, change: &Change, former: &PodRef) -> bool {
        change.reason.is_planned() && change.from.as_ref() == Some(former) && self.is_fit(former)
    }

    /// While the group is stable: tells a pod its role, if it may not know it.
    pub(super) fn tell_later(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        self.hooks.refresh(&self.world.members);
        if self.hooks.asks(holder) {
            return;
        }
        // The active pod does not wait for a standby that hangs.
        let is_busy = self.hooks.are_asked();
        let untold = self.untold(holder).filter(|(role, _)| !is_busy || *role == Role::Active);
        let next = untold.min_by_key(|(_, member)| self.hooks.after(&member.pod.uid));
        let Some((role, pod)) = next.map(|(role, member)| (role, member.pod.clone())) else { return };
        let after = self.hooks.after(&pod.uid);
        if now < after {
            return self.wake_at(after);
        }
        let pods = vec![pod];
        let asked = self.asked(role, &pods);
        let (token, reason) = (self.known.declared.token, self.reason_of_term());
        let ticket = self.emit(Effect::Tell { role, token, reason, pods }, effects);
        self.hooks.ask(Some(ticket), asked);
    }

    /// The pods that may not know their role, the holder first. Only pods that work are told: a program that is being
    /// started does not answer yet.
    fn untold(&self, holder: &str) -> impl Iterator<Item = (Role, &Member)> {
        let (holders, others): (Vec<_>, Vec<_>) =
            self.world.members.iter().partition(|member| member.pod.uid == holder);
        let holders = holders.into_iter().map(|member| (Role::Active, member));
        let all = holders.chain(others.into_iter().map(|member| (Role::Standby, member)));
        all.filter(|(role, member)| {
            let works = member.verdict == Verdict::Eligible;
            works && self.world.policy.hooks.of(*role).is_some() && !self.hooks.knows(member, *role)
        })
    }

    /// Handles the answer to a request in the background.
    pub(super) fn told_later(&mut self, outcome: Outcome, now: Duration) {
        match outcome {
            Outcome::Told(failed) => self.hooks.answered(&failed, now),
            _ => self.hooks.unanswered(now),
        }
        self.forget_refused_demotions();
    }

    /// A pod that was told that it is a standby refuses that no more.
    fn forget_refused_demotions(&mut self) {
        for member in &self.world.members {
            if self.hooks.knows(member, Role::Standby) {
                self.refusals.demoted(&member.pod.uid);
            }
        }
    }

    /// Whether this is the ticket of a hook's request in the background.
    pub(crate) fn is_telling(&self, ticket: Ticket) -> bool {
        self.hooks.is(ticket)
    }

    /// The pods that work and could not be told their role, each with the cause.
    pub(crate) fn failed_hooks(&self) -> impl Iterator<Item = (&Member, &str)> {
        let holder = self.known.declared.holder.as_ref().map_or("", |pod| &pod.uid);
        self.untold(holder).filter_map(|(_, member)| Some((member, self.hooks.why(&member.pod.uid)?)))
    }

    /// The role whose hooks the present change waits for.
    pub(crate) fn waits_for_hooks(&self) -> Option<Role> {
        match self.phase {
            Phase::Telling { role, .. } => Some(role),
            _ => None,
        }
    }
}
