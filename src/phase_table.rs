//! Reads the tables of phases in the documentation of the state machines, for the tests that compare them with the
//! code.

use std::collections::{BTreeMap, BTreeSet};

/// A way from one phase to another: what ends the phase, and the phase that follows.
pub(crate) type Way = (String, String);
/// For each phase the ways out of it.
pub(crate) type Ways = BTreeMap<String, BTreeSet<Way>>;

/// The ways in the table of a module's documentation, whose source this is. The first column names the phase. The third
/// one has the ways: "`Cause`, `Cause` → `Phase`, `Phase`; `Cause` → `Phase`".
pub(crate) fn documented(source: &str) -> Ways {
    let words =
        |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows = source.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let rows = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let mut ways = BTreeSet::new();
        for way in cells[2].split(';').filter(|way| way.contains('`')) {
            let (causes, phases) = way.split_once('→').expect("an arrow");
            for cause in words(causes) {
                ways.extend(words(phases).into_iter().map(|phase| (cause.clone(), phase)));
            }
        }
        (cells[0].trim().trim_end_matches('`').to_owned(), ways)
    });
    rows.collect()
}
