//! What becomes of pods that were active before.

use std::time::Duration;

use super::{event::Effect, group::Group, step::Effects};
use crate::api::{PodAt, Verdict};

impl Group {
    /// Deletes the pods that were active before the present term, which is confirmed, if the policy says so. The
    /// declaration names them, so any replica goes on with it.
    ///
    /// A pod is deleted only in the version in which it was seen as a standby of the declared term. If another replica
    /// makes it active again, that is another version.
    pub(super) fn delete_demoted(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        if !self.world.policy.deletes_demoted || self.stamping.is_under_way() {
            return;
        }
        let declared = &self.known.declared;
        let others = declared.strip.iter().filter(|pod| pod.uid != holder);
        let demoted = others.filter_map(|pod| self.member(&pod.uid)).filter(|member| {
            member.is_standby_of(declared.token) && !matches!(member.verdict, Verdict::Ended(_))
        });
        let at =
            demoted.map(|member| PodAt { pod: member.pod.clone(), version: Some(member.version.clone()) });
        let pods: Vec<_> = at.collect();
        if pods.is_empty() {
            return;
        }
        if now < self.stamping.after {
            return self.wake_at(self.stamping.after);
        }
        let ticket = self.emit(Effect::Delete(pods), effects);
        self.stamping.begin(ticket, None);
    }

    /// Why the API server did not let the operator delete a pod that was active before.
    pub(crate) fn deletion_refused(&self) -> Option<&str> {
        self.stamping.deletion_refused.as_deref().filter(|_| self.world.policy.deletes_demoted)
    }
}
