//! Settings of the random faults, from the environment.

use std::time::Duration;

use anyhow::{Context, Result};

/// A number that the environment sets for the random faults: `LEADERGROUP_FAULTS_<name>`.
pub fn faults_setting(name: &str) -> Result<Option<u64>> {
    let variable = format!("LEADERGROUP_FAULTS_{name}");
    let text = std::env::var(&variable).ok().filter(|text| !text.is_empty());
    text.map(|text| text.parse().with_context(|| format!("{variable}={text} is not a whole number")))
        .transpose()
}

/// How much longer than usual a scenario may take.
pub(crate) fn faults_last() -> Duration {
    Duration::from_mins(faults_setting("MINUTES").ok().flatten().unwrap_or(0) * 2)
}
