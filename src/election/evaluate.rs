//! Decides what a group without an unfinished change does next. Most of the time that is nothing.

use std::time::Duration;

use super::{
    event::Effect,
    group::{Change, Group, Phase, Retirement},
    step::Effects,
    world::{Standing, World},
};
use crate::api::{PodRef, Reason, Role};

/// The least time between two restorations of a removed label, so that removing it again and again does not use up
/// tokens.
const RELABEL_INTERVAL: Duration = Duration::from_secs(5);

impl Group {
    /// Decides what to do in [`Phase::Stable`].
    pub(super) fn evaluate(&mut self, now: Duration, effects: &mut Effects) {
        if self.world.deleting {
            return self.retire(Retirement::Tombstone, effects);
        }
        self.weigh_request(now);
        let seen = &self.world.declared;
        if seen.token > self.declared.token
            || (seen.token == self.declared.token && seen.grant != self.declared.grant)
        {
            // Another replica declared a term: our row or our ownership is out of date. A lagging watch cannot cause
            // this.
            return self.read(effects);
        }
        if self.row.holder.as_ref().is_some_and(|holder| self.case_against(holder).is_none()) {
            self.lost = None;
        }
        if self.world.obstacle.is_some() {
            return;
        }
        if self.row.holder.is_none() && self.is_behind() && self.declared_holder_is_labelled() {
            // It was promoted late, or its label was seen late. It is not a stray: it keeps the role.
            return self.regained(now, effects);
        }
        let token = self.declared.token;
        let strays: Vec<_> = self.strays(&self.holder_uid()).map(|member| member.to_strip(token)).collect();
        if !strays.is_empty() {
            return self.go(Phase::Repairing, Effect::Strip { token, pods: strays }, effects);
        }
        match self.row.holder.clone() {
            None => self.elect_first(now, effects),
            Some(holder) => match self.case_against(&holder) {
                None => self.keep(&holder, now, effects),
                Some(reason) => self.replace(&holder, reason, now, effects),
            },
        }
    }

    /// The reason to replace the holder; none if it is healthy or merely unproven.
    pub(super) fn case_against(&self, holder: &PodRef) -> Option<Reason> {
        self.member(&holder.uid).map_or(Some(Reason::PodDeleted), |member| member.standing.against())
    }

    /// Whether the holder has ended for good, as opposed to being unhealthy.
    pub(super) fn has_ended(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_none_or(|member| matches!(member.standing, Standing::Ended(_)))
    }

    fn elect_first(&mut self, now: Duration, effects: &mut Effects) {
        match self.successor(None).filter(|_| !self.world.policy.paused) {
            Some(holder) => {
                let reason = Reason::FirstHolder;
                self.begin(Change { holder, reason, from: None, began: now }, effects);
            }
            None => self.stamp_standbys("", now, effects),
        }
    }

    fn keep(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) {
        if self.keeps_its_label()
            || self.world.policy.paused
            || !(self.works(holder) || self.is_contested(holder))
        {
            let hands_over = self.keeps_its_label()
                && (self.switch_over(holder, now, effects)
                    || self.leave(holder, now, effects)
                    || self.fail_back(holder, now, effects));
            if !hands_over {
                self.failures = 0;
                if self.keeps_its_label() {
                    self.refusals.stays(&holder.uid);
                }
                self.stamp_standbys(&holder.uid, now, effects);
            }
        } else if now < self.relabel_after {
            self.wake_at(self.relabel_after);
        } else {
            self.go(Phase::Relabelling, Effect::Verify(holder.clone()), effects);
        }
    }

    /// Handles the quorum read of a holder that was not labelled active. The label is restored under a new term:
    /// nothing is promoted under a confirmed term, so no promotion of it can arrive late.
    pub(super) fn relabel(&mut self, against: Option<Reason>, now: Duration, effects: &mut Effects) {
        match self.row.holder.clone() {
            Some(_)
                if self.keeps_its_label() || self.world.policy.paused || self.world.obstacle.is_some() => {}
            Some(holder) if against.is_none() && (self.works(&holder) || self.is_contested(&holder)) => {
                self.relabel_after = now + RELABEL_INTERVAL;
                self.lost = None;
                // If it may not be labelled again, or the API server refuses that, another pod follows.
                let fit = Some(&holder).filter(|holder| self.is_fit(holder)).cloned();
                if let Some(next) = fit.or_else(|| self.successor(Some(&holder))) {
                    self.change(next, Reason::LabelLost, now, effects);
                }
            }
            // The watch lags behind.
            _ => self.back_off(now),
        }
    }

    /// Whether the holder is labelled active under the declared term, and can show its token.
    pub(crate) fn keeps_its_label(&self) -> bool {
        let token = Some(self.declared.token);
        self.member(&self.holder_uid()).is_some_and(|member| {
            member.role == Role::Active
                && member.stamped_by_us
                && member.stamp == token
                && member.fencing_fits
        })
    }

    pub(super) fn holder_uid(&self) -> String {
        self.row.holder.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default()
    }

    fn replace(&mut self, holder: &PodRef, reason: Reason, now: Duration, effects: &mut Effects) {
        let since = self.lost_since(holder).unwrap_or(now);
        self.lost = Some((holder.uid.clone(), since));
        if self.world.policy.paused {
            return;
        }
        let successor = self.successor(Some(holder));
        let ended = self.has_ended(holder);
        if !ended {
            let allowed = since + self.world.policy.lock_delay;
            if successor.is_none() {
                return self.stamp_standbys(&holder.uid, now, effects);
            }
            if now < allowed {
                return self.wake_at(allowed);
            }
        }
        match successor {
            Some(successor) if self.is_certain(holder) => self.change(successor, reason, now, effects),
            _ => self.verify(holder, reason, effects),
        }
    }

    /// Whether there is evidence against the holder that needs no quorum read: it comes from our own probes, or a later
    /// version of the pod cannot refute it, because a restart count only grows and a `deletionTimestamp` is never
    /// removed. A pod that is missing may only have lost a label.
    pub(super) fn is_certain(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_some_and(|member| match member.standing {
            Standing::Silent | Standing::Ended(Reason::PodDeleted) => true,
            Standing::Failing(reason) => matches!(reason, Reason::ProbeRefused | Reason::ContainerRestarted),
            _ => false,
        })
    }

    /// Asks for a quorum read of the holder.
    pub(super) fn verify(&mut self, holder: &PodRef, reason: Reason, effects: &mut Effects) {
        let certain = self.is_certain(holder);
        self.go(Phase::Verifying { reason, certain }, Effect::Verify(holder.clone()), effects);
    }

    /// Updates the world.
    pub(super) fn refresh(&mut self, world: World) {
        self.world = world;
        self.refusals.refresh(&self.world.members);
        self.refusals.set_served(self.has_healthy_active());
        self.lapses.refresh(&self.world);
        let against = self.row.holder.as_ref().is_some_and(|holder| self.is_certain(holder));
        if let Phase::Verifying { certain, .. } = &mut self.phase {
            *certain |= against;
        }
    }

    /// Begins to replace the row's holder. If that one was chosen by an unfinished term and never became active, the
    /// change is still the one of that term: from the pod that was active before, and for the same reason.
    pub(super) fn change(&mut self, holder: PodRef, reason: Reason, now: Duration, effects: &mut Effects) {
        let (from, reason) = match self.row.holder.clone() {
            Some(chosen) if !self.may_have_been_active(&chosen) => {
                (self.former_holder(&chosen), self.reason_of_term())
            }
            former => (former, reason),
        };
        let began = from.as_ref().and_then(|from| self.lost_since(from)).unwrap_or(now);
        self.begin(Change { holder, reason, from, began }, effects);
    }

    /// Since when there has been evidence against this holder.
    fn lost_since(&self, holder: &PodRef) -> Option<Duration> {
        self.lost.as_ref().filter(|(uid, _)| *uid == holder.uid).map(|(_, since)| *since)
    }

    /// Whether the holder may be replaced now: the group is not paused, and the lock delay is over unless the holder
    /// has ended.
    fn may_replace(&self, ended: bool, now: Duration) -> bool {
        let lost_since = self.row.holder.as_ref().and_then(|holder| self.lost_since(holder));
        let allowed = lost_since.map(|since| since + self.world.policy.lock_delay);
        !self.world.policy.paused && (ended || allowed.is_some_and(|allowed| now >= allowed))
    }

    /// Handles the quorum read of a holder with evidence against it.
    pub(super) fn verified(
        &mut self,
        reason: Reason,
        certain: bool,
        against: Option<Reason>,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(holder) = self.row.holder.clone() else {
            return self.read(effects);
        };
        // An unfinished term is already in the middle of a change, which pause and delay do not stop.
        let held = self.world.obstacle.is_some()
            || (self.is_finished() && !self.may_replace(against.is_some_and(is_end), now));
        match (against, self.successor(Some(&holder))) {
            (None, Some(successor)) if certain && !held && (self.is_finished() || !self.is_fit(&holder)) => {
                self.change(successor, reason, now, effects);
            }
            // The watch was stale, or its selector reported a label edit as a deletion. Wait for it to catch up.
            (None, _) => self.back_off(now),
            // Paused or obstructed in the meantime. Or the holder has ended according to the watch but not according
            // to the read, so the lock delay applies.
            (Some(_), _) if held && self.has_ended(&holder) => self.back_off(now),
            (Some(_), _) if held => self.settle(now),
            (Some(_), Some(successor)) => self.change(successor, reason, now, effects),
            (Some(_), None) if self.has_ended(&holder) => {
                self.in_doubt = false;
                self.vacate(effects);
            }
            (Some(_), None) => self.settle(now),
        }
    }

    /// Frees the lock. As after a grant, an unknown result is found out by repeating the request: the row does not show
    /// whether the release may still be carried out, at a time when the pod has come back.
    pub(super) fn vacate(&mut self, effects: &mut Effects) {
        self.retry_at = None;
        let token = self.row.token;
        self.go(Phase::Vacating, Effect::Vacate { token }, effects);
    }

    pub(super) fn vacancy_reason(&self, holder: Option<&PodRef>) -> Reason {
        holder.and_then(|pod| self.case_against(pod)).unwrap_or(Reason::PodDeleted)
    }
}

/// Whether the reason means that the pod has ended for good.
fn is_end(reason: Reason) -> bool {
    matches!(reason, Reason::PodDeleted | Reason::PodFinished | Reason::DisruptionTarget)
}
