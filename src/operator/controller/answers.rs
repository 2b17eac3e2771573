//! The results of calls: effects, claims, status writes, and comparisons with the lock's table.

use std::time::Duration;

use uuid::Uuid;

use super::Controller;
use crate::{
    api::Sighting,
    election::Event,
    operator::{
        claim::{Answer, Answered},
        executor::Urgency,
        garbage::Garbage,
        index,
        message::{Done, Message},
        object::GroupName,
        resync::{self, Rows},
        trouble::Trouble,
    },
};
use leadergroup_lock::{Claimed, SessionId, Token};

/// The pause after a failed write of a status.
const REPORT_PAUSE: Duration = Duration::from_secs(1);

impl Controller {
    /// An effect ended.
    pub(super) fn done(&mut self, done: Done, now: Duration) {
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
        let known = if stamping { &mut group.stamp_trouble } else { &mut group.trouble };
        if let Some(trouble) = done.trouble {
            if known.as_ref() != Some(&trouble) {
                tracing::warn!(group = %done.group, ?trouble, "a step failed; trying again");
            }
            *known = Some(trouble);
        } else if stamping || known.as_ref().is_some_and(|trouble| trouble.is_over(&done.outcome)) {
            *known = None;
        }
        self.answer(&done.group, done.ticket, done.outcome, now);
    }

    fn is_current(&self, name: &GroupName, uid: &str) -> bool {
        self.index.group(name).is_some_and(|group| *group.record().uid == *uid)
    }

    /// Claims were answered.
    pub(super) fn claimed(&mut self, session: SessionId, answers: Vec<Answered>, now: Duration) {
        self.claiming = false;
        let current = self.index.lock().own() == Some(session);
        for (name, uid, answer) in answers {
            if !self.is_current(&name, &uid) {
                continue;
            }
            self.index.touch(&name);
            let Some(group) = self.sync(&name) else { continue };
            if !current {
                group.claims.abandon();
                continue;
            }
            let adopted = matches!(&answer, Ok(Answer::Lock(claimed))
                if matches!(&**claimed, Claimed::Ours(row) if row.token > Token::ZERO));
            let buried = matches!(&answer, Ok(Answer::Buried));
            match group.claims.answered(answer, now) {
                Ok(true) => {
                    group.trouble = None;
                    group.owned_since = now;
                    if adopted {
                        self.executor.context.metrics.adoption();
                    }
                    self.step(&name, Event::Owned { seed: Uuid::new_v4() }, now);
                }
                Ok(false) if buried => self.step(&name, Event::Buried, now),
                Ok(false) => {}
                Err(trouble) => group.trouble = Some(trouble),
            }
        }
    }

    /// A write of a status ended.
    pub(super) fn reported(
        &mut self,
        name: &GroupName,
        uid: &str,
        object: Result<Box<Sighting>, Trouble>,
        now: Duration,
    ) {
        if !self.is_current(name, uid) {
            return;
        }
        let Some(group) = self.sync(name) else { return };
        group.report.writing = false;
        match object {
            Ok(object) => {
                group.report.trouble = None;
                self.apply(index::Event::GroupRead(*object), now);
            }
            Err(trouble) => {
                if group.report.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(group = %name, ?trouble, "could not write the status; trying again");
                }
                group.report.trouble = Some(trouble);
                group.report.hindrance_reported = false;
                group.report.rendered = None;
                group.report.after = now + REPORT_PAUSE;
            }
        }
        self.index.touch(name);
    }

    /// Starts a comparison with the lock's table, if one is due.
    pub(super) fn start_resync(&mut self, now: Duration) {
        let lock = self.index.lock();
        let Some(session) = lock.own().filter(|_| lock.outage().is_none()) else { return };
        if self.resync.is_due(session, self.session_ttl, now) {
            self.executor.start(Urgency::Now, move |context| async move {
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
        let unowned = lock.living().iter().min() == Some(&rows.session);
        self.doubt_owners();
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
        self.executor.start_silent(|context| async move {
            if let Err(error) = garbage.collect(&context.store, &context.router).await {
                tracing::debug!(%error, "could not look for rows without a group; trying again later");
            }
        });
    }
}
