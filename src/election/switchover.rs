//! Planned changes of holder: on request, before the holder is lost with its node or in a rollout, and back to a
//! preferred pod.
//!
//! A request is carried out once: the declaration of the term that carries it out names it. It is fulfilled by any
//! change of holder to a pod that it allows, so that a failover in between is not followed by another change.

use std::time::Duration;

use super::{
    group::Group,
    phase::Phase,
    request::SwitchoverRefusal,
    step::Effects,
    world::{Member, SwitchoverRequest},
};
use crate::api::{PodRef, Reason, Verdict};

/// How long a request waits for a pod to be proven fit. A replica that has just become the owner has not heard of all
/// pods yet, and a pod that is not probed is proven by its node's heartbeat, which comes every 10 s.
const PATIENCE: Duration = Duration::from_secs(12);
/// After this time a request that cannot be carried out is refused, whatever the reason.
const LONGEST: Duration = Duration::from_secs(30);
/// How often a term is granted for a request. The pod may be unfit by the time of the grant, again and again.
const MOST_GRANTS: u32 = 3;

impl Group {
    /// The request that was refused last, and why.
    pub(crate) fn refused_switchover(&self) -> Option<(&str, &SwitchoverRefusal)> {
        self.last_request.refused.as_ref().map(|(request, why)| (request.as_str(), why))
    }

    /// Notes when the request was first seen, and refuses one that has waited for too long: a forgotten request must
    /// not cause a change of holder.
    pub(super) fn weigh_request(&mut self, now: Duration) {
        let Some(id) = self.requested().map(|request| request.id.clone()) else {
            self.last_request.weighed = None;
            return;
        };
        let known = self.last_request.weighed.take().filter(|(known, _)| *known == id);
        let since = known.as_ref().map_or(now, |(_, since)| *since);
        if known.is_none() {
            (self.last_request.begun, self.last_request.grants) = (false, 0);
            self.last_request.paused_until = now;
        }
        if now >= since + LONGEST {
            let begun = self.last_request.begun;
            let why = if begun { SwitchoverRefusal::Failed } else { SwitchoverRefusal::NotNow };
            self.last_request.refused = Some((id, why));
        } else {
            self.last_request.weighed = Some((id, since));
            self.wake_at(since + LONGEST);
        }
    }

    /// Begins the first planned change that is due, in a group whose holder is active and works.
    pub(super) fn hand_over(
        &mut self,
        holder: &PodRef,
        now: Duration,
        effects: &mut Effects,
    ) -> Option<Phase> {
        self.switch_over(holder, now, effects)
            .or_else(|| self.leave(holder, now, effects))
            .or_else(|| self.fail_back(holder, now, effects))
    }

    /// Begins the requested switchover, if it can be carried out now.
    fn switch_over(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) -> Option<Phase> {
        let request = self.requested().cloned()?;
        let since = self.last_request.weighed.as_ref()?.1;
        if now < self.last_request.paused_until {
            self.wake_at(self.last_request.paused_until);
            return None;
        }
        let target = match self.target(&request, holder) {
            Ok(_) if self.last_request.grants >= MOST_GRANTS => Err(SwitchoverRefusal::Failed),
            target => target,
        };
        match target {
            Ok(target) => {
                self.last_request.begun = true;
                Some(self.change(target, Reason::Switchover, now, effects))
            }
            Err(SwitchoverRefusal::NotEligible(_) | SwitchoverRefusal::NoCandidate)
                if now < since + PATIENCE =>
            {
                self.wake_at(since + PATIENCE);
                None
            }
            Err(why) => {
                self.last_request.refused = Some((request.id, why));
                None
            }
        }
    }

    /// Begins to hand over from a holder that works and is about to be lost: to a pod on another node if its node is
    /// about to be emptied, to a pod of the newest revision if a rollout is about to delete it. Without such a pod the
    /// holder stays until it is deleted.
    fn leave(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) -> Option<Phase> {
        let held = self.world.policy.paused || self.refusals.bars_move(&holder.uid);
        let present = self.member(&holder.uid).filter(|_| !held)?;
        let (reason, successor) = if present.leaving {
            let may = |member: &Member| self.may_follow(member, Reason::NodeCordoned);
            (Reason::NodeCordoned, self.successor_that_stays(holder, may))
        } else if let Some(newest) = self.superseded_by(present) {
            let works = !self.has_failed(newest);
            let may = |member: &Member| works && member.revision.as_ref() == Some(newest);
            (Reason::Rollout, self.successor_that_stays(holder, may))
        } else {
            return None;
        };
        self.wake_after_lapses();
        let successor = successor?;
        if now < self.pacing.moves {
            self.wake_at(self.pacing.moves);
            return None;
        }
        Some(self.change(successor, reason, now, effects))
    }

    /// Begins to give the role back to a pod of a higher priority than the holder's, once that pod could have had it
    /// for as long as the policy says. The holder works, so nothing is urgent: a pod of an
    /// older revision, which a rollout is about to delete, is not worth a change, unless the holder is of one, too.
    /// What a user has requested stays until the next change.
    fn fail_back(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) -> Option<Phase> {
        let since = self.delays.preferred.take();
        let held = self.world.policy.paused
            || self.known.row.reason == Some(Reason::Switchover)
            || self.refusals.bars_move(&holder.uid);
        let delay = self.world.policy.failback.filter(|_| !held)?;
        self.wake_after_lapses();
        let present = self.member(&holder.uid)?;
        let failed = self.superseded_by(present).filter(|newest| self.has_failed(newest));
        let (priority, may_be_outdated) = (present.priority, self.is_outdated(present, None));
        let better = |member: &Member| {
            let stays = self.superseded_by(member).is_none();
            let works = failed.is_none() || member.revision.as_ref() != failed;
            member.priority > priority
                && stays
                && works
                && (may_be_outdated || !self.is_outdated(member, None))
        };
        // A pod that failed lately may fail again as soon as it is active.
        let may = |member: &Member| !self.lapses.has(&member.pod.uid) && better(member);
        let next = self.successor_that_stays(holder, may)?;
        let since = since.filter(|(uid, _)| *uid == next.uid).map_or(now, |(_, since)| since);
        let at = (since + delay).max(self.pacing.moves);
        // Kept if it begins, too: a dry run may come first.
        self.delays.preferred = Some((next.uid.clone(), since));
        if now < at {
            self.wake_at(at);
            return None;
        }
        Some(self.change(next, Reason::Failback, now, effects))
    }

    /// The request that the declaration of a term names: the present one if this change of holder fulfils it, else the
    /// last one.
    pub(super) fn fulfilled(&self, holder: &PodRef) -> Option<String> {
        // The first one is the holder of the last term that was confirmed.
        let moves = self.known.row.pending.first().is_none_or(|former| former.uid != holder.uid);
        let allows = |request: &&SwitchoverRequest| request.to.as_ref().is_none_or(|to| *to == holder.name);
        let request = self.requested().filter(|_| moves).filter(allows);
        request.map(|request| request.id.clone()).or_else(|| self.known.declared.switchover.clone())
    }

    /// The request that was neither carried out nor refused.
    fn requested(&self) -> Option<&SwitchoverRequest> {
        let refused = self.last_request.refused.as_ref().map(|(id, _)| id);
        self.world.switchover.as_ref().filter(|request| {
            self.known.declared.switchover.as_ref() != Some(&request.id) && refused != Some(&request.id)
        })
    }

    /// Whether a request leaves it to the operator which pod follows.
    pub(super) fn names_no_pod(&self) -> bool {
        self.requested().is_some_and(|request| request.to.is_none())
    }

    /// Whether a pod whose node stays may follow a holder that works, because of a cordon or a request that names no
    /// pod.
    pub(super) fn may_follow(&self, member: &Member, reason: Reason) -> bool {
        match reason {
            // The holder must leave sooner or later. So a pod that failed often, but not just now, may follow.
            Reason::NodeCordoned => !self.lapses.is_fresh(&member.pod.uid),
            _ => self.superseded_by(member).is_none(),
        }
    }

    /// The best of these pods to take over from a holder that works: not one whose node is about to be emptied, too.
    pub(super) fn successor_that_stays(
        &self,
        holder: &PodRef,
        may: impl Fn(&Member) -> bool,
    ) -> Option<PodRef> {
        self.best(Some(holder), |member| member.pod != *holder && !member.leaving && may(member))
    }

    /// A pod that failed lately may be chosen once that is long enough ago.
    fn wake_after_lapses(&mut self) {
        if let Some(at) = self.lapses.wake() {
            self.wake_at(at);
        }
    }

    fn target(&self, request: &SwitchoverRequest, holder: &PodRef) -> Result<PodRef, SwitchoverRefusal> {
        use SwitchoverRefusal as R;
        if self.world.policy.paused {
            return Err(R::Paused);
        }
        if let Some(refused) = self.refusals.move_refusal(&holder.uid) {
            return Err(R::HolderRefused(holder.name.clone(), refused.refusal.message.clone()));
        }
        let Some(name) = &request.to else {
            let may = |member: &Member| self.may_follow(member, Reason::Switchover);
            return self.successor_that_stays(holder, may).ok_or(R::NoCandidate);
        };
        let named = self.world.members.iter().filter(|member| member.pod.name == *name);
        // While a pod is being replaced by one of the same name, the newer one is meant.
        let member =
            named.max_by_key(|member| (!matches!(member.verdict, Verdict::Ended(_)), member.created));
        match member {
            None => Err(R::NoSuchPod(name.clone())),
            Some(member) if member.pod.uid == holder.uid => Err(R::AlreadyActive(name.clone())),
            Some(member) if member.leaving => Err(R::NodeCordoned(name.clone())),
            Some(member) if self.superseded_by(member).is_some() => Err(R::Superseded(name.clone())),
            Some(member) if !self.is_candidate(member) => Err(R::NotEligible(name.clone())),
            Some(member) => Ok(member.pod.clone()),
        }
    }
}
