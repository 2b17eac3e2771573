//! The deletion of a group: first the row, then the labels, then the finalizer. Each step waits for a bounded time.

use std::time::Duration;

use super::{
    event::{Effect, Outcome, Rejection},
    group::{Group, Phase, Retirement},
    step::Effects,
    world::Member,
};

/// How long a deletion waits for the database before it leaves the row for later, and for rights to the pods before
/// it leaves their labels as they are.
const RETIREMENT_PATIENCE: Duration = Duration::from_secs(10);
/// The same if the labels could not be settled for another reason. It may be one of this pod alone.
const LONGEST_PATIENCE: Duration = Duration::from_mins(1);

impl Group {
    pub(super) fn retire(&mut self, step: Retirement, effects: &mut Effects) {
        let effect = match step {
            Retirement::Tombstone => Effect::Tombstone,
            Retirement::Labels => Effect::Clear {
                on_delete: self.world.policy.on_delete,
                pods: self.world.members.iter().map(Member::to_clear).collect(),
            },
            Retirement::Finalizer => Effect::Unfinalize,
        };
        self.retry_at = None;
        self.go(Phase::Retiring(step), effect, effects);
    }

    pub(super) fn retired(
        &mut self,
        step: Retirement,
        outcome: &Outcome,
        now: Duration,
        effects: &mut Effects,
    ) {
        let next = match (step, outcome) {
            // Another replica owns the group now and completes the deletion.
            (Retirement::Tombstone, Outcome::Rejected(Rejection::NotOwner)) => {
                self.phase = Phase::Observing;
                return;
            }
            (Retirement::Tombstone, Outcome::Failed | Outcome::Unknown) => {
                // A deletion must not depend on the database. The row gets its tombstone later.
                let give_up = *self.retire_by.get_or_insert(now + RETIREMENT_PATIENCE);
                if now >= give_up { Some(Retirement::Labels) } else { None }
            }
            (Retirement::Tombstone, _) => Some(Retirement::Labels),
            (Retirement::Labels, Outcome::Cleared) => {
                self.labels_by = None;
                Some(Retirement::Finalizer)
            }
            (Retirement::Labels, Outcome::ClearRefused) => {
                // When a namespace is deleted, the operator may lose its rights in it before the groups are gone, and
                // never gets them back. The deletion must not wait for that.
                let give_up = *self.retire_by.get_or_insert(now + RETIREMENT_PATIENCE);
                if now >= give_up { Some(Retirement::Finalizer) } else { None }
            }
            (Retirement::Labels, _) => {
                // It is unknown what the API server would allow. If it does not answer at all, the finalizer cannot be
                // removed either, and the labels are tried again.
                self.retire_by = None;
                let give_up = *self.labels_by.get_or_insert(now + LONGEST_PATIENCE);
                if now >= give_up { Some(Retirement::Finalizer) } else { None }
            }
            (Retirement::Finalizer, Outcome::Unfinalized | Outcome::Rejected(Rejection::GroupGone)) => {
                self.phase = Phase::Retired;
                return;
            }
            _ => None,
        };
        if let Some(next) = next {
            self.retire_by = None;
            // Otherwise the finalizer may not go either.
            self.failures = if self.labels_by.is_none() { 0 } else { self.failures };
            return self.retire(next, effects);
        }
        let again = now + self.next_pause();
        self.retry_at = Some(self.retire_by.map_or(again, |give_up| again.min(give_up)));
        let unsettled = step == Retirement::Finalizer && self.labels_by.is_some();
        self.phase = Phase::Retiring(if unsettled { Retirement::Labels } else { step });
    }
}
