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
    ] {
        let case = case(world);
        let deletes = case.asked.iter().any(|(_, effect)| matches!(effect, Effect::Delete(_)));
        assert!(!deletes, "{why}: {:?}", case.asked);
    }
    let unfinished = Case::new(followed(), row(6, Some("b"), false));
    assert_eq!(unfinished.effect(), Effect::Confirm { token: 6 }, "the term is not confirmed");
}

#[test]
fn a_refused_deletion_is_told_and_tried_again_after_growing_pauses() {
    let mut case = case(followed());
    let refused = || Outcome::Deleted(Some("pods \"a\" is forbidden".to_owned()));
    let mut pauses = Vec::new();
    for _ in 0..3 {
        assert_eq!(case.effect(), Effect::Delete(vec![known("a")]));
        case.answer(refused());
        assert_eq!(case.group.deletion_refused(), Some("pods \"a\" is forbidden"));
        let before = case.now;
        case.now = case.group.wake().expect("it is tried again");
        pauses.push(case.now.saturating_sub(before));
        case.step(Event::Tick);
    }
    assert!(pauses.is_sorted() && pauses[0] < pauses[2], "{pauses:?}");
    case.answer(Outcome::Deleted(None));
    assert_eq!(case.group.deletion_refused(), None);
}
