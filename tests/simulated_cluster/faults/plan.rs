//! Which faults begin when. All of it is decided before a run begins, and each fault makes its choices with random
//! numbers of its own. So a fault can be left out, and the others stay what they were.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use leadergroup_e2e::{deck::Deck, random::Random};

use super::{Begun, Fault, KINDS, Undo, undo};
use crate::simulation::Simulation;

/// The longest time that a fault lasts.
const LONGEST: Duration = Duration::from_secs(20);
/// How soon a fault may follow on another one.
const CLOSE: Duration = Duration::from_millis(500);

/// A fault that is to begin.
#[derive(Clone, Copy)]
pub struct Planned {
    /// Counts the faults of the run.
    pub number: usize,
    /// When it begins, from the first moment of the plan on.
    pub at: Duration,
    fault: &'static Fault,
    lasts: Duration,
    seed: u64,
}

impl Planned {
    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        self.fault.name
    }
}

/// The faults of a run that last until `time`: about one in `every`. No kind comes again before each other one has.
pub fn plan(seed: u64, time: Duration, every: Duration) -> Vec<Planned> {
    let mut random = Random::new(seed ^ 3);
    let mut deck = Deck::new(&(0..KINDS.len()).collect::<Vec<_>>());
    let (mut planned, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        // Some come while the operator deals with the one before.
        let below = if random.below(3) == 0 { CLOSE } else { 3 * every };
        at += millis(&mut random, below);
        if at >= time {
            return planned;
        }
        let Some(fault) = deck.deal(&mut random, |kind, _| KINDS.get(kind)) else { return planned };
        let lasts = millis(&mut random, LONGEST);
        let seed = 1 + random.below(usize::MAX) as u64;
        planned.push(Planned { number: planned.len(), at, fault, lasts, seed });
    }
}

fn millis(random: &mut Random, below: Duration) -> Duration {
    let below = usize::try_from(below.as_millis()).expect("no fault lasts for ages");
    Duration::from_millis(random.below(below) as u64)
}

/// What is to be undone, and when.
type Undoes = Vec<(Duration, Undo, Range<usize>)>;

/// Lets time pass with these faults, or those of them that `only` names, and undoes them all at the end.
pub fn with_faults(run: &mut Simulation, plan: &[Planned], only: Option<&BTreeSet<usize>>, time: Duration) {
    let (start, mut undoes) = (run.now, Undoes::new());
    for planned in plan.iter().filter(|it| only.is_none_or(|only| only.contains(&it.number))) {
        advance(run, start + planned.at, &mut undoes);
        begin(run, planned, &mut undoes);
    }
    advance(run, start + time, &mut undoes);
    undoes.sort_by_key(|(_, what, _)| what.needs_server());
    for (at, what, recorded) in undoes {
        run.act(|run| undo(run, what, at, recorded));
    }
}

fn begin(run: &mut Simulation, planned: &Planned, undoes: &mut Undoes) {
    let Planned { fault, lasts, .. } = *planned;
    run.random = Random::new(planned.seed);
    let begun = run.act(|run| (fault.begin)(run, fault.name));
    tracing::info!(number = planned.number, kind = fault.name, ?begun, at = ?run.now, "a fault");
    if matches!(begun, Begun::Done | Begun::Lasts(_)) {
        run.effects.note(fault.name);
    }
    if let Begun::Lasts(what) | Begun::Waits(what) = begun {
        let (pods, reasons) = what.counts_against(run);
        let recorded = run.fault(pods, reasons);
        undoes.push((run.now + what.lasts(lasts), what, recorded));
    }
}

/// Lets time pass, and undoes what is due.
fn advance(run: &mut Simulation, until: Duration, undoes: &mut Undoes) {
    loop {
        let (now, serves) = (run.now, run.api.is_running());
        let is_due = |(at, what, _): &mut (Duration, Undo, _)| *at <= now && (serves || !what.needs_server());
        let due: Vec<_> = undoes.extract_if(.., is_due).collect();
        for (at, what, recorded) in due {
            run.act(|run| undo(run, what, at, recorded));
        }
        if run.now >= until {
            return;
        }
        let next = undoes.iter().map(|(at, ..)| *at).filter(|at| *at > now).min();
        let next = next.map_or(until, |next| next.min(until));
        run.run(next.saturating_sub(now));
    }
}
