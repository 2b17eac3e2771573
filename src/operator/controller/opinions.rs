//! Asking the other replicas about holders that this one does not hear, and answering them. Nothing waits for an
//! answer: without one, silence counts after the ttl as always.

use std::{sync::Arc, time::Duration};

use super::Controller;
use crate::operator::{
    group::Group,
    index::{self, IndexedGroup},
    object::GroupName,
    opinion::Opinion,
    queue::Urgency,
};

impl Controller {
    /// The other replicas are to be asked about a pod that this one does not hear.
    pub(super) fn ask_others(&mut self, name: &GroupName, pod: Arc<str>, blind: bool) {
        let lock = self.index.lock();
        let alone = lock.living().iter().all(|replica| Some(replica.session) == lock.own());
        // The deputy asks as well: if the group comes to it, it must know by then that the owner hears the pod.
        if !alone && self.groups.contains_key(name) {
            self.untold.ask(pod, blind);
        }
    }

    /// Another replica has asked about this pod, and this one would own its group.
    pub(super) fn vouch(&mut self, name: &GroupName, pod: Arc<str>, now: Duration) {
        let undecodable = self.index.group(name).is_none_or(IndexedGroup::is_undecodable);
        if self.draining || undecodable || !self.index.allows_claim(name, now) {
            return;
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        if !group.is_owned() {
            group.claims.offer(now + group.record().object.spec.lock.ttl.0 * 2);
        }
        self.untold.vouch(pod);
    }

    /// Another replica hears this holder. Its owner hands the group over.
    pub(super) fn vouched(&mut self, name: &GroupName, pod: &str, now: Duration) {
        if self.groups.get(name).is_some_and(Group::is_owned) {
            self.index.relies_on_others(name, pod, now);
        }
    }

    /// Another replica has asked or answered.
    pub(super) fn told(&mut self, message: &str, now: Duration) {
        if let Some((from, opinion)) = Opinion::read(message) {
            self.apply(index::Event::Opinion(from, opinion), now);
        }
    }

    /// Tells the other replicas what there is to tell.
    pub(super) fn tell(&mut self, now: Duration) {
        if self.untold.due().is_none_or(|due| now < due) {
            return;
        }
        let lock = self.index.lock();
        let own = lock.own().filter(|_| lock.outage().is_none());
        let opinions = self.untold.take(now);
        let Some(own) = own else { return };
        let messages: Vec<String> = opinions.iter().flat_map(|opinion| opinion.messages(own)).collect();
        let peers = self.peers.clone();
        self.executor.start_silent(Urgency::AtOnce, |context| async move {
            if let Err(error) = context.store.tell(&peers, &messages).await {
                tracing::debug!(%error, "could not ask or answer the other replicas");
            }
        });
    }
}
