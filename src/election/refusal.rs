//! What the API server refused to write, what a pod's hook refused, and when to try again.
//!
//! An admission policy, a webhook or a quota may refuse to change a pod. Such a pod must not hold its group up: the
//! election passes it over, and the pauses between attempts grow. While no pod is active they stay short: the webhook
//! may work again at any time.

use std::{collections::BTreeMap, time::Duration};

use super::world::Member;
use crate::api::{Reason, Role};

/// The pause after the first refusal. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause, so that a pod becomes a candidate again soon after the policy has changed, or after a missing
/// right was granted.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The longest pause between two planned changes that a hook refuses.
const LONGEST_AFTER_HOOK: Duration = Duration::from_mins(10);

/// Who refused a role for a pod, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// [`Reason::WriteRefused`] by the API server, [`Reason::HookFailed`] by the pod.
    pub reason: Reason,
    /// The words of the one that refused.
    pub message: String,
}

impl Refusal {
    pub(super) fn by_api_server(message: String) -> Self {
        Self { reason: Reason::WriteRefused, message }
    }

    pub(super) fn by_hook(message: String) -> Self {
        Self { reason: Reason::HookFailed, message }
    }
}

/// A role that was refused for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// By whom, and why.
    pub refusal: Refusal,
    /// The pod as it was then: version, role and stamp.
    seen: (String, Role, Option<i64>),
    /// When it was refused; none if the pod has changed since, so that it is tried again at once.
    at: Option<Duration>,
    /// For how long it is not tried again.
    pause: Duration,
    /// The API server accepts the role after the pause. There is no dry run of a hook, so the pod is a candidate again,
    /// and the next pause grows all the same if its hook refuses once more.
    tried: bool,
}

impl Refused {
    fn is_by_hook(&self) -> bool {
        self.refusal.reason == Reason::HookFailed
    }

    /// When to try again, if no pause is longer than `longest`. There is no dry run of a hook. So each attempt uses up
    /// a term, and if a pod is active, it is interrupted for it: the pauses are longer then.
    fn due(&self, longest: Duration) -> Duration {
        let longest = match (self.is_by_hook(), longest < LONGEST_PAUSE) {
            (false, _) => longest,
            (true, true) => LONGEST_PAUSE,
            (true, false) => LONGEST_AFTER_HOOK,
        };
        self.at.map_or(Duration::ZERO, |at| at + self.pause.min(longest))
    }
}

/// The refusals by the pod's UID.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals {
    /// The time of the present step.
    now: Duration,
    /// The longest pause for candidates at present.
    longest: Duration,
    /// Of the active role.
    promotions: BTreeMap<String, Refused>,
    /// Of the standby role and its stamp.
    stamps: BTreeMap<String, Refused>,
    /// Of hooks that tell former holders that they are standbys.
    demotions: BTreeMap<String, Refused>,
}

impl Refusals {
    /// A step begins.
    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// Whether a pod is active, and nothing is known against it.
    pub(super) fn set_served(&mut self, served: bool) {
        self.longest = if served { LONGEST_PAUSE } else { FIRST_PAUSE };
    }

    /// A promotion, or the dry run of one, was refused.
    pub(super) fn promotion(&mut self, member: &Member, refusal: Refusal) {
        refuse(&mut self.promotions, member, refusal, self.now);
    }

    /// The pod could not be told that it is a standby, and stays active.
    pub(super) fn demotion(&mut self, member: &Member, message: String) {
        refuse(&mut self.demotions, member, Refusal::by_hook(message), self.now);
    }

    /// A stamp was refused.
    pub(super) fn stamp(&mut self, member: &Member, message: String) {
        refuse(&mut self.stamps, member, Refusal::by_api_server(message), self.now);
    }

    /// A dry run of the pod's promotion was accepted.
    pub(super) fn tried(&mut self, uid: &str) {
        match self.promotions.get_mut(uid).filter(|entry| entry.is_by_hook()) {
            Some(entry) => entry.tried = true,
            None => self.promoted(uid),
        }
    }

    /// The pod was labelled active.
    pub(super) fn promoted(&mut self, uid: &str) {
        self.promotions.remove(uid);
        self.stamps.remove(uid);
    }

    /// No change needs this pod to lose its label any more. Forgets that the API server refused to remove it, unless it
    /// was refused just now.
    pub(super) fn stays(&mut self, uid: &str) {
        if !self.bars_stamp(uid) {
            self.stamps.remove(uid);
        }
    }

    /// The pod was told that it is a standby.
    pub(super) fn demoted(&mut self, uid: &str) {
        self.demotions.remove(uid);
    }

    /// The group's pods as they are now.
    pub(super) fn refresh(&mut self, members: &[Member]) {
        refresh(&mut self.promotions, members, false);
        // A stamp that succeeds says nothing about a promotion, because a policy may refuse only the active role.
        refresh(&mut self.stamps, members, true);
        refresh(&mut self.demotions, members, false);
    }

    /// Whether the pod is passed over as a candidate for now.
    pub(super) fn bars(&self, uid: &str) -> bool {
        let mut refused = [&self.promotions, &self.stamps].into_iter().filter_map(|refused| refused.get(uid));
        refused.any(|entry| self.now < entry.due(self.longest))
    }

    /// Whether the pod is not stamped for now.
    pub(super) fn bars_stamp(&self, uid: &str) -> bool {
        self.stamp_refusal(uid).is_some()
    }

    /// Whether no planned change takes the role from the pod for now.
    pub(super) fn bars_move(&self, uid: &str) -> bool {
        self.move_refusal(uid).is_some()
    }

    /// The refusal that keeps the pod active although a planned change would take the role from it.
    pub(super) fn move_refusal(&self, uid: &str) -> Option<&Refused> {
        let demotion = self.demotions.get(uid).filter(|entry| self.now < entry.due(LONGEST_PAUSE));
        demotion.or_else(|| self.stamp_refusal(uid))
    }

    /// The refusal that keeps the pod from being stamped for now.
    pub(super) fn stamp_refusal(&self, uid: &str) -> Option<&Refused> {
        self.stamps.get(uid).filter(|entry| self.now < entry.due(LONGEST_PAUSE))
    }

    /// Whether a promotion of the pod was refused, and the pause after it is over.
    pub(super) fn promotion_is_due(&self, uid: &str) -> bool {
        self.promotions.get(uid).is_some_and(|entry| !entry.tried && self.now >= entry.due(self.longest))
    }

    /// Whether a role was refused for the pod, and none has been accepted since.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.stamps.contains_key(uid) || self.promotions.get(uid).is_some_and(|entry| !entry.tried)
    }

    /// The last refusal that keeps the pod in the role that it has.
    pub(super) fn of(&self, member: &Member) -> Option<&Refused> {
        let uid = &member.pod.uid;
        let refused = match member.role {
            // A pod that could not be demoted works. That is told only until it is tried again.
            Role::Active => self.demotions.get(uid).filter(|entry| self.now < entry.due(LONGEST_PAUSE)),
            _ => self.promotions.get(uid).filter(|entry| !entry.tried),
        };
        [refused, self.stamps.get(uid)].into_iter().flatten().max_by_key(|entry| entry.at)
    }

    /// When the next pause ends.
    pub(super) fn wake(&self) -> Option<Duration> {
        let all = self.promotions.values().chain(self.stamps.values()).chain(self.demotions.values());
        let due = all.flat_map(|entry| [entry.due(self.longest), entry.due(LONGEST_PAUSE)]);
        due.filter(|due| *due > self.now).min()
    }
}

/// Forgets pods that are gone, and if `stamped` those that have got another stamp of the group, or another role with
/// it. A pod that someone else has changed is tried again at once, unless its own hook has refused.
fn refresh(refused: &mut BTreeMap<String, Refused>, members: &[Member], stamped: bool) {
    refused.retain(|uid, entry| {
        let Some(member) = members.iter().find(|member| member.pod.uid == *uid) else { return false };
        let now = seen(member);
        // A change of role or stamp is our own.
        let is_ours = (now.1, now.2) != (entry.seen.1, entry.seen.2);
        if stamped && member.stamped_by_us && is_ours {
            return false;
        }
        if now.0 != entry.seen.0 && !is_ours && !entry.is_by_hook() {
            (entry.at, entry.pause) = (None, Duration::ZERO);
        }
        entry.seen = now;
        true
    });
}

fn refuse(refused: &mut BTreeMap<String, Refused>, member: &Member, refusal: Refusal, now: Duration) {
    let before = refused.get(&member.pod.uid).map_or(Duration::ZERO, |entry| entry.pause);
    let longest = if refusal.reason == Reason::HookFailed { LONGEST_AFTER_HOOK } else { LONGEST_PAUSE };
    let pause = (before * 2).clamp(FIRST_PAUSE, longest);
    let entry = Refused { refusal, seen: seen(member), at: Some(now), pause, tried: false };
    refused.insert(member.pod.uid.clone(), entry);
}

fn seen(member: &Member) -> (String, Role, Option<i64>) {
    (member.version.clone(), member.role, member.stamp)
}
