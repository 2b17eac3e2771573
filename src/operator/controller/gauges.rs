//! The gauges: how many groups this replica owns, and in which state they are.

use super::Controller;
use crate::{
    api::Verdict,
    election::Phase,
    operator::{group::Group, index::IndexedGroup},
    telemetry::{GroupReading, GroupState},
};

impl Controller {
    pub(super) fn set_gauges(&self) {
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
                metrics.forget_group(&name.namespace, &name.name);
                continue;
            };
            let active = group.election().active().is_some();
            let members = group.election().world().members.iter();
            let eligible = members.filter(|member| member.verdict == Verdict::Eligible);
            let eligible = u32::try_from(eligible.count()).unwrap_or(u32::MAX);
            metrics.set_group(&name.namespace, &name.name, GroupReading { active, eligible });
            let state = state_of(seen, group, active);
            if let Some(index) = kinds.iter().position(|known| *known == state) {
                counts[index] += 1;
            }
        }
        kinds.into_iter().zip(counts).for_each(|(state, count)| metrics.set_groups(state, count));
        metrics.set_probe_targets(self.prober.len());
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
