//! What a group would do next, computed by running its election on a copy of the world.

use std::time::Duration;

use uuid::Uuid;

use super::{
    event::{Effect, Event, Finished, Outcome},
    group::Group,
    phase::Phase,
    world::{Member, Row, World},
};
use crate::api::{Declaration, PodRef, Reason, Role, Verdict};

/// More effects than any change of holder or deletion has.
const MOST_STEPS: usize = 32;

/// What a replica that becomes the owner now would do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The steps, in order; none if the group stays as it is.
    pub steps: Vec<Effect>,
    /// The change of holder that the steps amount to.
    pub change: Option<Finished>,
    /// Why the group stays as it is, before or after the steps.
    pub rest: Rest,
}

/// Why a group stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The holder works.
    HolderWorks,
    /// There is no fresh proof that the holder works, and no evidence against it.
    HolderUnproven,
    /// No pod of this group may be promoted.
    Blocked(Reason),
    /// The group is paused.
    Paused {
        /// The evidence against the holder, if there is any.
        against: Option<Reason>,
    },
    /// No pod is eligible.
    NoCandidate {
        /// The evidence against the holder; none if there is no holder.
        against: Option<Reason>,
    },
    /// Time has to pass, such as the election delay.
    Waiting {
        /// How long.
        remaining: Duration,
    },
    /// A change was not finished, and there is no evidence about its holder yet. The owner waits for it before it
    /// chooses another pod.
    Unfinished {
        /// How long.
        remaining: Duration,
    },
    /// A program that may still run has to be over first.
    FormerProgram {
        /// For how long at most.
        limit: Duration,
    },
    /// The watch and the read disagree, or another replica is ahead: read again.
    ReadAgain,
    /// The group is gone, or belongs to another replica.
    NotOwned,
}

impl Plan {
    /// The plan for a group with this row and declaration. `against` is what a quorum read of a pod says against it.
    pub fn new(
        world: &World,
        row: Row,
        declared: Declaration,
        against: impl Fn(&PodRef) -> Option<Reason>,
        now: Duration,
    ) -> Self {
        let mut rehearsal = Rehearsal { world: world.clone(), row, declared, against };
        let mut group = Group::new(world.clone());
        let mut due = group.step(Event::Owned { seed: Uuid::nil(), row: None, world: world.clone() }, now);
        let (mut steps, mut change) = (Vec::new(), None);
        while let Some((ticket, effect)) = due.pop() {
            if let Effect::Finished(finished) = effect {
                change = Some(finished);
                continue;
            }
            let outcome = rehearsal.perform(&effect);
            if effect != Effect::Read {
                steps.push(effect);
            }
            if steps.len() == MOST_STEPS {
                break;
            }
            due.splice(0..0, group.step(Event::Outcome(ticket, outcome, rehearsal.world.clone()), now));
        }
        Self { steps, change, rest: Rest::of(&group, now) }
    }
}

impl Rest {
    fn of(group: &Group, now: Duration) -> Self {
        let (world, holder) = (group.world(), group.holder());
        let against = holder.and_then(|holder| group.case_against(holder));
        let verdict = holder.and_then(|holder| group.member(&holder.uid)).map(|member| member.verdict);
        if let Some(limit) = group.waits_for_program() {
            return Self::FormerProgram { limit };
        }
        match (group.phase(), world.obstacle) {
            (Phase::Observing | Phase::Retired, _) => Self::NotOwned,
            (Phase::BackingOff { .. }, _) => Self::ReadAgain,
            (_, Some(obstacle)) => Self::Blocked(obstacle),
            (Phase::Resuming { until, .. }, _) => Self::Unfinished { remaining: until.saturating_sub(now) },
            _ if world.policy.paused => Self::Paused { against },
            _ if verdict == Some(Verdict::Eligible) => Self::HolderWorks,
            _ if matches!(verdict, Some(Verdict::Unknown | Verdict::HeardElsewhere)) => Self::HolderUnproven,
            _ if group.successor(holder).is_none() => Self::NoCandidate { against },
            _ => Self::Waiting { remaining: group.wake().unwrap_or(now).saturating_sub(now) },
        }
    }
}

/// The world in which the steps are carried out; every one succeeds.
struct Rehearsal<A> {
    world: World,
    row: Row,
    declared: Declaration,
    against: A,
}

impl<A: Fn(&PodRef) -> Option<Reason>> Rehearsal<A> {
    fn perform(&mut self, effect: &Effect) -> Outcome {
        match effect {
            Effect::Read => {
                Outcome::Read { row: Some(self.row.clone()), declared: Some(self.declared.clone()) }
            }
            Effect::Verify(pod) => Outcome::Verified((self.against)(pod)),
            Effect::Try { .. } => Outcome::Accepted,
            Effect::Grant(asked) => {
                let token = asked.expected.max(asked.floor) + 1;
                let mut pending = if self.row.confirmed { Vec::new() } else { self.row.pending.clone() };
                pending.extend(self.row.holder.take());
                let (holder, grant) = (Some(asked.holder.clone()), Some(asked.id));
                let reason = Some(asked.reason);
                self.row = Row { token, grant, holder, confirmed: false, pending, reason };
                Outcome::Granted { token }
            }
            Effect::Vacate { .. } => {
                self.row.holder = None;
                Outcome::Vacated
            }
            Effect::Declare { next, .. } => {
                self.declared = next.clone();
                self.world.declared = next.clone();
                Outcome::Declared
            }
            Effect::Strip { token, pods } => {
                self.label(pods.iter().map(|at| &at.pod), Role::Standby, *token);
                Outcome::Stripped
            }
            Effect::Stamp { token, pods } => {
                let standbys = pods.iter().map(|at| &at.pod).filter(|pod| !self.is_active(pod));
                self.label(standbys.collect::<Vec<_>>(), Role::Standby, *token);
                Outcome::Stamped(Vec::new())
            }
            Effect::Promote { token, pod, .. } => {
                self.label([pod], Role::Active, *token);
                Outcome::Promoted
            }
            Effect::Recheck(pod) => Outcome::Rechecked {
                version: self.member(pod).map(|member| member.version.clone()),
                declared: Some(self.declared.clone()),
                row: Some(self.row.clone()),
            },
            Effect::Confirm { .. } => {
                self.row.confirmed = true;
                Outcome::Confirmed
            }
            Effect::Delete(pods) => {
                for member in &mut self.world.members {
                    if pods.iter().any(|at| at.pod == member.pod) {
                        member.verdict = Verdict::Ended(Reason::PodDeleted);
                    }
                }
                Outcome::Deleted(None)
            }
            Effect::Tell { .. } => Outcome::Told(Vec::new()),
            Effect::Tombstone => Outcome::Tombstoned,
            Effect::Clear { .. } => Outcome::Cleared,
            Effect::Unfinalize => Outcome::Unfinalized,
            // It has no outcome, and is not performed.
            Effect::Finished(_) => Outcome::Failed,
        }
    }

    fn member(&self, pod: &PodRef) -> Option<&Member> {
        self.world.members.iter().find(|member| member.pod.uid == pod.uid)
    }

    fn is_active(&self, pod: &PodRef) -> bool {
        self.member(pod).is_some_and(|member| member.role == Role::Active)
    }

    fn label<'a>(&mut self, pods: impl IntoIterator<Item = &'a PodRef>, role: Role, token: i64) {
        for pod in pods {
            for member in self.world.members.iter_mut().filter(|member| member.pod.uid == pod.uid) {
                (member.role, member.stamp) = (role, Some(token));
                (member.stamped_by_us, member.fencing_fits) = (true, true);
            }
        }
    }
}
