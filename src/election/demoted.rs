//! What becomes of pods that were active before.

use std::time::Duration;

use super::{
    event::{Effect, Outcome, Ticket},
    group::Group,
    step::Effects,
};
use crate::api::{PodAt, Reason, Verdict};

impl Group {
    /// Deletes the pods that were active before the present term, which is confirmed, if the policy says so and the
    /// holder works. The declaration names them, so any replica can continue. A pod that a rollout replaces is not
    /// deleted: a rollout that is paused would create it again, and as the youngest pod it would become active.
    ///
    /// A pod is deleted only in the version in which it was seen as a standby of the declared term. If another replica
    /// makes it active again, that is another version.
    pub(super) fn delete_demoted(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        let policy = &self.world.policy;
        let is_due = policy.deletes_demoted && !policy.paused && self.is_proven(holder);
        if !is_due || self.deleting.is_under_way() {
            return;
        }
        let (pods, reason) = (self.demoted(holder).collect::<Vec<_>>(), self.known.row.reason);
        if pods.is_empty() || reason == Some(Reason::Rollout) {
            self.deleting.refused = None;
            return;
        }
        // Others may be left of a series of failures.
        let is_requested = reason == Some(Reason::Switchover) && pods.len() == 1;
        let due = self.deleting.due(is_requested, now);
        if now < due {
            return self.wake_at(due);
        }
        let ticket = self.emit(Effect::Delete(pods), effects);
        self.deleting.begin(ticket, is_requested);
    }

    fn demoted(&self, holder: &str) -> impl Iterator<Item = PodAt> {
        let declared = &self.known.declared;
        let others = declared.strip.iter().filter(move |pod| pod.uid != holder);
        let members = others.filter_map(|pod| self.member(&pod.uid));
        let demoted = members.filter(|member| {
            member.is_standby_of(declared.token) && !matches!(member.verdict, Verdict::Ended(_))
        });
        demoted.map(|member| PodAt { pod: member.pod.clone(), version: Some(member.version.clone()) })
    }

    /// Handles the outcome of a deletion.
    pub(super) fn deleted(&mut self, outcome: Outcome, now: Duration) {
        self.deleting.end(matches!(outcome, Outcome::Deleted(None)), now);
        if let Outcome::Deleted(refused) = outcome {
            self.deleting.refused = refused;
        }
    }

    /// Whether this is the ticket of the deletion of former holders.
    pub(crate) fn is_deleting(&self, ticket: Ticket) -> bool {
        self.deleting.is(ticket)
    }

    /// Why the API server did not let the operator delete a pod that was active before.
    pub(crate) fn deletion_refused(&self) -> Option<&str> {
        self.deleting.refused.as_deref().filter(|_| self.world.policy.deletes_demoted)
    }
}
