//! The results of calls: effects, claims, status writes, and comparisons with the lock's table.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::Controller;
use crate::{
    api::PodRef,
    election::{Event, Outcome, Refusal},
    operator::{
        executor::queue::Urgency,
        group::gist::Gist,
        index,
        lock::{
            garbage::Garbage,
            resync::{self, Rows},
        },
        message::{Done, Message},
        object::GroupName,
        trouble::Trouble,
    },
    ownership::Yielded,
    routing::Reported,
};

impl Controller {
    /// An effect ended.
    pub(super) fn done(&mut self, done: Done, now: Duration) {
        let stripped =
            if done.stripped { done.pods.iter().filter_map(reference).collect() } else { Vec::new() };
        self.apply(index::Event::PodsRead(done.pods), now);
        if !self.is_current(&done.group, &done.uid) {
            return;
        }
        if let Some(object) = done.object {
            self.apply(index::Event::GroupRead(*object), now);
        }
        // The object may have shown that the group was deleted and created again.
        if !self.is_current(&done.group, &done.uid) {
            return;
        }
        let Some(group) = self.sync(&done.group) else { return };
        // Stamping standbys is protection in depth. Its failure does not keep any pod from being active.
        let stamping = group.election().is_stamping(done.ticket);
        if group.election().is_repairing(done.ticket) {
            let (record, declared) = (group.record().clone(), group.election().declared().holder.clone());
            // The last holder has the label from the operator, and keeps it until its lock is free.
            let foreign: Vec<_> = stripped.into_iter().filter(|pod| declared.as_ref() != Some(pod)).collect();
            self.events.stripped(&record.object, &foreign, now);
        }
        let Some(group) = self.groups.get_mut(&done.group) else { return };
        if let Some(step) = done.step {
            group.trace = done.trace.or(group.trace.take());
            group.add_to_trace(done.ticket, step);
        }
        // So is the deletion of former holders; the status says what is refused.
        let deleting = group.election().is_deleting(done.ticket);
        let known = if stamping { &mut group.stamp_trouble } else { &mut group.trouble };
        if let Some(trouble) = done.trouble {
            if known.as_ref() != Some(&trouble) && self.causes.is_new(&trouble, now) {
                tracing::warn!(group = %done.group, ?trouble, "a step failed; trying again");
            }
            if !deleting {
                *known = Some(trouble);
            }
        } else if stamping || known.as_ref().is_some_and(|trouble| trouble.is_over(&done.outcome)) {
            *known = None;
        }
        let refused = matches!(done.outcome, Outcome::Refused(_) | Outcome::Stamped(_) | Outcome::Told(_));
        self.answer(&done.group, done.ticket, done.outcome, now);
        if refused {
            self.report_refusals(&done.group);
        }
    }

    /// Reports pods that cannot get or lose a role. The group goes on without them.
    fn report_refusals(&mut self, name: &GroupName) {
        let Some(group) = self.groups.get_mut(name) else { return };
        for (pod, refusal) in group.new_refusals() {
            let Refusal { reason, message } = &refusal;
            tracing::warn!(group = %name, pod = pod.name, %reason, message, "a pod cannot change its role");
            self.events.refused(&group.record().object, &pod, &refusal);
        }
    }

    pub(super) fn is_current(&self, name: &GroupName, uid: &str) -> bool {
        self.index.group(name).is_some_and(|group| *group.record().uid == *uid)
    }

    /// A write of a status ended.
    pub(super) fn reported(
        &mut self,
        name: &GroupName,
        uid: &str,
        reported: Result<Box<Reported>, Trouble>,
        now: Duration,
    ) {
        if !self.is_current(name, uid) {
            return;
        }
        let Some(group) = self.sync(name) else { return };
        group.report.writing = false;
        match reported.map(|reported| *reported) {
            Ok(Reported::Done(object)) => {
                group.report.trouble = None;
                group.report.refusals = 0;
                group.report.written = group.report.told.take().map(|told| Gist::of(&told));
                self.apply(index::Event::GroupRead(object), now);
            }
            // Somebody else changed the group, or this replica itself, and the watch has not shown it yet. It may still
            // have something to report.
            Ok(Reported::Outdated(object)) => {
                group.report.trouble = None;
                group.report.refusals = 0;
                group.report.spoken = false;
                group.report.rendered = None;
                match object {
                    Some(object) => self.apply(index::Event::GroupRead(object), now),
                    None => group.report.put_off(false, now),
                }
            }
            Err(trouble) => {
                let known = group.report.trouble.replace(trouble.clone());
                group.report.spoken = false;
                group.report.rendered = None;
                group.report.put_off(matches!(trouble, Trouble::Refused(_)), now);
                if known.as_ref() != Some(&trouble) && self.causes.is_new(&trouble, now) {
                    tracing::warn!(group = %name, ?trouble, "could not write the status; trying again");
                }
            }
        }
        self.index.touch(name);
    }

    /// Starts a comparison with the lock's table, if one is due.
    pub(super) fn start_resync(&mut self, now: Duration) {
        let Some(session) = self.index.sessions().reachable() else { return };
        if self.resync.is_due(session, self.session_ttl, now) {
            self.executor.start(Urgency::AtOnce, move |context| async move {
                Message::Rows(resync::read(&context.store, session).await)
            });
        }
    }

    /// Reads the rows that differ from what the elections hold again, and looks for rows whose groups are gone.
    pub(super) fn compare(&mut self, rows: Rows, now: Duration) {
        self.resync.ended();
        let sessions = self.index.sessions();
        let Some(held) = rows.rows.filter(|_| sessions.own() == Some(rows.session)) else { return };
        // One replica looks after the rows without an owner.
        let unowned = sessions.living().iter().map(|replica| replica.session).min() == Some(rows.session);
        self.given_up(&Yielded::Any, now);
        let (differing, strangers) = resync::compare(self.groups.values().map(Box::as_ref), &held);
        for name in differing {
            tracing::info!(group = %name, "the lock's row differs from what this replica expects: reading it again");
            self.step(&name, Event::Doubt, now);
        }
        let garbage = Garbage {
            session: rows.session,
            cluster: self.cluster.clone(),
            namespaces: self.namespaces.clone(),
            strangers,
            unowned,
        };
        self.executor.start_silent(Urgency::AtOnce, |context| async move {
            if let Err(error) = garbage.collect(&context.store, &context.router).await {
                tracing::debug!(%error, "could not look for rows without a group; trying again later");
            }
        });
    }
}

/// The name and UID of a pod.
fn reference(pod: &Pod) -> Option<PodRef> {
    Some(PodRef { name: pod.metadata.name.clone()?, uid: pod.metadata.uid.clone()? })
}
