//! Changes of holder because a rollout is about to delete the holder.

use super::*;
use crate::election::Workload;

/// a is active with token 5. Each pod has a revision, and was created one second after the one before it.
fn rolling(revisions: &[&str]) -> World {
    let mut world = settled();
    world.policy.leaves_before_rollout = true;
    for (number, (member, revision)) in (0..).zip(world.members.iter_mut().zip(revisions)) {
        member.workload = Some(Workload { name: "web".into(), ordinal: None });
        (member.revision, member.created) = (Some((*revision).into()), number);
    }
    world
}

fn at_rest(world: World) -> bool {
    Case::stable(world).asked.is_empty()
}

#[test]
fn the_last_pod_of_an_old_revision_hands_over_to_one_of_the_newest() {
    let grant = Case::stable(rolling(&["1", "2", "2"])).grant();
    assert_eq!((grant.holder, grant.reason), (pod("b"), Reason::Rollout));
    // b is deleted before a, because its deletion costs less.
    assert!(at_rest(rolling(&["1", "1", "2"])));
    let mut deleted = rolling(&["1", "1", "2"]);
    deleted.members[1].verdict = Verdict::Ended(Reason::PodDeleted);
    assert_eq!(Case::stable(deleted).grant().holder, pod("c"));
    // A rollout that began during another one empties the oldest ReplicaSet first. b follows, so it gets no role.
    assert_eq!(Case::stable(rolling(&["1", "2", "3"])).grant().holder, pod("c"));
}

#[test]
fn a_holder_stays_if_no_rollout_is_about_to_delete_it() {
    for revisions in [["1", "1", "1"], ["2", "1", "2"], ["3", "3", "3"]] {
        assert!(at_rest(rolling(&revisions)), "{revisions:?}");
    }
    let with = |change: &dyn Fn(&mut World)| {
        let mut world = rolling(&["1", "2", "2"]);
        change(&mut world);
        at_rest(world)
    };
    assert!(!with(&|_| {}));
    assert!(with(&|world| world.policy.leaves_before_rollout = false));
    assert!(with(&|world| world.policy.paused = true));
    assert!(with(&|world| world.members[0].workload = None));
    assert!(with(&|world| {
        for member in &mut world.members[1..] {
            member.workload = Some(Workload { name: "other".into(), ordinal: None });
        }
    }));
    assert!(with(&|world| {
        for member in &mut world.members[1..] {
            member.verdict = Verdict::Unknown;
        }
    }));
    assert!(with(&|world| {
        for member in &mut world.members[1..] {
            member.leaving = true;
        }
    }));
}

#[test]
fn a_stateful_set_deletes_the_pod_with_the_largest_ordinal_first() {
    let rolling = |revisions: &[&str], ordinals: [u32; 3]| {
        let mut world = rolling(revisions);
        for (member, ordinal) in world.members.iter_mut().zip(ordinals) {
            member.workload = Some(Workload { name: "db".into(), ordinal: Some(ordinal) });
        }
        world
    };
    // a is number 1, c is number 2 and was replaced. b is number 0.
    let next = rolling(&["1", "1", "2"], [1, 0, 2]);
    assert_eq!(Case::stable(next.clone()).grant().holder, pod("c"));
    assert!(at_rest(rolling(&["1", "1", "2"], [0, 1, 2])));
    // b will be deleted, too.
    let mut starting = next;
    starting.members[2].verdict = Verdict::Unknown;
    assert!(at_rest(starting));
    // c is number 0: it came back, and its partition keeps it at the old revision.
    assert!(at_rest(rolling(&["2", "2", "1"], [2, 1, 0])));
    // b is number 2 and was replaced. c is number 0, and came back with the newest revision.
    assert_eq!(Case::stable(rolling(&["1", "2", "2"], [1, 2, 0])).grant().holder, pod("b"));
}

#[test]
fn a_preferred_pod_that_a_rollout_deletes_does_not_get_the_role_back() {
    // b holds the role. a is preferred, and the last pod of its revision. c belongs to another workload, and is the
    // youngest pod of the group.
    let mut world = rolling(&["1", "2", "9"]);
    world.members[2].workload = Some(Workload { name: "other".into(), ordinal: None });
    world.policy.failback = Some(Duration::ZERO);
    (world.members[0].role, world.members[1].role) = (Role::Standby, Role::Active);
    world.members[0].priority = 10;
    world.declared = declaration(5, Some("b"), &[]);
    let row = || row(5, Some("b"), true);
    assert!(Case::new(world.clone(), row()).asked.is_empty());
    world.members[0].revision = Some("2".into());
    assert_eq!(Case::new(world, row()).grant().reason, Reason::Failback);
}

#[test]
fn a_newer_pod_of_another_workload_makes_no_pod_outdated() {
    // b holds the role. a is preferred. Each is of the newest revision of its own workload.
    let mut world = rolling(&["1", "2", "2"]);
    for member in &mut world.members[1..] {
        member.workload = Some(Workload { name: "other".into(), ordinal: None });
    }
    world.policy.failback = Some(Duration::ZERO);
    (world.members[0].role, world.members[1].role) = (Role::Standby, Role::Active);
    world.members[0].priority = 10;
    world.declared = declaration(5, Some("b"), &[]);
    let row = || row(5, Some("b"), true);
    assert_eq!(Case::new(world.clone(), row()).grant().holder, pod("a"));
    world.policy.failback = None;
    world.members[1].verdict = Verdict::Ended(Reason::PodDeleted);
    assert_eq!(Case::new(world, row()).grant().holder, pod("a"), "its priority counts");
}

#[test]
fn a_preferred_pod_of_a_revision_that_failed_does_not_get_the_role() {
    let mut world = rolling(&["1", "2", "2"]);
    world.policy.failback = Some(Duration::ZERO);
    world.members[2].priority = 10;
    let mut case = Case::stable(World { members: vec![world.members[0].clone()], ..world.clone() });
    case.group.lapses.add("uid-b");
    case.world(world);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
}

#[test]
fn a_revision_that_failed_lately_gets_the_role_only_when_the_holder_is_deleted() {
    let mut world = rolling(&["1", "2", "2"]);
    let mut case = Case::stable(World { members: vec![world.members[0].clone()], ..world.clone() });
    case.group.lapses.add("uid-b");
    case.world(world.clone());
    assert!(case.group.lapses.has("uid-b"), "b is a member, so its failure is not forgotten");
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    case.now += Duration::from_mins(30);
    case.step(Event::Tick);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    world.members[0].verdict = Verdict::Ended(Reason::PodDeleted);
    case.world(world);
    assert_eq!(case.grant().reason, Reason::PodDeleted);
}

#[test]
fn nobody_is_switched_to_a_pod_that_a_rollout_deletes_next() {
    let superseded = SwitchoverRefusal::Superseded("b".to_owned());
    for (to, why) in [(Some("b"), superseded), (None, SwitchoverRefusal::NoCandidate)] {
        let mut world = rolling(&["2", "1", "2"]);
        world.members[2].verdict = Verdict::Unknown;
        world.switchover = Some(SwitchoverRequest { id: "one".to_owned(), to: to.map(str::to_owned) });
        let mut case = Case::stable(world);
        case.rest(|effect| matches!(effect, Effect::Stamp { .. }));
        assert_eq!(case.group.refused_switchover().map(|(_, refused)| refused.clone()), Some(why));
    }
}
