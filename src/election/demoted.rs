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
    /// holder works. The declaration names them, so any replica goes on with it. What a rollout deletes is left to it:
    /// if a paused rollout created the same pod again, that one would follow as the newest.
    ///
    /// A pod is deleted only in the version in which it was seen as a standby of the declared term. If another replica
    /// makes it active again, that is another version.
    pub(super) fn delete_demoted(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        let works = self.member(holder).is_some_and(|member| member.verdict == Verdict::Eligible);
        let policy = &self.world.policy;
        if !policy.deletes_demoted || policy.paused || !works || self.deleting.is_under_way() {
            return;
        }
        let pods: Vec<_> = self.demoted(holder).collect();
        if pods.is_empty() || self.known.row.reason == Some(Reason::Rollout) {
            self.deleting.refused = None;
            return;
        }
        if now < self.deleting.due() {
            return self.wake_at(self.deleting.due());
        }
        let ticket = self.emit(Effect::Delete(pods), effects);
        self.deleting.begin(ticket);
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
