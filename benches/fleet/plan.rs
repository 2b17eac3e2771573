//! The settings of one run: how many groups, which subjects, for how long.

use std::{env, time::Duration};

use anyhow::{Context as _, Result, ensure};

/// Subjects of the short form.
const SHORT: [&str; 6] = ["rest", "silent", "refusing", "deleted", "replicas", "removal"];

/// The settings of one run.
pub(crate) struct Plan {
    pub(crate) groups: usize,
    /// Whether the pods have readiness probes.
    pub(crate) probed: bool,
    /// A quick run that looks for wrong results only.
    pub(crate) short: bool,
    /// Parts of the subjects' names; empty for all subjects.
    only: Vec<String>,
}

impl Plan {
    /// Reads arguments and environment. `cargo bench` passes `--bench`; `cargo test` does not, and gets the short form.
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

    /// The time for a step: a tenth of it in the short form.
    pub(crate) fn time(&self, full: Duration) -> Duration {
        if self.short { full / 10 } else { full }
    }

    /// How long nothing must change until a state counts as quiet.
    pub(crate) fn quiet(&self) -> Duration {
        Duration::from_secs(if self.short { 1 } else { 3 })
    }

    /// How long any wait may take before the subject fails.
    pub(crate) fn limit(&self) -> Duration {
        if self.short { Duration::from_mins(1) } else { Duration::from_mins(15) }
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
