//! The runs.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    deadlines::{Failure, single_faults},
    faults, log,
    simulation::Simulation,
};
use leadergroup_e2e::history::{not_at_rest, operator_writes};

#[test]
fn groups_get_a_holder_and_keep_it() {
    log::show();
    let mut simulation = Simulation::new(1, 2);
    simulation.run(Duration::from_mins(1));
    let checked = simulation.checked();
    assert!(checked.violations.is_empty(), "{:#?}", checked.violations);
    assert_eq!(checked.promotions.len(), 2, "{:#?}", checked.promotions);
}

/// How many groups a run with faults has.
const GROUPS: usize = 3;
/// From so many runs on, each kind of fault must have taken effect.
const ENOUGH: u64 = 5;

/// A run of two minutes with faults, and what follows: nothing, and then single faults. Returns which kinds of faults
/// took effect, and for which failures there was a deadline.
fn faulty(seed: u64) -> (impl Iterator<Item = &'static str>, Vec<Failure>) {
    let mut run = Simulation::new(seed, GROUPS);
    run.run(Duration::from_secs(10));
    faults::with_faults(&mut run, Duration::from_mins(2), Duration::from_secs(4));
    run.run(Duration::from_mins(1));
    let quiet = run.api.store().revision();
    run.run(Duration::from_mins(1));
    let history = run.history();
    let unrest = not_at_rest(&history, &[]);
    assert!(unrest.is_empty(), "seed {seed}: {unrest:#?}\n{}", run.state());
    let writes = operator_writes(&history, i64::try_from(quiet).unwrap());
    assert!(writes.is_empty(), "seed {seed}: {writes:#?}");
    let checked = run.checked();
    assert!(checked.violations.is_empty(), "seed {seed}: {:#?}", checked.violations);
    let promotions = checked.promotions.len();
    assert!(promotions > GROUPS, "seed {seed}: the faults did not make any other pod active");
    let due = single_faults(&mut run);
    let violations = run.checked().violations;
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    let effects = run.effects.counts();
    eprintln!(
        "seed {seed}: {promotions} promotions, {} revisions, {effects:?}; deadlines checked (I6): {}, {due:?}",
        checked.revisions,
        due.len(),
    );
    (effects.into_keys(), due)
}

#[test]
fn a_seed_determines_a_run() {
    let trace = || {
        let mut run = Simulation::new(7, 3);
        faults::with_faults(&mut run, Duration::from_mins(1), Duration::from_secs(4));
        run.trace()
    };
    let (one, other) = (trace(), trace());
    let differs = one.iter().zip(&other).position(|(one, other)| one != other);
    assert_eq!((differs.map(|at| (&one[at], &other[at])), one.len()), (None, other.len()));
}

#[test]
fn random_faults() {
    log::show();
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let first: u64 = number("LEADERGROUP_CLUSTER_SEED", 1);
    let runs = number("LEADERGROUP_CLUSTER_SEEDS", ENOUGH);
    let (mut seen, mut timely) = (BTreeSet::new(), BTreeSet::new());
    for seed in first..first + runs {
        let (effects, due) = faulty(seed);
        seen.extend(effects);
        timely.extend(due);
    }
    let untried: Vec<_> = Failure::ALL.into_iter().filter(|failure| !timely.contains(failure)).collect();
    assert!(runs < ENOUGH || untried.is_empty(), "no pod that failed so had a deadline: {untried:?}");
    let without: Vec<_> = faults::kinds().filter(|kind| !seen.contains(kind)).collect();
    assert!(runs < ENOUGH || without.is_empty(), "no fault of these kinds took effect: {without:?}");
}
