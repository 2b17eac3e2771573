//! Pods that were active are deleted, once the next one is.

use super::*;

/// a was active until b followed with token 6.
fn followed() -> World {
    let mut world = World {
        members: vec![
            member("a", Role::Standby, Verdict::Silent),
            member("b", Role::Active, Verdict::Eligible),
            member("c", Role::Standby, Verdict::Eligible),
        ],
        declared: declaration(6, Some("b"), &["a"]),
        ..World::default()
    };
    world.members.iter_mut().for_each(|member| member.stamp = Some(6));
    world.policy.deletes_demoted = true;
    world
}

fn case(world: World) -> Case {
    Case::new(world, row(6, Some("b"), true))
}

#[test]
fn a_pod_that_was_active_is_deleted_in_the_version_in_which_it_is_a_standby() {
    let mut case = case(followed());
    assert_eq!(case.effect(), Effect::Delete(vec![known("a")]));
    case.answer(Outcome::Deleted(None));
    let mut world = followed();
    world.members[0].verdict = Verdict::Ended(Reason::PodDeleted);
    case.now += Duration::from_mins(1);
    case.step(Event::World(world));
    assert_eq!(case.asked, [], "it is being deleted");
}

#[test]
fn no_pod_is_deleted_before_it_is_a_standby_and_the_next_one_is_active() {
    let changed = |change: &dyn Fn(&mut World)| {
        let mut world = followed();
        change(&mut world);
        world
    };
    for (world, why) in [
        (changed(&|world| world.policy.deletes_demoted = false), "the policy"),
        (changed(&|world| world.members[0].stamp = Some(5)), "the watch shows it as it was"),
        (changed(&|world| world.members[0].role = Role::Active), "it is active"),
        (changed(&|world| world.members[1].role = Role::Standby), "the next one is not active"),
        (changed(&|world| world.declared.strip.clear()), "it was not active"),
        (changed(&|world| world.members[0].verdict = Verdict::Ended(Reason::PodFinished)), "it has ended"),
        (changed(&|world| world.members[1].verdict = Verdict::Unknown), "the next one is not known to work"),
        (changed(&|world| world.policy.paused = true), "the group is paused"),
    ] {
        let case = case(world);
        let deletes = case.asked.iter().any(|(_, effect)| matches!(effect, Effect::Delete(_)));
        assert!(!deletes, "{why}: {:?}", case.asked);
    }
}

#[test]
fn what_a_rollout_deletes_is_left_to_it() {
    let row = Row { reason: Some(Reason::Rollout), ..row(6, Some("b"), true) };
    assert_eq!(Case::new(followed(), row).asked, []);
}

#[test]
fn a_refused_deletion_is_told_and_tried_again_after_growing_pauses_while_standbys_are_stamped() {
    let mut world = followed();
    world.members[2].stamp = Some(5);
    let mut case = case(world);
    let refused = || Outcome::Deleted(Some("pods \"a\" is forbidden".to_owned()));
    let deletion = |case: &Case| {
        let found = case.asked.iter().find(|(_, effect)| *effect == Effect::Delete(vec![known("a")]));
        found.expect("a deletion").0
    };
    let stamps = |case: &Case| case.asked.iter().any(|(_, effect)| matches!(effect, Effect::Stamp { .. }));
    assert!(stamps(&case), "{:?}", case.asked);
    let mut pauses = Vec::new();
    for _ in 0..10 {
        let ticket = deletion(&case);
        case.step(Event::Outcome(ticket, refused(), followed()));
        assert_eq!(case.group.deletion_refused(), Some("pods \"a\" is forbidden"));
        let before = case.now;
        case.now = case.group.wake().expect("it is tried again");
        pauses.push(case.now.saturating_sub(before).as_secs());
        case.step(Event::Tick);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    let mut world = followed();
    world.members.remove(0);
    let ticket = deletion(&case);
    case.step(Event::Outcome(ticket, refused(), world));
    assert_eq!(case.group.deletion_refused(), None, "somebody else has deleted it");
}

#[test]
fn former_holders_are_deleted_in_a_short_burst_and_then_once_an_interval() {
    let (mut case, mut deleted) = (case(followed()), Vec::new());
    for _ in 0..2_000 {
        if let Some((ticket, Effect::Delete(_))) = case.asked.first().cloned() {
            deleted.push((case.now.saturating_sub(NOW)).as_secs());
            case.step(Event::Outcome(ticket, Outcome::Deleted(None), followed()));
        } else {
            case.now += Duration::from_secs(1);
            case.step(Event::Tick);
        }
    }
    assert_eq!(deleted[..4], [0, 1, 2, 3]);
    assert!(deleted[4] >= 300 - 4 && deleted.len() <= 4 + 7, "{deleted:?}");
}

#[test]
fn a_change_that_a_user_requests_is_not_limited_and_uses_nothing_of_the_limit() {
    let row = Row { reason: Some(Reason::Switchover), ..row(6, Some("b"), true) };
    let mut case = Case::new(followed(), row);
    for _ in 0..10 {
        assert_eq!(case.effect(), Effect::Delete(vec![known("a")]));
        let (ticket, _) = case.asked[0];
        case.step(Event::Outcome(ticket, Outcome::Deleted(None), followed()));
        case.now += Duration::from_secs(1);
        case.step(Event::Tick);
    }
    assert_eq!(case.group.deleting.due(false, case.now), case.now, "failures have the whole limit left");
}

#[test]
fn a_requested_change_does_not_release_the_deletions_that_the_limit_holds_back() {
    let mut world = followed();
    world.declared.strip.push(pod("c"));
    world.members.push(member("d", Role::Standby, Verdict::Eligible));
    world.members[3].stamp = Some(6);
    let row = Row { reason: Some(Reason::Switchover), ..row(6, Some("b"), true) };
    let mut case = Case::new(world.clone(), row);
    for _ in 0..4 {
        assert_eq!(case.effect(), Effect::Delete(vec![known("a"), known("c")]));
        let (ticket, _) = case.asked[0];
        case.step(Event::Outcome(ticket, Outcome::Deleted(None), world.clone()));
        case.now += Duration::from_secs(1);
        case.step(Event::Tick);
    }
    assert_eq!(case.asked, [], "the limit is used up");
}

#[test]
fn a_former_holder_that_was_not_deleted_in_time_is_deleted_after_the_next_change() {
    let mut world = followed();
    world.members[1].verdict = Verdict::Ended(Reason::PodDeleted);
    let mut case = case(world);
    let Effect::Grant(grant) = case.effect() else { panic!("{:?}", case.asked) };
    assert_eq!(grant.holder, pod("c"));
    case.answer(Outcome::Granted { token: 7 });
    let Effect::Declare { next, .. } = case.effect() else { panic!("{:?}", case.asked) };
    assert_eq!(next.strip, [pod("b"), pod("a")]);
}
