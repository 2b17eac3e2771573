//! Giving groups to the replicas that they fall to, so that a replica that joins gets its share.

use std::time::Duration;

use super::Controller;
use crate::{
    election::{Event, Phase},
    operator::{assignment::falls_to, group::Group, object::GroupName, queue::Urgency},
};
use leadergroup_lock::Key;

/// The most groups that are given away at one heartbeat. They are without an owner until the next replica has claimed
/// them, usually for some milliseconds.
const MOST_AT_ONCE: usize = 50;
/// The pause after a group came back because no other replica claimed it.
const CAME_BACK_PAUSE: Duration = Duration::from_mins(5);

impl Controller {
    /// Gives groups at rest to the replicas that they fall to. To be called once a heartbeat.
    ///
    /// Nothing is given while replicas come and go: one that has just joined first lists its objects and probes its
    /// pods.
    pub(super) fn balance(&mut self, now: Duration) {
        let lock = self.index.lock();
        let Some(own) = lock.own().filter(|_| lock.outage().is_none() && !self.draining) else { return };
        let since = lock.living_since();
        if now < since + self.session_ttl
            || (since <= self.came_back_at && now < self.came_back_at + CAME_BACK_PAUSE)
        {
            return;
        }
        let working: Vec<_> = lock.living().iter().filter(|id| !lock.is_suspect(**id)).copied().collect();
        let falls_to_other = |group: &Group| {
            let chosen = falls_to(&group.record().key, working.iter());
            chosen.is_some_and(|chosen| chosen != own)
        };
        let given: Vec<(GroupName, Key)> = self
            .groups
            .iter()
            .filter(|(_, group)| group.is_at_rest(now, self.session_ttl) && falls_to_other(group))
            .take(MOST_AT_ONCE)
            .map(|(name, group)| (name.clone(), group.record().key.clone()))
            .collect();
        if given.is_empty() {
            return;
        }
        tracing::debug!(groups = given.len(), "giving groups to the replicas that they fall to");
        let keys: Vec<Key> = given.iter().map(|(_, key)| key.clone()).collect();
        for (name, _) in &given {
            self.step(name, Event::Disowned, now);
            if let Some(group) = self.groups.get_mut(name) {
                group.claims.give();
            }
        }
        self.executor.start_silent(Urgency::AtOnce, move |context| async move {
            if let Err(error) = context.store.unclaim(own, &keys).await {
                // The claim is still this replica's own, which asks for it again.
                tracing::debug!(%error, "could not give groups to other replicas");
            }
        });
    }
}

impl Group {
    /// Whether nothing is under way and nothing is wrong, so that another replica can go on as well as this one.
    fn is_at_rest(&self, now: Duration, session_ttl: Duration) -> bool {
        let election = self.election();
        let report = &self.report;
        self.is_owned()
            && *election.phase() == Phase::Stable
            && !election.busy()
            && (election.holder().is_none() || election.has_healthy_active())
            && !(report.writing || report.queued || self.record().is_deleting())
            && self.trouble.is_none()
            && now >= self.owned_since + session_ttl
    }
}
