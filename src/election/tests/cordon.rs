//! Changes of holder because a node is about to be emptied.

use super::*;

/// a is active with token 5; the nodes of these pods are cordoned.
fn cordoned(pods: &[&str]) -> World {
    let mut world = settled();
    for member in &mut world.members {
        member.leaving = pods.contains(&member.pod.name.as_str());
    }
    world
}

#[test]
fn a_holder_that_works_hands_over_to_a_pod_whose_node_stays() {
    for (nodes, next) in [(&["a"][..], "b"), (&["a", "b"], "c")] {
        let grant = Case::stable(cordoned(nodes)).grant();
        assert_eq!((grant.holder, grant.reason), (pod(next), Reason::NodeCordoned));
    }
    for nodes in [&[][..], &["b", "c"], &["a", "b", "c"]] {
        assert!(Case::stable(cordoned(nodes)).asked.is_empty(), "{nodes:?}");
    }
}

#[test]
fn a_holder_stays_on_a_cordoned_node_if_no_other_pod_is_fit_or_the_group_is_paused() {
    let mut unproven = cordoned(&["a"]);
    unproven.members[1].verdict = Verdict::Unknown;
    unproven.members[2].verdict = Verdict::Failing(Reason::PodNotReady);
    let paused = World { policy: Policy { paused: true, ..Policy::default() }, ..cordoned(&["a"]) };
    for world in [unproven, paused] {
        let mut case = Case::stable(world);
        case.rest(|effect| matches!(effect, Effect::Stamp { .. }));
        // As soon as it is possible, it is done.
        case.world(cordoned(&["a"]));
        assert_eq!(case.grant().reason, Reason::NodeCordoned);
    }
}

#[test]
fn a_failover_avoids_cordoned_nodes_if_it_can() {
    let mut world = cordoned(&["b"]);
    world.members[0].verdict = Verdict::Silent;
    assert_eq!(Case::stable(world.clone()).grant().holder, pod("c"));
    world.members[2].verdict = Verdict::Unknown;
    assert_eq!(Case::stable(world).grant().holder, pod("b"));
}

#[test]
fn a_grant_that_fails_is_repeated_soon_and_one_that_was_in_vain_after_a_pause() {
    let mut requested = settled();
    requested.switchover = Some(SwitchoverRequest { id: "one".to_owned(), to: None });
    for world in [cordoned(&["a"]), requested] {
        let mut case = Case::stable(world.clone());
        let read = Outcome::Read { row: Some(row(5, Some("a"), true)), declared: Some(world.declared) };
        for pause in [50, 100, 200] {
            assert_eq!(case.grant().holder, pod("b"));
            case.answer(Outcome::Failed);
            assert_eq!(case.group.wake(), Some(case.now + Duration::from_millis(pause)));
            case.now += Duration::from_millis(pause);
            case.step(Event::Tick);
            assert_eq!(case.effect(), Effect::Read);
            case.answer(read.clone());
        }
    }
    let mut case = Case::stable(cordoned(&["a"]));
    let mut alone = cordoned(&["a"]);
    (alone.members[1].verdict, alone.members[2].verdict) = (Verdict::Unknown, Verdict::Unknown);
    case.meanwhile(alone);
    case.answer(Outcome::Granted { token: 6 });
    assert_eq!(case.grant().holder, pod("a"), "the former holder stays");
    assert!(case.group.pacing.moves >= NOW + Duration::from_secs(5));
}

#[test]
fn a_change_that_succeeded_delays_no_other() {
    let mut case = Case::stable(cordoned(&["a"]));
    case.answer(Outcome::Granted { token: 6 });
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    case.answer(Outcome::Promoted);
    // The next node is drained, too.
    let mut world = World { declared: case.group.declared().clone(), ..cordoned(&["a", "b"]) };
    for member in &mut world.members {
        member.role = if member.pod == pod("b") { Role::Active } else { Role::Standby };
        member.stamp = Some(6);
    }
    case.meanwhile(world);
    case.answer(Outcome::Confirmed);
    let next = case.asked.iter().find_map(|(_, effect)| match effect {
        Effect::Grant(grant) => Some(grant.holder.clone()),
        _ => None,
    });
    assert_eq!(next, Some(pod("c")), "{:?}", case.asked);
}

#[test]
fn the_grant_follows_a_dry_run_at_once() {
    let mut requested = settled();
    requested.switchover = Some(SwitchoverRequest { id: "one".to_owned(), to: None });
    for mut world in [cordoned(&["a"]), requested] {
        for member in &mut world.members[1..] {
            member.stamped_by_us = false;
        }
        let mut case = Case::trying(world);
        assert!(matches!(case.effect(), Effect::Try { pod: tried, .. } if tried == pod("b")));
        case.answer(Outcome::Accepted);
        assert_eq!((case.grant().holder, case.now), (pod("b"), NOW));
    }
}

#[test]
fn another_pod_follows_if_the_dry_run_of_the_first_gets_no_answer() {
    let mut world = cordoned(&["a"]);
    world.members[1].revision = Some("2".into());
    world.members[2].revision = Some("1".into());
    (world.members[1].created, world.members[1].stamped_by_us) = (9, false);
    let tried = |world: &World| {
        let mut case = Case::trying(world.clone());
        assert!(matches!(case.effect(), Effect::Try { pod: tried, .. } if tried == pod("b")));
        case.answer(Outcome::Failed);
        case
    };
    let mut case = tried(&world);
    assert!(matches!(case.effect(), Effect::Try { pod: tried, .. } if tried == pod("c")));
    case.answer(Outcome::Accepted);
    assert_eq!(case.grant().holder, pod("c"));
    // Without another one, the group is at rest, so that a failover does not have to wait.
    world.members[2].verdict = Verdict::Unknown;
    let case = tried(&world);
    assert_eq!((case.group.phase(), case.group.wake()), (&Phase::Stable, Some(NOW + Duration::from_secs(5))));
    // One that has just failed while it was active does not follow either.
    world.members[2].verdict = Verdict::Eligible;
    let mut case = Case::trying(world);
    case.group.lapses.add("uid-c");
    case.answer(Outcome::Failed);
    assert_eq!(*case.group.phase(), Phase::Stable);
}

#[test]
fn a_pod_that_failed_does_not_get_the_role_back_because_of_a_cordon() {
    // b is on a cordoned node, and c is not fit when a fails.
    let mut world = cordoned(&["b"]);
    world.members[0].verdict = Verdict::Silent;
    world.members[2].verdict = Verdict::Unknown;
    let mut case = Case::stable(world);
    assert_eq!(case.grant().holder, pod("b"));
    case.answer(Outcome::Granted { token: 6 });
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    case.answer(Outcome::Promoted);
    // a is well again, and c is not.
    let mut world = World { declared: case.group.declared().clone(), ..cordoned(&["b"]) };
    world.members[2].verdict = Verdict::Unknown;
    for member in &mut world.members {
        member.role = if member.pod == pod("b") { Role::Active } else { Role::Standby };
        member.stamp = Some(6);
    }
    case.meanwhile(world);
    case.answer(Outcome::Confirmed);
    assert!(matches!(case.effect(), Effect::Finished(_)));
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_mins(1)));
    case.now += Duration::from_mins(1);
    case.step(Event::Tick);
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::NodeCordoned));
}

#[test]
fn nobody_is_switched_to_a_cordoned_node() {
    for (to, why) in
        [(Some("b"), SwitchoverRefusal::NodeCordoned("b".to_owned())), (None, SwitchoverRefusal::NoCandidate)]
    {
        let to = to.map(str::to_owned);
        let switchover = Some(SwitchoverRequest { id: "one".to_owned(), to });
        let mut case = Case::stable(World { switchover, ..cordoned(&["b", "c"]) });
        case.rest(|effect| matches!(effect, Effect::Stamp { .. }));
        assert_eq!(case.group.refused_switchover().map(|(_, refused)| refused.clone()), Some(why));
    }
}
