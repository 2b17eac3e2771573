//! Events of the lock's session and database.

use std::time::Duration;

use super::{Index, Notice, Request, Requests, connectivity::Peer, lock_view::LockNews};
use crate::{config::in_settings, ownership::Yielded};

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
                if self.lock.answers_again() {
                    requests.extend([Request::Log(Notice::DatabaseUp), Request::OutageOver]);
                    self.touch_all();
                }
                let sessions = &mut self.lock.sessions;
                if sessions.own() != Some(own) {
                    requests.push(Request::SessionEnded);
                }
                if sessions.beat(own, living, suspects, (now.saturating_sub(took), now)) {
                    self.touch_all();
                }
                if doubt {
                    requests.extend([Request::Log(Notice::CommitsLost), Request::ReadRows]);
                }
                if !matches!(yielded, Yielded::None) {
                    requests.push(Request::DoubtOwners(yielded));
                }
                requests.push(Request::Heartbeat);
            }
            LockNews::Lost => {
                self.lock.sessions.lost();
                requests.push(Request::SessionEnded);
            }
            LockNews::Down(error) => self.lock_down(&in_settings(&error.to_string()), now, requests),
        }
    }

    fn lock_down(&mut self, problem: &str, now: Duration, requests: &mut Requests) {
        if let Some(problem) = self.lock.down(problem, now) {
            requests.push(Request::Log(Notice::DatabaseDown(problem.to_owned())));
        }
        if self.lock.sessions.down(self.session_ttl, now) {
            requests.push(Request::SessionEnded);
        }
        if self.lock.note_shown(now) {
            self.touch_all();
        }
        // A deletion stops waiting for the database after some time.
        let deleting = self.groups.iter().filter(|(_, group)| group.record().is_deleting());
        self.dirty.extend(deleting.map(|(name, _)| name.clone()));
    }
}
