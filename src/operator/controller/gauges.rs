//! The gauges: how many groups this replica owns, and in which state they are.

use std::time::Duration;

use super::{Controller, IDLE};
use crate::{
    api::{ConditionType, Role, Verdict},
    election::{Member, Phase},
    operator::{
        group::Group,
        index::{IndexedGroup, watch_health::Watched},
    },
    ownership::Owner,
    telemetry::{GroupReading, GroupState, ShownCondition},
};

/// The conditions of a group that no replica can own, because a user must change something.
const STALLED: [ShownCondition; 3] = [
    (ConditionType::Accepted.name(), false),
    (ConditionType::Ready.name(), false),
    (ConditionType::Stalled.name(), true),
];

impl Controller {
    /// Sets them `elapsed` after the last time.
    pub(super) fn set_gauges(&self, elapsed: Duration, now: Duration) {
        let metrics = self.executor.metrics();
        let kinds = [
            GroupState::Active,
            GroupState::Changing,
            GroupState::AwaitingProgram,
            GroupState::Vacant,
            GroupState::Paused,
            GroupState::Stalled,
            GroupState::Deleting,
        ];
        let mut counts = [0_usize; 7];
        for (name, group) in &self.groups {
            let Some(seen) = self.index.group(name).filter(|_| group.is_owned()) else {
                match group.ownership.owner() {
                    Owner::Foreign(_) | Owner::Refused(_) => {
                        metrics.set_unowned_group(&name.namespace, &name.name, &STALLED);
                    }
                    _ if self.index.is_undecodable(name) => {}
                    _ => metrics.disown_group(&name.namespace, &name.name),
                }
                continue;
            };
            let reading = reading(group);
            let state = state_of(seen, group, reading.active.is_some());
            // This process may have stood still, and another replica may have owned the group meanwhile.
            let outage = if reading.works { Duration::ZERO } else { elapsed.min(2 * IDLE) };
            metrics.set_group(&name.namespace, &name.name, reading, outage);
            if let Some(index) = kinds.iter().position(|known| *known == state) {
                counts[index] += 1;
            }
        }
        for name in self.index.undecodable() {
            metrics.set_unowned_group(&name.namespace, &name.name, &STALLED);
        }
        kinds.into_iter().zip(counts).for_each(|(state, count)| metrics.set_groups(state, count));
        metrics.set_probe_targets(self.prober.len());
        for watched in Watched::ALL {
            metrics.set_watch_failing(watched.resource(), self.index.watch_failing_for(watched, now));
        }
    }
}

/// What the group's series show.
fn reading(group: &Group) -> GroupReading {
    let (election, status) = (group.election(), group.record().status());
    let members = &election.world().members;
    let count = |which: &dyn Fn(&Member) -> bool| {
        u32::try_from(members.iter().filter(|member| which(member)).count()).unwrap_or(u32::MAX)
    };
    GroupReading {
        active: election.active().map(|member| member.pod.name.clone()),
        works: election.has_healthy_active(),
        labelled: count(&|member| member.role == Role::Active),
        eligible: count(&|member| member.verdict == Verdict::Eligible),
        members: count(&|_| true),
        token: election.row().token,
        changed_at: status.and_then(|status| status.history.first()).map(|change| change.time.0.as_second()),
        conditions: group.report.conditions.clone(),
    }
}

fn state_of(seen: &IndexedGroup, group: &Group, active: bool) -> GroupState {
    if seen.record().is_deleting() {
        GroupState::Deleting
    } else if seen.obstacle().is_some() || seen.contested().is_some() {
        GroupState::Stalled
    } else if seen.record().object.spec.paused {
        GroupState::Paused
    } else if matches!(group.election().phase(), Phase::Stopping { .. } | Phase::Clearing { .. }) {
        GroupState::AwaitingProgram
    } else if !matches!(group.election().phase(), Phase::Stable) {
        GroupState::Changing
    } else if active {
        GroupState::Active
    } else {
        GroupState::Vacant
    }
}
