//! Labels that were lost or set by others, and the stamps of standbys.

use super::*;
use crate::election::refusal::Refusal;

#[test]
fn strays_are_stripped_before_anything_else() {
    let mut world = with(Verdict::Silent);
    world.members[2].role = Role::Active;
    let mut case = Case::stable(world);
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("c")] });
    case.meanwhile(with(Verdict::Silent));
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
    let mut world = with(Verdict::Unknown);
    world.members[0].role = Role::None;
    let mut case = Case::stable(world.clone());
    assert!(case.asked.is_empty());
    world.members[0].verdict = Verdict::Eligible;
    case.group.pacing.relabels = NOW + Duration::from_secs(1);
    case.world(world);
    assert_eq!((case.asked.len(), case.group.wake()), (0, Some(NOW + Duration::from_secs(1))));
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
    case.group.refusals.promotion(&b, Refusal::by_api_server("a policy".to_owned()));
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
    world.members[0].verdict = Verdict::Silent;
    case.world(world);
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn a_write_is_bound_to_the_version_of_the_watch_unless_only_a_read_can_tell_whether_it_is_needed() {
    use Role::{Active, None as Bare, Standby};
    let member = |role, stamp, ours| {
        let member = member("a", role, Verdict::Eligible);
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

/// The stamp of its term is still there, so the write that succeeds brings no other one.
#[test]
fn a_standby_whose_role_somebody_removed_counts_again_once_it_is_labelled() {
    let mut world = settled();
    world.members[1].role = Role::None;
    let mut case = Case::stable(world.clone());
    case.answer(Outcome::Stamped(vec![(pod("b"), "a policy".to_owned())]));
    let available = |case: &Case| case.group.is_available(case.group.member("uid-b").expect("b"));
    case.world(world);
    assert!(!available(&case));
    case.now = case.group.wake().expect("it is tried again");
    case.step(Event::Tick);
    case.answer(Outcome::Stamped(Vec::new()));
    case.world(settled());
    assert!(available(&case) && case.asked.is_empty(), "{:?}", case.asked);
}
