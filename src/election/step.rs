//! The state machine: takes one event and returns effects.

use std::time::Duration;

use uuid::Uuid;

use super::{
    event::{Effect, Event, Finished, GrantRequest, Outcome, Rejection, Ticket},
    group::{Change, Group, Phase, Retirement},
    request::{LastRequest, MOVE_PAUSE},
    world::{Member, Row},
};
use crate::api::{Declaration, LARGEST_TOKEN, PodAt, PodRef, Reason, Role};

/// The wait after the first failure. It doubles with each further failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The maximum wait between two attempts, so that a recovery is noticed soon.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// After this many consecutive conflicts, row and declaration are read again after a pause.
const MOST_CONFLICTS: u32 = 8;

/// The effects of one step, each with the ticket that its outcome must carry.
pub(super) type Effects = Vec<(Ticket, Effect)>;

impl Group {
    /// Processes one event at the monotonic time `now`.
    ///
    /// At most one protocol effect is outstanding at a time. In addition there may be one [`Effect::Stamp`] in the
    /// background, and an [`Effect::Finished`], which has no outcome.
    pub fn step(&mut self, event: Event, now: Duration) -> Effects {
        let mut effects = Effects::new();
        self.wake = None;
        self.refusals.set_time(now);
        self.lapses.set_time(now);
        match event {
            Event::World(world) => self.refresh(world),
            Event::Owned { seed, row, world } => {
                self.refresh(world);
                self.forget();
                self.seed = seed.as_u128();
                // An effect of an earlier election of this group, which was forgotten, may still be under way.
                self.tickets = seed.as_u64_pair().1 >> 1;
                self.adopt(row, now, &mut effects);
            }
            Event::Disowned => {
                self.forget();
                self.phase = Phase::Observing;
            }
            Event::Buried if self.phase == Phase::Observing && self.world.deleting => {
                self.retire(Retirement::Labels, &mut effects);
            }
            // During a change the doubt is only recorded: the row is read when the group is stable.
            Event::Doubt => self.doubted = self.is_at_work(),
            Event::Outcome(ticket, outcome, world) => {
                self.refresh(world);
                self.answered(ticket, outcome, now, &mut effects);
            }
            Event::Buried | Event::Tick => {}
        }
        self.cut_trial_short(now);
        if self.awaiting.is_none() {
            self.advance(now, &mut effects);
        }
        if let Some(at) = self.refusals.wake().filter(|_| self.is_at_work()) {
            self.wake_at(at);
        }
        effects
    }

    fn answered(&mut self, ticket: Ticket, outcome: Outcome, now: Duration, effects: &mut Effects) {
        if self.stamping == Some(ticket) {
            self.stamped(outcome, now);
        } else if self.awaiting == Some(ticket) {
            self.awaiting = None;
            self.handle(outcome, now, effects);
        }
    }

    /// Continues from a phase that waits for events or for time to pass.
    fn advance(&mut self, now: Duration, effects: &mut Effects) {
        match self.phase {
            Phase::Observing
            | Phase::BackingOff { .. }
            | Phase::Granting(_)
            | Phase::Confirming(_)
            | Phase::Vacating
                if self.world.deleting && self.world.lock_away =>
            {
                // No grant is possible while the database is unavailable, so the labels may be settled without
                // ownership.
                self.retire(Retirement::Labels, effects);
            }
            Phase::BackingOff { until } if now >= until => self.read(effects),
            Phase::BackingOff { until } => self.wake_at(until),
            Phase::Resuming { until } => self.resume(until, now, effects),
            Phase::Stable if self.world.stopping => {}
            Phase::Stable if self.doubted => self.read(effects),
            Phase::Stable => self.evaluate(now, effects),
            Phase::Retiring(_) | Phase::Granting(_) | Phase::Confirming(_) | Phase::Vacating
                if self.retry_at.is_some_and(|at| now < at) =>
            {
                self.wake = self.wake.into_iter().chain(self.retry_at).min();
            }
            Phase::Retiring(step) => self.retire(step, effects),
            Phase::Granting(_) => self.ask_again(effects),
            Phase::Confirming(ref change) => {
                let change = change.clone();
                self.confirm(change, effects);
            }
            Phase::Vacating => self.vacate(effects),
            _ => {}
        }
    }

    fn handle(&mut self, outcome: Outcome, now: Duration, effects: &mut Effects) {
        let phase = std::mem::replace(&mut self.phase, Phase::Stable);
        match (phase, outcome) {
            (Phase::Retiring(step), outcome) => self.retired(step, &outcome, now, effects),
            (_, Outcome::Rejected(Rejection::NotOwner)) => self.phase = Phase::Observing,
            (_, Outcome::Rejected(Rejection::GroupGone)) => self.retire(Retirement::Tombstone, effects),
            (Phase::Reading, Outcome::Read { row, declared }) => self.take_stock(row, declared, now, effects),
            (Phase::Verifying { reason, certain }, Outcome::Verified(against)) => {
                self.verified(reason, certain, against, now, effects);
            }
            (Phase::Regaining, Outcome::Verified(_)) => self.regained(now, effects),
            (Phase::Relabelling, Outcome::Verified(against)) => self.relabel(against, now, effects),
            (Phase::Vacating, Outcome::Vacated) => {
                let from = self.row.holder.take();
                (self.in_doubt, self.failures, self.lost) = (false, 0, None);
                let reason = self.vacancy_reason(from.as_ref());
                let token = self.row.token;
                let finished = Finished { token, from, to: None, reason, took: Duration::ZERO };
                self.emit(Effect::Finished(finished), effects);
            }
            (Phase::Repairing, Outcome::Stripped) if self.strays(&self.holder_uid()).next().is_none() => {
                self.failures = 0;
            }
            // It may have taken effect. Reading the row would tell, but the change would not be reported.
            (phase @ Phase::Confirming(_), Outcome::Failed | Outcome::Unknown) => {
                self.repeat_later(phase, now);
            }
            (phase, outcome) => self.handle_step(phase, outcome, now, effects),
        }
    }

    /// Handles the outcome of a step of a change of holder.
    fn handle_step(&mut self, phase: Phase, outcome: Outcome, now: Duration, effects: &mut Effects) {
        match (phase, outcome) {
            (Phase::Trying(change), outcome) => self.tried(change, outcome, now, effects),
            (Phase::Promoting(change), Outcome::Refused(message)) => {
                self.unused.nothing_written();
                self.promotion_refused(change, message, now, effects);
            }
            (Phase::Granting(change), Outcome::Granted { token }) => {
                self.granted(change, token, now, effects);
            }
            (
                phase @ (Phase::Granting(_) | Phase::Vacating),
                outcome @ (Outcome::Unknown | Outcome::Failed),
            ) if self.in_doubt || matches!(outcome, Outcome::Unknown) => {
                self.in_doubt = true;
                self.repeat_later(phase, now);
            }
            (Phase::Fencing(change), Outcome::Promoted) => self.declare(change, false, effects),
            (Phase::Fencing(change), Outcome::Stripped) => self.fenced_off(change, now, effects),
            (Phase::Fencing(change), Outcome::Stamped(refused)) => {
                self.stamped_to_fence(change, refused, now, effects);
            }
            (Phase::Fencing(change), Outcome::Rechecked { version, declared, row }) => {
                let stands = self.stands(declared.as_ref(), row.as_ref());
                self.rechecked_to_fence(change, version, stands, now, effects);
            }
            // The evidence may have changed since the last step, and no pod loses or gets the label for nothing.
            (
                Phase::Declaring(change) | Phase::Stripping(change) | Phase::Rechecking(change),
                Outcome::Declared | Outcome::Stripped | Outcome::Rechecked { .. },
            ) if !self.is_fit(&change.holder) => self.pass_over(change, now, effects),
            (Phase::Declaring(change), Outcome::Declared) if self.is_heard_again(&change) => {
                self.stay(change, now, effects);
            }
            (Phase::Declaring(change), Outcome::Declared) => self.strip(change, effects),
            (Phase::Stripping(change), Outcome::Stripped) => match self.witness.take() {
                Some(version) => self.promote(change, version, effects),
                None => self.recheck(change, effects),
            },
            (Phase::Promoting(change), Outcome::Promoted) => {
                self.refusals.promoted(&change.holder.uid);
                self.confirm(change, effects);
            }
            (Phase::Promoting(change), Outcome::Failed | Outcome::Unknown) => {
                self.promotion_failed(&change, now);
            }
            (Phase::Promoting(change), Outcome::Conflict) if self.conflicts < MOST_CONFLICTS => {
                self.conflicts += 1;
                self.unused.nothing_written();
                self.recheck(change, effects);
            }
            (Phase::Rechecking(change), Outcome::Rechecked { version, declared, row }) => {
                let stands = self.stands(declared.as_ref(), row.as_ref());
                match version.filter(|_| stands) {
                    Some(_) if self.is_spent(&change.holder) => self.settle(now),
                    Some(version) => self.promote(change, version, effects),
                    None => self.back_off(now),
                }
            }
            (Phase::Confirming(change), Outcome::Confirmed) => self.confirmed(change, now, effects),
            // A failure, a refusal, or an outcome that does not fit the phase: reading again is always safe. Or
            // strays were stripped, but the watch has not shown that yet, or never will: do not strip them again at
            // once.
            (_, _) => self.back_off(now),
        }
    }

    /// Whether declaration and row are still the ones that were read or written last.
    fn stands(&self, declared: Option<&Declaration>, row: Option<&Row>) -> bool {
        declared == Some(&self.declared)
            && row.is_some_and(|row| row.token == self.row.token && row.holder == self.row.holder)
    }

    pub(super) fn emit(&mut self, effect: Effect, effects: &mut Effects) -> Ticket {
        self.tickets += 1;
        effects.push((self.tickets, effect));
        self.tickets
    }

    /// Emits the next effect of the protocol and waits for its outcome in `phase`.
    pub(super) fn go(&mut self, phase: Phase, effect: Effect, effects: &mut Effects) {
        self.awaiting = Some(self.emit(effect, effects));
        self.phase = phase;
    }

    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn read(&mut self, effects: &mut Effects) {
        self.doubted = false;
        self.go(Phase::Reading, Effect::Read, effects);
    }

    pub(super) fn back_off(&mut self, now: Duration) {
        self.conflicts = 0;
        self.phase = Phase::BackingOff { until: now + self.next_pause() };
    }

    /// The effect of this phase is repeated after a pause.
    fn repeat_later(&mut self, phase: Phase, now: Duration) {
        self.retry_at = Some(now + self.next_pause());
        self.phase = phase;
    }

    pub(super) fn next_pause(&mut self) -> Duration {
        self.failures += 1;
        growing(FIRST_BACKOFF, self.failures)
    }

    fn forget(&mut self) {
        (self.awaiting, self.stamping, self.witness) = (None, None, None);
        (self.lost, self.retire_by, self.retry_at) = (None, None, None);
        self.labels_by = None;
        (self.grant, self.in_doubt) = (None, false);
        (self.failures, self.conflicts, self.stamp_failures) = (0, 0, 0);
        self.unused.forget();
        self.last_request = LastRequest::default();
        self.unanswered.clear();
        (self.suspect, self.retried) = (None, None);
        self.preferred = None;
    }

    /// Begins a change of holder: with step 1, or with a dry run of step 4 if the new holder may turn out to be a pod
    /// that the API server refuses to change.
    pub(super) fn begin(&mut self, change: Change, effects: &mut Effects) {
        if self.needs_trial(&change.holder, change.reason) {
            let (token, pod) = (self.declared.token + 1, change.holder.clone());
            let planned = change.from.as_ref().filter(|_| change.reason.is_planned() && self.is_finished());
            let from = planned.cloned();
            return self.go(Phase::Trying(change), Effect::Try { token, pod, from }, effects);
        }
        self.ask_for_grant(change, effects);
    }

    /// Step 1. The new token must exceed that of the row, the declared one and every stamp. If lost commits or a
    /// restored backup set one of these back, the others still have it.
    pub(super) fn ask_for_grant(&mut self, change: Change, effects: &mut Effects) {
        self.accepted = None;
        self.unanswered.clear();
        let stamps = self.world.members.iter().filter_map(|member| member.stamp);
        let floor = stamps.filter(|stamp| *stamp <= LARGEST_TOKEN).fold(self.declared.token, i64::max);
        let id = Uuid::from_u128(self.seed.wrapping_add(u128::from(self.tickets)));
        let grant = GrantRequest {
            expected: self.row.token,
            floor: floor.max(self.world.declared.token),
            holder: change.holder.clone(),
            id,
            reason: change.reason,
        };
        self.former_grant = self.row.grant.replace(id);
        (self.grant, self.in_doubt, self.retry_at) = (Some(grant.clone()), false, None);
        self.go(Phase::Granting(change), Effect::Grant(grant), effects);
    }

    /// Repeats the identical request of step 1. A grant whose answer was lost may still be committed later, so
    /// reading the row proves nothing. Repeating the grant does: the lock finds that it took effect, or it takes
    /// effect now.
    fn ask_again(&mut self, effects: &mut Effects) {
        match (self.grant.clone(), self.phase.clone()) {
            (Some(grant), phase @ Phase::Granting(_)) => {
                self.retry_at = None;
                self.go(phase, Effect::Grant(grant), effects);
            }
            // Unreachable: in this phase there is always a request. Reading again is always safe.
            _ => self.read(effects),
        }
    }

    fn granted(&mut self, change: Change, token: i64, now: Duration, effects: &mut Effects) {
        (self.grant, self.in_doubt, self.retry_at, self.failures) = (None, false, None, 0);
        match change.reason {
            Reason::Switchover => self.last_request.grants += 1,
            Reason::NodeCordoned | Reason::Rollout | Reason::Failback => {
                (self.move_after, self.preferred) = (now + MOVE_PAUSE, None);
            }
            _ => {}
        }
        // With two databases the declaration may be of another term that has the same token. The row of a free lock has
        // the token of the last term, but not its grant.
        let same_term = self.declared.token == self.row.token
            && self.declared.holder == self.row.holder
            && self.declared.grant == self.former_grant.map(|grant| grant.to_string());
        let settled = self.row.confirmed && same_term;
        let grant = self.row.grant.map(|id| id.to_string()).unwrap_or_default();
        let fresh = self.cannot_be_active(&change.holder, settled);
        self.unused.granted(grant, &change.holder.uid, fresh);
        let former = self.row.holder.replace(change.holder.clone());
        self.row.pending.extend(former);
        self.row.token = token;
        self.row.confirmed = false;
        self.row.reason = Some(change.reason);
        // The answer was late, and the evidence has changed.
        if self.is_heard_again(&change) {
            return self.stay(change, now, effects);
        }
        if !self.is_fit(&change.holder) {
            return self.pass_over(change, now, effects);
        }
        self.fence(change, settled, now, effects);
    }

    /// Step 2, for the term in the row. `settled` means that the current declaration is of a confirmed term.
    pub(super) fn declare(&mut self, change: Change, settled: bool, effects: &mut Effects) {
        // The pods that may still carry the active label: the holders of all terms since the last confirmed one. A
        // row that lost commits may lack some, so those in the declaration count, too.
        let mut former = self.row.pending.clone();
        if !settled {
            former.extend(self.declared.holder.clone());
            former.extend(self.declared.strip.iter().cloned());
        }
        let stripped = |pod: &PodRef| {
            pod.uid != change.holder.uid && (!self.unused.spare(&pod.uid) || self.reads_as_active(pod))
        };
        let strip = distinct(former).into_iter().filter(stripped).collect();
        let next = Declaration {
            token: self.row.token,
            grant: self.row.grant.map(|id| id.to_string()),
            holder: Some(change.holder.clone()),
            strip,
            switchover: self.fulfilled(&change.holder),
        };
        // This version was read before the declaration. A write bound to it cannot arrive late, because a replica
        // that declares a larger token writes to this pod before it promotes another one.
        self.witness = self.member(&change.holder.uid).map(|member| member.version.clone());
        let previous = std::mem::replace(&mut self.declared, next.clone());
        self.go(Phase::Declaring(change), Effect::Declare { previous, next }, effects);
    }

    /// Step 3, for the declared term.
    pub(super) fn strip(&mut self, change: Change, effects: &mut Effects) {
        let pods = self.to_strip(&change.holder.uid);
        let token = self.declared.token;
        self.go(Phase::Stripping(change), Effect::Strip { token, pods }, effects);
    }

    /// The pods that may be active, but for the holder of the declared term.
    pub(super) fn to_strip(&self, holder: &str) -> Vec<PodAt> {
        let strays = self.strays(holder).map(|member| member.pod.clone());
        let mut pods = distinct(self.declared.strip.iter().cloned().chain(strays).collect());
        pods.retain(|pod| pod.uid != holder);
        pods.into_iter().map(|pod| self.seen(pod, |member| member.to_strip(self.declared.token))).collect()
    }

    /// Step 4.
    fn promote(&mut self, change: Change, version: String, effects: &mut Effects) {
        let Some(pod) = self.row.holder.clone() else {
            // Unreachable: a term without a holder is never promoted. Reading again is always safe.
            return self.read(effects);
        };
        let token = self.declared.token;
        self.unused.promoting(self.declared.grant.as_deref());
        self.go(Phase::Promoting(change), Effect::Promote { token, pod, version }, effects);
    }

    fn recheck(&mut self, change: Change, effects: &mut Effects) {
        let Some(pod) = self.row.holder.clone() else {
            return self.read(effects);
        };
        self.go(Phase::Rechecking(change), Effect::Recheck(pod), effects);
    }

    /// Step 5.
    pub(super) fn confirm(&mut self, change: Change, effects: &mut Effects) {
        let token = self.row.token;
        self.retry_at = None;
        self.go(Phase::Confirming(change), Effect::Confirm { token }, effects);
    }

    fn confirmed(&mut self, change: Change, now: Duration, effects: &mut Effects) {
        self.row.confirmed = true;
        self.row.pending = vec![change.holder.clone()];
        (self.failures, self.conflicts) = (0, 0);
        self.unused.forget();
        self.lost = None;
        self.stamp_after = now;
        let replaced = change.from.as_ref().filter(|former| **former != change.holder);
        if replaced.is_some() {
            // The last grant was not in vain.
            self.move_after = now;
        }
        let failed = replaced.filter(|_| change.reason.is_failure()).map(|former| former.uid.as_str());
        self.lapses.changed(self.row.token, failed);
        let finished = Finished {
            token: self.row.token,
            from: change.from,
            to: Some(change.holder),
            reason: change.reason,
            took: now.saturating_sub(change.began),
        };
        self.emit(Effect::Finished(finished), effects);
    }

    /// The members that are labelled active without being the holder.
    pub(crate) fn strays(&self, holder: &str) -> impl Iterator<Item = &Member> {
        self.world
            .members
            .iter()
            .filter(move |member| member.role == Role::Active && member.pod.uid != holder)
    }
}

/// The pause after this many consecutive failures, where `first` is the one after the first.
pub(super) fn growing(first: Duration, failures: u32) -> Duration {
    let factor = 1_u32 << failures.saturating_sub(1).min(16);
    (first * factor).min(LONGEST_BACKOFF)
}

/// Each pod once, in order.
pub(super) fn distinct(pods: Vec<PodRef>) -> Vec<PodRef> {
    let mut seen = std::collections::BTreeSet::new();
    pods.into_iter().filter(|pod| seen.insert(pod.uid.clone())).collect()
}
