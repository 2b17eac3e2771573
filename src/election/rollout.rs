//! Which holder a rollout is about to delete.

use std::sync::Arc;

use super::{group::Group, world::Member};
use crate::api::Verdict;

impl Group {
    /// The revision whose pods replace this one, if it is the next pod that a rollout deletes: its workload has a
    /// younger pod of another revision, and none that goes first.
    ///
    /// A `ReplicaSet` has the pods of one revision, and deletes the active one last, because of its deletion cost. A
    /// `StatefulSet` replaces its pods in descending order of their ordinals. So if no pod of the newest revision has a
    /// larger one, that revision is not what the rollout leads to: its pod came back after an eviction, say.
    pub(super) fn superseded_by(&self, pod: &Member) -> Option<&Arc<str>> {
        let workload = pod.workload.as_ref().filter(|_| self.world.policy.leaves_before_rollout)?;
        let peers = || {
            let of_workload = |member: &&Member| {
                member.workload.as_ref().is_some_and(|other| other.name == workload.name)
                    && !matches!(member.verdict, Verdict::Ended(_))
            };
            self.world.members.iter().filter(of_workload)
        };
        let youngest = peers().max_by_key(|member| (member.created, &member.pod.uid))?;
        let newest = youngest.revision.as_ref()?;
        let is_old = |member: &Member| member.revision.as_ref() != Some(newest);
        let is_above =
            |member: &Member| member.workload.as_ref().is_some_and(|other| other.ordinal > workload.ordinal);
        let goes_first = |member: &Member| match workload.ordinal {
            Some(_) => is_old(member) && is_above(member),
            None => member.revision == pod.revision && member.pod != pod.pod,
        };
        let replaces =
            workload.ordinal.is_none() || peers().any(|member| !is_old(member) && is_above(member));
        (is_old(pod) && replaces && !peers().any(goes_first)).then_some(newest)
    }

    /// Whether a pod of this revision failed lately while it was active. The others may fail in the same way.
    pub(super) fn has_failed(&self, revision: &Arc<str>) -> bool {
        let of_revision = |member: &&Member| member.revision.as_ref() == Some(revision);
        self.world.members.iter().filter(of_revision).any(|member| self.lapses.remembers(&member.pod.uid))
    }
}
