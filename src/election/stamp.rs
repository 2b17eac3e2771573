//! Labelling and stamping standbys. This is defence in depth: it runs in the background, and must not load the API
//! server.

use std::time::Duration;

use super::{
    event::{Effect, Outcome},
    group::Group,
    step::{Effects, growing},
    world::{Member, Standing},
};
use crate::api::PodRef;

/// The least time between two stampings. It doubles with each that fails.
const INTERVAL: Duration = Duration::from_secs(1);

impl Group {
    /// Labels new pods standby and stamps every standby with the declared token.
    pub(super) fn stamp_standbys(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        if self.stamping.is_some() {
            return;
        }
        let token = self.declared.token;
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
        if now < self.stamp_after {
            return self.wake_at(self.stamp_after);
        }
        let effect = match refused.filter(|_| pods.is_empty()) {
            // The policy that refused it may have changed, and the status says how many pods could take over.
            Some(pod) => {
                self.retried = Some(pod.uid.clone());
                Effect::Try { token: token + 1, pod, from: None }
            }
            None => Effect::Stamp { token, pods },
        };
        self.stamping = Some(self.emit(effect, effects));
    }

    /// Handles the outcome of a stamping, or of a dry run in its place.
    pub(super) fn stamped(&mut self, outcome: Outcome, now: Duration) {
        self.stamping = None;
        self.stamp_failures = if matches!(outcome, Outcome::Failed) { self.stamp_failures + 1 } else { 0 };
        self.stamp_after = now + growing(INTERVAL, self.stamp_failures);
        match (outcome, self.retried.take()) {
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
