//! What follows when the awaited outcome arrives: one arm for each phase.
//!
//! An outcome that the arm of a phase does not name leads to [`Phase::BackingOff`]: it is a failure, a refusal, or does
//! not fit the phase. Reading the row and the declaration again is always safe.

use std::time::Duration;

use super::{
    event::{GrantRequest, Outcome, Rejection},
    group::Group,
    phase::{Attempt, Change, Phase, Removal, Retirement},
    refusal::Refusal,
    step::Effects,
};
use crate::api::Role;

/// After this many consecutive conflicts, row and declaration are read again after a pause.
const MOST_CONFLICTS: u32 = 8;

impl Group {
    /// The phase that follows `phase`, which has ended with this outcome.
    pub(super) fn conclude(
        &mut self,
        phase: Phase,
        outcome: Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        if let Some(end) = self.rejected(&phase, &outcome, effects) {
            return end;
        }
        self.take_note(&phase, &outcome);
        self.follow(phase, outcome, now, effects)
    }

    fn follow(&mut self, phase: Phase, outcome: Outcome, now: Duration, effects: &mut Effects) -> Phase {
        match (phase, outcome) {
            (Phase::Reading, Outcome::Read { row, declared }) => self.take_stock(row, declared, now, effects),
            (Phase::Regaining, Outcome::Verified(against)) => self.regained_as_read(against, now, effects),
            (Phase::Verifying { holder, reason, certain }, Outcome::Verified(against)) => {
                self.verified(&holder, reason, certain, against, now, effects)
            }
            (Phase::Relabelling { holder }, Outcome::Verified(case)) => {
                self.relabel(&holder, case, now, effects)
            }
            (Phase::Trying(change), outcome) => self.tried(change, outcome, now, effects),
            (Phase::Stopping { change, declaring: Some(_), until }, Outcome::Declared) => {
                self.stopping(change, until, now, effects)
            }
            (Phase::Granting { change, request, attempt }, outcome) => {
                self.grant_answered(change, request, attempt, outcome, now, effects)
            }
            (Phase::Fencing(change), outcome) => self.fence_answered(change, outcome, now, effects),
            (Phase::Declaring { change, witness, .. }, Outcome::Declared) => {
                self.declared_for(change, witness, now, effects)
            }
            (Phase::Stripping { change, witness }, Outcome::Stripped)
            | (Phase::Clearing { change, witness, declaring: Some(_) }, Outcome::Declared) => {
                self.clear(change, witness, now, effects)
            }
            (Phase::Telling { change, witness, role }, outcome) => {
                self.told(change, witness, role, outcome, now, effects)
            }
            (Phase::Promoting { change, conflicts }, outcome) => {
                self.promotion_answered(change, conflicts, outcome, now, effects)
            }
            (Phase::Rechecking { change, conflicts }, outcome) => {
                self.recheck_answered(change, conflicts, outcome, now, effects)
            }
            (Phase::Confirming { change, .. }, outcome) => {
                self.confirm_answered(change, &outcome, now, effects)
            }
            (Phase::Vacating(attempt), outcome) => self.release_answered(attempt, &outcome, now, effects),
            (Phase::Repairing, outcome) => self.repair_answered(&outcome, now),
            (Phase::Retiring(retirement), outcome) => self.retired(retirement, &outcome, now, effects),
            (
                Phase::Reading
                | Phase::Regaining
                | Phase::Verifying { .. }
                | Phase::Relabelling { .. }
                | Phase::Stopping { .. }
                | Phase::Declaring { .. }
                | Phase::Stripping { .. }
                | Phase::Clearing { .. },
                _,
            ) => self.back_off(now),
            // They await no outcome.
            (
                phase @ (Phase::Observing
                | Phase::BackingOff { .. }
                | Phase::Resuming { .. }
                | Phase::Stable
                | Phase::Retired),
                _,
            ) => phase,
        }
    }

    /// A declaration that was made is what is known from now on.
    fn take_note(&mut self, phase: &Phase, outcome: &Outcome) {
        if let Some(made) = phase.declaring().filter(|_| matches!(outcome, Outcome::Declared)) {
            self.known.declared = made.clone();
        }
    }

    fn release_answered(
        &mut self,
        attempt: Attempt,
        outcome: &Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        match outcome {
            Outcome::Vacated => self.vacated(effects),
            outcome if attempt.is_open_after(outcome) => Phase::Vacating(self.repeat_later(now)),
            _ => self.back_off(now),
        }
    }

    /// Two rejections end every phase in the same way, but for a deletion.
    fn rejected(&mut self, phase: &Phase, outcome: &Outcome, effects: &mut Effects) -> Option<Phase> {
        match outcome {
            _ if matches!(phase, Phase::Retiring(_)) => None,
            Outcome::Rejected(Rejection::NotOwner) => Some(Phase::Observing),
            Outcome::Rejected(Rejection::GroupGone) => {
                Some(self.retire(Retirement::at(Removal::Tombstone), effects))
            }
            _ => None,
        }
    }

    fn repair_answered(&mut self, outcome: &Outcome, now: Duration) -> Phase {
        let done = matches!(outcome, Outcome::Stripped);
        if !done || self.strays(self.known.holder_uid()).next().is_some() {
            // It may have succeeded, but the watch has not shown that yet, or never will: it is not repeated at once.
            return self.back_off(now);
        }
        self.calls.failures = 0;
        Phase::Stable
    }

    /// The call of this phase is repeated after a pause, as it was.
    fn repeat_later(&mut self, now: Duration) -> Attempt {
        Attempt { in_doubt: true, retry_at: Some(now + self.next_pause()) }
    }

    fn grant_answered(
        &mut self,
        change: Change,
        request: GrantRequest,
        attempt: Attempt,
        outcome: Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        match outcome {
            Outcome::Granted { token } => self.granted(change, &request, token, now, effects),
            // A grant whose answer was lost may still be committed later, so reading the row proves nothing.
            // Repeating the grant does: the lock finds that it took effect, or it takes effect now.
            outcome if attempt.is_open_after(&outcome) => {
                Phase::Granting { change, request, attempt: self.repeat_later(now) }
            }
            _ => self.back_off(now),
        }
    }

    fn fence_answered(
        &mut self,
        change: Change,
        outcome: Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        match outcome {
            Outcome::Promoted => self.declare(change, false, effects),
            Outcome::Stripped => self.fenced_off(change, now, effects),
            Outcome::Stamped(refused) => self.stamped_to_fence(change, refused, now, effects),
            Outcome::Rechecked { version, declared, row } => {
                let stands = self.known.stands(declared.as_ref(), row.as_ref());
                self.rechecked_to_fence(change, version, stands, now, effects)
            }
            _ => self.back_off(now),
        }
    }

    /// The term of this change is declared. As before each further step, the evidence may have changed, and no pod
    /// loses or gets the label for nothing.
    fn declared_for(
        &mut self,
        change: Change,
        witness: Option<String>,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        if !self.is_fit(&change.holder) {
            return self.pass_over(change, now, effects);
        }
        if self.is_heard_again(&change) {
            return self.stay(change, now, effects);
        }
        self.strip(change, witness, effects)
    }

    /// Continues when all other pods have lost the label. The program of the term has to be allowed to start before its
    /// holder gets it.
    pub(super) fn clear(
        &mut self,
        change: Change,
        witness: Option<String>,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        if !self.is_fit(&change.holder) {
            return self.pass_over(change, now, effects);
        }
        if let Some(clearing) = self.clear_program(&change, witness.as_ref(), now, effects) {
            return clearing;
        }
        self.tell(Role::Standby, change, witness, effects)
    }

    fn promotion_answered(
        &mut self,
        change: Change,
        conflicts: u32,
        outcome: Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        match outcome {
            Outcome::Promoted => {
                self.refusals.promoted(&change.holder.uid);
                self.confirm(change, effects)
            }
            Outcome::Refused(message) => {
                self.unused.nothing_written();
                self.promotion_refused(change, Refusal::by_api_server(message), now, effects)
            }
            Outcome::Conflict if conflicts < MOST_CONFLICTS => {
                self.unused.nothing_written();
                self.recheck(change, conflicts + 1, effects)
            }
            Outcome::Failed | Outcome::Unknown => self.promotion_failed(&change, now),
            _ => self.back_off(now),
        }
    }

    fn recheck_answered(
        &mut self,
        change: Change,
        conflicts: u32,
        outcome: Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let Outcome::Rechecked { version, declared, row } = outcome else {
            return self.back_off(now);
        };
        if !self.is_fit(&change.holder) {
            return self.pass_over(change, now, effects);
        }
        let stands = self.known.stands(declared.as_ref(), row.as_ref());
        match version.filter(|_| stands) {
            Some(_) if self.is_spent(&change.holder) => self.settle(now),
            Some(version) => self.promote(change, version, conflicts, effects),
            None => self.back_off(now),
        }
    }

    fn confirm_answered(
        &mut self,
        change: Change,
        outcome: &Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        match outcome {
            Outcome::Confirmed => self.confirmed(change, now, effects),
            // It may have taken effect. Reading the row would tell, but the change would not be reported.
            Outcome::Failed | Outcome::Unknown => {
                Phase::Confirming { change, retry_at: Some(now + self.next_pause()) }
            }
            _ => self.back_off(now),
        }
    }
}
