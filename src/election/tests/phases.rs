//! The table of phases in the module's documentation says what the machine does.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::election::group::Group;

/// A way from one phase to another: what ends the phase, and the phase that follows.
type Way = (String, String);
type Ways = BTreeMap<String, BTreeSet<Way>>;

/// What an enum's variant is called.
fn name_of(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
}

/// A rejection by its reason, everything else by its own name.
fn kind_of(outcome: &Outcome) -> String {
    if let Outcome::Rejected(reason) = outcome { name_of(reason) } else { name_of(outcome) }
}

fn change(holder: &str, reason: Reason, from: &str) -> Change {
    Change { holder: pod(holder), reason, from: Some(pod(from)), began: NOW }
}

/// Row and declaration in a combination that occurs, and the phases in which it does.
struct Known {
    row: Row,
    declared: Declaration,
    phases: Vec<Phase>,
}

/// The first attempt, a repeated one, and one that is to be repeated.
fn attempts() -> [Attempt; 3] {
    [(false, None), (true, None), (true, Some(NOW))]
        .map(|(in_doubt, retry_at)| Attempt { in_doubt, retry_at })
}

fn granting(change: Change) -> [Phase; 3] {
    let request =
        GrantRequest { expected: 5, floor: 5, holder: change.holder.clone(), id: OWN, reason: change.reason };
    attempts().map(|attempt| Phase::Granting { change: change.clone(), request: request.clone(), attempt })
}

/// a holds a confirmed term, or the lock is free.
fn settled_terms() -> Vec<Known> {
    let declared = || declaration(5, Some("a"), &[]);
    let verifying = |certain| Phase::Verifying { holder: pod("a"), reason: Reason::PodNotReady, certain };
    let mut held = vec![
        Phase::Stable,
        Phase::Repairing,
        Phase::Relabelling { holder: pod("a") },
        verifying(false),
        verifying(true),
        Phase::BackingOff { until: NOW },
    ];
    held.extend(attempts().map(Phase::Vacating));
    let reasons = [Reason::Silent, Reason::Switchover, Reason::NodeCordoned, Reason::LabelLost];
    let changes = reasons.map(|reason| change("b", reason, "a"));
    held.extend(changes.iter().cloned().map(Phase::Trying));
    held.extend(changes.into_iter().flat_map(granting));
    let first = Change { from: None, ..change("b", Reason::FirstHolder, "a") };
    let mut free = vec![Phase::Stable, Phase::Repairing, Phase::Trying(first.clone())];
    free.extend(granting(first));
    vec![
        Known { row: row(5, Some("a"), true), declared: declared(), phases: held },
        Known { row: row(5, None, true), declared: declared(), phases: free },
    ]
}

/// b was granted a term after a, which is not confirmed; by this replica or by another one.
fn unfinished_terms() -> Vec<Known> {
    let mut all = Vec::new();
    for (is_declared, is_own) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut row = row(6, Some("b"), false);
        row.pending = vec![pod("a"), pod("b")];
        let declared = if is_declared { declaration(6, Some("b"), &["a"]) } else { settled().declared };
        let (declared, row) = match (is_own, is_declared) {
            (true, true) => own(declared, row),
            (true, false) => (declared, own(Declaration::default(), row).1),
            (false, _) => (declared, row),
        };
        let failing = Reason::PodNotReady;
        let mut phases: Vec<Phase> = [NOW, NOW + Duration::from_secs(1)]
            .map(|until| Phase::Resuming { holder: pod("b"), until })
            .into();
        phases.extend([false, true].map(|certain| Phase::Verifying {
            holder: pod("b"),
            reason: failing,
            certain,
        }));
        phases.push(Phase::Trying(change("c", Reason::Silent, "a")));
        phases.extend(granting(change("c", Reason::Silent, "a")));
        phases.extend(attempts().map(Phase::Vacating));
        let change = || change("b", Reason::Silent, "a");
        let next = declaration(6, Some("b"), &["a"]);
        if is_own && is_declared {
            let witness = || Some("11".to_owned());
            phases.push(Phase::Stripping { change: change(), witness: witness() });
            phases.push(Phase::Stripping { change: change(), witness: None });
            phases.extend([0, 8].map(|conflicts| Phase::Promoting { change: change(), conflicts }));
            phases.push(Phase::Rechecking { change: change(), conflicts: 0 });
            phases.extend([None, Some(NOW)].map(|retry_at| Phase::Confirming { change: change(), retry_at }));
        } else if is_own {
            phases.push(Phase::Fencing(change()));
            phases.push(Phase::Declaring { change: change(), next, witness: None });
        }
        all.push(Known { row, declared, phases });
    }
    // c is to follow b, whose term was declared, and perhaps carried out. Or b itself is to have a new term.
    for holder in ["b", "c"] {
        let mut row = row(7, Some(holder), false);
        row.pending = vec![pod("a"), pod("b"), pod(holder)];
        let declared = declaration(6, Some("b"), &["a"]);
        let phases = vec![Phase::Fencing(change(holder, Reason::Silent, "a"))];
        all.push(Known { row, declared, phases });
    }
    all
}

/// The row is behind the declaration.
fn lost_commits() -> Known {
    let row = Row { token: 4, pending: vec![pod("c")], ..Row::default() };
    Known { row, declared: settled().declared, phases: vec![Phase::Stable, Phase::Regaining] }
}

fn retirements() -> Known {
    let mut phases = vec![Phase::Observing, Phase::Retired];
    for step in [Removal::Tombstone, Removal::Labels, Removal::Finalizer] {
        for give_up_at in [None, Some(NOW)] {
            let begun = Retirement::at(step);
            phases.push(Phase::Retiring(Retirement { give_up_at, labels_by: give_up_at, ..begun }));
        }
    }
    Known { row: row(5, Some("a"), true), declared: settled().declared, phases }
}

/// Pods and circumstances of every kind that makes a difference.
fn worlds() -> Vec<World> {
    let seen = |name, role, standing, stamp| Some(Member { stamp, ..member(name, role, standing) });
    let gone = Standing::Ended(Reason::PodDeleted);
    let a = [
        seen("a", Role::Active, Standing::Eligible, Some(5)),
        seen("a", Role::Active, Standing::Silent, Some(5)),
        seen("a", Role::Active, Standing::Failing(Reason::PodNotReady), Some(5)),
        seen("a", Role::Standby, Standing::Eligible, Some(5)),
        seen("a", Role::Standby, gone, Some(5)),
        None,
    ];
    let b = [
        seen("b", Role::Standby, Standing::Eligible, Some(5)),
        seen("b", Role::Standby, Standing::Eligible, Some(6)),
        seen("b", Role::Standby, Standing::Unproven, Some(5)),
        seen("b", Role::Standby, Standing::Silent, Some(5)),
        seen("b", Role::None, Standing::Eligible, None),
        seen("b", Role::Active, Standing::Eligible, Some(6)),
        seen("b", Role::Active, Standing::Eligible, Some(9)),
        None,
    ];
    let c = seen("c", Role::Standby, Standing::Eligible, Some(5));
    let circumstances = [
        |world: &mut World| world.policy.paused = true,
        |world: &mut World| world.obstacle = Some(Reason::SelectedByOtherGroup),
        |world: &mut World| world.deleting = true,
        |world: &mut World| (world.deleting, world.lock_away) = (true, true),
        |world: &mut World| world.declared = declaration(9, Some("c"), &[]),
    ];
    let mut all = Vec::new();
    for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
        let with =
            |c| World { members: [a, b, c].into_iter().flatten().cloned().collect(), ..World::default() };
        all.extend([with(&c), with(&None)]);
        for change in circumstances {
            let mut world = with(&c);
            change(&mut world);
            all.push(world);
        }
    }
    all
}

/// Outcomes of every kind, with the data that makes a difference, that the phase may have.
fn outcomes(phase: &Phase, known: &Known) -> Vec<Outcome> {
    let mut all: Vec<Outcome> =
        [Rejection::NotOwner, Rejection::Outdated, Rejection::GroupGone].map(Outcome::Rejected).into();
    all.extend([Outcome::Failed, Outcome::Unknown]);
    let refused = || "a policy".to_owned();
    let (row, declared) = (|| Some(known.row.clone()), || Some(known.declared.clone()));
    let rechecked = || {
        let version = || Some("12".to_owned());
        [
            Outcome::Rechecked { version: version(), declared: declared(), row: row() },
            Outcome::Rechecked { version: version(), declared: None, row: row() },
            Outcome::Rechecked { version: None, declared: declared(), row: row() },
        ]
    };
    match phase {
        Phase::Reading => {
            all.extend(
                [(row(), declared()), (None, None), (row(), None)]
                    .map(|(row, declared)| Outcome::Read { row, declared }),
            );
        }
        Phase::Verifying { .. } | Phase::Relabelling { .. } | Phase::Regaining => {
            all.extend([None, Some(Reason::PodDeleted), Some(Reason::PodNotReady)].map(Outcome::Verified));
        }
        Phase::Trying(_) => {
            all.extend([Outcome::Accepted, Outcome::Refused(refused()), Outcome::HolderRefused(refused())]);
        }
        Phase::Granting { .. } => all.push(Outcome::Granted { token: known.row.token + 1 }),
        Phase::Fencing(_) => {
            all.extend([Outcome::Stripped, Outcome::Promoted, Outcome::Stamped(Vec::new())]);
            all.extend([Outcome::Conflict, Outcome::Refused(refused())]);
            all.extend(rechecked());
        }
        Phase::Declaring { .. } => all.push(Outcome::Declared),
        Phase::Stripping { .. } | Phase::Repairing => all.push(Outcome::Stripped),
        Phase::Promoting { .. } => {
            all.extend([Outcome::Promoted, Outcome::Conflict, Outcome::Refused(refused())]);
        }
        Phase::Rechecking { .. } => all.extend(rechecked()),
        Phase::Confirming { .. } => all.push(Outcome::Confirmed),
        Phase::Vacating(_) => all.push(Outcome::Vacated),
        Phase::Retiring(Retirement { step, .. }) => match step {
            Removal::Tombstone => all.push(Outcome::Tombstoned),
            Removal::Labels => all.extend([Outcome::Cleared, Outcome::ClearRefused]),
            Removal::Finalizer => all.push(Outcome::Unfinalized),
        },
        Phase::Observing
        | Phase::BackingOff { .. }
        | Phase::Resuming { .. }
        | Phase::Stable
        | Phase::Retired => {}
    }
    all
}

/// A group with this knowledge, which has evidence against its holder. The API server may have refused to change b.
fn group(known: &Known, world: &World, refuses: bool) -> Group {
    let mut group = Group::new(world.clone());
    (group.known.row, group.known.declared) = (known.row.clone(), known.declared.clone());
    (group.calls.seed, group.calls.last) = (OWN.as_u128(), 1);
    group.delays.lost = known.row.holder.as_ref().map(|holder| (holder.uid.clone(), NOW));
    group.refusals.set_time(NOW);
    if let Some(member) = group.member("uid-b").cloned().filter(|_| refuses) {
        group.refusals.promotion(&member, "a policy".to_owned());
    }
    group
}

/// Whether the phase is followed by another one at its turn, and not when an outcome arrives.
fn has_turns(phase: &Phase) -> bool {
    use Phase::{Observing, Resuming, Retired, Stable};
    matches!(phase, Observing | Resuming { .. } | Retired | Stable) || phase.wakes_at().is_some()
}

/// All ways from one phase to another that are possible.
fn possible() -> Ways {
    let mut all = settled_terms();
    all.extend(unfinished_terms());
    all.extend([lost_commits(), retirements()]);
    all.iter_mut().for_each(|known| known.phases.push(Phase::Reading));
    let mut found = Ways::new();
    let worlds = worlds();
    for known in &all {
        for (world, refuses) in worlds.iter().flat_map(|world| [(world, false), (world, true)]) {
            let group = group(known, world, refuses);
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
                    let row = Some(known.row.clone());
                    note("Owned", &group.clone().adopt(row, NOW, &mut Vec::new()));
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

/// The ways in the table of the module's documentation.
fn documented() -> Ways {
    let words =
        |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows = include_str!("../mod.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
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

#[test]
fn the_table_of_phases_says_what_the_machine_does() {
    let (documented, possible) = (documented(), possible());
    for phase in possible.keys().chain(documented.keys()) {
        assert_eq!(documented.get(phase), possible.get(phase), "{phase}");
    }
}

#[test]
fn whatever_the_phase_the_end_of_the_ownership_ends_it() {
    let mut all = settled_terms();
    all.extend(unfinished_terms());
    for known in &all {
        for phase in &known.phases {
            let mut group = group(known, &settled(), false);
            group.phase = phase.clone();
            assert_eq!(group.step(Event::Disowned, NOW), [], "{phase:?}");
            assert_eq!(*group.phase(), Phase::Observing);
        }
    }
}
