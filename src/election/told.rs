//! What the pods were told by their hooks, and the requests that are under way.

use std::{collections::BTreeMap, time::Duration};

use super::{event::Ticket, pacing::growing, world::Member};
use crate::api::{PodRef, Role};

/// The pause after the first request in the background that fails. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What the pods were told, and the requests that are under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Hooks {
    /// By the pod's UID, as far as this replica knows since it became the owner.
    pods: BTreeMap<String, Known>,
    /// The requests whose answers are awaited.
    asked: Option<Asked>,
}

/// What is known of a pod.
#[derive(Clone, Debug)]
struct Known {
    told: Told,
    /// Why the last request failed, if it did.
    why: Option<String>,
    /// Consecutive failures in the background, and the earliest time of the next request.
    failures: u32,
    after: Duration,
}

/// The role in which a pod may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) role: Role,
    /// How often its container had been started again when it was told so: a program that is started again knows
    /// nothing. None if it may have been told so by another replica, or has not answered.
    pub(super) restarts: Option<i32>,
}

#[derive(Clone, Debug)]
struct Asked {
    /// The ticket, if this is in the background.
    ticket: Option<Ticket>,
    pods: Vec<(String, Told)>,
}

impl Known {
    fn new(told: Told) -> Self {
        Self { told, why: None, failures: 0, after: Duration::ZERO }
    }
}

impl Hooks {
    /// The replica is no longer the owner, or has just become it.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// The group's pods as they are now.
    pub(super) fn refresh(&mut self, members: &[Member]) {
        self.pods.retain(|uid, _| members.iter().any(|member| member.pod.uid == *uid));
    }

    pub(super) fn set(&mut self, uid: &str, told: Told) {
        self.pods.insert(uid.to_owned(), Known::new(told));
    }

    /// The pod may act as active, unless it is known what it was told. It may have been told so by another replica.
    pub(super) fn note_active(&mut self, uid: &str) {
        let nothing = Told { role: Role::None, restarts: None };
        let known = self.pods.entry(uid.to_owned()).or_insert_with(|| Known::new(nothing));
        if known.told.role == Role::None {
            known.told.role = Role::Active;
        }
    }

    /// Whether the pod acts in this role, and its program knows it.
    pub(super) fn knows(&self, member: &Member, role: Role) -> bool {
        let told = Told { role, restarts: Some(member.restarts) };
        self.pods.get(&member.pod.uid).is_some_and(|known| known.told == told)
    }

    pub(super) fn may_act_as_active(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|known| known.told.role == Role::Active)
    }

    /// Why the last request to the pod failed, if it did.
    pub(super) fn why(&self, uid: &str) -> Option<&str> {
        self.pods.get(uid)?.why.as_deref()
    }

    /// The earliest time of the next request to the pod in the background.
    pub(super) fn after(&self, uid: &str) -> Duration {
        self.pods.get(uid).map_or(Duration::ZERO, |known| known.after)
    }

    /// These pods are asked, in the background if there is a ticket.
    pub(super) fn ask(&mut self, ticket: Option<Ticket>, pods: Vec<(String, Told)>) {
        self.asked = Some(Asked { ticket, pods });
    }

    pub(super) fn are_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether this pod is being asked.
    pub(super) fn asks(&self, uid: &str) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.pods.iter().any(|(asked, _)| asked == uid))
    }

    /// Whether this is the ticket of a request in the background.
    pub(super) fn is(&self, ticket: Ticket) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.ticket == Some(ticket))
    }

    /// The answers have arrived, except those of the pods that failed.
    pub(super) fn answered(&mut self, failed: &[(PodRef, String)], now: Duration) {
        let Some(Asked { ticket, pods }) = self.asked.take() else { return };
        for (uid, told) in pods {
            match failed.iter().find(|(pod, _)| pod.uid == uid) {
                None => self.set(&uid, told),
                Some((_, why)) => self.failed(uid, Some(why.clone()), ticket.map(|_| now)),
            }
        }
    }

    /// It is not known whether the requests were sent.
    pub(super) fn unanswered(&mut self, now: Duration) {
        let Some(Asked { ticket, pods }) = self.asked.take() else { return };
        for (uid, _) in pods {
            self.failed(uid, None, ticket.map(|_| now));
        }
    }

    /// A request has failed; in the background if there is a time, so that a pause follows.
    fn failed(&mut self, uid: String, why: Option<String>, background: Option<Duration>) {
        let nothing = Told { role: Role::None, restarts: None };
        let known = self.pods.entry(uid).or_insert_with(|| Known::new(nothing));
        known.why = why;
        if let Some(now) = background {
            known.failures += 1;
            known.after = now + growing(FIRST_PAUSE, LONGEST_PAUSE, known.failures);
        }
    }
}
