//! Each decision by itself. `tests/simulation` tries interleavings.

mod candidates;
mod cordon;
mod failback;
mod planned;
mod rollout;
mod switchover;

use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::api::{Declaration, OnDelete, PodAt, PodRef, Reason, Role};

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

fn member(name: &str, role: Role, standing: Standing) -> Member {
    Member {
        pod: pod(name),
        node: Some(format!("node-{name}")),
        version: "11".to_owned(),
        role,
        stamp: Some(5),
        stamped_by_us: true,
        leaving: false,
        priority: 0,
        fencing_fits: true,
        standing,
        created: 0,
        revision: None,
        workload: None,
    }
}

fn declaration(token: i64, holder: Option<&str>, strip: &[&str]) -> Declaration {
    let strip = strip.iter().copied().map(pod).collect();
    Declaration { token, grant: Some(GRANT.to_string()), holder: holder.map(pod), strip, switchover: None }
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
            member("a", Role::Active, Standing::Eligible),
            member("b", Role::Standby, Standing::Eligible),
            member("c", Role::Standby, Standing::Eligible),
        ],
        declared: declaration(5, Some("a"), &[]),
        ..World::default()
    }
}

fn with(standing: Standing) -> World {
    let mut world = settled();
    world.members[0].standing = standing;
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

#[test]
fn each_reason_replaces_the_holder_and_watch_evidence_is_confirmed_first() {
    for (standing, reason, asks) in [
        (Standing::Silent, Reason::Silent, false),
        (Standing::Failing(Reason::ProbeRefused), Reason::ProbeRefused, false),
        (Standing::Failing(Reason::ContainerRestarted), Reason::ContainerRestarted, false),
        (Standing::Failing(Reason::PodNotReady), Reason::PodNotReady, true),
        (Standing::Failing(Reason::ContainerTerminated), Reason::ContainerTerminated, true),
        (Standing::Ended(Reason::PodDeleted), Reason::PodDeleted, false),
        (Standing::Ended(Reason::PodFinished), Reason::PodFinished, true),
        (Standing::Ended(Reason::DisruptionTarget), Reason::DisruptionTarget, true),
    ] {
        let mut case = Case::stable(with(standing));
        assert_eq!(case.verified(reason), asks, "{reason}");
        let grant = case.grant();
        assert_eq!((grant.holder, grant.reason), (pod("b"), reason));
        assert_eq!((grant.expected, grant.floor), (5, 5));
    }
    let mut gone = settled();
    gone.members.remove(0);
    let mut case = Case::stable(gone);
    assert!(case.verified(Reason::PodDeleted));
    assert_eq!(case.grant().reason, Reason::PodDeleted);
}

#[test]
fn without_evidence_against_it_a_holder_stays() {
    for standing in [Standing::Eligible, Standing::Unproven] {
        assert!(Case::stable(with(standing)).asked.is_empty(), "{standing:?}");
    }
    let mut case = Case::stable(with(Standing::Failing(Reason::PodNotReady)));
    case.answer(Outcome::Verified(None));
    assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
}

#[test]
fn a_restart_during_the_read_counts_as_a_crash() {
    let ended = Reason::ContainerTerminated;
    let mut case = Case::stable(with(Standing::Failing(ended)));
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    // The read shows a running container, but a new one.
    case.meanwhile(with(Standing::Failing(Reason::ContainerRestarted)));
    case.answer(Outcome::Verified(None));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), ended));
    // The crash still counts if the new container is ready before the outcome of the read.
    let mut case = Case::stable(with(Standing::Failing(ended)));
    case.meanwhile(with(Standing::Failing(Reason::ContainerRestarted)));
    case.meanwhile(settled());
    case.answer(Outcome::Verified(None));
    assert_eq!(case.grant().holder, pod("b"));
    // Without a successor, it stays.
    let alone = |standing| {
        let mut world = with(standing);
        world.members.truncate(1);
        world
    };
    let mut case = Case::stable(alone(Standing::Ended(Reason::PodDeleted)));
    case.meanwhile(alone(Standing::Failing(Reason::ContainerRestarted)));
    case.answer(Outcome::Verified(None));
    assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
}

#[test]
fn only_a_pod_with_fresh_evidence_becomes_the_successor() {
    for standing in [Standing::Unproven, Standing::Silent, Standing::Failing(Reason::PodNotReady)] {
        let mut world = with(Standing::Silent);
        (world.members[1].standing, world.members[2].standing) = (standing, standing);
        assert!(Case::stable(world).asked.is_empty(), "{standing:?}");
    }
}

#[test]
fn the_successor_is_on_another_node_than_a_silent_holder_and_else_the_oldest() {
    let mut world = with(Standing::Silent);
    let node = world.members[0].node.clone();
    world.members[1].node = node;
    world.members[2].created = 9;
    assert_eq!(Case::stable(world.clone()).grant().holder, pod("c"));
    world.members[0].standing = Standing::Failing(Reason::ProbeRefused);
    assert_eq!(Case::stable(world).grant().holder, pod("b"));
}

#[test]
fn a_holder_that_ended_without_a_successor_frees_the_lock() {
    let mut world = with(Standing::Ended(Reason::PodDeleted));
    world.members.truncate(1);
    let mut case = Case::stable(world);
    assert!(case.verified(Reason::PodDeleted));
    assert_eq!(case.effect(), Effect::Vacate { token: 5 });
    case.answer(Outcome::Vacated);
    assert!(matches!(&case.asked[0].1, Effect::Finished(finished) if finished.to.is_none()));
    assert_eq!(case.group.holder(), None);
}

#[test]
fn the_fence_of_an_active_pod_is_not_left_out_because_the_watch_has_lost_sight_of_it() {
    // The promotion of a under the declared term is late.
    let mut world = settled();
    world.declared = declaration(6, Some("a"), &["b"]);
    let mut case = Case::new(world, row(6, Some("a"), false));
    assert_eq!(case.grant().holder, pod("a"));
    case.answer(Outcome::Granted { token: 7 });
    case.answer(Outcome::Stamped(Vec::new()));
    assert!(matches!(case.effect(), Effect::Strip { token: 6, .. }));
    // The watch begins again with a list from the past.
    let mut past = case.group.world().clone();
    past.members.clear();
    case.meanwhile(past);
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("a")));
}

#[test]
fn a_release_whose_answer_was_lost_is_repeated_until_its_result_is_known() {
    let mut world = with(Standing::Ended(Reason::PodDeleted));
    world.members.truncate(1);
    let mut case = Case::stable(world);
    assert!(case.verified(Reason::PodDeleted));
    case.answer(Outcome::Unknown);
    // The pod comes back. The release may still be carried out, so the lock is not its own yet.
    case.world(settled());
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    for _ in 0..2 {
        case.now = case.group.wake().expect("it asks again");
        case.step(Event::Tick);
        assert_eq!(case.effect(), Effect::Vacate { token: 5 });
        case.answer(Outcome::Failed);
        assert_eq!(*case.group.phase(), Phase::Vacating);
    }
    case.now = case.group.wake().expect("it asks again");
    case.step(Event::Tick);
    case.answer(Outcome::Vacated);
    assert_eq!(case.group.holder(), None);
}

#[test]
fn the_lock_delay_waits_after_an_unclean_end_only() {
    let delayed = |mut world: World| {
        world.policy.lock_delay = Duration::from_secs(3);
        Case::stable(world)
    };
    let mut case = delayed(with(Standing::Silent));
    assert!(case.asked.is_empty());
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(3)));
    case.now += Duration::from_secs(3);
    case.step(Event::Tick);
    assert_eq!(case.grant().reason, Reason::Silent);
    assert_eq!(delayed(with(Standing::Ended(Reason::PodDeleted))).grant().reason, Reason::PodDeleted);
}

#[test]
fn the_lock_delay_of_a_new_holder_begins_with_its_own_failure() {
    let mut world = with(Standing::Silent);
    world.policy.lock_delay = Duration::from_secs(3);
    let mut case = Case::stable(world.clone());
    case.now += Duration::from_secs(3);
    case.step(Event::Tick);
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped, Outcome::Promoted] {
        case.answer(outcome);
    }
    assert_eq!(case.effect(), Effect::Confirm { token: 6 });
    // The answer is lost, and then the new holder fails.
    let declared = case.group.declared().clone();
    (world.members[0].role, world.members[1].role) = (Role::Standby, Role::Active);
    world.members.iter_mut().for_each(|member| member.stamp = Some(6));
    (world.members[1].standing, world.declared) = (Standing::Silent, declared);
    case.meanwhile(world);
    case.answer(Outcome::Failed);
    case.now = case.group.wake().expect("it confirms again");
    case.step(Event::Tick);
    case.answer(Outcome::Confirmed);
    assert_eq!((case.asked.len(), case.finished().token), (1, 6));
    assert_eq!(case.group.wake(), Some(case.now + Duration::from_secs(3)));
}

#[test]
fn the_lock_delay_of_a_holder_that_another_replica_chose_begins_with_its_own_failure() {
    let mut world = with(Standing::Silent);
    world.policy.lock_delay = Duration::from_secs(3);
    let mut case = Case::stable(world.clone());
    case.now += Duration::from_secs(3);
    case.step(Event::Tick);
    // Another replica has replaced a by c meanwhile, and now c is silent.
    case.answer(Outcome::Rejected(Rejection::Outdated));
    (world.members[0].role, world.members[2].role) = (Role::Standby, Role::Active);
    world.members.iter_mut().for_each(|member| member.stamp = Some(6));
    world.members[2].standing = Standing::Silent;
    world.declared = declaration(6, Some("c"), &[]);
    case.world(world.clone());
    case.now = case.group.wake().expect("it reads again");
    case.step(Event::Tick);
    case.answer(Outcome::Read { row: Some(row(6, Some("c"), true)), declared: Some(world.declared) });
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    assert_eq!(case.group.wake(), Some(case.now + Duration::from_secs(3)));
}

#[test]
fn a_pause_stops_decisions_and_not_a_change_under_way() {
    let mut world = with(Standing::Silent);
    world.policy.paused = true;
    assert!(Case::stable(world.clone()).asked.is_empty());
    let mut case = Case::stable(with(Standing::Silent));
    case.meanwhile(world.clone());
    case.answer(Outcome::Granted { token: 6 });
    assert!(matches!(case.effect(), Effect::Declare { .. }));
    world.members.iter_mut().for_each(|member| member.role = Role::None);
    world.declared = Declaration::default();
    let case = Case::new(world, Row::default());
    assert!(matches!(case.effect(), Effect::Stamp { .. }), "no pod is elected");
}

#[test]
fn a_crash_that_a_read_cannot_refute_waits_for_the_pause_and_for_the_delay_as_any_other() {
    // It crashed while it was read, which would be sufficient alone.
    let waits = |policy: &dyn Fn(&mut Policy)| {
        let mut case = Case::stable(with(Standing::Failing(Reason::ContainerTerminated)));
        assert_eq!(case.effect(), Effect::Verify(pod("a")));
        let mut world = with(Standing::Failing(Reason::ContainerRestarted));
        policy(&mut world.policy);
        case.meanwhile(world);
        case.answer(Outcome::Verified(None));
        case.asked.is_empty()
    };
    assert!(waits(&|policy| policy.paused = true));
    assert!(waits(&|policy| policy.lock_delay = Duration::from_secs(3)));
    assert!(!waits(&|_| {}), "nothing else delays it");
}

#[test]
fn a_pause_that_comes_while_the_holder_is_read_holds_until_it_is_lifted() {
    for reason in [Reason::PodNotReady, Reason::PodFinished] {
        let standing = match reason {
            Reason::PodFinished => Standing::Ended(reason),
            reason => Standing::Failing(reason),
        };
        for alone in [false, true] {
            let mut world = with(standing);
            let mut case = Case::stable(world.clone());
            if alone {
                world.members.truncate(1);
            }
            assert_eq!(case.effect(), Effect::Verify(pod("a")));
            world.policy.paused = true;
            case.meanwhile(world.clone());
            case.answer(Outcome::Verified(Some(reason)));
            case.rest(|effect| *effect == Effect::Read);
            assert_eq!((case.group.phase(), case.group.wake()), (&Phase::Stable, None), "{reason}, {alone}");
            world.policy.paused = false;
            case.world(world);
            let waits = alone && reason == Reason::PodNotReady;
            assert_eq!(case.asked.is_empty(), waits, "{reason}, {alone}");
        }
    }
    // An unfinished term is already in the middle of a change.
    let mut world = with(Standing::Failing(Reason::PodNotReady));
    world.policy.paused = true;
    let mut case = Case::new(world, row(6, Some("a"), false));
    assert!(case.verified(Reason::PodNotReady));
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn the_delay_is_skipped_only_if_the_read_shows_an_end_too() {
    let delay = Duration::from_secs(3);
    let mut ended = with(Standing::Ended(Reason::DisruptionTarget));
    ended.policy.lock_delay = delay;
    let mut unwell = ended.clone();
    unwell.members[0].standing = Standing::Failing(Reason::PodNotReady);
    for after in [&ended, &unwell] {
        let mut case = Case::stable(ended.clone());
        assert_eq!(case.effect(), Effect::Verify(pod("a")));
        case.meanwhile(after.clone());
        case.answer(Outcome::Verified(Some(Reason::PodNotReady)));
        assert!(case.asked.is_empty(), "{:?}", case.asked);
        // The change is decided at the latest when the delay is over, without any further event.
        let mut turns = 0;
        while !matches!(case.asked.first(), Some((_, Effect::Grant(_)))) {
            turns += 1;
            assert!(turns < 100, "it does not come to rest");
            match case.asked.first().cloned() {
                None => {
                    case.now = case.group.wake().expect("it waits");
                    case.step(Event::Tick);
                }
                Some((_, Effect::Read)) => case.answer(Outcome::Read {
                    row: Some(row(5, Some("a"), true)),
                    declared: Some(after.declared.clone()),
                }),
                Some(_) => assert!(case.verified(Reason::PodNotReady)),
            }
        }
        assert!(case.now >= NOW + delay && case.now < NOW + delay * 3, "{:?}", case.now);
    }
    let mut case = Case::stable(ended);
    assert!(case.verified(Reason::PodDeleted));
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn a_label_is_not_put_back_once_the_group_is_paused() {
    let mut world = settled();
    world.members[0].role = Role::None;
    let mut case = Case::stable(world.clone());
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    world.policy.paused = true;
    case.meanwhile(world.clone());
    case.answer(Outcome::Verified(None));
    assert!(case.asked.is_empty() && *case.group.phase() == Phase::Stable);
    world.policy.paused = false;
    case.world(world);
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
}

#[test]
fn a_label_is_not_put_back_once_an_older_group_selects_the_pods() {
    let mut world = settled();
    world.members[0].role = Role::None;
    let mut case = Case::stable(world.clone());
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    world.obstacle = Some(Reason::SelectedByOtherGroup);
    case.meanwhile(world);
    case.answer(Outcome::Verified(None));
    assert!(case.asked.is_empty() && *case.group.phase() == Phase::Stable);
}

#[test]
fn a_holder_that_recovers_under_an_obstacle_has_the_whole_lock_delay_the_next_time() {
    let obstructed = |mut world: World, obstacle: bool| {
        world.policy.lock_delay = Duration::from_secs(3);
        world.obstacle = obstacle.then_some(Reason::SelectedByOtherGroup);
        world
    };
    let mut case = Case::stable(obstructed(with(Standing::Silent), false));
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(3)));
    case.world(obstructed(settled(), true));
    case.now += Duration::from_secs(10);
    case.world(obstructed(with(Standing::Silent), false));
    assert!(case.asked.is_empty());
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(13)));
}

#[test]
fn a_pod_that_has_left_the_group_is_not_promoted_after_a_recheck() {
    let mut world = settled();
    let (declared, held) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    world.declared = declared;
    world.members[0].role = Role::Standby;
    let mut case = Case::new(world.clone(), held.clone());
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("b")));
    let (declared, held) = (Some(world.declared.clone()), Some(held));
    // Whether it was fenced off in the meantime cannot be seen any more.
    world.members.remove(1);
    case.meanwhile(world);
    case.answer(Outcome::Rechecked { version: Some("12".into()), declared, row: held });
    assert!(!matches!(case.effect(), Effect::Promote { .. }), "{:?}", case.asked);
}

#[test]
fn a_term_of_another_database_with_the_same_token_is_fenced_off() {
    // In this replica's database token 5 is vacant. Another one granted 5 to b, and that was declared.
    let mut world = settled();
    world.declared = declaration(5, Some("b"), &[]);
    world.members.iter_mut().for_each(|member| member.role = Role::Standby);
    world.members[1].stamp = None;
    world.members[1].standing = Standing::Unproven;
    let mut case = Case::new(world, row(5, None, true));
    assert_eq!(case.grant().holder, pod("a"));
    case.answer(Outcome::Granted { token: 6 });
    assert_eq!(case.effect(), Effect::Stamp { token: 5, pods: vec![known("b")] });
}

#[test]
fn an_outcome_for_an_earlier_election_of_the_same_group_is_ignored() {
    let adopted = |seed| {
        let mut case =
            Case { group: Group::new(with(Standing::Silent)), now: NOW, asked: Vec::new(), tries: false };
        let (row, world) = (Some(row(5, Some("a"), true)), with(Standing::Silent));
        case.step(Event::Owned { seed: Uuid::from_u128(seed), row, world });
        assert!(matches!(case.effect(), Effect::Grant(_)));
        case
    };
    let (ticket, _) = adopted(1_000).asked[0];
    // The group disappeared from the cache and came back, and so a new election began.
    let mut after = adopted(2_000);
    after.step(Event::Outcome(ticket, Outcome::Granted { token: 6 }, with(Standing::Silent)));
    assert!(matches!(after.group.phase(), Phase::Granting(_)), "{:?}", after.group.phase());
}

#[test]
fn an_obstacle_prevents_every_promotion() {
    let mut world = with(Standing::Silent);
    world.obstacle = Some(Reason::SelectedByOtherGroup);
    assert!(Case::stable(world).asked.is_empty());
}

#[test]
fn an_obstacle_suspends_a_verification_and_an_unfinished_term() {
    let obstacle = Some(Reason::SelectedByOtherGroup);
    let mut world = with(Standing::Failing(Reason::PodNotReady));
    let mut case = Case::stable(world.clone());
    world.obstacle = obstacle;
    case.meanwhile(world.clone());
    case.answer(Outcome::Verified(Some(Reason::PodNotReady)));
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    world.obstacle = None;
    case.world(world);
    assert!(case.verified(Reason::PodNotReady));
    assert_eq!(case.grant().holder, pod("b"));
    // A replica that is gone has granted, and perhaps declared, the term: no pod is promoted, whether the holder is
    // healthy or not.
    for declared in [5, 6] {
        for standing in [Standing::Eligible, Standing::Failing(Reason::PodNotReady), Standing::Silent] {
            let mut world = settled();
            world.members[1].standing = standing;
            if declared == 6 {
                world.declared = declaration(6, Some("b"), &["a"]);
            }
            world.obstacle = obstacle;
            let mut case = Case::new(world.clone(), row(6, Some("b"), false));
            assert!(case.asked.is_empty(), "{:?}", case.asked);
            case.now += Duration::from_mins(1);
            case.step(Event::Tick);
            assert!(case.asked.is_empty() && case.group.wake().is_none(), "{:?}", case.asked);
            world.obstacle = None;
            case.world(world);
            assert_eq!(case.asked.len(), 1, "it continues");
        }
    }
    // A term whose holder was promoted already only has to be confirmed.
    let mut world = settled();
    (world.members[0].role, world.members[1].role) = (Role::Standby, Role::Active);
    world.members[1].stamp = Some(6);
    world.declared = declaration(6, Some("b"), &["a"]);
    world.obstacle = obstacle;
    assert_eq!(Case::new(world, row(6, Some("b"), false)).effect(), Effect::Confirm { token: 6 });
}

#[test]
fn strays_are_stripped_before_anything_else() {
    let mut world = with(Standing::Silent);
    world.members[2].role = Role::Active;
    let mut case = Case::stable(world);
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("c")] });
    case.meanwhile(with(Standing::Silent));
    case.answer(Outcome::Stripped);
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn a_lost_label_is_put_back_after_a_second_look_and_under_a_new_term() {
    for (role, stamp, fencing_fits) in [
        (Role::None, Some(5), false),
        (Role::Standby, Some(5), true),
        (Role::Active, None, false),
        (Role::Active, Some(5), false),
    ] {
        let mut world = settled();
        let member = &mut world.members[0];
        (member.role, member.stamp, member.fencing_fits) = (role, stamp, fencing_fits);
        let mut case = Case::stable(world.clone());
        assert_eq!(case.effect(), Effect::Verify(pod("a")));
        case.answer(Outcome::Verified(None));
        assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::LabelLost));
        case.answer(Outcome::Granted { token: 6 });
        // The same pod: no other holder has to be fenced.
        assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.strip.is_empty()));
        // The watch lagged behind.
        let mut case = Case::stable(world.clone());
        case.meanwhile(settled());
        case.answer(Outcome::Verified(None));
        assert!(case.asked.is_empty() && *case.group.phase() == Phase::Stable);
        let mut case = Case::stable(world);
        case.answer(Outcome::Verified(Some(Reason::PodDeleted)));
        assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
    }
    // Without evidence no pod is promoted, and this is not tried repeatedly.
    let mut world = with(Standing::Unproven);
    world.members[0].role = Role::None;
    let mut case = Case::stable(world.clone());
    assert!(case.asked.is_empty());
    world.members[0].standing = Standing::Eligible;
    case.group.relabel_after = NOW + Duration::from_secs(1);
    case.world(world);
    assert_eq!((case.asked.len(), case.group.wake()), (0, Some(NOW + Duration::from_secs(1))));
}

/// Term 6 of b was declared but not confirmed; then b failed, and c becomes the holder.
fn overtaken(declared: &str) -> Case {
    let mut world = settled();
    world.declared = declaration(6, Some(declared), &["a"]);
    world.members[0].role = Role::Standby;
    world.members[1].standing = Standing::Silent;
    world.members[0].standing = Standing::Unproven;
    Case::new(world, row(6, Some("b"), false))
}

#[test]
fn the_holder_of_a_term_that_was_not_confirmed_is_fenced_off_before_the_next_is_declared() {
    let mut case = overtaken("b");
    assert_eq!(case.grant().holder, pod("c"));
    case.answer(Outcome::Granted { token: 7 });
    let fence = Effect::Strip { token: 6, pods: vec![known("b")] };
    assert_eq!(case.effect(), fence);
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.token == 7));
    case.answer(Outcome::Declared);
    assert!(matches!(case.effect(), Effect::Strip { token: 7, pods } if pods.contains(&known("b"))));
    // A healthy pod keeps the role if it was promoted in the meantime.
    for (role, active) in [(Role::Active, true), (Role::Standby, false)] {
        let mut case = overtaken("b");
        let mut world = case.group.world().clone();
        world.members[1].standing = Standing::Unproven;
        case.meanwhile(world.clone());
        case.answer(Outcome::Granted { token: 7 });
        assert_eq!(case.effect(), Effect::Stamp { token: 6, pods: vec![known("b")] });
        (world.members[1].role, world.members[1].stamp) = (role, Some(6));
        case.meanwhile(world.clone());
        let mut failed =
            Case { group: case.group.clone(), now: NOW, asked: case.asked.clone(), tries: case.tries };
        case.answer(Outcome::Stamped(Vec::new()));
        if active {
            assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 7));
        } else {
            assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.token == 7));
        }
        world.members[1] = member("b", role, Standing::Silent);
        failed.meanwhile(world);
        failed.answer(Outcome::Stamped(Vec::new()));
        assert_eq!(failed.effect(), fence);
    }
    // If the former holder cannot be fenced, no other pod is declared.
    let mut case = overtaken("b");
    case.answer(Outcome::Granted { token: 7 });
    case.answer(Outcome::Failed);
    assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
    // A new owner fences it, too.
    let world = case.group.world().clone();
    let mut case = Case::new(world, row(7, Some("c"), false));
    case.answer(Outcome::Granted { token: 8 });
    assert_eq!(case.effect(), fence);
}

#[test]
fn a_holder_that_carries_its_own_stamp_without_the_label_is_not_promoted_under_that_term() {
    let mut world = settled();
    let (declared, row) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    world.declared = declared;
    world.members[0].role = Role::Standby;
    let unspent = Case::new(world.clone(), row.clone());
    assert!(matches!(unspent.effect(), Effect::Strip { token: 6, .. }));
    world.members[1].stamp = Some(6);
    let case = Case::new(world.clone(), row.clone());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
    // The same if only the recheck shows it.
    let mut case = unspent;
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("b")));
    let (declared, row) = (Some(world.declared.clone()), Some(row));
    case.meanwhile(world);
    case.answer(Outcome::Rechecked { version: Some("12".into()), declared, row });
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
}

#[test]
fn a_promotion_that_met_another_version_is_repeated_only_while_the_term_stands() {
    let mut world = settled();
    let (declared, held) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    world.declared = declared.clone();
    world.members[0].role = Role::Standby;
    let resumed = || {
        let mut case = Case::new(world.clone(), held.clone());
        case.answer(Outcome::Stripped);
        assert_eq!(case.effect(), Effect::Recheck(pod("b")));
        case
    };
    for (declared, row, stands) in [
        (declared.clone(), held.clone(), true),
        (declaration(7, Some("c"), &["b"]), held.clone(), false),
        (declared.clone(), row(7, Some("c"), false), false),
    ] {
        let mut case = resumed();
        case.answer(Outcome::Rechecked {
            version: Some("12".into()),
            declared: Some(declared),
            row: Some(row),
        });
        if stands {
            let (token, version) = (6, "12".to_owned());
            assert_eq!(case.effect(), Effect::Promote { token, pod: pod("b"), version });
            case.answer(Outcome::Conflict);
            assert_eq!(case.effect(), Effect::Recheck(pod("b")));
        } else {
            assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
        }
    }
}

#[test]
fn a_late_grant_is_not_continued_if_its_holder_has_failed() {
    let mut case = Case::stable(with(Standing::Silent));
    let grant = case.grant();
    case.answer(Outcome::Unknown);
    case.now = case.group.wake().expect("it waits");
    case.step(Event::Tick);
    assert_eq!(case.grant(), grant, "the identical request");
    let mut world = with(Standing::Silent);
    world.members[1].standing = Standing::Failing(Reason::ProbeRefused);
    case.meanwhile(world);
    case.answer(Outcome::Granted { token: 6 });
    assert_eq!((case.grant().holder, case.grant().expected), (pod("c"), 6));
}

#[test]
fn a_silent_holder_that_answers_again_before_it_loses_its_label_keeps_the_role() {
    // In a group of two, the next holder is the one before the last.
    for (declared, strip) in [(false, &[][..]), (true, &[]), (false, &["b"]), (true, &["b"])] {
        let silent = World { declared: declaration(5, Some("a"), strip), ..with(Standing::Silent) };
        let mut case = Case::stable(silent.clone());
        assert_eq!(case.grant().holder, pod("b"));
        let mut answer = Outcome::Granted { token: 6 };
        if declared {
            case.answer(answer);
            answer = Outcome::Declared;
        }
        case.meanwhile(World { members: settled().members, ..silent });
        case.answer(answer);
        assert_eq!((case.grant().holder, case.grant().expected), (pod("a"), 6), "{declared}, {strip:?}");
        case.answer(Outcome::Granted { token: 7 });
        let finished = loop {
            match case.asked[0].1.clone() {
                Effect::Finished(finished) => break finished,
                Effect::Stamp { .. } => {
                    let mut stamped = case.group.world().clone();
                    stamped.members[1].stamp = Some(case.group.declared().token);
                    case.meanwhile(stamped);
                    case.answer(Outcome::Stamped(Vec::new()));
                }
                Effect::Declare { .. } => case.answer(Outcome::Declared),
                Effect::Strip { pods, .. } => {
                    assert!(pods.iter().all(|stripped| stripped.pod != pod("a")), "{pods:?}");
                    case.answer(Outcome::Stripped);
                }
                Effect::Promote { .. } => case.answer(Outcome::Promoted),
                Effect::Confirm { .. } => case.answer(Outcome::Confirmed),
                other => panic!("{other:?}"),
            }
        };
        // No other pod was the holder, so none has failed.
        assert_eq!((finished.token, finished.from, finished.to), (7, Some(pod("a")), Some(pod("a"))));
        assert!(!case.group.lapses.has("uid-a") && !case.group.lapses.has("uid-b"));
    }
}

#[test]
fn a_silent_holder_that_answers_again_keeps_the_role_although_the_answer_to_the_declaration_was_lost() {
    let mut case = Case::stable(with(Standing::Silent));
    case.answer(Outcome::Granted { token: 6 });
    assert!(matches!(case.effect(), Effect::Declare { .. }));
    let (row, declared) = (case.group.row().clone(), case.group.declared().clone());
    case.answer(Outcome::Failed);
    case.meanwhile(World { declared: declared.clone(), ..settled() });
    case.now = case.group.wake().expect("it reads again");
    case.step(Event::Tick);
    case.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
    assert_eq!((case.grant().holder, case.grant().expected), (pod("a"), 6));
}

/// a is active with token 5. Then b and c were holders, one after the other, and neither was promoted. The row and the
/// declaration are read.
fn two_terms_in_vain(standing: Standing) -> Case {
    let (declared, mut granted) = own(declaration(7, Some("c"), &["a", "b"]), row(7, Some("c"), false));
    granted.pending = vec![pod("a"), pod("b"), pod("c")];
    granted.reason = Some(Reason::Silent);
    Case::new(World { declared, ..with(standing) }, granted)
}

#[test]
fn a_silent_holder_that_answers_again_keeps_the_role_although_two_others_were_granted_it() {
    let case = two_terms_in_vain(Standing::Eligible);
    assert_eq!((case.grant().holder, case.grant().expected), (pod("a"), 7));
}

#[test]
fn the_former_holder_of_an_unfinished_term_is_the_pod_that_was_active() {
    let mut case = two_terms_in_vain(Standing::Silent);
    assert_eq!(case.effect(), Effect::Strip { token: 7, pods: vec![known("a"), known("b")] });
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("c")));
    let (row, declared) = (case.group.row().clone(), case.group.declared().clone());
    case.answer(Outcome::Rechecked {
        version: Some("12".to_owned()),
        declared: Some(declared),
        row: Some(row),
    });
    assert!(matches!(case.effect(), Effect::Promote { token: 7, .. }), "{:?}", case.asked);
    case.answer(Outcome::Promoted);
    case.answer(Outcome::Confirmed);
    assert_eq!(case.finished().from, Some(pod("a")));
    assert!(case.group.lapses.has("uid-a") && !case.group.lapses.has("uid-b"));
}

/// How often the group asks for something in the background within a minute, if that is always answered in this way.
fn asks_in_a_minute(case: &mut Case, answer: &Outcome) -> usize {
    let (mut asked, until) = (0, case.now + Duration::from_mins(1));
    loop {
        if let Some((_, effect)) = case.asked.first() {
            assert!(matches!(effect, Effect::Stamp { .. } | Effect::Try { .. }), "{effect:?}");
            asked += 1;
            case.answer(answer.clone());
        }
        match case.group.wake().filter(|at| *at < until) {
            Some(at) => case.now = at,
            None => return asked,
        }
        case.step(Event::Tick);
    }
}

#[test]
fn the_pauses_between_stamps_that_fail_grow_until_one_succeeds() {
    let mut world = settled();
    world.members[1].stamp = Some(4);
    let mut case = Case::stable(world.clone());
    let asked = asks_in_a_minute(&mut case, &Outcome::Failed);
    assert!((10..=15).contains(&asked), "{asked}");
    case.now = case.group.wake().expect("it tries again");
    case.step(Event::Tick);
    case.answer(Outcome::Stamped(Vec::new()));
    assert_eq!(case.group.wake(), Some(case.now + Duration::from_secs(1)), "another pod is stamped soon");
    // A dry run in the background, which is due when the pause after a refusal ends.
    world.members[1].stamp = Some(5);
    let mut case = Case::stable(world);
    let b = case.group.member("uid-b").expect("b").clone();
    case.group.refusals.set_time(Duration::ZERO);
    case.group.refusals.promotion(&b, "a policy".to_owned());
    case.step(Event::Tick);
    assert!(matches!(case.effect(), Effect::Try { .. }), "{:?}", case.asked);
    let asked = asks_in_a_minute(&mut case, &Outcome::Failed);
    assert!((10..=15).contains(&asked), "{asked}");
}

#[test]
fn a_standby_whose_stamp_is_refused_is_stamped_again_after_pauses_that_grow() {
    let mut world = settled();
    world.members[1].stamp = Some(4);
    let mut case = Case::stable(world);
    let refused = Outcome::Stamped(vec![(pod("b"), "a policy".to_owned())]);
    // After 0, 5, 15 and 35 s.
    assert_eq!(asks_in_a_minute(&mut case, &refused), 4);
    // c is stamped meanwhile.
    let mut world = case.group.world().clone();
    world.members[2].stamp = Some(4);
    case.now += Duration::from_secs(1);
    case.world(world);
    assert_eq!(case.effect(), Effect::Stamp { token: 5, pods: vec![known("c")] });
}

#[test]
fn unstamped_standbys_are_stamped_in_the_background() {
    let mut world = settled();
    world.members[1].stamp = Some(4);
    world.members[2].stamped_by_us = false;
    let mut case = Case::stable(world.clone());
    assert_eq!(case.effect(), Effect::Stamp { token: 5, pods: vec![known("b"), known("c")] });
    let mut forged = settled();
    forged.members[1].fencing_fits = false;
    assert_eq!(Case::stable(forged).effect(), Effect::Stamp { token: 5, pods: vec![known("b")] });
    case.answer(Outcome::Failed);
    assert!(case.asked.is_empty(), "not again at once");
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(1)));
    // It delays nothing.
    world.members[0].standing = Standing::Silent;
    case.world(world);
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn a_token_exceeds_every_declaration_and_stamp_but_absurd_ones() {
    let mut world = with(Standing::Silent);
    world.members[1].stamp = Some(90);
    world.members[2].stamp = Some((1 << 53) - 1);
    assert_eq!(Case::stable(world.clone()).grant().floor, 90);
    world.members[1].stamp = None;
    assert_eq!(Case::stable(world).grant().floor, 5);
}

#[test]
fn a_change_goes_through_five_steps_in_this_order() {
    let mut case = Case::stable(with(Standing::Silent));
    let id = case.grant().id;
    case.answer(Outcome::Granted { token: 6 });
    let next = Declaration {
        token: 6,
        grant: Some(id.to_string()),
        holder: Some(pod("b")),
        strip: vec![pod("a")],
        switchover: None,
    };
    assert_eq!(case.effect(), Effect::Declare { previous: declaration(5, Some("a"), &[]), next });
    case.answer(Outcome::Declared);
    assert_eq!(case.effect(), Effect::Strip { token: 6, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    let version = "11".to_owned();
    assert_eq!(case.effect(), Effect::Promote { token: 6, pod: pod("b"), version });
    case.answer(Outcome::Promoted);
    assert_eq!(case.effect(), Effect::Confirm { token: 6 });
    case.answer(Outcome::Confirmed);
    assert!(matches!(&case.asked[0].1, Effect::Finished(finished)
        if finished.token == 6 && finished.from == Some(pod("a")) && finished.to == Some(pod("b"))));
    assert_eq!(case.group.holder(), Some(&pod("b")));
}

#[test]
fn a_failure_at_any_step_but_the_last_leads_back_to_reading() {
    let answers = [
        Outcome::Granted { token: 6 },
        Outcome::Declared,
        Outcome::Stripped,
        Outcome::Promoted,
        Outcome::Confirmed,
    ];
    for broken in 0..answers.len() {
        for outcome in [Outcome::Failed, Outcome::Rejected(Rejection::Outdated)] {
            let is_repeated = broken == 4 && matches!(outcome, Outcome::Failed);
            let next = if is_repeated { Effect::Confirm { token: 6 } } else { Effect::Read };
            let mut case = Case::stable(with(Standing::Silent));
            answers[..broken].iter().for_each(|answer| case.answer(answer.clone()));
            case.answer(outcome);
            assert!(case.asked.is_empty());
            case.now = case.group.wake().expect("it waits");
            case.step(Event::Tick);
            assert_eq!(case.effect(), next, "after step {broken}");
        }
    }
}

#[test]
fn a_new_owner_begins_a_new_term_for_the_holder_of_an_unfinished_one() {
    let mut granted = row(6, Some("b"), false);
    granted.pending = vec![pod("a"), pod("b")];
    let mut world = with(Standing::Silent);
    let declares_7 = |case: &Case| {
        matches!(case.effect(), Effect::Declare { next, .. }
            if next.token == 7 && next.holder == Some(pod("b")) && next.strip == [pod("a")])
    };
    // Granted, perhaps fenced: the new owner cannot tell whether the previous term was confirmed, so it fences and
    // then declares.
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
    case.answer(Outcome::Granted { token: 7 });
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert!(declares_7(&case), "{:?}", case.asked);
    // Declared, perhaps stripped: the promotion of the previous owner may be on its way, so its holder is fenced, even
    // though it is the holder of the new term, too.
    world.declared = declaration(6, Some("b"), &["a"]);
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
    case.answer(Outcome::Granted { token: 7 });
    assert_eq!(case.effect(), Effect::Stamp { token: 6, pods: vec![known("b")] });
    let mut stamped = world.clone();
    (stamped.members[1].stamp, stamped.members[1].version) = (Some(6), "12".to_owned());
    case.meanwhile(stamped);
    case.answer(Outcome::Stamped(Vec::new()));
    assert!(declares_7(&case), "{:?}", case.asked);
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Promote { token: 7, version, .. } if version == "12"));
    // Promoted: it confirms.
    (world.members[0].role, world.members[1].role) = (Role::Standby, Role::Active);
    world.members[1].stamp = Some(6);
    // It reports why the old pod went, as the row says.
    for (recorded, told) in [(Some(Reason::Silent), Reason::Silent), (None, Reason::Resumed)] {
        granted.reason = recorded;
        let mut case = Case::new(world.clone(), granted.clone());
        assert_eq!(case.effect(), Effect::Confirm { token: 6 });
        case.answer(Outcome::Confirmed);
        let finished = case.finished();
        assert_eq!((finished.reason, finished.from, finished.to), (told, Some(pod("a")), Some(pod("b"))));
    }
    // Confirmed: only the stamps are missing.
    granted.confirmed = true;
    world.members[0].stamp = Some(6);
    world.members[2].stamp = Some(6);
    assert!(Case::new(world, granted).asked.is_empty());
}

#[test]
fn an_owner_continues_its_own_term_where_it_stopped() {
    let (declared, mut granted) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    granted.pending = vec![pod("a"), pod("b")];
    let mut world = with(Standing::Silent);
    // Granted: whether it was fenced is not known.
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next == declared));
    // Declared, perhaps stripped: it strips, and reads the holder again before it promotes.
    world.declared = declared;
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!(case.effect(), Effect::Strip { token: 6, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("b")));
}

#[test]
fn an_unfinished_term_of_a_pod_that_fails_is_overtaken() {
    let mut world = settled();
    world.members[1].standing = Standing::Silent;
    world.members[0].standing = Standing::Failing(Reason::ProbeRefused);
    let case = Case::new(world, row(6, Some("b"), false));
    assert_eq!((case.grant().holder, case.grant().expected), (pod("c"), 6));
}

#[test]
fn an_unproven_active_pod_of_an_unfinished_term_is_not_replaced() {
    let mut case = Case::new(with(Standing::Unproven), row(6, Some("a"), false));
    case.now += Duration::from_mins(1);
    if case.asked.is_empty() {
        case.step(Event::Tick);
    }
    assert_eq!(case.grant().holder, pod("a"));
}

#[test]
fn an_unproven_holder_of_an_unfinished_term_is_read_before_another_pod_follows() {
    let waited = || {
        // If b has been promoted, the watch does not show it yet.
        let mut world = settled();
        world.declared = declaration(6, Some("b"), &["a"]);
        world.members[0].role = Role::Standby;
        (world.members[0].standing, world.members[1].standing) = (Standing::Silent, Standing::Unproven);
        let mut case = Case::new(world, row(6, Some("b"), false));
        case.now = case.group.wake().expect("it waits for evidence");
        case.step(Event::Tick);
        assert_eq!(case.effect(), Effect::Verify(pod("b")));
        case
    };
    let mut case = waited();
    case.answer(Outcome::Verified(None));
    assert_eq!(case.grant().holder, pod("c"));

    let mut case = waited();
    let mut read = case.group.world().clone();
    read.members[1].role = Role::Active;
    case.meanwhile(read);
    case.answer(Outcome::Verified(None));
    case.now = case.group.wake().expect("it reads again");
    case.step(Event::Tick);
    let (row, declared) = (case.group.row().clone(), case.group.declared().clone());
    case.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
    assert_eq!(case.grant().holder, pod("b"));

    let mut case = waited();
    case.answer(Outcome::Verified(Some(Reason::PodDeleted)));
    assert_eq!(case.grant().holder, pod("c"));
}

#[test]
fn after_lost_commits_the_active_pod_keeps_the_role_under_a_new_token() {
    for lost in [row(4, Some("c"), true), Row::default()] {
        let grant = Case::new(settled(), lost).grant();
        assert_eq!((grant.holder, grant.reason, grant.floor), (pod("a"), Reason::LostCommits, 5));
    }
    let other = Row { grant: Some(Uuid::from_u128(8)), ..row(5, Some("c"), true) };
    assert_eq!(Case::new(settled(), other).grant().holder, pod("a"), "the same token, granted twice");
}

/// Two replicas that use different databases, as during a change of the URL, would outbid each other endlessly.
#[test]
fn a_group_whose_row_is_repeatedly_behind_waits_in_between() {
    let mut case = Case::new(settled(), Row::default());
    assert_eq!(case.grant().reason, Reason::LostCommits);
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped, Outcome::Promoted] {
        case.answer(outcome);
    }
    let under = |token| {
        let mut world = settled();
        world.declared = declaration(token, Some("a"), &[]);
        world.members.iter_mut().for_each(|member| member.stamp = Some(token));
        world
    };
    case.meanwhile(World { declared: case.group.declared().clone(), ..under(6) });
    case.answer(Outcome::Confirmed);
    let outbid = under(7);
    case.world(outbid.clone());
    assert_eq!(case.effect(), Effect::Read);
    let (row, declared) = (Some(row(6, Some("a"), true)), Some(outbid.declared.clone()));
    case.answer(Outcome::Read { row: row.clone(), declared: declared.clone() });
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(5)));
    case.now = NOW + Duration::from_secs(5);
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Read);
    case.answer(Outcome::Read { row, declared });
    let grant = case.grant();
    assert_eq!((grant.holder, grant.reason, grant.floor), (pod("a"), Reason::LostCommits, 7));
}

#[test]
fn after_lost_commits_an_active_pod_that_the_watch_has_not_shown_keeps_the_role() {
    let mut unseen = settled();
    unseen.members.remove(0);
    let mut case = Case::new(unseen.clone(), Row::default());
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    case.meanwhile(settled());
    case.answer(Outcome::Verified(None));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::LostCommits));
    // It is really gone: another pod is elected.
    let mut case = Case::new(unseen, Row::default());
    case.answer(Outcome::Verified(Some(Reason::PodDeleted)));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::FirstHolder));
}

/// The declared term, which the row has lost, was not carried out: the pod of the term before is still labelled.
#[test]
fn after_lost_commits_the_pod_that_is_labelled_keeps_the_role_if_it_works() {
    let regained = |standing| {
        let world = World { declared: declaration(6, Some("b"), &["a"]), ..with(standing) };
        let mut case = Case::new(world, row(4, Some("c"), true));
        assert_eq!(case.effect(), Effect::Verify(pod("b")));
        case.answer(Outcome::Verified(None));
        case
    };
    let grant = regained(Standing::Eligible).grant();
    assert_eq!((grant.holder, grant.reason), (pod("a"), Reason::LostCommits));
    for standing in [Standing::Silent, Standing::Unproven] {
        assert!(matches!(regained(standing).effect(), Effect::Strip { .. }), "{standing:?}");
    }
}

#[test]
fn a_declaration_of_another_replica_triggers_a_read() {
    let mut case = Case::stable(settled());
    let mut world = settled();
    world.declared = declaration(6, Some("b"), &["a"]);
    case.world(world.clone());
    assert_eq!(case.effect(), Effect::Read);
    // A declaration that lags behind does not.
    let mut case = Case::stable(settled());
    world.declared = declaration(4, Some("b"), &[]);
    case.world(world);
    assert!(case.asked.is_empty());
}

#[test]
fn a_doubt_triggers_a_read_at_once_or_after_the_change() {
    let mut case = Case::stable(settled());
    case.step(Event::Doubt);
    assert_eq!(case.effect(), Effect::Read);
    let mut case = Case::stable(with(Standing::Silent));
    let waiting = case.asked.clone();
    case.step(Event::Doubt);
    assert!(case.asked.is_empty());
    case.asked = waiting;
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped, Outcome::Promoted] {
        case.answer(outcome);
    }
    case.answer(Outcome::Confirmed);
    assert!(case.asked.iter().any(|(_, effect)| *effect == Effect::Read), "{:?}", case.asked);
}

#[test]
fn a_write_is_bound_to_the_version_of_the_watch_unless_only_a_read_can_tell_whether_it_is_needed() {
    use Role::{Active, None as Bare, Standby};
    let member = |role, stamp, ours| {
        let member = member("a", role, Standing::Eligible);
        Member { stamp, stamped_by_us: ours, ..member }
    };
    // Role and stamp as the watch shows them; bound for a strip under token 5, a stamp under token 5, a deletion.
    for (role, stamp, ours, strip, stamped, clear) in [
        (Active, Some(4), true, true, false, true),
        (Active, Some(5), true, true, false, true),
        (Standby, Some(4), true, true, true, true),
        (Standby, Some(5), true, false, false, true),
        (Standby, Some(6), true, false, false, true),
        (Active, Some(6), true, false, false, true),
        (Standby, Some(9), false, true, true, false),
        (Active, None, false, true, false, true),
        (Bare, None, false, true, true, false),
    ] {
        let seen = member(role, stamp, ours);
        let bound = [seen.to_strip(5), seen.to_stamp(5), seen.to_clear()].map(|at| at == known("a"));
        assert_eq!(bound, [strip, stamped, clear], "{role:?} {stamp:?} {ours}");
    }
    let case = Case::stable(settled());
    assert_eq!(case.group.seen(pod("gone"), |member| member.to_strip(5)), unknown("gone"));
}

#[test]
fn a_deleted_group_goes_row_first_finalizer_last() {
    let mut world = settled();
    world.deleting = true;
    world.policy.on_delete = OnDelete::Keep;
    let mut case = Case::stable(world);
    assert_eq!(case.effect(), Effect::Tombstone);
    case.answer(Outcome::Tombstoned);
    let pods = vec![known("a"), known("b"), known("c")];
    assert_eq!(case.effect(), Effect::Clear { on_delete: OnDelete::Keep, pods });
    case.answer(Outcome::Cleared);
    assert_eq!(case.effect(), Effect::Unfinalize);
    case.answer(Outcome::Unfinalized);
    assert!(case.asked.is_empty() && *case.group.phase() == Phase::Retired);
}

#[test]
fn a_deletion_does_not_wait_for_the_database_for_ever() {
    let mut world = settled();
    world.deleting = true;
    let mut case = Case::stable(world.clone());
    case.answer(Outcome::Failed);
    assert!(case.asked.is_empty());
    case.now += Duration::from_secs(5);
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Tombstone, "it tries again first");
    case.now += Duration::from_secs(6);
    case.answer(Outcome::Failed);
    assert!(matches!(case.effect(), Effect::Clear { .. }));
    // No replica is the owner, and none can become it.
    let mut case = Case { group: Group::new(world.clone()), now: NOW, asked: Vec::new(), tries: false };
    case.step(Event::Tick);
    assert!(case.asked.is_empty());
    world.lock_away = true;
    case.world(world);
    assert!(matches!(case.effect(), Effect::Clear { .. }));
}

#[test]
fn a_deletion_waits_no_longer_than_its_patience_however_long_the_pauses_are() {
    let mut world = settled();
    world.deleting = true;
    for (refused, begin) in [(Outcome::Failed, None), (Outcome::ClearRefused, Some(Outcome::Tombstoned))] {
        let mut case = Case::stable(world.clone());
        if let Some(outcome) = begin {
            case.answer(outcome);
        }
        let asked = case.effect();
        case.answer(refused.clone());
        let first = case.now;
        while case.asked.is_empty() {
            case.now = case.group.wake().expect("it tries again");
            case.step(Event::Tick);
            assert_eq!(case.effect(), asked);
            case.answer(refused.clone());
        }
        assert_eq!(case.now, first + Duration::from_secs(10), "{asked:?}");
    }
}

#[test]
fn a_deletion_does_not_wait_for_rights_to_the_pods_for_ever() {
    let mut world = settled();
    world.deleting = true;
    let mut case = Case::stable(world);
    case.answer(Outcome::Tombstoned);
    case.answer(Outcome::ClearRefused);
    assert!(case.asked.is_empty());
    let mut retry = |after: u64, outcome: Outcome| {
        case.now += Duration::from_secs(after);
        case.step(Event::Tick);
        assert!(matches!(case.effect(), Effect::Clear { .. }), "it tries again first");
        case.answer(outcome);
        case.asked.first().map(|(_, effect)| effect.clone())
    };
    assert_eq!(retry(9, Outcome::ClearRefused), None);
    // It is unknown whether the write would be allowed now.
    assert_eq!(retry(6, Outcome::Failed), None);
    assert_eq!(retry(30, Outcome::Failed), None);
    assert_eq!(retry(6, Outcome::ClearRefused), None);
    assert_eq!(retry(9, Outcome::ClearRefused), None);
    assert_eq!(retry(6, Outcome::ClearRefused), Some(Effect::Unfinalize));
}

#[test]
fn a_deletion_leaves_labels_that_cannot_be_written_if_the_api_server_lets_the_finalizer_go() {
    let mut world = settled();
    world.deleting = true;
    let mut case = Case::stable(world);
    case.answer(Outcome::Tombstoned);
    let (mut clears, mut unfinalizes) = (0, Vec::new());
    for _ in 0..60 {
        match case.asked.first().map(|(_, effect)| effect.clone()) {
            None => {
                case.now = case.group.wake().expect("it tries again");
                case.step(Event::Tick);
            }
            Some(Effect::Clear { .. }) => {
                clears += 1;
                case.answer(Outcome::Failed);
            }
            // The API server does not answer at all: the labels are tried again, and in between there are pauses.
            Some(Effect::Unfinalize) => {
                unfinalizes.push((case.now.saturating_sub(NOW), clears));
                case.answer(Outcome::Failed);
            }
            other => panic!("{other:?}"),
        }
    }
    let (first, tried) = unfinalizes[0];
    assert!(first >= Duration::from_mins(1) && tried > 10, "{unfinalizes:?}");
    let pairs = unfinalizes.iter().zip(&unfinalizes[1..]);
    assert!(pairs.clone().count() > 3, "{unfinalizes:?}");
    assert!(
        pairs.clone().all(|(one, next)| next.1 == one.1 + 1 && next.0 >= one.0 + Duration::from_secs(1)),
        "{unfinalizes:?}"
    );
    // Once they are settled, only the finalizer is left.
    while !matches!(case.asked.first(), Some((_, Effect::Clear { .. }))) {
        case.now = case.group.wake().unwrap_or(case.now);
        if case.asked.is_empty() { case.step(Event::Tick) } else { case.answer(Outcome::Failed) }
    }
    case.answer(Outcome::Cleared);
    assert_eq!(case.effect(), Effect::Unfinalize);
    case.answer(Outcome::Failed);
    case.now = case.group.wake().expect("it tries again");
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Unfinalize);
}

#[test]
fn without_ownership_nothing_is_done() {
    let mut case =
        Case { group: Group::new(with(Standing::Silent)), now: NOW, asked: Vec::new(), tries: false };
    case.step(Event::Tick);
    assert!(case.asked.is_empty());
    let mut case = Case::stable(with(Standing::Silent));
    let late = case.asked[0].0;
    case.step(Event::Disowned);
    case.step(Event::Outcome(late, Outcome::Granted { token: 6 }, with(Standing::Silent)));
    assert!(case.asked.is_empty() && !case.group.is_at_work());
    let mut case = Case::stable(with(Standing::Silent));
    case.answer(Outcome::Rejected(Rejection::NotOwner));
    assert!(case.asked.is_empty() && !case.group.is_at_work());
}

#[test]
fn a_holder_that_shows_up_again_is_declared_before_it_is_promoted() {
    let mut world = with(Standing::Failing(Reason::ProbeRefused));
    world.members.truncate(1);
    let (_, row) = own(declaration(6, Some("b"), &[]), row(6, Some("b"), false));
    let mut case = Case::new(world.clone(), row);
    assert_eq!(case.effect(), Effect::Verify(pod("b")));
    // The read shows the pod, which is not ready yet.
    world.members.push(member("b", Role::Standby, Standing::Failing(Reason::PodNotReady)));
    case.meanwhile(world.clone());
    case.answer(Outcome::Verified(Some(Reason::PodNotReady)));
    world.members[1].standing = Standing::Eligible;
    case.world(world);
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.token == 6), "{:?}", case.asked);
}

/// What the plan does for a, b and c, in words.
fn planned(world: &World, row: Row) -> (Vec<&'static str>, Option<String>, Rest) {
    let declared = world.declared.clone();
    let plan = Plan::new(world, row, declared, |_| Some(Reason::PodDeleted), NOW);
    let steps = plan.steps.iter().map(|effect| match effect {
        Effect::Verify(_) => "verify",
        Effect::Grant(_) => "grant",
        Effect::Declare { .. } => "declare",
        Effect::Strip { .. } => "strip",
        Effect::Promote { .. } => "promote",
        Effect::Confirm { .. } => "confirm",
        Effect::Vacate { .. } => "vacate",
        Effect::Stamp { .. } => "stamp",
        Effect::Tombstone => "tombstone",
        Effect::Clear { .. } => "clear",
        Effect::Unfinalize => "unfinalize",
        Effect::Recheck(_) => "recheck",
        other => panic!("{other:?}"),
    });
    let to = plan.change.and_then(|change| change.to).map(|pod| pod.name);
    (steps.collect(), to, plan.rest)
}

#[test]
fn a_replica_that_stops_finishes_its_change_and_begins_no_other() {
    let stopping = || World { stopping: true, ..with(Standing::Silent) };
    assert!(Case::stable(stopping()).asked.is_empty());
    let mut case = Case::stable(with(Standing::Silent));
    assert_eq!(case.grant().holder, pod("b"));
    case.meanwhile(stopping());
    case.answer(Outcome::Granted { token: 6 });
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    case.answer(Outcome::Promoted);
    assert_eq!(case.effect(), Effect::Confirm { token: 6 });
    // By now the new holder has failed, too.
    let mut world = World { declared: case.group.declared().clone(), ..stopping() };
    world.members[0].role = Role::Standby;
    world.members[1] =
        Member { stamp: Some(6), ..member("b", Role::Active, Standing::Failing(Reason::ProbeRefused)) };
    case.meanwhile(world.clone());
    case.answer(Outcome::Confirmed);
    assert!(matches!(case.effect(), Effect::Finished(finished) if finished.to == Some(pod("b"))));
    case.step(Event::Tick);
    assert!(case.asked.is_empty());
    case.world(World { stopping: false, ..world });
    assert_eq!(case.grant().holder, pod("c"), "the next owner goes on");
}

#[test]
fn a_plan_is_what_the_group_would_do() {
    let held = || row(5, Some("a"), true);
    let change = ["grant", "declare", "strip", "promote", "confirm"];
    assert_eq!(planned(&settled(), held()), (vec![], None, Rest::HolderWorks));
    let unproven = with(Standing::Unproven);
    assert_eq!(planned(&unproven, held()), (vec![], None, Rest::HolderUnproven));

    let (steps, to, rest) = planned(&with(Standing::Silent), held());
    assert_eq!((&steps[..5], to.as_deref(), rest), (&change[..], Some("b"), Rest::HolderWorks));
    let (steps, to, _) = planned(&with(Standing::Ended(Reason::PodFinished)), held());
    assert_eq!((steps[0], &steps[1..6], to.as_deref()), ("verify", &change[..], Some("b")));

    let mut alone = with(Standing::Silent);
    alone.members.truncate(1);
    let against = Some(Reason::Silent);
    assert_eq!(planned(&alone, held()), (vec![], None, Rest::NoCandidate { against }));
    let mut paused = with(Standing::Silent);
    paused.policy.paused = true;
    assert_eq!(planned(&paused, held()), (vec![], None, Rest::Paused { against }));
    let mut delayed = with(Standing::Silent);
    delayed.policy.lock_delay = Duration::from_secs(9);
    let rest = Rest::Waiting { remaining: Duration::from_secs(9) };
    assert_eq!(planned(&delayed, held()), (vec![], None, rest));
    let mut blocked = with(Standing::Silent);
    blocked.obstacle = Some(Reason::InvalidSpec);
    assert_eq!(planned(&blocked, held()), (vec![], None, Rest::Blocked(Reason::InvalidSpec)));
    let mut deleting = settled();
    deleting.deleting = true;
    let steps = vec!["tombstone", "clear", "unfinalize"];
    assert_eq!(planned(&deleting, held()), (steps, None, Rest::NotOwned));
}

#[test]
fn a_plan_finishes_what_was_begun() {
    let mut world = with(Standing::Silent);
    world.declared = declaration(6, Some("b"), &["a"]);
    let (steps, to, rest) = planned(&world, row(6, Some("b"), false));
    let expected = ["grant", "stamp", "declare", "strip", "promote", "confirm"];
    assert_eq!(steps[..6], expected, "{steps:?}");
    assert_eq!((to.as_deref(), rest), (Some("b"), Rest::HolderWorks));
    // A pod that is active already gets the stamp of the unfinished term before the next one is declared.
    let mut world = settled();
    world.declared = declaration(6, Some("a"), &["b"]);
    let (steps, to, rest) = planned(&world, row(6, Some("a"), false));
    assert_eq!(steps[..5], ["grant", "stamp", "strip", "recheck", "promote"], "{steps:?}");
    assert_eq!((to.as_deref(), rest), (Some("a"), Rest::HolderWorks));
}

#[test]
fn an_owner_reads_nothing_if_the_claimed_row_and_the_watch_agree() {
    let adopt = |world: World, row: Row| {
        let mut case =
            Case { group: Group::new(World::default()), now: NOW, asked: Vec::new(), tries: false };
        case.step(Event::Owned { seed: Uuid::from_u128(1_000), row: Some(row), world });
        case
    };
    let adopted = adopt(settled(), row(5, Some("a"), true));
    assert_eq!((adopted.asked.len(), adopted.group.phase()), (0, &Phase::Stable));
    // A lost active is replaced at once.
    assert_eq!(adopt(with(Standing::Silent), row(5, Some("a"), true)).grant().holder, pod("b"));
    // A term that is not finished, a watch that lags, and a row that lost commits.
    let other_grant = Row { grant: Some(Uuid::from_u128(8)), ..row(5, Some("a"), true) };
    for row in [row(5, Some("a"), false), row(6, Some("b"), true), row(4, Some("a"), true), other_grant] {
        assert_eq!(adopt(settled(), row).effect(), Effect::Read);
    }
}

#[test]
fn a_pod_that_another_group_selects_too_is_not_promoted_and_its_own_group_goes_on_with_the_others() {
    let contested = |pods: &[usize], mut world: World| {
        for pod in pods {
            world.members[*pod].standing = Standing::Contested;
        }
        world
    };
    let silent = || with(Standing::Silent);
    assert_eq!(Case::stable(silent()).grant().holder, pod("b"));
    assert_eq!(Case::stable(contested(&[1], silent())).grant().holder, pod("c"));
    assert!(Case::stable(contested(&[1, 2], silent())).asked.is_empty());
    // In the middle of a change: the next one follows.
    let mut case = Case::stable(silent());
    case.answer(Outcome::Granted { token: 6 });
    case.meanwhile(contested(&[1], silent()));
    case.answer(Outcome::Declared);
    assert_eq!(case.grant().holder, pod("c"));
    // An unfinished term is not carried out.
    let unfinished = || row(6, Some("b"), false);
    let mut case = Case::new(contested(&[1], settled()), unfinished());
    case.now += Duration::from_mins(1);
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Verify(pod("b")));
    case.answer(Outcome::Verified(None));
    assert_ne!(case.grant().holder, pod("b"));
    // The label of a contested holder was removed: it is not put back, and another pod follows.
    let unlabelled = |pods: &[usize]| {
        let mut world = contested(pods, settled());
        world.members[0].role = Role::None;
        let mut case = Case::stable(world);
        assert_eq!(case.effect(), Effect::Verify(pod("a")));
        case.answer(Outcome::Verified(None));
        case
    };
    assert_eq!(unlabelled(&[0]).grant().holder, pod("b"));
    assert!(unlabelled(&[0, 1, 2]).asked.is_empty());
}
