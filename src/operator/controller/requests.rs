//! What the controller does beside what the index does with an event, and what the index asks of it.

use std::time::Duration;

use super::Controller;
use crate::{
    config::in_settings,
    health::{ProbeEvent, ProbeOutcome, ProbeStep, VoidCause},
    operator::{
        executor::queue::Urgency,
        index::{self, Notice, Request, lock_view::LockNews, watch_health::Sight},
        message::Message,
        object::GroupName,
        status::undecodable,
        trouble::Trouble,
    },
    ownership::Event,
};

impl Controller {
    /// Something was seen: reports it where that is for people, and shows it to the index.
    pub(super) fn seen(&mut self, event: index::Event, now: Duration) {
        match &event {
            index::Event::Lock(news) => self.report_lock(news),
            index::Event::Probe(ProbeEvent { step: ProbeStep::Ended(outcome), sent_at, .. }) => {
                let took = now.saturating_sub(*sent_at);
                let (outcome, took) = match outcome {
                    ProbeOutcome::Success => ("success", Some(took)),
                    ProbeOutcome::Refused(_) => ("refused", Some(took)),
                    ProbeOutcome::Unanswered => ("unanswered", None),
                    ProbeOutcome::Void(VoidCause::OutOfTurn) => ("hint", None),
                    ProbeOutcome::Void(_) => ("void", None),
                };
                self.executor.metrics().probe(outcome, took);
            }
            index::Event::OwnerRead { owner, found: Err(trouble), .. } => {
                tracing::warn!(owner = owner.name, ?trouble, "could not read the pods' owner");
            }
            index::Event::ApiServer { reachable: false } => {
                tracing::debug!("the API server did not answer a ping");
            }
            _ => {}
        }
        self.apply(event, now);
    }

    /// What happened to the session with the lock, or to the database, as metrics and readiness show it.
    fn report_lock(&mut self, news: &LockNews) {
        match news {
            LockNews::Beat { .. } => self.health.lock.pass(),
            LockNews::Lost => {
                self.executor.metrics().session_lost();
                self.health.lock.fail("the session with the lock's database was lost");
            }
            LockNews::Down(error) => self.health.lock.fail(&in_settings(&error.to_string())),
        }
    }

    /// Carries out a request of the index.
    pub(super) fn carry_out(&mut self, request: Request, now: Duration) {
        match request {
            Request::StopProbing(uid) => self.prober.remove(&uid),
            Request::ReadOwner(record, owner) => {
                self.executor.start(Urgency::Step, |context| async move {
                    let found = context.router.role_label_use(&record.reference, &owner).await;
                    let found = found.map_err(|error| Trouble::from(&error));
                    let (group, uid) = (record.name.clone(), record.uid.clone());
                    Message::Seen(index::Event::OwnerRead { group, uid, owner, found })
                });
            }
            Request::Forget(name) => self.forget(&name),
            Request::PassOn(name) => self.own(&name, Event::PassOn, now),
            Request::ReportUndecodable(unreadable) => {
                let at = (self.wall_clock)();
                self.executor.start_silent(Urgency::AtOnce, move |context| async move {
                    undecodable::report(&context.router, &unreadable, at).await;
                });
            }
            Request::SessionEnded => self.session_ended(now),
            Request::ReadRows => self.doubt_rows(now),
            Request::AskOthers { group, pod, blind } => self.own(&group, Event::Unheard { pod, blind }, now),
            Request::ProbeNow(uid) => self.prober.probe_now(&uid),
            Request::Vouch { group, pod } => self.heard(&group, pod, now),
            Request::Vouched { group, pod } => self.own(&group, Event::HeardElsewhere(pod), now),
            Request::DoubtOwners(yielded) => self.given_up(&yielded, now),
            Request::Heartbeat => self.heartbeat(now),
            Request::OutageOver => {
                self.groups.values_mut().for_each(|group| group.report.spoken = false);
            }
            Request::WatchesChanged => match self.index.sight() {
                Sight::Clear => self.health.watches.pass(),
                Sight::Coming => {}
                Sight::None(problem) => self.health.watches.fail(&problem),
            },
            Request::Log(notice) => log(&notice),
        }
    }

    fn forget(&mut self, name: &GroupName) {
        if let Some(group) = self.groups.remove(name) {
            self.unclaimed.remove(&group.record().key, name);
        }
        self.timers.set(name, None);
        self.executor.metrics().forget_group(&name.namespace, &name.name);
    }
}

/// Logs what the index noticed.
fn log(notice: &Notice) {
    match notice {
        Notice::GroupWithoutName => tracing::error!("a LeaderGroup without a name cannot be read"),
        Notice::UnusableKey(group) => {
            tracing::error!(%group, "spec.lock.key cannot be used; create the group again with another key");
        }
        Notice::Undecodable(group, problem) => {
            tracing::error!(%group, problem, "a LeaderGroup cannot be read");
        }
        Notice::UndecodableAndDeleted(group, problem) => tracing::warn!(
            %group,
            problem,
            "a LeaderGroup that is being deleted cannot be read; it is cleaned up with the fields that can be"
        ),
        Notice::WatchFailed(watched, namespace, problem) => tracing::warn!(
            ?watched,
            namespace = namespace.as_deref(),
            problem,
            "a watch failed; trying again"
        ),
        Notice::WatchesWork => tracing::info!("the watches work again"),
        Notice::DatabaseDown(problem) => tracing::error!(
            problem,
            "the lock's database cannot be used; labels stay as they are. Trying again"
        ),
        Notice::OtherNodesUnreachable => tracing::error!(
            "no pod on any other node can be reached, although these nodes renew their leases: the silence of their \
             pods does not count. Check the network between the nodes, and NetworkPolicies"
        ),
        Notice::DatabaseUp => tracing::info!("the lock's database answers again"),
        Notice::CommitsLost => {
            tracing::warn!("the database failed over or lost its identity: reading every row again");
        }
    }
}
