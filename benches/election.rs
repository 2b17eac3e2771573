//! Benchmark of the election: steady state and mass failover of many groups, without I/O.
//!
//! `cargo bench --bench election` prints a table. It shows how much of a replica's time the decisions take; the rest
//! of a failover is spent in the database and the API server.

#![allow(missing_docs)]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use leadergroup::{
    api::{Declaration, PodRef, Role, Verdict},
    election::{Effect, Event, Group, Member, Outcome, Row, World},
};
use uuid::Uuid;

const NOW: Duration = Duration::from_secs(1_000);
const SIZES: [u32; 4] = [10, 100, 1_000, 10_000];

fn pod(name: &str) -> PodRef {
    PodRef { name: name.to_owned(), uid: format!("uid-{name}") }
}

fn member(name: &str, role: Role) -> Member {
    Member { role, ..Member::standby(name, 5) }
}

fn world() -> World {
    let declared = Declaration {
        token: 5,
        grant: Some(Uuid::nil().to_string()),
        holder: Some(pod("a")),
        ..Declaration::default()
    };
    let members = vec![member("a", Role::Active), member("b", Role::Standby), member("c", Role::Standby)];
    World { members, declared, ..World::default() }
}

/// A group of three pods that this replica owns; the first pod is active.
fn settled(seed: u32) -> Group {
    let world = world();
    let declared = Some(world.declared.clone());
    let row = Row {
        token: 5,
        grant: Some(Uuid::nil()),
        holder: Some(pod("a")),
        confirmed: true,
        pending: vec![pod("a")],
        reason: None,
    };
    let mut group = Group::new(world.clone());
    let asked = group
        .step(Event::Owned { seed: Uuid::from_u128(u128::from(seed)), row: None, world: world.clone() }, NOW);
    for (ticket, _) in asked {
        let outcome = Outcome::Read { row: Some(row.clone()), declared: declared.clone() };
        group.step(Event::Outcome(ticket, outcome, world.clone()), NOW);
    }
    group
}

/// Makes the active pod silent and answers every effect at once until the next pod is active. Returns the number of
/// steps.
fn fail_over(group: &mut Group) -> u32 {
    let mut world = group.world().clone();
    world.members[0].verdict = Verdict::Silent;
    let mut asked = VecDeque::from(group.step(Event::World(world.clone()), NOW));
    let mut steps = 1;
    while let Some((ticket, effect)) = asked.pop_front() {
        let outcome = match effect {
            Effect::Grant(grant) => Outcome::Granted { token: grant.expected + 1 },
            Effect::Declare { .. } => Outcome::Declared,
            Effect::Strip { .. } => Outcome::Stripped,
            Effect::Promote { .. } => {
                (world.members[0].role, world.members[1].role) = (Role::Standby, Role::Active);
                world.members[1].stamp = Some(group.declared().token);
                world.declared = group.declared().clone();
                Outcome::Promoted
            }
            Effect::Confirm { .. } => Outcome::Confirmed,
            Effect::Finished(_) => return steps,
            // Stamping the standbys, in the background.
            _ => continue,
        };
        asked.extend(group.step(Event::Outcome(ticket, outcome, world.clone()), NOW));
        steps += 1;
    }
    steps
}

fn main() {
    println!("{:>8}  {:>16}  {:>18}  {:>14}", "groups", "idle step, ns", "mass failover, ms", "each, µs");
    for size in SIZES {
        let mut groups: Vec<Group> = (0..size).map(settled).collect();
        let began = Instant::now();
        for group in &mut groups {
            assert!(group.step(Event::Tick, NOW).is_empty(), "a settled group has nothing to do");
        }
        let idle = began.elapsed() / size;
        let began = Instant::now();
        for group in &mut groups {
            assert!(fail_over(group) >= 5, "a failover takes five steps");
            assert_eq!(group.holder(), Some(&pod("b")));
        }
        let all = began.elapsed();
        let (milliseconds, each) = (all.as_secs_f64() * 1e3, all.as_secs_f64() * 1e6 / f64::from(size));
        println!("{size:>8}  {:>16}  {milliseconds:>18.2}  {each:>14.1}", idle.as_nanos());
    }
}
