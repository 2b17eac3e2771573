//! What holds a change up: the election delay, a pause, and an obstacle.

use super::*;

#[test]
fn the_delay_waits_after_an_unclean_end_only() {
    let delayed = |mut world: World| {
        world.policy.delay = Duration::from_secs(3);
        Case::stable(world)
    };
    let mut case = delayed(with(Verdict::Silent));
    assert!(case.asked.is_empty());
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(3)));
    case.now += Duration::from_secs(3);
    case.step(Event::Tick);
    assert_eq!(case.grant().reason, Reason::Silent);
    assert_eq!(delayed(with(Verdict::Ended(Reason::PodDeleted))).grant().reason, Reason::PodDeleted);
}

#[test]
fn the_delay_of_a_new_holder_begins_with_its_own_failure() {
    let mut world = with(Verdict::Silent);
    world.policy.delay = Duration::from_secs(3);
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
    (world.members[1].verdict, world.declared) = (Verdict::Silent, declared);
    case.meanwhile(world);
    case.answer(Outcome::Failed);
    case.now = case.group.wake().expect("it confirms again");
    case.step(Event::Tick);
    case.answer(Outcome::Confirmed);
    assert_eq!((case.asked.len(), case.finished().token), (1, 6));
    assert_eq!(case.group.wake(), Some(case.now + Duration::from_secs(3)));
}

#[test]
fn the_delay_of_a_holder_that_another_replica_chose_begins_with_its_own_failure() {
    let mut world = with(Verdict::Silent);
    world.policy.delay = Duration::from_secs(3);
    let mut case = Case::stable(world.clone());
    case.now += Duration::from_secs(3);
    case.step(Event::Tick);
    // Another replica has replaced a by c meanwhile, and now c is silent.
    case.answer(Outcome::Rejected(Rejection::Outdated));
    (world.members[0].role, world.members[2].role) = (Role::Standby, Role::Active);
    world.members.iter_mut().for_each(|member| member.stamp = Some(6));
    world.members[2].verdict = Verdict::Silent;
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
    let mut world = with(Verdict::Silent);
    world.policy.paused = true;
    assert!(Case::stable(world.clone()).asked.is_empty());
    let mut case = Case::stable(with(Verdict::Silent));
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
        let mut case = Case::stable(with(Verdict::Failing(Reason::ContainerTerminated)));
        assert_eq!(case.effect(), Effect::Verify(pod("a")));
        let mut world = with(Verdict::Failing(Reason::ContainerRestarted));
        policy(&mut world.policy);
        case.meanwhile(world);
        case.answer(Outcome::Verified(None));
        case.asked.is_empty()
    };
    assert!(waits(&|policy| policy.paused = true));
    assert!(waits(&|policy| policy.delay = Duration::from_secs(3)));
    assert!(!waits(&|_| {}), "nothing else delays it");
}

#[test]
fn a_pause_that_comes_while_the_holder_is_read_holds_until_it_is_lifted() {
    for reason in [Reason::PodNotReady, Reason::PodFinished] {
        let verdict = match reason {
            Reason::PodFinished => Verdict::Ended(reason),
            reason => Verdict::Failing(reason),
        };
        for alone in [false, true] {
            let mut world = with(verdict);
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
    let mut world = with(Verdict::Failing(Reason::PodNotReady));
    world.policy.paused = true;
    let mut case = Case::new(world, row(6, Some("a"), false));
    assert!(case.verified(Reason::PodNotReady));
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn the_delay_is_skipped_only_if_the_read_shows_an_end_too() {
    let delay = Duration::from_secs(3);
    let mut ended = with(Verdict::Ended(Reason::DisruptionTarget));
    ended.policy.delay = delay;
    let mut unwell = ended.clone();
    unwell.members[0].verdict = Verdict::Failing(Reason::PodNotReady);
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
fn a_holder_that_recovers_under_an_obstacle_has_the_whole_delay_the_next_time() {
    let obstructed = |mut world: World, obstacle: bool| {
        world.policy.delay = Duration::from_secs(3);
        world.obstacle = obstacle.then_some(Reason::SelectedByOtherGroup);
        world
    };
    let mut case = Case::stable(obstructed(with(Verdict::Silent), false));
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(3)));
    case.world(obstructed(settled(), true));
    case.now += Duration::from_secs(10);
    case.world(obstructed(with(Verdict::Silent), false));
    assert!(case.asked.is_empty());
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(13)));
}

#[test]
fn an_obstacle_prevents_every_promotion() {
    let mut world = with(Verdict::Silent);
    world.obstacle = Some(Reason::SelectedByOtherGroup);
    assert!(Case::stable(world).asked.is_empty());
}

#[test]
fn an_obstacle_suspends_a_verification_and_an_unfinished_term() {
    let obstacle = Some(Reason::SelectedByOtherGroup);
    let mut world = with(Verdict::Failing(Reason::PodNotReady));
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
        for verdict in [Verdict::Eligible, Verdict::Failing(Reason::PodNotReady), Verdict::Silent] {
            let mut world = settled();
            world.members[1].verdict = verdict;
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
fn a_pod_that_another_group_selects_too_is_not_promoted_and_its_own_group_goes_on_with_the_others() {
    let contested = |pods: &[usize], mut world: World| {
        for pod in pods {
            world.members[*pod].verdict = Verdict::Contested;
        }
        world
    };
    let silent = || with(Verdict::Silent);
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

/// A replica that hears no candidate gives the group to one that may, but only if that one could change the holder.
#[test]
fn a_group_lacks_a_candidate_only_while_a_pod_could_become_active() {
    let lonely = |change: &dyn Fn(&mut World)| {
        let mut world = with(Verdict::Failing(Reason::PodNotReady));
        world.members.iter_mut().skip(1).for_each(|member| member.verdict = Verdict::Unknown);
        change(&mut world);
        Case::stable(world)
    };
    let lacks = |case: &Case| case.group.lacks_candidate(case.now);
    assert!(lacks(&lonely(&|_| {})));
    assert!(!lacks(&lonely(&|world| world.policy.paused = true)));
    assert!(!lacks(&lonely(&|world| world.obstacle = Some(Reason::InvalidSpec))));
    assert!(!lacks(&lonely(&|world| world.members[1].verdict = Verdict::Eligible)));
    assert!(!lacks(&lonely(&|world| world.members[0].verdict = Verdict::Unknown)), "it may work");
    let mut delayed = lonely(&|world| world.policy.delay = Duration::from_secs(30));
    assert!(!lacks(&delayed));
    delayed.now += Duration::from_secs(30);
    assert!(lacks(&delayed));
    let ended = Verdict::Ended(Reason::PodDeleted);
    let ended = lonely(&|world| {
        world.policy.delay = Duration::from_secs(30);
        world.members[0].verdict = ended;
    });
    assert!(lacks(&ended) || ended.group.busy());
}
