//! The deletion of a group: first the row, then the labels, then the finalizer. Each step waits for a bounded time.

use std::time::Duration;

use super::{
    event::{Effect, Outcome, Rejection},
    group::Group,
    phase::{Phase, Removal, Retirement},
    step::Effects,
    world::Member,
};

/// How long a deletion waits for the database before it leaves the row for later, and for rights to the pods before
/// it leaves their labels as they are.
const RETIREMENT_PATIENCE: Duration = Duration::from_secs(10);
/// The same if the labels could not be cleared for another reason. It may be one of this pod alone.
const LONGEST_PATIENCE: Duration = Duration::from_mins(1);

impl Group {
    /// Makes the call of this step, or repeats it.
    pub(super) fn retire(&mut self, retirement: Retirement, effects: &mut Effects) -> Phase {
        let effect = match retirement.step {
            Removal::Tombstone => Effect::Tombstone,
            Removal::Labels => Effect::Clear {
                deletion_policy: self.world.policy.deletion_policy,
                pods: self.world.members.iter().map(Member::to_clear).collect(),
            },
            Removal::Finalizer => Effect::Unfinalize,
        };
        self.go(Phase::Retiring(Retirement { retry_at: None, ..retirement }), effect, effects)
    }

    pub(super) fn retired(
        &mut self,
        retirement: Retirement,
        outcome: &Outcome,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let Retirement { step, mut give_up_at, mut labels_by, .. } = retirement;
        let next = match (step, outcome) {
            // Another replica owns the group now and completes the deletion.
            (Removal::Tombstone, Outcome::Rejected(Rejection::NotOwner)) => return Phase::Observing,
            (Removal::Tombstone, Outcome::Failed | Outcome::Unknown) => {
                // A deletion must not depend on the database. The row gets its tombstone later.
                let give_up = *give_up_at.get_or_insert(now + RETIREMENT_PATIENCE);
                if now >= give_up { Some(Removal::Labels) } else { None }
            }
            (Removal::Tombstone, _) => Some(Removal::Labels),
            (Removal::Labels, Outcome::Cleared) => {
                labels_by = None;
                Some(Removal::Finalizer)
            }
            (Removal::Labels, Outcome::ClearRefused) => {
                // When a namespace is deleted, the operator may lose its rights in it before the groups are gone, and
                // never gets them back. The deletion must not wait for that.
                let give_up = *give_up_at.get_or_insert(now + RETIREMENT_PATIENCE);
                if now >= give_up { Some(Removal::Finalizer) } else { None }
            }
            (Removal::Labels, _) => {
                // It is unknown what the API server would allow. If it does not answer at all, the finalizer cannot be
                // removed either, and the labels are tried again.
                give_up_at = None;
                let give_up = *labels_by.get_or_insert(now + LONGEST_PATIENCE);
                if now >= give_up { Some(Removal::Finalizer) } else { None }
            }
            (Removal::Finalizer, Outcome::Unfinalized | Outcome::Rejected(Rejection::GroupGone)) => {
                return Phase::Retired;
            }
            (Removal::Finalizer, _) => None,
        };
        if let Some(step) = next {
            // Otherwise the finalizer may not go either.
            self.calls.failures = if labels_by.is_none() { 0 } else { self.calls.failures };
            return self.retire(Retirement { labels_by, ..Retirement::at(step) }, effects);
        }
        let again = now + self.next_pause();
        let retry_at = Some(give_up_at.map_or(again, |give_up| again.min(give_up)));
        let uncleared = step == Removal::Finalizer && labels_by.is_some();
        let step = if uncleared { Removal::Labels } else { step };
        Phase::Retiring(Retirement { step, retry_at, give_up_at, labels_by })
    }
}
