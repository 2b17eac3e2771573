//! One run, from its seed to the verdict: faults, then rest, then single faults with deadlines.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use leadergroup_e2e::history::{Violation, not_at_rest, operator_writes};

use crate::{
    balance::until_balanced,
    deadlines::{Failure, single_faults},
    faults::plan::{Planned, plan, with_faults},
    outages::short_outages,
    simulation::Simulation,
};

/// How many groups a run has.
const GROUPS: usize = 3;
/// For how long there are faults, and how often one begins.
const FAULTS: Duration = Duration::from_secs(210);
const EVERY: Duration = Duration::from_secs(3);
/// A new group with agents waits for the longest lease, with a margin: for 67.1 s.
const NEW_GROUP: Duration = Duration::from_secs(68);
/// How long before the faults everything works.
const BEFORE: Duration = Duration::from_secs(72);
/// How long after the faults everything works again. The last of them may have created a group again.
const SETTLED: Duration = Duration::from_mins(1).saturating_add(NEW_GROUP);
/// For how long after that the operator must write nothing.
const QUIET: Duration = Duration::from_mins(1);
/// In at least so many terms programs under agents run: one follows another. Otherwise the run shows nothing of them.
const TERMS: usize = 2;

/// What a run shows in which nothing is wrong.
pub struct Passed {
    /// Which kinds of faults took effect, and how often.
    pub effects: BTreeMap<&'static str, u32>,
    /// For which failures there was a deadline.
    pub due: Vec<Failure>,
    pub promotions: usize,
    /// In how many terms programs under agents ran.
    pub programs: usize,
    pub revisions: usize,
    /// How much simulated time passed.
    pub time: Duration,
}

/// What is wrong with a run.
#[derive(Debug)]
pub struct Failed {
    /// Two runs fail in the same way if this is the same.
    pub how: String,
    pub text: String,
}

impl Failed {
    pub fn new(how: &str, text: impl Into<String>) -> Self {
        Self { how: how.to_owned(), text: text.into() }
    }

    /// It is an error if anything is left of this.
    pub fn unless_none<T: std::fmt::Debug>(how: &str, left: &[T], run: &Simulation) -> Result<(), Self> {
        if left.is_empty() { Ok(()) } else { Err(Self::new(how, format!("{left:#?}\n{}", run.state()))) }
    }

    fn unless_valid(violations: &[Violation]) -> Result<(), Self> {
        if violations.is_empty() {
            return Ok(());
        }
        let broken: BTreeSet<String> = violations.iter().map(|it| format!("{:?}", it.invariant)).collect();
        let how = broken.into_iter().collect::<Vec<_>>().join(", ");
        Err(Self { how, text: format!("{violations:#?}") })
    }

    /// Something was asserted in the middle of the run.
    fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_else(|| "a panic".to_owned());
        let how = text.split([':', '\n']).next().unwrap_or_default();
        Self { how: how.to_owned(), text }
    }
}

/// The faults of the run with this seed.
pub fn faults(seed: u64) -> Vec<Planned> {
    plan(seed, FAULTS, EVERY)
}

/// Plays the run with this seed, and with all of its faults or with those that `only` names.
pub fn play(seed: u64, only: Option<&BTreeSet<usize>>) -> Result<Passed, Failed> {
    let played = catch_unwind(AssertUnwindSafe(|| judged(seed, only)));
    played.unwrap_or_else(|payload| Err(Failed::panicked(&*payload)))
}

fn judged(seed: u64, only: Option<&BTreeSet<usize>>) -> Result<Passed, Failed> {
    let mut run = simulation(seed);
    run.run(BEFORE);
    run.network.let_hooks_refuse(true);
    with_faults(&mut run, &faults(seed), only, FAULTS);
    run.network.let_hooks_refuse(false);
    unless_together(&run)?;
    run.run(SETTLED);
    let quiet = run.api.store().revision();
    run.run(QUIET);
    write_trace(&run);
    let history = run.history();
    Failed::unless_none("edits that nobody corrects", &run.uncorrected(), &run)?;
    Failed::unless_none("not at rest", &not_at_rest(&history, &[]), &run)?;
    Failed::unless_none("no program at rest", &run.programs_at_rest(), &run)?;
    let (contradictions, untold) = run.cluster.hooks(&run.active_pods());
    Failed::unless_none("two roles under one token", &contradictions, &run)?;
    Failed::unless_none("no role told", &untold, &run)?;
    if run.cluster.hook_requests() == 0 {
        return Err(Failed::new("no effect", "no pod was told its role"));
    }
    let writes = operator_writes(&history, i64::try_from(quiet).expect("few enough revisions"));
    Failed::unless_none("writes at rest", &writes, &run)?;
    short_outages(&mut run, seed)?;
    let history = run.history();
    let checked = run.judged(history);
    Failed::unless_valid(&checked.violations)?;
    let (promotions, revisions) = (checked.promotions.len(), checked.revisions);
    if promotions <= GROUPS {
        return Err(Failed::new("no effect", "the faults did not make any other pod active"));
    }
    let due = single_faults(&mut run, seed)?;
    until_balanced(&mut run)?;
    write_trace(&run);
    unless_together(&run)?;
    let programs = programs(&run, only)?;
    Failed::unless_valid(&run.checked().violations)?;
    Ok(Passed { effects: run.effects.counts(), due, promotions, programs, revisions, time: run.now })
}

/// The run with this seed, before anything happens. The pods of one of its groups have agents.
pub fn simulation(seed: u64) -> Simulation {
    let supervised = usize::try_from(seed % GROUPS as u64).expect("a small number");
    Simulation::with_agents(seed, GROUPS, Some(supervised))
}

/// I9: two programs of a group never ran at the same moment.
fn unless_together(run: &Simulation) -> Result<(), Failed> {
    Failed::unless_none("I9", run.cluster.ledger().violations(), run)
}

/// In how many terms programs under agents have run.
fn programs(run: &Simulation, only: Option<&BTreeSet<usize>>) -> Result<usize, Failed> {
    let groups = run.cluster.supervised_groups().iter();
    let terms = groups.map(|group| run.cluster.ledger().terms(group)).sum();
    if terms < TERMS && only.is_none() {
        return Err(Failed::new("no programs", format!("programs under agents ran in {terms} terms")));
    }
    Ok(terms)
}

/// Writes all changes of all objects to the file that a variable names.
fn write_trace(run: &Simulation) {
    if let Ok(file) = std::env::var("LEADERGROUP_CLUSTER_TRACE") {
        std::fs::write(&file, run.trace().join("\n")).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}
