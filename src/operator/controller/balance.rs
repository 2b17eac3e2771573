//! Giving groups to other replicas: to those that they fall to, so that a replica that joins gets its share; to those
//! that hear a holder that this replica does not hear; and to any, if this replica can judge no pod of a group.

use std::time::Duration;

use super::Controller;
use crate::{
    election::{Event, Phase},
    operator::{
        assignment::falls_to, group::Group, message::Message, object::GroupName, ownership::RECLAIM,
        queue::Urgency,
    },
};
use leadergroup_lock::{Key, SessionId};

/// The most groups that are given away at once. They are without an owner until the next replica has claimed them,
/// usually for some milliseconds.
const MOST_AT_ONCE: usize = 50;
/// The pause before a group is given to the replica that it falls to, after it came back because that one did not claim
/// it, or moved because a replica did not hear its holder.
const MOVED_PAUSE: Duration = Duration::from_mins(5);
/// The least time between two hand-overs of a group. Without it, a group would move back and forth if each of two
/// replicas hears the holder only some of the time. An owner that reaches no other node does not wait: the holder may
/// have ended, and only another replica can replace it.
const HAND_OVER_PAUSE: Duration = Duration::from_mins(1);

impl Controller {
    /// Gives groups at rest to the replicas that they fall to. To be called once a heartbeat.
    ///
    /// Nothing is given while replicas come and go: one that has just joined first lists its objects and probes its
    /// pods. Nothing is given soon after an outage of the database either: a replica that receives no notifications
    /// yet does not learn that a group is free, and the group would have no owner until it does. The holder must have
    /// been the same for one ttl of a session: by then other replicas have seen the change, and what failed, and one
    /// that was lost together with the former holder is no longer taken for a living one.
    pub(super) fn balance(&mut self, now: Duration) {
        let Some(own) = self.may_give() else { return };
        let (ttl, lock) = (self.session_ttl, self.index.lock());
        let unanswered = self.groups.values().any(|group| group.claims.is_given());
        if now < lock.living_since().max(lock.answers_since()) + ttl
            || !self.batches.allow_another(unanswered, ttl, lock.living_since(), now)
        {
            return;
        }
        let falls_to_other = |group: &Group| {
            let record = group.record();
            let chosen = falls_to(&record.key, self.index.holder_node(&record.name), lock.working());
            chosen.is_some_and(|chosen| chosen != own)
        };
        let over = |at: Option<Duration>, pause| at.is_none_or(|at| now >= at + pause);
        let given = self.at_rest(now, |group| {
            group.is_reported()
                && now >= group.held_since + ttl
                && over(group.moved_at.max(group.returned_at), MOVED_PAUSE)
                && falls_to_other(group)
        });
        if given.is_empty() {
            return;
        }
        self.batches.given(now);
        tracing::debug!(groups = given.len(), "giving groups to the replicas that they fall to");
        self.give(own, given, now, |group| group.claims.give());
    }

    /// Gives groups whose holder this replica does not hear to the replica that hears it. To be called once a
    /// heartbeat.
    pub(super) fn hand_over(&mut self, now: Duration) {
        let Some(own) = self.may_give() else { return };
        let given = self.at_rest(now, |group| {
            let blind = || self.index.is_blind_to_holder(&group.record().name, now);
            // A replica that can open no connection neither hears the holder nor reaches the API server.
            let reported = group.is_reported() || group.report.trouble.is_some();
            group.election().is_heard_elsewhere() && reported && (has_rested(group, now) || blind())
        });
        let Some((first, _)) = given.first() else { return };
        tracing::warn!(
            groups = given.len(),
            group = %first,
            "another replica hears active pods that this one does not hear: giving their groups to it. Check the network \
             between the nodes, and NetworkPolicies"
        );
        self.give(own, given, now, |group| {
            group.moved_at = Some(now);
            group.claims.hand_over(now + RECLAIM);
        });
    }

    /// Gives up groups without a holder that only another replica could find one for, because this one cannot judge any
    /// of their pods. To be called once a heartbeat. If no other replica takes them, this one claims them again.
    pub(super) fn give_up(&mut self, now: Duration) {
        let Some(own) = self.may_give().filter(|_| self.index.lock().working().nth(1).is_some()) else {
            return;
        };
        let given = self.at_rest(now, |group| {
            let judges_none = || self.index.judges_no_pod(&group.record().name, now);
            group.election().holder().is_none() && has_rested(group, now) && judges_none()
        });
        let Some((first, _)) = given.first() else { return };
        tracing::warn!(
            groups = given.len(),
            group = %first,
            "this replica can probe none of the pods of groups without an active pod: giving the groups to other replicas. \
             The condition Probed says why"
        );
        // Others claim a group that does not fall to them after half of the ttl.
        let until = now + self.session_ttl;
        self.give(own, given, now, |group| {
            group.moved_at = Some(now);
            group.claims.hand_over(until);
        });
    }

    /// This replica's session, if groups can be given to others now.
    fn may_give(&self) -> Option<SessionId> {
        let lock = self.index.lock();
        lock.own().filter(|_| lock.outage().is_none() && !self.draining)
    }

    /// Some of the groups at rest that are `wanted`.
    fn at_rest(&self, now: Duration, wanted: impl Fn(&Group) -> bool) -> Vec<(GroupName, Key)> {
        self.groups
            .iter()
            .filter(|(_, group)| group.is_at_rest(now, self.session_ttl) && wanted(group))
            .take(MOST_AT_ONCE)
            .map(|(name, group)| (name.clone(), group.record().key.clone()))
            .collect()
    }

    /// Gives these groups up, and `notes` that.
    fn give(
        &mut self,
        own: SessionId,
        given: Vec<(GroupName, Key)>,
        now: Duration,
        notes: impl Fn(&mut Group),
    ) {
        for (name, _) in &given {
            self.step(name, Event::Disowned, now);
            if let Some(group) = self.groups.get_mut(name) {
                notes(group);
            }
        }
        let (names, keys): (Vec<GroupName>, Vec<Key>) = given.into_iter().unzip();
        self.executor.start(Urgency::AtOnce, move |context| async move {
            let given = context.store.unclaim(own, &keys).await;
            let failed =
                given.inspect_err(|error| tracing::debug!(%error, "could not give groups to other replicas"));
            Message::NotGiven(if failed.is_err() { names } else { Vec::new() })
        });
    }

    /// This replica asks for these groups again, and may then give them away again: they have not moved.
    pub(super) fn not_given(&mut self, groups: &[GroupName]) {
        for name in groups {
            if let Some(group) = self.groups.get_mut(name) {
                group.moved_at = None;
            }
        }
    }
}

/// Whether the last hand-over of the group is long enough ago for another one.
fn has_rested(group: &Group, now: Duration) -> bool {
    group.moved_at.is_none_or(|moved_at| now >= moved_at + HAND_OVER_PAUSE)
}

impl Group {
    /// Whether nothing is under way and nothing is wrong, so that another replica can go on as well as this one.
    fn is_at_rest(&self, now: Duration, session_ttl: Duration) -> bool {
        let election = self.election();
        self.is_owned()
            && *election.phase() == Phase::Stable
            && !election.busy()
            && (election.holder().is_none() || election.has_healthy_active())
            && !self.record().is_deleting()
            && self.trouble.is_none()
            && now >= self.owned_since + session_ttl
    }

    /// Whether the status says all that this replica knows. Another one cannot report what this one has seen.
    fn is_reported(&self) -> bool {
        let report = &self.report;
        !report.writing && !report.queued && report.rendered.is_some()
    }
}
