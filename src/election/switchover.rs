//! A planned change of holder, on request.
//!
//! A request is carried out once: the declaration of the term that carries it out names it. It is fulfilled by any
//! change of holder to a pod that it allows, so that a failover in between is not followed by another change.

use std::time::Duration;

use super::{
    group::Group,
    request::SwitchoverRefusal,
    step::Effects,
    world::{Standing, SwitchoverRequest},
};
use crate::api::{PodRef, Reason};

/// How long a request waits for a pod to be proven fit. A replica that has just become the owner has not heard of all
/// pods yet, and a pod that is not probed is proven by its node's heartbeat, which comes every 10 s.
const PATIENCE: Duration = Duration::from_secs(12);
/// After this time a request that cannot be carried out is refused, whatever the reason.
const LONGEST: Duration = Duration::from_secs(30);
/// How often a request is begun. A change that fails is given up; if its cause lasts, so would the change.
const MOST_ATTEMPTS: u32 = 3;
/// The pause after the first attempt. It grows by as much with each further one.
const PAUSE: Duration = Duration::from_secs(1);

impl Group {
    /// The request that was refused last, and why.
    pub(crate) fn refused_switchover(&self) -> Option<(&str, &SwitchoverRefusal)> {
        self.last_request.refused.as_ref().map(|(request, why)| (request.as_str(), why))
    }

    /// Notes when the request was first seen, and refuses one that has waited for too long: a forgotten request must
    /// not cause a change of holder.
    pub(super) fn weigh_request(&mut self, now: Duration) {
        let Some(id) = self.requested().map(|request| request.id.clone()) else {
            self.last_request.weighed = None;
            return;
        };
        let known = self.last_request.weighed.take().filter(|(known, _)| *known == id);
        let since = known.as_ref().map_or(now, |(_, since)| *since);
        if known.is_none() {
            (self.last_request.attempts, self.last_request.next_at) = (0, now);
        }
        if now >= since + LONGEST {
            let why = if self.last_request.attempts > 0 {
                SwitchoverRefusal::Failed
            } else {
                SwitchoverRefusal::NotNow
            };
            self.last_request.refused = Some((id, why));
        } else {
            self.last_request.weighed = Some((id, since));
            self.wake_at(since + LONGEST);
        }
    }

    /// Begins the requested switchover, in a group whose holder is active and works. Returns whether it did.
    pub(super) fn switch_over(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) -> bool {
        let Some(request) = self.requested().cloned() else { return false };
        let Some((_, since)) = self.last_request.weighed else { return false };
        let target = match self.target(&request, holder) {
            Ok(_) if self.last_request.attempts == MOST_ATTEMPTS => Err(SwitchoverRefusal::Failed),
            target => target,
        };
        match target {
            Ok(_) if now < self.last_request.next_at => {
                self.wake_at(self.last_request.next_at);
                false
            }
            Ok(target) => {
                self.last_request.next_at = now + PAUSE * (self.last_request.attempts + 1);
                self.change(target, Reason::Switchover, now, effects);
                true
            }
            Err(SwitchoverRefusal::NotEligible(_) | SwitchoverRefusal::NoCandidate)
                if now < since + PATIENCE =>
            {
                self.wake_at(since + PATIENCE);
                false
            }
            Err(why) => {
                self.last_request.refused = Some((request.id, why));
                false
            }
        }
    }

    /// The request that the declaration of a term names: the present one if this change of holder fulfils it, else the
    /// last one.
    pub(super) fn fulfilled(&self, holder: &PodRef) -> Option<String> {
        // The first one is the holder of the last term that was confirmed.
        let moves = self.row.pending.first().is_none_or(|former| former.uid != holder.uid);
        let allows = |request: &&SwitchoverRequest| request.to.as_ref().is_none_or(|to| *to == holder.name);
        let request = self.requested().filter(|_| moves).filter(allows);
        request.map(|request| request.id.clone()).or_else(|| self.declared.switchover.clone())
    }

    /// The request that was neither carried out nor refused.
    fn requested(&self) -> Option<&SwitchoverRequest> {
        let refused = self.last_request.refused.as_ref().map(|(id, _)| id);
        self.world.switchover.as_ref().filter(|request| {
            self.declared.switchover.as_ref() != Some(&request.id) && refused != Some(&request.id)
        })
    }

    fn target(&self, request: &SwitchoverRequest, holder: &PodRef) -> Result<PodRef, SwitchoverRefusal> {
        use SwitchoverRefusal as R;
        if self.world.policy.paused {
            return Err(R::Paused);
        }
        let Some(name) = &request.to else {
            return self.successor(Some(holder)).ok_or(R::NoCandidate);
        };
        let named = self.world.members.iter().filter(|member| member.pod.name == *name);
        // While a pod is being replaced by one of the same name, the newer one is meant.
        let member =
            named.max_by_key(|member| (!matches!(member.standing, Standing::Ended(_)), member.created));
        match member {
            None => Err(R::NoSuchPod(name.clone())),
            Some(member) if member.pod.uid == holder.uid => Err(R::AlreadyActive(name.clone())),
            Some(member) if !self.is_candidate(member) => Err(R::NotEligible(name.clone())),
            Some(member) => Ok(member.pod.clone()),
        }
    }
}
