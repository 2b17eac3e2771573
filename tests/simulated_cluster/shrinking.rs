//! A run that fails is played again with fewer faults, until none of those that are left can be left out.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::played::{self, Failed, play};

/// The faults that are left, by their numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct Shrunk {
    pub left: BTreeSet<usize>,
    /// How often it was played.
    pub plays: usize,
    /// None of them can be left out. Otherwise the plays have not sufficed to show that.
    pub is_least: bool,
}

/// Leaves out half of the faults, then a quarter, and at last one by one, as long as the run still fails.
pub fn shrink(
    all: impl IntoIterator<Item = usize>,
    most: usize,
    mut fails: impl FnMut(&BTreeSet<usize>) -> bool,
) -> Shrunk {
    let mut left: Vec<usize> = all.into_iter().collect();
    let (mut plays, mut part) = (0, left.len().div_ceil(2));
    while !left.is_empty() {
        let (mut at, before) = (0, left.len());
        while at < left.len() {
            if plays == most {
                return Shrunk { left: left.into_iter().collect(), plays, is_least: false };
            }
            plays += 1;
            let end = left.len().min(at + part);
            let without: BTreeSet<usize> = left[..at].iter().chain(&left[end..]).copied().collect();
            if fails(&without) {
                left.drain(at..end);
            } else {
                at = end;
            }
        }
        if part == 1 && left.len() == before {
            break;
        }
        part = part.div_ceil(2);
    }
    Shrunk { left: left.into_iter().collect(), plays, is_least: true }
}

/// What a developer needs of a run that failed: how, with which faults alone, and the command that plays those.
pub fn report(seed: u64, only: Option<&BTreeSet<usize>>, failed: &Failed, most: usize) -> String {
    let planned = played::faults(seed);
    let played = planned.iter().filter(|it| only.is_none_or(|only| only.contains(&it.number)));
    let fails = |left: &BTreeSet<usize>| {
        let again = play(seed, Some(left)).err();
        again.is_some_and(|again| again.how == failed.how)
    };
    let Shrunk { left, plays, is_least } = shrink(played.map(|it| it.number), most, fails);
    let mut text = format!("seed {seed}: {}\n{}\n\n", failed.how, failed.text);
    let least = if is_least { "and without any of them it does not" } else { "and perhaps with fewer" };
    let _ = writeln!(
        text,
        "Played {plays} times more, the run fails in this way with these faults alone, {least}:"
    );
    for fault in planned.iter().filter(|it| left.contains(&it.number)) {
        let _ = writeln!(text, "  {:3}  {:7.3} s  {}", fault.number, fault.at.as_secs_f64(), fault.kind());
    }
    let numbers = left.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let _ = write!(
        text,
        "This plays exactly that:\n  LEADERGROUP_CLUSTER_SEED={seed} LEADERGROUP_CLUSTER_SEEDS=1 \
         LEADERGROUP_CLUSTER_FAULTS={numbers} LEADERGROUP_CLUSTER_LOG=info cargo test --workspace --test \
         simulated_cluster random_faults -- --nocapture"
    );
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        faults::{
            self,
            plan::{plan, with_faults},
        },
        simulation::Simulation,
    };

    #[test]
    fn what_is_needed_is_left_and_nothing_else() {
        for needed in [&[][..], &[0], &[57], &[3, 4], &[0, 29, 57], &[5, 10, 20, 40, 41]] {
            let needed: BTreeSet<usize> = needed.iter().copied().collect();
            let shrunk = shrink(0..58, usize::MAX, |left| left.is_superset(&needed));
            assert_eq!((shrunk.left, shrunk.is_least), (needed, true));
            assert!(shrunk.plays < 80, "{}", shrunk.plays);
        }
    }

    /// One of two faults suffices; without either it passes.
    #[test]
    fn one_cause_of_two_is_left() {
        let shrunk = shrink(0..9, usize::MAX, |left| left.contains(&2) || left.contains(&7));
        assert_eq!(shrunk.left.len(), 1);
    }

    #[test]
    fn it_ends_after_so_many_plays() {
        let mut played = 0;
        let shrunk = shrink(0..58, 7, |left| {
            played += 1;
            left.contains(&1) && left.contains(&50)
        });
        assert_eq!((played, shrunk.plays, shrunk.is_least), (7, 7, false));
        assert!(shrunk.left.contains(&1) && shrunk.left.contains(&50) && shrunk.left.len() < 58);
    }

    /// A violation that is planted in the check: faults of two kinds took effect in one run.
    #[test]
    fn a_run_is_reduced_to_the_two_faults_that_make_it_fail() {
        const TIME: Duration = Duration::from_secs(12);
        const SURELY: [&str; 5] = [
            "compaction",
            "a replica is killed",
            "the database is restarted",
            "the clock of the database is set",
            "a node is cordoned",
        ];
        // The first seed that plans two of them.
        let planned = |seed| {
            let plan = plan(seed, TIME, Duration::from_millis(400));
            let mut certain = plan.iter().filter(|it| SURELY.contains(&it.kind())).map(|it| it.number);
            let needed = [certain.next()?, certain.next_back()?];
            Some((seed, needed, plan))
        };
        let (seed, needed, plan) = (1..100).find_map(planned).expect("most seeds do");
        assert!(plan.len() < faults::kinds().count(), "each kind comes once at most");
        let shrunk = shrink(0..plan.len(), usize::MAX, |left| {
            let mut run = Simulation::new(seed, 1);
            with_faults(&mut run, &plan, Some(left), TIME);
            let effects = run.effects.counts();
            needed.iter().all(|number| effects.contains_key(plan[*number].kind()))
        });
        assert_eq!(shrunk.left, needed.into());
        assert!(shrunk.plays < plan.len(), "{}", shrunk.plays);
    }
}
