//! What a settled group does next: nothing, most of the time.

use std::time::Duration;

use super::{
    event::Effect,
    group::{Change, Group, Member, Phase, Retirement, Role, Standing, World},
    step::Effects,
};
use crate::api::{PodRef, Reason};

/// At most this often is a lost label put back: whoever takes it off again and again must not use tokens up.
const RELABEL_INTERVAL: Duration = Duration::from_secs(5);

impl Group {
    /// Decides in [`Phase::Stable`].
    pub(super) fn evaluate(&mut self, now: Duration, effects: &mut Effects) {
        if self.world.deleting {
            return self.retire(Retirement::Tombstone, effects);
        }
        let seen = &self.world.declared;
        if seen.token > self.declared.token
            || (seen.token == self.declared.token && seen.grant != self.declared.grant)
        {
            // Somebody declared what we did not: our row or our charge is out of date. A watch that lags behind
            // cannot look like this.
            return self.read(effects);
        }
        if self.world.obstacle.is_some() {
            return;
        }
        if self.row.owner.is_none() && self.is_behind() && self.declared_holder_is_labelled() {
            // Promoted late, or shown late: it is no stray, it keeps the role.
            return self.regained(now, effects);
        }
        let strays: Vec<PodRef> = self.strays(&self.holder_uid()).map(|member| member.pod.clone()).collect();
        if !strays.is_empty() {
            let token = self.declared.token;
            return self.go(Phase::Repairing, Effect::Strip { token, pods: strays }, effects);
        }
        match self.row.owner.clone() {
            None => self.elect_first(now, effects),
            Some(holder) => match self.case_against(&holder) {
                None => self.keep(&holder, now, effects),
                Some(reason) => self.replace(&holder, reason, now, effects),
            },
        }
    }

    /// What speaks against a holder; none for one that is well or merely unproven.
    pub(super) fn case_against(&self, holder: &PodRef) -> Option<Reason> {
        self.member(&holder.uid).map_or(Some(Reason::PodDeleted), |member| member.standing.against())
    }

    /// Whether the holder will not come back, as opposed to being unwell.
    pub(super) fn has_ended(&self, holder: &PodRef) -> bool {
        self.member(&holder.uid).is_none_or(|member| matches!(member.standing, Standing::Ended(_)))
    }

    /// The best pod to take over: one that reads as active already, else one on another node than a holder that fell
    /// silent, else the oldest.
    pub(super) fn successor(&self, former: Option<&PodRef>) -> Option<PodRef> {
        let former = former.and_then(|pod| self.member(&pod.uid));
        let lost_node =
            former.filter(|member| member.standing == Standing::Silent).and_then(|m| m.node.as_ref());
        let rank = |member: &&Member| {
            let on_lost_node = member.node.is_some() && member.node.as_ref() == lost_node;
            (member.role != Role::Active, on_lost_node, member.created, member.pod.uid.clone())
        };
        let former_uid = former.map(|member| member.pod.uid.as_str());
        let eligible = self.world.members.iter().filter(|member| {
            member.standing == Standing::Eligible && Some(member.pod.uid.as_str()) != former_uid
        });
        eligible.min_by_key(rank).map(|member| member.pod.clone())
    }

    fn elect_first(&mut self, now: Duration, effects: &mut Effects) {
        match self.successor(None).filter(|_| !self.world.policy.paused) {
            Some(holder) => {
                let reason = Reason::FirstHolder;
                self.begin(Change { holder, reason, from: None, began: now }, effects);
            }
            None => self.stamp_standbys("", now, effects),
        }
    }

    fn keep(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) {
        self.lost_since = None;
        if self.keeps_its_label() || self.world.policy.paused || !self.is_fit(holder) {
            self.failures = 0;
            self.stamp_standbys(&holder.uid, now, effects);
        } else if now < self.relabel_after {
            self.wake_at(self.relabel_after);
        } else {
            self.go(Phase::Relabelling, Effect::Verify(holder.clone()), effects);
        }
    }

    /// A quorum read of a holder that did not read as active. It is labelled anew under a term of its own: under a
    /// confirmed one nothing is promoted any more, so that nothing can come late.
    pub(super) fn relabel(&mut self, against: Option<Reason>, now: Duration, effects: &mut Effects) {
        match self.row.owner.clone() {
            Some(_) if self.keeps_its_label() || self.world.policy.paused => {}
            Some(holder) if against.is_none() && self.is_fit(&holder) => {
                self.relabel_after = now + RELABEL_INTERVAL;
                self.lost_since = None;
                self.change(holder, Reason::LabelLost, now, effects);
            }
            // The watch is behind.
            _ => self.back_off(now),
        }
    }

    /// Whether the holder reads as active under the declared term.
    pub fn keeps_its_label(&self) -> bool {
        let token = Some(self.declared.token);
        self.member(&self.holder_uid()).is_some_and(|member| {
            member.role == Role::Active && member.stamped_by_us && member.stamp == token
        })
    }

    pub(super) fn holder_uid(&self) -> String {
        self.row.owner.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default()
    }

    fn replace(&mut self, holder: &PodRef, reason: Reason, now: Duration, effects: &mut Effects) {
        let since = *self.lost_since.get_or_insert(now);
        if self.world.policy.paused {
            return;
        }
        let successor = self.successor(Some(holder));
        let ended = self.has_ended(holder);
        if !ended {
            let allowed = since + self.world.policy.lock_delay;
            if successor.is_none() {
                return self.stamp_standbys(&holder.uid, now, effects);
            }
            if now < allowed {
                return self.wake_at(allowed);
            }
        }
        match successor {
            Some(successor) if is_certain(reason) => self.change(successor, reason, now, effects),
            _ => self.verify(holder, reason, effects),
        }
    }

    /// Asks for a second source.
    pub(super) fn verify(&mut self, holder: &PodRef, reason: Reason, effects: &mut Effects) {
        let certain = is_certain(reason);
        self.go(Phase::Verifying { reason, certain }, Effect::Verify(holder.clone()), effects);
    }

    /// Takes the world in.
    pub(super) fn refresh(&mut self, world: World) {
        self.world = world;
        let against = self.row.owner.as_ref().and_then(|holder| self.case_against(holder));
        if let Phase::Verifying { certain, .. } = &mut self.phase {
            *certain |= against.is_some_and(is_certain);
        }
    }

    pub(super) fn change(&mut self, holder: PodRef, reason: Reason, now: Duration, effects: &mut Effects) {
        let from = self.row.owner.clone();
        let began = self.lost_since.unwrap_or(now);
        self.begin(Change { holder, reason, from, began }, effects);
    }

    /// Whether neither a pause nor the delay after an end that was not clean stands against replacing the holder.
    fn may_replace(&self, ended: bool, now: Duration) -> bool {
        let allowed = self.lost_since.map(|since| since + self.world.policy.lock_delay);
        !self.world.policy.paused && (ended || allowed.is_some_and(|allowed| now >= allowed))
    }

    /// A quorum read confirmed the case against the holder, or did not.
    pub(super) fn verified(
        &mut self,
        reason: Reason,
        certain: bool,
        against: Option<Reason>,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(holder) = self.row.owner.clone() else {
            return self.read(effects);
        };
        // An unfinished term is in the middle of a change already: there a pause or a delay comes too late.
        let held = self.world.obstacle.is_some()
            || (self.is_finished() && !self.may_replace(against.is_some_and(is_end), now));
        match (against, self.successor(Some(&holder))) {
            (None, Some(successor))
                if certain && self.world.obstacle.is_none() && self.may_replace(false, now) =>
            {
                self.change(successor, reason, now, effects);
            }
            // The watch told an old story, or a filtered one. Wait for it to catch up.
            (None, _) => self.back_off(now),
            // Paused or hindered meanwhile; or what ended by the watch did not by the read, so that the delay is to be waited for.
            (Some(_), _) if held && self.has_ended(&holder) => self.back_off(now),
            (Some(_), _) if held => self.settle(now),
            (Some(_), Some(successor)) => self.change(successor, reason, now, effects),
            (Some(_), None) if self.has_ended(&holder) => {
                let token = self.row.token;
                self.go(Phase::Vacating, Effect::Vacate { token }, effects);
            }
            (Some(_), None) => self.settle(now),
        }
    }

    pub(super) fn vacancy_reason(&self, holder: Option<&PodRef>) -> Reason {
        holder.and_then(|pod| self.case_against(pod)).unwrap_or(Reason::PodDeleted)
    }

    /// Labels new pods standby and leaves the declared token on every one: protection in depth, in the background.
    fn stamp_standbys(&mut self, holder: &str, now: Duration, effects: &mut Effects) {
        if self.stamping.is_some() {
            return;
        }
        let token = self.declared.token;
        let unstamped = |member: &&Member| {
            member.pod.uid != holder
                && !matches!(member.standing, Standing::Ended(_))
                && (member.role != Role::Standby || !member.stamped_by_us || member.stamp != Some(token))
        };
        let pods: Vec<_> =
            self.world.members.iter().filter(unstamped).map(|member| member.pod.clone()).collect();
        if pods.is_empty() {
            return;
        }
        if now < self.stamp_after {
            return self.wake_at(self.stamp_after);
        }
        self.stamping = Some(self.emit(Effect::Stamp { token, pods }, effects));
    }
}

/// Whether a pod of which this was read will not come back.
fn is_end(reason: Reason) -> bool {
    matches!(reason, Reason::PodDeleted | Reason::PodFinished | Reason::DisruptionTarget)
}

/// Whether there is nothing that a quorum read could add: our own probes said so, or a count that only grows.
pub(super) fn is_certain(reason: Reason) -> bool {
    matches!(reason, Reason::Silent | Reason::ProbeRefused | Reason::ContainerRestarted)
}
