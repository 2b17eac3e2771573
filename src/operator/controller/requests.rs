//! What the index asks for, and the news of the lock.

use std::time::Duration;

use super::Controller;
use crate::operator::{
    executor::Urgency,
    index::{self, Request},
    lock_view::LockNews,
    message::Message,
    object::GroupName,
    trouble::Trouble,
    undecodable,
    watch_health::Sight,
};

impl Controller {
    /// Carries out a request of the index.
    pub(super) fn carry_out(&mut self, request: Request, now: Duration) {
        match request {
            Request::StopProbing(uid) => self.prober.remove(&uid),
            Request::ReadOwner(record, owner) => {
                self.executor.start(Urgency::Background, |context| async move {
                    let selects = context.router.selects_by_role(&record.reference, &owner).await;
                    let selects = selects.map_err(|error| Trouble::from(&error));
                    Message::Owner { group: record.name.clone(), uid: record.uid.clone(), owner, selects }
                });
            }
            Request::Forget(name) => self.forget(&name),
            Request::PassOn(name) => self.pass_on(&name, now),
            Request::ReportUndecodable(unreadable) => {
                self.executor.start_silent(|context| async move {
                    undecodable::report(&context.router, &unreadable).await;
                });
            }
            Request::SessionEnded => self.disown_all(now),
            Request::ReadRows => self.doubt_rows(now),
            Request::DoubtOwners => self.doubt_owners(),
            Request::AskForClaims => self.ask_for_claims(),
            Request::OutageOver => {
                self.groups.values_mut().for_each(|group| group.report.hindrance_reported = false);
            }
            Request::WatchesChanged => match self.index.sight() {
                Sight::Clear => self.health.watches.pass(),
                Sight::Coming => {}
                Sight::None(problem) => self.health.watches.fail(&problem),
            },
            Request::Log(notice) => notice.log(),
        }
    }

    fn forget(&mut self, name: &GroupName) {
        self.groups.remove(name);
        self.timers.set(name, None);
        self.unclaimed.remove(name);
        self.executor.context.metrics.forget_group(&name.namespace, &name.name);
    }

    /// The session with the lock, or the database.
    pub(super) fn lock_news(&mut self, news: LockNews, now: Duration) {
        match &news {
            LockNews::Beat { .. } => self.health.lock.pass(),
            LockNews::Lost => {
                self.executor.context.metrics.session_lost();
                self.health.lock.fail("the session with the lock's database was lost");
            }
            LockNews::Down(error) => self.health.lock.fail(&error.to_string()),
        }
        self.apply(index::Event::Lock(news), now);
    }
}
