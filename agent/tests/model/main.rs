//! The rules of the agent and of the operator's side, played at random: agents whose clocks differ in rate, replicas
//! that stop anywhere, answers that are late or lost, pods that are deleted by force, groups that are made again.
//!
//! The agents are the product's [`Machine`](leadergroup_agent::machine::Machine). The operator's side is written down
//! here as rules over the declaration (`replica`). At each start of a program, in true time, no other program may run.
//! Each rule is broken on purpose, and the model must notice it.

#![allow(unreachable_pub, reason = "modules of one test")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod broken;
mod declaration;
mod random;
mod replica;
mod world;

use broken::Rule;
use world::World;

/// How many schedules are played without a broken rule.
fn schedules() -> u64 {
    std::env::var("LEADERGROUP_AGENT_SCHEDULES").map_or(3_000, |text| text.parse().unwrap())
}

/// At most so many until a broken rule shows.
const ENOUGH: u64 = 60_000;

#[test]
fn two_programs_never_run_at_the_same_moment() {
    let (mut starts, mut terms, mut reached, mut changes) = (0, 0, 0, 0);
    for seed in 0..schedules() {
        let mut world = World::new(seed, None);
        world.play();
        assert_eq!(world.violation, None, "seed {seed}");
        starts += world.starts;
        terms += world.terms;
        reached += world.reached();
        changes += world.changes_of_program;
    }
    eprintln!(
        "{starts} starts in {terms} terms, {reached} of which were reached; {changes} from one pod to another"
    );
    // A model in which nothing ever runs would prove nothing.
    assert!(reached * 2 > terms && changes * 4 > starts, "most terms must reach a start");
}

#[test]
fn each_rule_is_needed() {
    let unnoticed: Vec<Rule> = Rule::ALL.into_iter().filter(|rule| noticed(*rule).is_none()).collect();
    assert!(unnoticed.is_empty(), "without these rules nothing went wrong: {unnoticed:?}");
}

/// The first seed with which two programs run at the same moment without this rule.
fn noticed(rule: Rule) -> Option<u64> {
    let found = (0..ENOUGH).find(|seed| {
        let mut world = World::new(*seed, Some(rule));
        world.play();
        world.violation.is_some()
    });
    eprintln!("without {rule:?}: {}", found.map_or("not noticed".to_owned(), |seed| format!("seed {seed}")));
    found
}
