//! The table of phases in the module's documentation says what the machine does.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    situations::{Past, lost_commits, outcomes, retirements, settled_terms, unfinished_terms, worlds},
    *,
};
use crate::phase_table::{Way, Ways, documented};

/// What an enum's variant is called.
fn name_of(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
}

/// A rejection by its reason, everything else by its own name.
fn kind_of(outcome: &Outcome) -> String {
    if let Outcome::Rejected(reason) = outcome { name_of(reason) } else { name_of(outcome) }
}

/// Whether the phase is followed by another one at its turn, and not when an outcome arrives.
fn has_turns(phase: &Phase) -> bool {
    use Phase::{Clearing, Observing, Resuming, Retired, Stable, Stopping};
    matches!(
        phase,
        Observing
            | Resuming { .. }
            | Retired
            | Stable
            | Stopping { declaring: None, .. }
            | Clearing { declaring: None, .. }
    ) || phase.wakes_at().is_some()
}

/// All ways from one phase to another that are possible.
fn possible() -> Ways {
    let mut all = settled_terms();
    all.extend(unfinished_terms());
    all.extend([lost_commits(), retirements()]);
    for known in &mut all {
        known.phases.push(Phase::Reading);
    }
    let mut found = Ways::new();
    let worlds = worlds();
    for known in &all {
        for (world, past) in &worlds {
            let group = past.group(known, world);
            for phase in &known.phases {
                let before = name_of(phase);
                let ways = found.entry(before.clone()).or_default();
                let mut note = |cause: &str, after: &Phase| {
                    let after = name_of(after);
                    if after != before {
                        ways.insert((cause.to_owned(), after));
                    }
                };
                if *phase == Phase::Observing {
                    for declared in [&known.declared, &world.declared] {
                        let (row, mut group) = (Some(known.row.clone()), group.clone());
                        group.world.declared.clone_from(declared);
                        note("Owned", &group.adopt(row, NOW, &mut Vec::new()));
                    }
                    let mut group = group.clone();
                    group.step(Event::Buried, NOW);
                    note("Buried", group.phase());
                }
                if has_turns(phase) {
                    note("Turn", &group.clone().advance(phase.clone(), NOW, &mut Vec::new()));
                    continue;
                }
                for outcome in outcomes(phase, known) {
                    let kind = kind_of(&outcome);
                    note(&kind, &group.clone().conclude(phase.clone(), outcome, NOW, &mut Vec::new()));
                }
            }
        }
    }
    found.values_mut().for_each(drop_what_holds_for_all);
    found
}

/// Drops what holds for every phase that awaits an outcome, and is said once for all of them.
fn drop_what_holds_for_all(ways: &mut BTreeSet<Way>) {
    let leads_elsewhere = |cause: &str, usual: &str| ways.iter().any(|(of, to)| of == cause && to != usual);
    let usual = |(cause, to): &Way| match cause.as_str() {
        "NotOwner" => to == "Observing",
        "GroupGone" => to == "Retiring",
        cause => to == "BackingOff" && !leads_elsewhere(cause, "BackingOff"),
    };
    *ways = ways.iter().filter(|way| !usual(way)).cloned().collect();
}

/// The ways as the table writes them.
fn written(ways: &BTreeSet<Way>) -> String {
    let mut by_cause: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (cause, after) in ways {
        by_cause.entry(cause).or_default().push(format!("`{after}`"));
    }
    let ways = by_cause.iter().map(|(cause, after)| format!("`{cause}` → {}", after.join(", ")));
    ways.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_table_of_phases_says_what_the_machine_does() {
    let (documented, possible) = (documented(include_str!("../mod.rs")), possible());
    let differing = possible.iter().filter(|(phase, ways)| documented.get(*phase) != Some(ways));
    let differing: Vec<_> = differing.map(|(phase, ways)| format!("{phase}: {}", written(ways))).collect();
    assert!(differing.is_empty(), "these are possible:\n{}", differing.join("\n"));
    assert!(documented.keys().eq(possible.keys()), "there is no other phase");
}

#[test]
fn whatever_the_phase_the_end_of_the_ownership_ends_it() {
    let mut all = settled_terms();
    all.extend(unfinished_terms());
    for known in &all {
        for phase in &known.phases {
            let mut group = Past::Nothing.group(known, &settled());
            group.phase = phase.clone();
            assert_eq!(group.step(Event::Disowned, NOW), [], "{phase:?}");
            assert_eq!(*group.phase(), Phase::Observing);
        }
    }
}
