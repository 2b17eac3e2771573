//! Decides what a group without an unfinished change does next. Most of the time that is nothing.

use std::time::Duration;

use super::{
    event::{Effect, Finished},
    group::Group,
    pacing::Lost,
    phase::{Attempt, Change, Phase, Removal, Retirement},
    step::Effects,
    world::World,
};
use crate::api::{PodRef, Reason, Role, Verdict};

/// The least time between two restorations of a removed label, so that removing it again and again does not use up
/// tokens.
pub(super) const RELABEL_INTERVAL: Duration = Duration::from_secs(5);

impl Group {
    /// Decides what to do in [`Phase::Stable`].
    pub(super) fn evaluate(&mut self, now: Duration, effects: &mut Effects) -> Phase {
        if self.world.deleting {
            return self.retire(Retirement::at(Removal::Tombstone), effects);
        }
        self.weigh_request(now);
        if self.is_overtaken() {
            return self.read(effects);
        }
        if self.known.row.holder.as_ref().is_some_and(|holder| self.case_against(holder).is_none()) {
            self.delays.lost = None;
        }
        if let Some(obstacle) = self.world.obstacle {
            if self.keeps_its_label() {
                let holder = self.known.holder_uid().to_owned();
                self.tell_later(&holder, now, effects);
            }
            let holder = self.known.row.holder.clone().filter(|_| obstacle != Reason::InvalidSpec);
            return match holder.filter(|holder| self.lacks_program(holder)) {
                Some(holder) => self.start_program(&holder, now, effects),
                None => Phase::Stable,
            };
        }
        if self.known.row.holder.is_none() && self.known.is_behind() && self.declared_holder_is_labelled() {
            // It was promoted late, or its label was seen late. It is not a stray: it keeps the role.
            return self.regained(now, effects);
        }
        let token = self.known.declared.token;
        let strays: Vec<_> =
            self.strays(self.known.holder_uid()).map(|member| member.to_strip(token)).collect();
        if !strays.is_empty() {
            let holder = self.known.holder_uid().to_owned();
            self.note_strays(&holder);
            return self.go(Phase::Repairing, Effect::Strip { token, pods: strays }, effects);
        }
        match self.known.row.holder.clone() {
            None => self.elect_first(now, effects),
            Some(holder) => match self.case_against(&holder) {
                None => self.keep(&holder, now, effects),
                Some(reason) => self.replace(&holder, reason, now, effects),
            },
        }
    }

    /// Whether another replica declared a term, so that the row that is known, or the ownership, is out of date. A
    /// lagging watch cannot cause this.
    pub(super) fn is_overtaken(&self) -> bool {
        let (seen, known) = (&self.world.declared, &self.known.declared);
        seen.token > known.token || (seen.token == known.token && seen.grant != known.grant)
    }

    /// The reason to replace the holder; none if it is healthy or merely unproven.
    pub(super) fn case_against(&self, holder: &PodRef) -> Option<Reason> {
        let Some(member) = self.member(&holder.uid) else { return Some(Reason::PodDeleted) };
        member.verdict.against().or_else(|| self.case_against_program(member))
    }

    /// Whether the holder has ended for good, as opposed to being unhealthy.
    pub(super) fn has_ended(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_none_or(|member| matches!(member.verdict, Verdict::Ended(_)))
    }

    fn elect_first(&mut self, now: Duration, effects: &mut Effects) -> Phase {
        if !self.world.policy.paused {
            // A row that lost commits says nothing against the pod that was the holder before.
            let declared = self.known.declared.holder.clone().filter(|_| self.known.is_behind());
            let is_good = |holder: &PodRef| self.is_proven(&holder.uid) && self.is_fit(holder);
            if let Some(holder) = declared.filter(is_good) {
                return self.keep_after_lost_commits(holder, now, effects);
            }
            if let Some(holder) = self.successor(None) {
                let reason = Reason::FirstHolder;
                return self.begin(Change { holder, reason, from: None, began: now }, effects);
            }
        }
        self.stamp_standbys("", now, effects);
        Phase::Stable
    }

    fn keep(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) -> Phase {
        if self.keeps_its_label()
            || self.world.policy.paused
            || !(self.works(holder) || self.is_contested(holder))
        {
            if self.keeps_its_label()
                && let Some(changing) = self.hand_over(holder, now, effects)
            {
                return changing;
            }
            if self.lacks_program(holder) {
                return self.start_program(holder, now, effects);
            }
            self.wake_if_late(holder);
            self.calls.succeeded();
            if self.keeps_its_label() {
                self.refusals.stays(&holder.uid);
                self.tell_later(&holder.uid, now, effects);
                self.delete_demoted(&holder.uid, now, effects);
            }
            self.stamp_standbys(&holder.uid, now, effects);
            Phase::Stable
        } else if now < self.pacing.relabels {
            self.wake_at(self.pacing.relabels);
            Phase::Stable
        } else {
            self.go(Phase::Relabelling { holder: holder.clone() }, Effect::Verify(holder.clone()), effects)
        }
    }

    /// Handles the quorum read of a holder that was not labelled active. The label is restored under a new term:
    /// nothing is promoted under a confirmed term, so no promotion of it can arrive late.
    pub(super) fn relabel(
        &mut self,
        holder: &PodRef,
        against: Option<Reason>,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        if self.keeps_its_label() || self.world.policy.paused || self.world.obstacle.is_some() {
            return Phase::Stable;
        }
        if against.is_some() || !(self.works(holder) || self.is_contested(holder)) {
            // The watch lags behind.
            return self.back_off(now);
        }
        self.pacing.relabels = now + RELABEL_INTERVAL;
        self.delays.lost = None;
        // If it may not be labelled again, or the API server refuses that, another pod follows.
        let fit = Some(holder).filter(|holder| self.is_fit(holder)).cloned();
        match fit.or_else(|| self.successor(Some(holder))) {
            Some(next) => self.change(next, Reason::LabelLost, now, effects),
            None => Phase::Stable,
        }
    }

    /// Whether the holder is labelled active under the declared term, and can show its token.
    pub(crate) fn keeps_its_label(&self) -> bool {
        let token = Some(self.known.declared.token);
        self.member(self.known.holder_uid()).is_some_and(|member| {
            member.role == Role::Active
                && member.stamped_by_us
                && member.stamp == token
                && member.fencing_fits
        })
    }

    fn replace(&mut self, holder: &PodRef, reason: Reason, now: Duration, effects: &mut Effects) -> Phase {
        let (since, down) = match self.lost(holder) {
            Some(lost) => (lost.since, lost.down),
            None => (now, self.silent_since(holder).unwrap_or(now)),
        };
        self.delays.lost = Some(Lost { uid: holder.uid.clone(), since, down });
        if self.world.policy.paused {
            return Phase::Stable;
        }
        let successor = self.successor(Some(holder));
        let ended = self.has_ended(holder);
        if !ended {
            let allowed = since + self.world.policy.delay;
            if successor.is_none() {
                self.stamp_standbys(&holder.uid, now, effects);
                return Phase::Stable;
            }
            if now < allowed {
                self.wake_at(allowed);
                return Phase::Stable;
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
        self.member(&holder.uid).is_some_and(|member| match member.verdict {
            Verdict::Silent | Verdict::Ended(Reason::PodDeleted) => true,
            Verdict::Failing(reason) => matches!(reason, Reason::ProbeRefused | Reason::ContainerRestarted),
            // It comes from the agent itself.
            _ => self.case_against_program(member).is_some(),
        })
    }

    /// Asks for a quorum read of the holder.
    pub(super) fn verify(&mut self, holder: &PodRef, reason: Reason, effects: &mut Effects) -> Phase {
        self.read_holder(holder, reason, self.is_certain(holder), effects)
    }

    /// The same, whatever the evidence.
    pub(super) fn read_holder(
        &mut self,
        holder: &PodRef,
        reason: Reason,
        certain: bool,
        effects: &mut Effects,
    ) -> Phase {
        let reading = Phase::Verifying { holder: holder.clone(), reason, certain };
        self.go(reading, Effect::Verify(holder.clone()), effects)
    }

    /// Updates the world.
    pub(super) fn refresh(&mut self, world: World) {
        self.world = world;
        self.refusals.refresh(&self.world.members);
        self.refusals.set_served(self.has_healthy_active());
        self.lapses.refresh(&self.world);
        let proven = matches!(&self.phase, Phase::Verifying { holder, .. } if self.is_certain(holder));
        if let Phase::Verifying { certain, .. } = &mut self.phase {
            *certain |= proven;
        }
    }

    /// Begins to replace the row's holder. If that one was chosen by an unfinished term and never became active, the
    /// change is still the one of that term: from the pod that was active before, and for the same reason.
    pub(super) fn change(
        &mut self,
        holder: PodRef,
        reason: Reason,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let (from, reason) = match self.known.row.holder.clone() {
            Some(chosen) if !self.may_have_been_active(&chosen) => {
                (self.former_holder(&chosen), self.reason_of_term())
            }
            former => (former, reason),
        };
        let down = |from| self.lost(from).map(|lost| lost.down).or_else(|| self.silent_since(from));
        let began = from.as_ref().and_then(down).unwrap_or(now);
        self.begin(Change { holder, reason, from, began }, effects)
    }

    /// The evidence against this holder, if there is any.
    fn lost(&self, holder: &PodRef) -> Option<&Lost> {
        self.delays.lost.as_ref().filter(|lost| lost.uid == holder.uid)
    }

    /// When this pod last answered, if it is silent.
    fn silent_since(&self, pod: &PodRef) -> Option<Duration> {
        self.member(&pod.uid).and_then(|member| member.silent_since)
    }

    /// Whether the holder may be replaced now: the group is not paused, and the delay is over unless the holder
    /// has ended.
    fn may_replace(&self, ended: bool, now: Duration) -> bool {
        let lost_since =
            self.known.row.holder.as_ref().and_then(|holder| self.lost(holder)).map(|lost| lost.since);
        let allowed = lost_since.map(|since| since + self.world.policy.delay);
        !self.world.policy.paused && (ended || allowed.is_some_and(|allowed| now >= allowed))
    }

    /// Whether nothing happens before the next event, so that another replica can continue as well as this one. Until
    /// then an unfinished term waits for evidence about its holder.
    pub(crate) fn is_at_rest(&self, now: Duration) -> bool {
        let waits = match self.phase() {
            Phase::Stable => true,
            Phase::Resuming { until, .. } => now >= *until,
            _ => false,
        };
        waits && !self.busy()
    }

    /// Whether a pod could be made active now, and this replica has no evidence that one works.
    pub(crate) fn lacks_candidate(&self, now: Duration) -> bool {
        let holder = self.known.row.holder.as_ref();
        let is_due = match holder {
            None => !self.world.policy.paused,
            Some(holder) if self.known.is_finished() => self.may_replace(self.has_ended(holder), now),
            // A change that was begun is not stopped by a pause or the election delay. Only this replica knows that the
            // term is unused: another one would have to write to a pod that refuses it.
            Some(holder) => {
                let only_here = self.unused.spare(&holder.uid) && self.refusals.has(&holder.uid);
                !self.is_fit(holder) && !only_here
            }
        };
        is_due && self.world.obstacle.is_none() && self.successor(holder).is_none()
    }

    /// Handles the quorum read of a holder with evidence against it.
    pub(super) fn verified(
        &mut self,
        holder: &PodRef,
        reason: Reason,
        certain: bool,
        against: Option<Reason>,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        // An unfinished term is already in the middle of a change, which pause and delay do not stop.
        let held = self.world.obstacle.is_some()
            || (self.known.is_finished() && !self.may_replace(against.is_some_and(Reason::is_end), now));
        match (against, self.successor(Some(holder))) {
            (None, Some(successor))
                if certain && !held && (self.known.is_finished() || !self.is_fit(holder)) =>
            {
                self.change(successor, reason, now, effects)
            }
            // The watch was stale, or its selector reported a label edit as a deletion. Wait for it to catch up.
            (None, _) => self.back_off(now),
            // Paused or obstructed in the meantime. Or the holder has ended according to the watch but not according
            // to the read, so the election delay applies.
            (Some(_), _) if held && self.has_ended(holder) => self.back_off(now),
            (Some(_), _) if held => self.settle(now),
            // Meanwhile nothing is known against it. The read does not show what excuses an unready pod.
            (Some(read), _) if !certain && !read.is_end() && self.case_against(holder).is_none() => {
                self.settle(now)
            }
            (Some(read), Some(successor)) => {
                let reason = if reason.is_end() { read } else { reason };
                self.change(successor, reason, now, effects)
            }
            (Some(read), None) if read.is_end() && self.has_ended(holder) => self.vacate(false, effects),
            // The watch does not show the pod, and the read does.
            (Some(_), None) if self.has_ended(holder) => self.back_off(now),
            (Some(_), None) => self.settle(now),
        }
    }

    /// Frees the lock. As after a grant, an unknown result is found out by repeating the request: the row does not show
    /// whether the release may still be carried out, at a time when the pod has come back.
    pub(super) fn vacate(&mut self, in_doubt: bool, effects: &mut Effects) -> Phase {
        let effect = Effect::Vacate { token: self.known.row.token };
        self.go(Phase::Vacating(Attempt { in_doubt, retry_at: None }), effect, effects)
    }

    pub(super) fn vacated(&mut self, effects: &mut Effects) -> Phase {
        let from = self.known.row.holder.take();
        self.calls.succeeded();
        self.delays.lost = None;
        let reason = from.as_ref().and_then(|pod| self.case_against(pod)).unwrap_or(Reason::PodDeleted);
        let token = self.known.row.token;
        self.emit(
            Effect::Finished(Finished { token, from, to: None, reason, took: Duration::ZERO }),
            effects,
        );
        Phase::Stable
    }
}
