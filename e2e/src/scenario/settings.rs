//! Settings of the scenarios that can last longer, from the environment.

use std::time::Duration;

use anyhow::{Context, Result};

/// A number that the environment sets for the random faults: `LEADERGROUP_FAULTS_<name>`.
pub fn faults_setting(name: &str) -> Result<Option<u64>> {
    number(&format!("LEADERGROUP_FAULTS_{name}"))
}

/// How many changes of holder the clients' view is to see, if the environment sets it: `LEADERGROUP_CLIENTS_CHANGES`.
pub fn clients_changes() -> Result<Option<u64>> {
    number("LEADERGROUP_CLIENTS_CHANGES")
}

/// How many changes of holder the programs of `exactly_one` are to see, if the environment sets it:
/// `LEADERGROUP_PROGRAM_CHANGES`.
pub fn program_changes() -> Result<Option<u64>> {
    number("LEADERGROUP_PROGRAM_CHANGES")
}

/// How often the node of the database is to lose power, if the environment sets it: `LEADERGROUP_DATABASE_ROUNDS`.
pub fn database_rounds() -> Result<Option<u64>> {
    number("LEADERGROUP_DATABASE_ROUNDS")
}

fn number(variable: &str) -> Result<Option<u64>> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map(|text| text.parse().with_context(|| format!("{variable}={text} is not a whole number")))
        .transpose()
}

/// How much longer than usual a scenario may take.
pub(crate) fn faults_last() -> Duration {
    let set = |setting: Result<Option<u64>>| setting.ok().flatten().unwrap_or(0);
    let changes = set(clients_changes()) + set(program_changes());
    // A power-off takes Kubernetes a minute to notice, and the database some time to recover from.
    Duration::from_mins(set(faults_setting("MINUTES")) * 2 + set(database_rounds()) * 4)
        + Duration::from_secs(changes * 30)
}
