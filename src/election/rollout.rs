//! Which holder a rollout is about to delete.

use std::sync::Arc;

use super::{
    group::Group,
    world::{Member, Standing},
};

impl Group {
    /// The revision whose pods replace this one, if it is the next pod that a rollout deletes: its workload has a
    /// younger pod of another revision, and none of an old revision that goes first. A `ReplicaSet` deletes the active
    /// pod last, because of its deletion cost; a `StatefulSet` begins with the largest ordinal.
    pub(super) fn superseded_by(&self, pod: &Member) -> Option<&Arc<str>> {
        let workload = pod.workload.as_ref().filter(|_| self.world.policy.leaves_before_rollout)?;
        let peers = || {
            let of_workload = |member: &&Member| {
                member.workload.as_ref().is_some_and(|other| other.name == workload.name)
                    && !matches!(member.standing, Standing::Ended(_))
            };
            self.world.members.iter().filter(of_workload)
        };
        let youngest = peers().max_by_key(|member| (member.created, &member.pod.uid))?;
        let newest = youngest.revision.as_ref()?;
        let is_old = |member: &Member| member.revision.as_ref() != Some(newest);
        let goes_first = |member: &Member| {
            let ordinal = member.workload.as_ref().and_then(|workload| workload.ordinal);
            member.pod != pod.pod && is_old(member) && ordinal >= workload.ordinal
        };
        (is_old(pod) && !peers().any(goes_first)).then_some(newest)
    }
}
