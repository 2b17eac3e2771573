//! Priorities, the way back to a preferred pod, and pods that failed lately.

use super::*;

/// a is active with token 5; b has a higher priority.
fn preferring_b(failback: Option<Duration>) -> World {
    let mut world = settled();
    world.members[1].priority = 10;
    World { policy: Policy { failback, ..Policy::default() }, ..world }
}

const DELAY: Duration = Duration::from_mins(1);

/// The world after this pod became active under this token.
fn active(mut world: World, name: &str, case: &Case) -> World {
    world.declared = case.group.declared().clone();
    for member in &mut world.members {
        member.role = if member.pod == pod(name) { Role::Active } else { Role::Standby };
        member.stamp = Some(world.declared.token);
    }
    world
}

/// Carries the change under way out, after which the world is this one.
fn carry_out(case: &mut Case, token: i64, name: &str, world: World) {
    case.answer(Outcome::Granted { token });
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    case.answer(Outcome::Promoted);
    let world = active(world, name, case);
    case.meanwhile(world);
    case.answer(Outcome::Confirmed);
    assert!(matches!(case.effect(), Effect::Finished(_)));
}

#[test]
fn among_pods_that_fit_equally_well_the_one_with_the_highest_priority_follows() {
    let mut world = with(Verdict::Silent);
    world.members[2].priority = 1;
    assert_eq!(Case::stable(world.clone()).grant().holder, pod("c"));
    // A pod of the newest revision is deleted later.
    for member in &mut world.members {
        member.revision = Some("1".into());
    }
    (world.members[1].created, world.members[1].revision) = (9, Some("2".into()));
    assert_eq!(Case::stable(world.clone()).grant().holder, pod("b"));
    world.members[1].leaving = true;
    assert_eq!(Case::stable(world).grant().holder, pod("c"));
}

#[test]
fn the_role_goes_back_to_a_preferred_pod_once_that_has_been_fit_for_the_delay() {
    let mut case = Case::stable(preferring_b(Some(DELAY)));
    assert!(case.asked.is_empty());
    case.now += DELAY / 2;
    let mut unfit = preferring_b(Some(DELAY));
    unfit.members[1].verdict = Verdict::Unknown;
    case.world(unfit);
    case.world(preferring_b(Some(DELAY)));
    assert_eq!(case.group.wake(), Some(case.now + DELAY), "the delay starts again");
    case.now += DELAY / 2;
    case.step(Event::Tick);
    assert!(case.asked.is_empty());
    case.now += DELAY / 2;
    case.step(Event::Tick);
    let grant = case.grant();
    assert_eq!((grant.holder, grant.reason), (pod("b"), Reason::Failback));
}

#[test]
fn the_role_stays_where_it_is_without_need() {
    let stays = |change: fn(&mut World)| {
        let mut world = preferring_b(Some(Duration::ZERO));
        change(&mut world);
        assert!(Case::stable(world).asked.iter().all(|(_, effect)| !matches!(effect, Effect::Grant(_))));
    };
    stays(|world| world.policy.failback = None);
    stays(|world| world.policy.paused = true);
    stays(|world| world.members[0].priority = 10);
    stays(|world| world.members[1].leaving = true);
    stays(|world| world.members[1].verdict = Verdict::Unknown);
    // A rollout is about to delete it.
    stays(|world| {
        world.members[0].created = 9;
        for (member, revision) in world.members.iter_mut().zip(["2", "1", "1"]) {
            member.revision = Some(revision.into());
        }
    });
    assert_eq!(Case::stable(preferring_b(Some(Duration::ZERO))).grant().reason, Reason::Failback);
}

#[test]
fn a_pod_that_failed_does_not_get_the_role_back_for_a_while() {
    // a is preferred and fails; b follows.
    let world = |verdict| {
        let mut world = with(verdict);
        world.members[0].priority = 10;
        World { policy: Policy { failback: Some(Duration::ZERO), ..Policy::default() }, ..world }
    };
    let mut case = Case::stable(world(Verdict::Failing(Reason::ProbeRefused)));
    assert_eq!(case.grant().holder, pod("b"));
    // It is well again at once.
    carry_out(&mut case, 6, "b", world(Verdict::Eligible));
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_mins(1)));
    // Another one is preferred to it, if b fails meanwhile.
    let mut failing = active(world(Verdict::Eligible), "b", &case);
    failing.members[1].verdict = Verdict::Silent;
    let mut other = Case { group: case.group.clone(), now: case.now, asked: Vec::new(), tries: case.tries };
    other.world(failing);
    assert_eq!(other.grant().holder, pod("c"));
    // After a minute it gets the role back. It fails again, and now waits for longer.
    case.now += Duration::from_mins(1);
    case.step(Event::Tick);
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::Failback));
    carry_out(&mut case, 7, "a", world(Verdict::Eligible));
    case.world(active(world(Verdict::Silent), "a", &case));
    assert_eq!(case.grant().holder, pod("b"));
    carry_out(&mut case, 8, "b", world(Verdict::Eligible));
    case.now += Duration::from_mins(1);
    case.step(Event::Tick);
    assert_eq!((case.asked.len(), case.group.wake()), (0, Some(case.now + Duration::from_mins(1))));
}

#[test]
fn a_pod_that_failed_follows_if_no_other_can() {
    let mut case = Case::stable(with(Verdict::Silent));
    assert_eq!(case.grant().holder, pod("b"));
    carry_out(&mut case, 6, "b", settled());
    let mut world = active(settled(), "b", &case);
    world.members[1].verdict = Verdict::Silent;
    world.members[2].verdict = Verdict::Unknown;
    case.world(world);
    assert_eq!(case.grant().holder, pod("a"));
}

#[test]
fn a_pod_that_failed_lately_is_avoided_even_if_it_is_of_the_newest_revision() {
    let revisions = |mut world: World| {
        world.members[0].created = 9;
        for (member, revision) in world.members.iter_mut().zip(["2", "1", "1"]) {
            member.revision = Some(revision.into());
        }
        world
    };
    let mut case = Case::stable(revisions(with(Verdict::Silent)));
    assert_eq!(case.grant().holder, pod("b"));
    carry_out(&mut case, 6, "b", revisions(settled()));
    let mut world = active(revisions(settled()), "b", &case);
    world.members[1].verdict = Verdict::Silent;
    case.world(world);
    assert_eq!(case.grant().holder, pod("c"));
}

#[test]
fn a_change_is_noted_and_reported_although_its_confirmation_fails_at_first() {
    let mut case = Case::stable(with(Verdict::Failing(Reason::ProbeRefused)));
    case.answer(Outcome::Granted { token: 6 });
    for outcome in
        [Outcome::Declared, Outcome::Stripped, Outcome::Promoted, Outcome::Unknown, Outcome::Failed]
    {
        case.answer(outcome);
        if case.asked.is_empty() {
            case.now = case.group.wake().expect("it tries again");
            case.step(Event::Tick);
            assert_eq!(case.effect(), Effect::Confirm { token: 6 });
        }
    }
    case.answer(Outcome::Confirmed);
    assert_eq!((case.finished().token, case.finished().from), (6, Some(pod("a"))));
    assert!(case.group.lapses.has("uid-a"));
}

#[test]
fn every_failure_of_an_active_pod_counts() {
    let failures =
        [Reason::ContainerTerminated, Reason::ContainerRestarted, Reason::PodNotReady, Reason::ProbeRefused];
    for verdict in failures.map(Verdict::Failing).into_iter().chain([Verdict::Silent]) {
        let mut case = Case::stable(with(verdict));
        if let Verdict::Failing(reason) = verdict {
            case.verified(reason);
        }
        assert_eq!(case.grant().holder, pod("b"));
        carry_out(&mut case, 6, "b", settled());
        let mut world = active(settled(), "b", &case);
        world.members[1].verdict = Verdict::Silent;
        case.world(world);
        assert_eq!(case.grant().holder, pod("c"), "{verdict:?}");
    }
}

#[test]
fn what_a_user_has_requested_stays() {
    let world = World {
        switchover: Some(SwitchoverRequest { id: "one".to_owned(), to: Some("c".to_owned()) }),
        ..preferring_b(Some(Duration::ZERO))
    };
    let mut case = Case::stable(world.clone());
    assert_eq!((case.grant().holder, case.grant().reason), (pod("c"), Reason::Switchover));
    carry_out(&mut case, 6, "c", world.clone());
    case.now += Duration::from_hours(1);
    case.step(Event::Tick);
    assert!(case.asked.iter().all(|(_, effect)| !matches!(effect, Effect::Grant(_))));
}

#[test]
fn the_delay_starts_again_when_the_group_comes_back_to_this_replica() {
    let world = preferring_b(Some(DELAY));
    let mut case = Case::stable(world.clone());
    case.step(Event::Disowned);
    case.now += Duration::from_hours(1);
    let (row, seed) = (row(5, Some("a"), true), Uuid::from_u128(2_000));
    case.step(Event::Owned { seed, row: Some(row), world });
    assert_eq!((case.asked.is_empty(), case.group.wake()), (true, Some(case.now + DELAY)));
}

/// The status after these changes, the latest first, and with this active pod. A name stands for a pod that failed.
/// a has the highest priority.
fn reporting(history: &[(i64, Option<&str>)], holder: &str) -> World {
    let token = history[0].0;
    let mut world = settled();
    for member in &mut world.members {
        member.role = if member.pod == pod(holder) { Role::Active } else { Role::Standby };
        member.stamp = Some(token);
    }
    world.members[0].priority = 10;
    world.policy.failback = Some(Duration::ZERO);
    world.declared = declaration(token, Some(holder), &[]);
    let past = |(token, failed): &(i64, Option<&str>)| PastChange {
        token: *token,
        failed: failed.map(str::to_owned),
    };
    world.history = history.iter().map(past).collect();
    world
}

/// The owner of a group is often another replica after each change of holder.
#[test]
fn a_failure_counts_for_a_replica_that_becomes_the_owner_after_it() {
    // What the first look shows may be old.
    let first = reporting(&[(5, Some("b"))], "a");
    let failed = reporting(&[(6, Some("a")), (5, Some("b"))], "b");
    let planned = reporting(&[(6, None), (5, Some("b"))], "b");
    let both = reporting(&[(7, None), (6, Some("a")), (5, Some("b"))], "b");
    let mut started_late = planned.clone();
    started_late.history = started_late.history[1..].into();
    started_late.declared.strip = vec![pod("a")];
    let mut another = failed.clone();
    another.members[0].pod.uid = "uid-of-another-a".to_owned();
    let mut reported_late = failed.clone();
    reported_late.declared.strip = vec![pod("a")];
    for (first, seen, goes_back) in [
        (&first, failed, false),
        (&first, planned, true),
        (&first, both, false),
        (&first, another, true),
        (&started_late, reported_late, false),
    ] {
        let mut case =
            Case { group: Group::new(World::default()), now: NOW, asked: Vec::new(), tries: false };
        for world in [first, &seen, &seen] {
            case.world(world.clone());
        }
        case.now += Duration::from_secs(5);
        let row = Some(row(seen.declared.token, Some("b"), true));
        case.step(Event::Owned { seed: Uuid::from_u128(2_000), row, world: seen.clone() });
        let granted = case.asked.iter().any(|(_, effect)| matches!(effect, Effect::Grant(_)));
        assert_eq!(granted, goes_back, "{:?}: {:?}", seen.history, case.asked);
        case.now = NOW + Duration::from_mins(1);
        case.step(Event::Tick);
        assert!(goes_back || case.grant().holder == pod("a"), "it counts once");
        assert!(!case.group.lapses.has("uid-b"));
    }
}

#[test]
fn a_pod_that_failed_often_may_follow_one_on_a_cordoned_node_after_a_minute() {
    let mut case = Case::stable(with(Verdict::Silent));
    case.group.lapses.set_time(NOW);
    for _ in 0..3 {
        case.group.lapses.add("uid-c");
    }
    carry_out(&mut case, 6, "b", settled());
    // b is on a cordoned node, a has just failed, and c failed three times.
    let mut world = active(settled(), "b", &case);
    world.members[1].leaving = true;
    case.world(world);
    assert!(case.asked.is_empty());
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_mins(1)));
    case.now += Duration::from_mins(1);
    case.step(Event::Tick);
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::NodeCordoned));
}
