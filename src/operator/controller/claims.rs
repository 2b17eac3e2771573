//! Claiming groups, and giving them up.

use std::time::Duration;

use super::Controller;
use crate::{
    election::Event,
    operator::{
        claim::{LARGEST_CLAIM, claim},
        index::IndexedGroup,
        lock_view::Yielded,
        message::Message,
        object::GroupName,
        queue::Urgency,
    },
};

impl Controller {
    /// Once a heartbeat, every group that this replica does not own may be claimed.
    pub(super) fn ask_for_claims(&mut self) {
        let others = self.groups.values().filter(|group| !group.is_owned());
        others.for_each(|group| self.unclaimed.add(group.record()));
    }

    /// Claims the groups that have no owner and fall to this replica.
    pub(super) fn claim(&mut self, now: Duration) {
        if self.claiming || self.draining {
            return;
        }
        let lock = self.index.lock();
        let Some(own) = lock.own().filter(|_| lock.outage().is_none()) else { return };
        // A replica claims what falls to it within a heartbeat or two.
        let patience = self.session_ttl / 2;
        let mut changed = Vec::new();
        let claims = self.unclaimed.take(LARGEST_CLAIM, |name| {
            let group = self.groups.get_mut(name).filter(|group| !group.is_owned())?;
            let record = group.record().clone();
            if !self.index.allows_claim(name, now) {
                return None;
            }
            // A group that cannot be decoded is left to a replica that can.
            let undecodable = self.index.group(name).is_some_and(IndexedGroup::is_undecodable);
            if undecodable && !record.is_deleting() {
                return None;
            }
            let before = group.claims.owner().clone();
            let deaf = group.election().is_deaf_to_holder();
            let due = group.claims.due(&record.key, self.index.holder_node(name), deaf, lock, patience, now);
            if due {
                group.claims.begin();
            }
            if *group.claims.owner() != before {
                // Which pods are probed depends on it.
                changed.push(name.clone());
            }
            due.then_some(record)
        });
        for name in changed {
            self.index.touch(&name);
        }
        if claims.is_empty() {
            return;
        }
        self.claiming = true;
        self.executor.start(Urgency::AtOnce, move |context| async move {
            Message::Claimed {
                session: own,
                answers: claim(&context.store, &context.keys, own, &claims).await,
            }
        });
    }

    /// The owners of these groups are asked for again: they may have given them up although their sessions are alive.
    pub(super) fn doubt_owners(&mut self, yielded: &Yielded) {
        let concerned = self.groups.values_mut().filter(|group| yielded.concerns(&group.record().key));
        concerned.for_each(|group| group.claims.doubt());
    }

    fn owned(&self) -> Vec<GroupName> {
        let owned = self.groups.iter().filter(|(_, group)| group.is_owned());
        owned.map(|(name, _)| name.clone()).collect()
    }

    /// The session ended: other replicas may own what this one owned.
    pub(super) fn disown_all(&mut self, now: Duration) {
        for name in self.owned() {
            self.step(&name, Event::Disowned, now);
        }
    }

    /// The database may have lost commits: the rows of all owned groups are read again.
    pub(super) fn doubt_rows(&mut self, now: Duration) {
        for name in self.owned() {
            self.step(&name, Event::Doubt, now);
        }
    }

    /// Gives a group up, because another replica may be able to decode it.
    pub(super) fn pass_on(&mut self, name: &GroupName, now: Duration) {
        let Some(group) = self.groups.get(name).filter(|group| group.is_owned()) else { return };
        let Some(own) = self.index.lock().own() else { return };
        let key = group.record().key.clone();
        self.executor.start_silent(Urgency::AtOnce, move |context| async move {
            if let Err(error) = context.store.unclaim(own, std::slice::from_ref(&key)).await {
                tracing::warn!(%key, %error, "could not pass on a group that cannot be read");
            }
        });
        self.step(name, Event::Disowned, now);
    }
}
