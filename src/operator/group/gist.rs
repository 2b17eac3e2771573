//! What a status says about the active pod, as a digest.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::api::{ConditionType, LeaderGroupStatus};

/// A digest of what a status says about the active pod. One is kept for each group, in place of the status itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::operator) struct Gist(u64);

impl Gist {
    pub(in crate::operator) fn of(status: &LeaderGroupStatus) -> Self {
        let redundant = ConditionType::Redundant.to_string();
        let others = status.conditions.iter().filter(|condition| condition.type_ != redundant);
        let others: Vec<_> = others.map(|condition| (&condition.type_, &condition.status)).collect();
        let active = status.active.as_ref().map(|active| &active.uid);
        let said = (status.observed_generation, active, &status.history, &status.switchover, others);
        let mut hasher = DefaultHasher::new();
        serde_json::to_vec(&said).expect("a status has only text as keys").hash(&mut hasher);
        Self(hasher.finish())
    }
}
