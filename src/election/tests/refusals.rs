//! Pods that the API server refuses to change.

use super::*;
use crate::election::refusal::{Refusal, Refusals};

pub(super) fn refused() -> Outcome {
    Outcome::Refused("denied by a policy (HTTP 403)".to_owned())
}

/// Brings a change of holder from its grant to the promotion of b.
pub(super) fn to_the_promotion(case: &mut Case) {
    assert_eq!(case.grant().holder, pod("b"));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        case.answer(outcome);
    }
    assert!(matches!(case.effect(), Effect::Promote { .. }));
}

/// The group of [`settled`] after `a` became silent and was stripped.
pub(super) fn stripped() -> World {
    let mut world = with(Verdict::Silent);
    (world.members[0].role, world.members[0].stamp) = (Role::Standby, Some(6));
    world
}

#[test]
fn a_refused_promotion_passes_over_to_the_next_candidate_at_once() {
    let mut case = Case::stable(with(Verdict::Silent));
    to_the_promotion(&mut case);
    case.meanwhile(stripped());
    case.answer(refused());
    let grant = case.grant();
    assert_eq!((grant.holder, grant.expected, grant.reason), (pod("c"), 6, Reason::Silent));
    let (member, refused) = case.group.refused().next().expect("it is remembered");
    assert_eq!((&member.pod, refused.refusal.message.as_str()), (&pod("b"), "denied by a policy (HTTP 403)"));
    assert!(!case.group.is_available(member));
}

#[test]
fn a_refused_candidate_is_tried_again_soon_by_a_dry_run_while_no_pod_is_active() {
    let mut world = with(Verdict::Silent);
    world.members.truncate(2);
    let mut case = Case::stable(world);
    to_the_promotion(&mut case);
    let mut left = stripped();
    left.members.truncate(2);
    left.declared = case.group.declared().clone();
    case.meanwhile(left);
    case.answer(refused());
    let pause = Duration::from_secs(5);
    for _ in 0..6 {
        assert!(case.asked.is_empty(), "{:?}", case.asked);
        assert_eq!(case.group.wake(), Some(case.now + pause));
        case.now += pause;
        case.step(Event::Tick);
        assert_eq!(case.effect(), Effect::Try { token: 7, pod: pod("b"), from: None });
        case.answer(refused());
    }
    // Someone changes the pod, perhaps what the policy demands. It is tried again at once.
    let mut world = case.group.world().clone();
    world.members[1].version = "12".to_owned();
    case.world(world);
    assert!(matches!(case.effect(), Effect::Try { .. }));
    case.answer(Outcome::Accepted);
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
}

/// Another replica would have to fence the pod, which refuses every write.
#[test]
fn a_group_whose_term_only_this_replica_knows_to_be_unused_is_not_given_away() {
    let unheard = |mut world: World| {
        world.members[2].verdict = Verdict::Unknown;
        world
    };
    let mut case = Case::stable(unheard(with(Verdict::Silent)));
    to_the_promotion(&mut case);
    let mut left = unheard(stripped());
    left.declared = case.group.declared().clone();
    case.meanwhile(left);
    case.answer(refused());
    assert!(matches!(case.group.phase(), Phase::Resuming { .. }) && case.asked.is_empty());
    assert!(!case.group.lacks_candidate(case.now));
}

#[test]
fn the_pauses_after_refusals_grow_while_a_pod_is_active() {
    let (mut refusals, b) = (Refusals::default(), member("b", Role::Standby, Verdict::Eligible));
    let mut now = Duration::ZERO;
    for pause in [5, 10, 20, 40, 60, 60].map(Duration::from_secs) {
        refusals.set_time(now);
        refusals.set_served(true);
        refusals.promotion(&b, Refusal::by_api_server("denied".to_owned()));
        assert_eq!(refusals.wake(), Some(now + pause));
        refusals.set_time(now + pause.mul_f64(0.99));
        assert!(refusals.bars(&b.pod.uid), "for {pause:?}");
        now += pause;
        refusals.set_time(now);
        assert!(!refusals.bars(&b.pod.uid) && refusals.promotion_is_due(&b.pod.uid));
    }
    refusals.promotion(&b, Refusal::by_api_server("denied".to_owned()));
    // The active pod fails: the webhook may work again by now.
    refusals.set_time(now + Duration::from_secs(5));
    refusals.set_served(false);
    assert!(!refusals.bars(&b.pod.uid));
}

#[test]
fn a_former_active_pod_that_works_again_is_preferred_to_none() {
    let mut world = with(Verdict::Silent);
    world.members.truncate(2);
    let mut case = Case::stable(world);
    to_the_promotion(&mut case);
    let mut again = stripped();
    again.members.truncate(2);
    again.members[0].verdict = Verdict::Eligible;
    case.meanwhile(again);
    case.answer(refused());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("a"), 6));
}

#[test]
fn nobody_loses_the_label_for_a_pod_that_was_never_stamped_before_a_dry_run_succeeds() {
    let mut world = with(Verdict::Failing(Reason::ProbeRefused));
    for member in &mut world.members[1..] {
        (member.role, member.stamp, member.stamped_by_us) = (Role::None, None, false);
    }
    let mut case = Case::stable(world.clone());
    assert_eq!(case.effect(), Effect::Try { token: 6, pod: pod("b"), from: None });
    case.answer(refused());
    assert_eq!(case.effect(), Effect::Try { token: 6, pod: pod("c"), from: None });
    let mut gone = Case { group: case.group.clone(), now: NOW, asked: case.asked.clone(), tries: case.tries };
    case.answer(Outcome::Accepted);
    assert_eq!(case.grant().holder, pod("c"));
    gone.answer(refused());
    assert!(
        !gone.asked.iter().any(|(_, effect)| !matches!(effect, Effect::Stamp { .. })),
        "{:?}",
        gone.asked
    );
    assert_eq!(gone.group.holder(), Some(&pod("a")), "it keeps the lock and the label");
    // A stamped pod comes first, and needs no dry run.
    (world.members[2].stamp, world.members[2].stamped_by_us) = (Some(4), true);
    assert_eq!(Case::stable(world.clone()).grant().holder, pod("c"));
    // Without an active pod there is nothing to lose.
    world.members.remove(0);
    world.members.pop();
    let mut case = Case::stable(world);
    assert!(case.verified(Reason::PodDeleted));
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn a_holder_that_recovers_while_a_dry_run_has_no_answer_keeps_the_role() {
    let mut world = with(Verdict::Silent);
    let preferred = &mut world.members[1];
    (preferred.priority, preferred.stamp, preferred.stamped_by_us) = (1, None, false);
    for recovers in [true, false] {
        let mut case = Case::stable(world.clone());
        assert_eq!(case.effect(), Effect::Try { token: 6, pod: pod("b"), from: None });
        let mut now = world.clone();
        if recovers {
            now.members[0].verdict = Verdict::Eligible;
        }
        case.meanwhile(now);
        case.answer(Outcome::Failed);
        if recovers {
            assert!(case.asked.is_empty(), "{:?}", case.asked);
        } else {
            // It needs no dry run.
            assert_eq!(case.grant().holder, pod("c"));
        }
    }
}

#[test]
fn a_pause_holds_a_change_that_was_only_tried() {
    let mut world = with(Verdict::Silent);
    for member in &mut world.members[1..] {
        (member.stamp, member.stamped_by_us) = (None, false);
    }
    for outcome in [Outcome::Accepted, refused()] {
        let mut case = Case::stable(world.clone());
        assert!(matches!(case.effect(), Effect::Try { .. }));
        let mut paused = world.clone();
        paused.policy.paused = true;
        case.meanwhile(paused);
        case.answer(outcome);
        assert!(case.asked.is_empty() && *case.group.phase() == Phase::Stable, "{:?}", case.asked);
    }
}

#[test]
fn an_active_pod_whose_new_stamp_is_refused_keeps_the_label() {
    let mut case = Case::new(settled(), Row::default());
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::LostCommits));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        case.answer(outcome);
    }
    assert!(matches!(case.effect(), Effect::Promote { .. }));
    case.answer(refused());
    assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
}

#[test]
fn a_label_that_cannot_be_put_back_goes_to_another_pod() {
    let mut world = settled();
    world.members[0].role = Role::None;
    let mut case = Case::stable(world.clone());
    case.answer(Outcome::Verified(None));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        case.answer(outcome);
    }
    assert!(matches!(case.effect(), Effect::Promote { .. }));
    case.answer(refused());
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::LabelLost));
    // The stamp is gone as well, so a dry run comes first, and no other pod is eligible at that moment.
    (world.members[0].stamp, world.members[0].stamped_by_us) = (None, false);
    world.members[1].verdict = Verdict::Unknown;
    world.members[2].verdict = Verdict::Unknown;
    let mut case = Case::stable(world.clone());
    case.answer(Outcome::Verified(None));
    case.answer(Outcome::Granted { token: 6 });
    assert!(matches!(case.effect(), Effect::Declare { .. }), "nobody has anything to lose: {:?}", case.asked);
}

/// a has lost its label, and this replica remembers that the API server has refused to put it back.
fn tries_to_put_the_label_back() -> Case {
    let mut world = settled();
    world.members[0].role = Role::None;
    let mut case = Case::stable(world.clone());
    case.answer(Outcome::Verified(None));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped, refused()] {
        case.answer(outcome);
    }
    assert_eq!(case.grant().holder, pod("b"));
    // Another replica makes it active after all, and others take the label off again.
    case.step(Event::Disowned);
    case.step(Event::Owned { seed: Uuid::from_u128(9_000), row: Some(row(5, Some("a"), true)), world });
    case.now = case.group.wake().expect("it puts the label back");
    case.step(Event::Tick);
    case.answer(Outcome::Verified(None));
    assert_eq!(case.effect(), Effect::Try { token: 6, pod: pod("a"), from: None });
    case
}

#[test]
fn a_label_that_a_dry_run_shows_cannot_be_put_back_goes_to_another_pod_at_once() {
    let mut case = tries_to_put_the_label_back();
    case.answer(refused());
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::LabelLost));
}

#[test]
fn a_label_is_put_back_at_once_after_an_accepted_dry_run() {
    let mut case = tries_to_put_the_label_back();
    case.answer(Outcome::Accepted);
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    case.answer(Outcome::Verified(None));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::LabelLost));
}

/// The API server refuses every change to b, which was never stamped, when nobody is active.
#[test]
fn a_term_under_which_nothing_was_promoted_needs_neither_fence_nor_strip() {
    let mut world = settled();
    world.members.iter_mut().for_each(|member| {
        (member.role, member.stamp, member.stamped_by_us) = (Role::None, None, false);
    });
    world.declared = Declaration::default();
    let mut case = Case::new(world, Row::default());
    assert_eq!(case.grant().holder, pod("a"));
    case.answer(Outcome::Granted { token: 1 });
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Promote { token: 1, .. }));
    let mut in_doubt =
        Case { group: case.group.clone(), now: NOW, asked: case.asked.clone(), tries: case.tries };
    // Another version is no answer to the question, and nothing was written either.
    case.answer(Outcome::Conflict);
    let (declared, row) = (Some(case.group.declared().clone()), Some(case.group.row().clone()));
    case.answer(Outcome::Rechecked { version: Some("12".into()), declared, row });
    case.answer(refused());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 1));
    case.answer(Outcome::Granted { token: 2 });
    assert!(
        matches!(case.effect(), Effect::Declare { next, .. } if next.token == 2 && next.strip.is_empty()),
        "{:?}",
        case.asked
    );
    // Without an answer it may still be on its way.
    in_doubt.answer(Outcome::Failed);
    in_doubt.now = in_doubt.group.wake().expect("it reads again");
    in_doubt.step(Event::Tick);
    let (declared, row) = (in_doubt.group.declared().clone(), in_doubt.group.row().clone());
    let mut world = in_doubt.group.world().clone();
    (world.members[0].verdict, world.declared) = (Verdict::Silent, declared.clone());
    in_doubt.meanwhile(world);
    in_doubt.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
    assert_eq!(in_doubt.grant().holder, pod("b"));
    in_doubt.answer(Outcome::Granted { token: 2 });
    assert_eq!(in_doubt.effect(), Effect::Strip { token: 1, pods: vec![known("a")] });
}

#[test]
fn a_standby_that_was_refused_counts_again_once_a_dry_run_is_accepted() {
    let mut case = Case::stable(with(Verdict::Silent));
    to_the_promotion(&mut case);
    case.meanwhile(stripped());
    case.answer(refused());
    assert_eq!(case.grant().holder, pod("c"));
    for outcome in [Outcome::Granted { token: 7 }, Outcome::Declared, Outcome::Stripped] {
        case.answer(outcome);
    }
    let mut world = stripped();
    world.declared = case.group.declared().clone();
    world.members.iter_mut().for_each(|member| member.stamp = Some(7));
    world.members[2].role = Role::Active;
    case.meanwhile(world.clone());
    case.answer(Outcome::Promoted);
    case.answer(Outcome::Confirmed);
    let available = |case: &Case| case.group.is_available(case.group.member("uid-b").expect("b"));
    let asks_again = Effect::Try { token: 8, pod: pod("b"), from: None };
    for (answer, available_then) in [(refused(), false), (Outcome::Accepted, true)] {
        assert!(!available(&case));
        case.now = case.group.wake().expect("the pause ends");
        case.step(Event::Tick);
        assert_eq!(case.effect(), asks_again);
        case.answer(answer);
        assert_eq!(available(&case), available_then);
    }
    assert!(case.asked.is_empty() && case.group.wake().is_none(), "{:?}", case.asked);
}
