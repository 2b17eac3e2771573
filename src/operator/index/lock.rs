//! Events of the lock's session and database.

use std::time::Duration;

use super::{Index, Notice, Request, Requests};
use crate::operator::{
    connectivity::Peer,
    lock_view::{LockNews, Yielded},
};

impl Index {
    pub(super) fn lock_news(&mut self, news: LockNews, now: Duration, requests: &mut Requests) {
        let reached = match &news {
            LockNews::Beat { .. } => true,
            // Nothing is sent to the database until there is a session again.
            LockNews::Lost => false,
            LockNews::Down(error) => error.is_an_answer(),
        };
        self.heard(Peer::Database, reached, now);
        match news {
            LockNews::Beat { own, living, suspects, doubt, yielded, took } => {
                if self.lock.answers_again(now) {
                    requests.extend([Request::Log(Notice::DatabaseUp), Request::OutageOver]);
                    self.touch_all();
                }
                if self.lock.own() != Some(own) {
                    requests.push(Request::SessionEnded);
                }
                if self.lock.beat(own, living, suspects, now.saturating_sub(took)) {
                    self.touch_all();
                }
                if doubt {
                    requests.extend([Request::Log(Notice::CommitsLost), Request::ReadRows]);
                }
                if !matches!(yielded, Yielded::None) {
                    requests.push(Request::DoubtOwners(yielded));
                }
                requests.push(Request::AskForClaims);
            }
            LockNews::Lost => {
                self.lock.session_lost();
                requests.push(Request::SessionEnded);
            }
            LockNews::Down(error) => self.lock_down(&error.to_string(), now, requests),
        }
    }

    fn lock_down(&mut self, problem: &str, now: Duration, requests: &mut Requests) {
        if self.lock.outage().is_none_or(|outage| outage.problem != problem) {
            requests.push(Request::Log(Notice::DatabaseDown(problem.to_owned())));
        }
        let shown = self.lock.shown_outage();
        if self.lock.down(problem, self.session_ttl, now) {
            requests.push(Request::SessionEnded);
        }
        if self.lock.note_shown(now) != shown {
            self.touch_all();
        }
        // A deletion stops waiting for the database after some time.
        let deleting = self.groups.iter().filter(|(_, group)| group.record().is_deleting());
        self.dirty.extend(deleting.map(|(name, _)| name.clone()));
    }
}
