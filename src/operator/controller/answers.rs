//! The results of calls: effects, claims, status writes, and comparisons with the lock's table.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use uuid::Uuid;

use super::Controller;
use crate::{
    api::PodRef,
    election::{Event, Outcome, Row},
    operator::{
        claim::{Answer, Answered, settle},
        effect::row_of,
        garbage::Garbage,
        index,
        lock_view::Yielded,
        message::{Done, Message},
        object::GroupName,
        ownership::Ownership,
        queue::Urgency,
        resync::{self, Rows},
        trouble::Trouble,
    },
    routing::Reported,
};
use leadergroup_lock::{Claimed, SessionId};

/// The pause after a failed write of a status.
const REPORT_PAUSE: Duration = Duration::from_secs(1);

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
            let record = group.record().clone();
            self.events.stripped(&record.object, &stripped, now);
        }
        let Some(group) = self.groups.get_mut(&done.group) else { return };
        let known = if stamping { &mut group.stamp_trouble } else { &mut group.trouble };
        if let Some(trouble) = done.trouble {
            if known.as_ref() != Some(&trouble) && self.causes.is_new(&trouble, now) {
                tracing::warn!(group = %done.group, ?trouble, "a step failed; trying again");
            }
            *known = Some(trouble);
        } else if stamping || known.as_ref().is_some_and(|trouble| trouble.is_over(&done.outcome)) {
            *known = None;
        }
        let refused = matches!(done.outcome, Outcome::Refused(_) | Outcome::Stamped(_));
        self.answer(&done.group, done.ticket, done.outcome, now);
        if refused {
            self.report_refusals(&done.group);
        }
    }

    /// Reports pods that the API server refuses to change. The group goes on without them.
    fn report_refusals(&mut self, name: &GroupName) {
        let Some(group) = self.groups.get_mut(name) else { return };
        for (pod, message) in group.new_refusals() {
            tracing::warn!(group = %name, pod = pod.name, message, "the API server refuses to change a pod; it is passed over");
            self.events.refused(&group.record().object, &pod, &message);
        }
    }

    pub(super) fn is_current(&self, name: &GroupName, uid: &str) -> bool {
        self.index.group(name).is_some_and(|group| *group.record().uid == *uid)
    }

    /// Settles a claim that needs a read, and perhaps the finalizer.
    fn settle(&mut self, name: &GroupName, session: SessionId, claimed: Box<Claimed>) {
        let Some(group) = self.groups.get_mut(name) else { return };
        group.claims.settle();
        let record = group.record().clone();
        self.executor.start_in(&name.namespace, Urgency::Routine, move |context| async move {
            let answer = settle(&context.store, &context.router, session, &record, claimed).await;
            Message::Settled { session, answer: Box::new(answer) }
        });
    }

    /// A claim was answered.
    pub(super) fn claimed(&mut self, session: SessionId, answered: Answered, now: Duration) {
        let Answered { name, uid, answer, object } = answered;
        if !self.is_current(&name, &uid) {
            return;
        }
        if let Some(object) = object {
            self.apply(index::Event::GroupRead(*object), now);
        }
        self.index.touch(&name);
        let current = self.index.lock().own() == Some(session);
        let draining = self.draining;
        self.sync(&name);
        let Some(group) = self.groups.get_mut(&name) else { return };
        let answer = match answer {
            _ if !current => return group.claims.abandon(),
            // The answer to a second claim. Adopting the group again would restart its election, and lose the record of
            // unused terms.
            _ if group.is_owned() => return,
            Ok(Answer::Unsettled(_)) if draining => return group.claims.abandon(),
            Ok(Answer::Unsettled(claimed)) => return self.settle(&name, session, claimed),
            answer => answer,
        };
        let row = match &answer {
            Ok(Answer::Lock(claimed)) => claimed.ours().map(|row| row_of(row.clone())),
            _ => None,
        };
        let buried = matches!(&answer, Ok(Answer::Buried));
        group.report.spoken &= answer.is_err();
        let given = is_decisive(&answer) && group.claims.take_given();
        let offered = group.claims.is_offered(now);
        match group.claims.answered(answer, self.index.lock(), now) {
            Ok(true) => {
                group.trouble = None;
                group.owned_since = now;
                if offered {
                    group.moved_at = Some(now);
                }
                if given {
                    group.returned_at = Some(now);
                }
                self.adopt(&name, row, now);
            }
            Ok(false) if buried => self.step(&name, Event::Buried, now),
            Ok(false) => {
                if given && matches!(group.claims.owner(), Ownership::Other(_)) {
                    self.batches.taken();
                }
            }
            Err(trouble) => {
                let known = group.trouble.replace(trouble.clone());
                if known.as_ref() != Some(&trouble) && self.causes.is_new(&trouble, now) {
                    tracing::warn!(group = %name, ?trouble, "could not take the group over; trying again");
                }
            }
        }
    }

    /// Begins to work for a group.
    fn adopt(&mut self, name: &GroupName, row: Option<Row>, now: Duration) {
        let Some(world) = self.prepare(name, now) else { return };
        if row.as_ref().is_some_and(|row| row.token > 0) {
            self.executor.metrics().adoption();
        }
        // Without a finalizer the group could be deleted and leave its labels behind. Reading the group adds it.
        let row = row.filter(|_| self.index.group(name).is_some_and(|group| group.record().has_finalizer()));
        self.step(name, Event::Owned { seed: Uuid::new_v4(), row, world }, now);
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
                (group.report.trouble, group.report.told) = (None, None);
                self.apply(index::Event::GroupRead(object), now);
            }
            // Somebody else changed the group, or this replica itself, and the watch has not shown it yet. It may still
            // have something to report.
            Ok(Reported::Outdated(object)) => {
                group.report.trouble = None;
                group.report.spoken = false;
                group.report.rendered = None;
                match object {
                    Some(object) => self.apply(index::Event::GroupRead(object), now),
                    None => group.report.after = now + REPORT_PAUSE,
                }
            }
            Err(trouble) => {
                let known = group.report.trouble.replace(trouble.clone());
                group.report.spoken = false;
                group.report.rendered = None;
                group.report.after = now + REPORT_PAUSE;
                if known.as_ref() != Some(&trouble) && self.causes.is_new(&trouble, now) {
                    tracing::warn!(group = %name, ?trouble, "could not write the status; trying again");
                }
            }
        }
        self.index.touch(name);
    }

    /// Starts a comparison with the lock's table, if one is due.
    pub(super) fn start_resync(&mut self, now: Duration) {
        let lock = self.index.lock();
        let Some(session) = lock.own().filter(|_| lock.outage().is_none()) else { return };
        if self.resync.is_due(session, self.session_ttl, now) {
            self.executor.start(Urgency::AtOnce, move |context| async move {
                Message::Rows(resync::read(&context.store, session).await)
            });
        }
    }

    /// Reads the rows that differ from what the elections hold again, and looks for rows whose groups are gone.
    pub(super) fn compare(&mut self, rows: Rows, now: Duration) {
        self.resync.ended();
        let lock = self.index.lock();
        let Some(held) = rows.rows.filter(|_| lock.own() == Some(rows.session)) else { return };
        // One replica looks after the rows without an owner.
        let unowned = lock.living().iter().map(|replica| replica.session).min() == Some(rows.session);
        self.doubt_owners(&Yielded::Any);
        let (differing, strangers) = resync::compare(self.groups.values(), &held);
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

/// Whether the answer to a claim tells whose the group is.
fn is_decisive(answer: &Result<Answer, Trouble>) -> bool {
    match answer {
        Ok(Answer::Lock(claimed)) => !matches!(**claimed, Claimed::Busy),
        Ok(_) => true,
        Err(_) => false,
    }
}
