//! Each decision by itself. `tests/simulation` tries interleavings.

mod candidates;
mod cordon;
mod deletion;
mod demoted;
mod evidence;
mod failback;
mod fencing;
mod holds;
mod hooks;
mod labels;
mod ownership;
mod phases;
mod plan;
mod planned;
mod programs;
mod refusals;
mod resuming;
mod rollout;
mod situations;
mod steps;
mod switchover;

use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::api::{Declaration, DeletionPolicy, PodAt, PodRef, Reason, Role, Verdict};

const NOW: Duration = Duration::from_secs(1_000);
const GRANT: Uuid = Uuid::from_u128(7);

fn pod(name: &str) -> PodRef {
    PodRef { name: name.to_owned(), uid: format!("uid-{name}") }
}

/// As the watch shows it, so that a write can be bound to its version.
fn known(name: &str) -> PodAt {
    PodAt { pod: pod(name), version: Some("11".to_owned()) }
}

/// To be read before it is written.
fn unknown(name: &str) -> PodAt {
    pod(name).into()
}

fn member(name: &str, role: Role, verdict: Verdict) -> Member {
    Member { role, verdict, ..Member::standby(name, 5) }
}

fn declaration(token: i64, holder: Option<&str>, strip: &[&str]) -> Declaration {
    let strip = strip.iter().copied().map(pod).collect();
    let (grant, holder) = (Some(GRANT.to_string()), holder.map(pod));
    Declaration { token, grant, holder, strip, ..Declaration::default() }
}

fn row(token: i64, holder: Option<&str>, confirmed: bool) -> Row {
    let holder = holder.map(pod);
    Row {
        token,
        grant: Some(GRANT),
        pending: holder.iter().cloned().collect(),
        holder,
        confirmed,
        reason: None,
    }
}

/// The grant of a term that this replica was granted as the present owner.
const OWN: Uuid = Uuid::from_u128(1_000);

/// The same declaration and row, of a term that this replica was granted.
fn own(mut declared: Declaration, mut row: Row) -> (Declaration, Row) {
    (declared.grant, row.grant) = (Some(OWN.to_string()), Some(OWN));
    (declared, row)
}

/// a is active with token 5; b and c are healthy.
fn settled() -> World {
    World {
        members: vec![
            member("a", Role::Active, Verdict::Eligible),
            member("b", Role::Standby, Verdict::Eligible),
            member("c", Role::Standby, Verdict::Eligible),
        ],
        declared: declaration(5, Some("a"), &[]),
        ..World::default()
    }
}

fn with(verdict: Verdict) -> World {
    let mut world = settled();
    world.members[0].verdict = verdict;
    world
}

/// A group with its owner, and the effects without an outcome yet.
struct Case {
    group: Group,
    now: Duration,
    asked: Vec<(Ticket, Effect)>,
    /// Whether the test answers the dry runs before planned changes. Otherwise they succeed.
    tries: bool,
}

impl Case {
    /// Makes this replica the owner, and answers its read with this row and the declaration of the world.
    fn new(world: World, row: Row) -> Self {
        let declared = world.declared.clone();
        let mut case = Self { group: Group::new(world.clone()), now: NOW, asked: Vec::new(), tries: true };
        case.step(Event::Owned { seed: Uuid::from_u128(1_000), row: None, world });
        assert_eq!(case.effect(), Effect::Read);
        case.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
        case.tries = false;
        case.accept();
        case
    }

    /// The same, where the test answers the dry runs before planned changes.
    fn trying(world: World) -> Self {
        let mut case = Self { group: Group::new(world.clone()), now: NOW, asked: Vec::new(), tries: true };
        let declared = world.declared.clone();
        case.step(Event::Owned { seed: Uuid::from_u128(1_000), row: None, world });
        case.answer(Outcome::Read { row: Some(row(5, Some("a"), true)), declared: Some(declared) });
        case
    }

    fn stable(world: World) -> Self {
        Self::new(world, row(5, Some("a"), true))
    }

    fn step(&mut self, event: Event) {
        self.asked = self.group.step(event, self.now);
        self.accept();
    }

    /// Lets the dry run before a planned change succeed, unless the test answers it.
    fn accept(&mut self) {
        let planned = |(_, effect): &(Ticket, Effect)| matches!(effect, Effect::Try { from: Some(_), .. });
        if let Some(at) = self.asked.iter().position(planned).filter(|_| !self.tries) {
            let (ticket, _) = self.asked.remove(at);
            let world = self.group.world().clone();
            self.asked.extend(self.group.step(Event::Outcome(ticket, Outcome::Accepted, world), self.now));
        }
    }

    fn world(&mut self, world: World) {
        self.step(Event::World(world));
    }

    /// The only outstanding effect.
    fn effect(&self) -> Effect {
        assert_eq!(self.asked.len(), 1, "{:?}", self.asked);
        self.asked[0].1.clone()
    }

    /// The change that has just ended, whatever else is asked for.
    fn finished(&self) -> Finished {
        let finished = self.asked.iter().find_map(|(_, effect)| match effect {
            Effect::Finished(finished) => Some(finished.clone()),
            _ => None,
        });
        finished.expect("the change has ended")
    }

    fn answer(&mut self, outcome: Outcome) {
        let (ticket, _) = self.asked[0];
        self.step(Event::Outcome(ticket, outcome, self.group.world().clone()));
    }

    /// The world becomes this one while an outcome is awaited.
    fn meanwhile(&mut self, world: World) {
        assert_eq!(self.group.step(Event::World(world), self.now), []);
    }

    /// Answers reads with a settled row and lets time pass until the group is at rest. Panics on any other effect.
    fn rest(&mut self, asks: impl Fn(&Effect) -> bool) {
        for _ in 0..100 {
            let Some((_, effect)) = self.asked.first() else {
                let Some(wake) = self.group.wake() else { return };
                self.now = wake;
                self.step(Event::Tick);
                continue;
            };
            assert!(asks(effect), "{effect:?}");
            let declared = Some(self.group.world().declared.clone());
            self.answer(Outcome::Read { row: Some(self.group.row().clone()), declared });
        }
        panic!("it does not come to rest: {:?}", self.asked);
    }

    fn grant(&self) -> GrantRequest {
        match self.effect() {
            Effect::Grant(grant) => grant,
            other => panic!("not a grant: {other:?}"),
        }
    }

    /// Answers the verification, if there is one, by confirming the evidence.
    fn verified(&mut self, reason: Reason) -> bool {
        let asked = matches!(self.effect(), Effect::Verify(_));
        if asked {
            assert_eq!(self.effect(), Effect::Verify(pod("a")));
            self.answer(Outcome::Verified(Some(reason)));
        }
        asked
    }
}
