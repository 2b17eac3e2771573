//! Labelling and stamping standbys. This is defence in depth: it runs in the background, and must not load the API
//! server.

use std::time::Duration;

use super::{
    event::{Effect, Outcome, Ticket},
    group::Group,
    step::{Effects, growing},
    world::{Member, Standing},
};
use crate::api::PodRef;

/// The least time between two stampings. It doubles with each that fails.
const INTERVAL: Duration = Duration::from_secs(1);

/// The stamping in the background, or a dry run in its place.
#[derive(Clone, Debug, Default)]
pub(super) struct Stamping {
    under_way: Option<UnderWay>,
    /// The earliest time of the next one.
    pub(super) after: Duration,
    /// Consecutive failures, for the pauses between them.
    failures: u32,
}

#[derive(Clone, Debug)]
struct UnderWay {
    ticket: Ticket,
    /// The UID of the standby for which a dry run asks again; none if it is a stamping.
    retried: Option<String>,
}

impl Stamping {
    /// Whether this is its ticket.
    pub(super) fn is(&self, ticket: Ticket) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| under_way.ticket == ticket)
    }

    /// The replica is no longer the owner. The pause between two stampings holds all the same.
    pub(super) fn forget(&mut self) {
        *self = Self { after: self.after, ..Self::default() };
    }
}

impl Group {
    /// Labels new pods standby and stamps every standby with the declared token.
    pub(super) fn stamp_standbys(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        if self.stamping.under_way.is_some() {
            return;
        }
        let token = self.known.declared.token;
        let unstamped = |member: &&Member| {
            member.pod.uid != holder
                && !matches!(member.standing, Standing::Ended(_))
                && !self.refusals.bars_stamp(&member.pod.uid)
                && !member.is_standby_of(token)
        };
        let pods: Vec<_> =
            self.world.members.iter().filter(unstamped).map(|member| member.to_stamp(token)).collect();
        let refused = |member: &&Member| {
            member.pod.uid != holder
                && member.standing == Standing::Eligible
                && self.refusals.promotion_is_due(&member.pod.uid)
        };
        let refused = self.world.members.iter().find(refused).map(|member| member.pod.clone());
        if pods.is_empty() && refused.is_none() {
            return;
        }
        if now < self.stamping.after {
            return self.wake_at(self.stamping.after);
        }
        let (retried, effect) = match refused.filter(|_| pods.is_empty()) {
            // The policy that refused it may have changed, and the status says how many pods could take over.
            Some(pod) => (Some(pod.uid.clone()), Effect::Try { token: token + 1, pod, from: None }),
            None => (None, Effect::Stamp { token, pods }),
        };
        let ticket = self.emit(effect, effects);
        self.stamping.under_way = Some(UnderWay { ticket, retried });
    }

    /// Handles the outcome of a stamping, or of a dry run in its place.
    pub(super) fn stamped(&mut self, outcome: Outcome, now: Duration) {
        let stamping = &mut self.stamping;
        stamping.failures = if matches!(outcome, Outcome::Failed) { stamping.failures + 1 } else { 0 };
        stamping.after = now + growing(INTERVAL, stamping.failures);
        let retried = stamping.under_way.take().and_then(|under_way| under_way.retried);
        match (outcome, retried) {
            (Outcome::Stamped(refused), _) => self.stamps_refused(refused),
            (Outcome::Accepted, Some(uid)) => self.refusals.promoted(&uid),
            (Outcome::Refused(message), Some(uid)) => {
                if let Some(member) = self.world.members.iter().find(|member| member.pod.uid == uid) {
                    self.refusals.promotion(member, message);
                }
            }
            _ => {}
        }
    }

    /// The API server refuses to change these pods; all others are stamped.
    pub(super) fn stamps_refused(&mut self, refused: Vec<(PodRef, String)>) {
        for (pod, message) in refused {
            if let Some(member) = self.world.members.iter().find(|member| member.pod.uid == pod.uid) {
                self.refusals.stamp(member, message);
            }
        }
    }
}
