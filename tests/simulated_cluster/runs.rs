//! The runs.

use std::{
    collections::BTreeSet,
    str::FromStr,
    time::{Duration, Instant},
};

use crate::{
    cores::on_all_cores,
    deadlines::Failure,
    faults::{
        self,
        plan::{plan, with_faults},
    },
    log,
    played::{Passed, play, simulation},
    shrinking::report,
    simulation::Simulation,
};

#[test]
fn groups_get_a_holder_and_keep_it() {
    log::show();
    let mut simulation = Simulation::new(1, 2);
    simulation.run(Duration::from_mins(1));
    let checked = simulation.checked();
    assert!(checked.violations.is_empty(), "{:#?}", checked.violations);
    assert_eq!(checked.promotions.len(), 2, "{:#?}", checked.promotions);
}

#[test]
fn the_program_of_a_group_with_agents_runs_in_its_active_pod() {
    log::show();
    let mut run = Simulation::with_agents(1, 2, Some(1));
    // The first term of a new group waits for the longest lease.
    run.run(Duration::from_mins(2));
    let checked = run.checked();
    assert!(checked.violations.is_empty(), "{:#?}", checked.violations);
    assert_eq!(checked.promotions.len(), 2, "{:#?}", checked.promotions);
    assert_eq!(run.programs_at_rest(), [""; 0]);
    let (ledger, active) = (run.cluster.ledger(), run.active_pods());
    assert_eq!((ledger.violations(), ledger.terms("g1")), (&[][..], 1));
    assert!(active.iter().any(|pod| ledger.running("g1") == [pod]), "{active:?}");
}

/// I5: what an agent has not said while no replica could hear it is no evidence against its pod.
#[test]
fn a_program_that_has_started_is_not_taken_for_late_by_those_who_could_not_hear_of_it() {
    log::show();
    let cut_off: [fn(&mut Simulation, bool); 2] = [
        |run, is_over| {
            let nodes = run.cluster.nodes().into_iter();
            nodes.for_each(
                |node| if is_over { run.resume_replicas_on(&node) } else { run.stop_replicas_on(&node) },
            );
        },
        |run, is_over| {
            let nodes = run.cluster.nodes();
            for (one, other) in [(0, 1), (0, 2), (1, 2)] {
                if is_over {
                    run.network.join(&nodes[one], &nodes[other]);
                } else {
                    run.network.cut(&nodes[one], &nodes[other], "a cut");
                }
            }
        },
    ];
    for cut_off in cut_off {
        let mut run = Simulation::with_agents(1, 2, Some(1));
        run.run(Duration::from_secs(72));
        run.act(|run| run.cluster.set_agents("g1", Some("2s")));
        run.run(Duration::from_secs(1));
        run.fault(run.cluster.of_group("g1"), &["Switchover"]);
        run.act(|run| assert!(run.cluster.request_switchover("g1")));
        while run.cluster.ledger().terms("g1") < 2 {
            run.run(Duration::from_millis(5));
        }
        run.run(Duration::from_millis(20));
        cut_off(&mut run, false);
        run.run(Duration::from_millis(3_500));
        cut_off(&mut run, true);
        run.run(Duration::from_secs(5));
        let checked = run.checked();
        assert!(checked.violations.is_empty(), "{:#?}", checked.violations);
        assert_eq!(run.cluster.ledger().terms("g1"), 2, "the program goes on");
    }
}

/// From so many runs on, each kind of fault must have taken effect.
const ENOUGH: u64 = 5;
/// In so many terms programs under agents run on average, from so many runs on.
const TERMS: usize = 4;
/// How often a run that failed is played again, with fewer faults.
const REPLAYS: usize = 60;

#[test]
fn a_seed_determines_a_run() {
    let trace = || {
        let (mut run, time) = (simulation(7), Duration::from_mins(1));
        run.run(Duration::from_secs(40));
        with_faults(&mut run, &plan(7, time, Duration::from_secs(2)), None, time);
        run.trace()
    };
    let (one, other) = (trace(), trace());
    let differs = one.iter().zip(&other).position(|(one, other)| one != other);
    assert_eq!((differs.map(|at| (&one[at], &other[at])), one.len()), (None, other.len()));
}

/// The number that a variable of the environment has.
fn number<T: FromStr>(name: &str, usual: T) -> T {
    let number = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}"));
    std::env::var(name).map_or(usual, number)
}

/// The faults that are to be played, if not all.
fn chosen() -> Option<BTreeSet<usize>> {
    let text = std::env::var("LEADERGROUP_CLUSTER_FAULTS").ok()?;
    let numbers = text.split(',').filter(|number| !number.is_empty());
    Some(numbers.map(|number| number.parse().expect("LEADERGROUP_CLUSTER_FAULTS lists numbers")).collect())
}

#[test]
fn random_faults() {
    log::show();
    let first = number("LEADERGROUP_CLUSTER_SEED", 1);
    let runs = number("LEADERGROUP_CLUSTER_SEEDS", ENOUGH);
    let replays = number("LEADERGROUP_CLUSTER_REPLAYS", REPLAYS);
    let chosen = chosen();
    let begun = Instant::now();
    let played = on_all_cores(first..first + runs, |seed| {
        let played = play(seed, chosen.as_ref());
        if let Ok(Passed { effects, due, promotions, programs, revisions, time }) = &played {
            eprintln!(
                "seed {seed}: {promotions} promotions, programs in {programs} terms, {revisions} revisions, {effects:?}; deadlines checked \
                 (I6): {}, {due:?}; {} simulated seconds",
                due.len(),
                time.as_secs(),
            );
        }
        played
    });
    let (mut seen, mut timely, mut terms) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut time = Duration::ZERO;
    for (seed, played) in played {
        let played =
            played.unwrap_or_else(|failed| panic!("{}", report(seed, chosen.as_ref(), &failed, replays)));
        seen.extend(played.effects.into_keys());
        timely.extend(played.due);
        terms.push(played.programs);
        time += played.time;
    }
    let took = begun.elapsed();
    let per_second = time.as_secs_f64() / took.as_secs_f64();
    eprintln!("{runs} runs in {took:.0?}: {per_second:.0} simulated seconds per second");
    let untried: Vec<_> = Failure::ALL.into_iter().filter(|failure| !timely.contains(failure)).collect();
    assert!(runs < ENOUGH || untried.is_empty(), "no pod that failed so had a deadline: {untried:?}");
    let enough = terms.iter().sum::<usize>() >= TERMS * terms.len();
    assert!(
        runs < ENOUGH || chosen.is_some() || enough,
        "programs under agents ran in so few terms: {terms:?}"
    );
    let without: Vec<_> = faults::kinds().filter(|kind| !seen.contains(kind)).collect();
    assert!(runs < ENOUGH || without.is_empty(), "no fault of these kinds took effect: {without:?}");
}
