//! What is measured: how many groups, which subjects, for how long.

use std::{env, time::Duration};

use anyhow::{Context as _, Result, ensure};

/// Subjects of the short form.
const SHORT: [&str; 6] = ["rest", "silent", "refusing", "deleted", "replicas", "removal"];

/// What is measured.
pub(crate) struct Plan {
    pub(crate) groups: usize,
    /// Whether the pods have readiness probes.
    pub(crate) probed: bool,
    /// A quick run for wrong results alone.
    pub(crate) short: bool,
    /// Parts of the subjects' names; empty for all subjects.
    only: Vec<String>,
}

impl Plan {
    /// From arguments and environment. Cargo passes `--bench` to benchmarks that are to measure, and not to those that it
    /// runs as tests.
    pub(crate) fn read() -> Result<Self> {
        let arguments: Vec<String> = env::args().skip(1).collect();
        let short = !arguments.iter().any(|word| word == "--bench");
        let groups = match variable("LEADERGROUP_BENCH_GROUPS") {
            Some(text) => text.parse().context("LEADERGROUP_BENCH_GROUPS must be a number of groups")?,
            None if short => 20,
            None => 1_000,
        };
        ensure!((3..=20_000).contains(&groups), "LEADERGROUP_BENCH_GROUPS must be from 3 to 20000");
        let probed = variable("LEADERGROUP_BENCH_PROBES").is_none_or(|text| text != "0");
        let only = arguments.into_iter().filter(|word| !word.starts_with('-')).collect();
        Ok(Self { groups, probed, short, only })
    }

    pub(crate) fn wants(&self, subject: &str) -> bool {
        if self.only.is_empty() {
            return !self.short || SHORT.contains(&subject);
        }
        self.only.iter().any(|word| subject.contains(word.as_str()))
    }

    /// Whether all subjects are measured, with probes.
    pub(crate) fn is_complete(&self) -> bool {
        !self.short && self.only.is_empty() && self.probed
    }

    /// A time of a full run, or a fraction of it.
    pub(crate) fn time(&self, full: Duration) -> Duration {
        if self.short { full / 10 } else { full }
    }

    /// How long nothing may change before it counts as quiet.
    pub(crate) fn quiet(&self) -> Duration {
        Duration::from_secs(if self.short { 1 } else { 3 })
    }

    /// How long anything may take before it counts as never.
    pub(crate) fn limit(&self) -> Duration {
        if self.short { Duration::from_mins(1) } else { Duration::from_mins(15) }
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
