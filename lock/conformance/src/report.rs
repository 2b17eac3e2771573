//! The report of a run.

use std::collections::BTreeMap;

use crate::rules::Rule;

/// What a run found.
#[derive(Debug, Default)]
pub struct Report {
    /// The rules that were broken, with the scenario and what was seen.
    pub broken: BTreeMap<Rule, Vec<(&'static str, String)>>,
    /// Scenarios that could not be played on this machine, with the reason.
    pub skipped: BTreeMap<&'static str, String>,
    /// How many scenarios ran.
    pub scenarios: usize,
}

impl Report {
    /// Whether the client kept all rules that were checked.
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (rule, all) in &self.broken {
            writeln!(f, "BROKEN {rule}  {}", rule.sentence())?;
            for (scenario, seen) in all {
                writeln!(f, "    {scenario}: {seen}")?;
            }
        }
        for (scenario, why) in &self.skipped {
            writeln!(f, "skipped: {scenario}: {why}")?;
        }
        let gone = self.broken.keys().filter(|rule| **rule != Rule::LINES).count();
        let kept = Rule::all().len().saturating_sub(gone);
        writeln!(f, "{} scenarios; {} rules broken, {kept} kept", self.scenarios, self.broken.len())
    }
}
