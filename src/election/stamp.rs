//! Labelling and stamping standbys. This is defence in depth: it runs in the background, and must not load the API
//! server.

use std::time::Duration;

use super::{
    event::{Effect, Outcome},
    group::Group,
    refusal::Refusal,
    step::Effects,
    world::Member,
};
use crate::api::{PodRef, Verdict};

impl Group {
    /// Labels new pods standby and stamps every standby with the declared token.
    pub(super) fn stamp_standbys(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        if self.stamping.is_under_way() {
            return;
        }
        let token = self.known.declared.token;
        let unstamped = |member: &&Member| {
            member.pod.uid != holder
                && !matches!(member.verdict, Verdict::Ended(_))
                && !self.refusals.bars_stamp(&member.pod.uid)
                && !member.is_standby_of(token)
        };
        let pods: Vec<_> =
            self.world.members.iter().filter(unstamped).map(|member| member.to_stamp(token)).collect();
        let refused = |member: &&Member| {
            member.pod.uid != holder
                && member.verdict == Verdict::Eligible
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
        self.stamping.begin(ticket, retried);
    }

    /// Handles the outcome of a stamping, or of a dry run in its place.
    pub(super) fn stamped(&mut self, outcome: Outcome, now: Duration) {
        let retried = self.stamping.end(matches!(outcome, Outcome::Failed), now);
        match (outcome, retried) {
            (Outcome::Stamped(refused), _) => self.stamps_refused(refused),
            (Outcome::Accepted, Some(uid)) => self.refusals.tried(&uid),
            (Outcome::Refused(message), Some(uid)) => {
                if let Some(member) = self.world.members.iter().find(|member| member.pod.uid == uid) {
                    self.refusals.promotion(member, Refusal::by_api_server(message));
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
