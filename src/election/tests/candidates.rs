//! Which pod follows, and what happens if it becomes unfit in the middle of the change.

use super::{
    refusals::{refused, stripped, to_the_promotion},
    *,
};

#[test]
fn a_candidate_with_the_stamp_of_the_declared_term_comes_before_an_older_one() {
    let mut world = with(Verdict::Silent);
    world.members[1].stamp = Some(4);
    world.members[2].created = 9;
    assert_eq!(Case::stable(world).grant().holder, pod("c"));
}

/// The group of [`settled`] in a rollout: a is being deleted, b is of the same revision, c is younger and of another
/// one.
fn rollout() -> World {
    let mut world = with(Verdict::Ended(Reason::PodDeleted));
    for (member, (revision, created)) in world.members.iter_mut().zip([("1", 10), ("1", 10), ("2", 20)]) {
        (member.revision, member.created) = (Some(revision.into()), created);
    }
    world
}

fn next_of(world: World) -> PodRef {
    Case::stable(world).grant().holder
}

#[test]
fn a_rollout_costs_one_change_because_the_next_holder_is_of_the_revision_of_the_youngest_pod() {
    assert_eq!(next_of(rollout()), pod("c"));
    // It was undone: the youngest pod is of the first revision again.
    let mut undone = rollout();
    undone.members.push(member("d", Role::Standby, Verdict::Unknown));
    (undone.members[3].revision, undone.members[3].created) = (Some("1".into()), 30);
    assert_eq!(next_of(undone), pod("b"));
    // A pod that nothing controls has no revision, and says nothing about a rollout.
    let mut bare = rollout();
    bare.members.push(member("d", Role::Standby, Verdict::Eligible));
    bare.members[3].created = 30;
    assert_eq!(next_of(bare), pod("c"));
    // The new pods do not work.
    let mut crashing = rollout();
    crashing.members[2].verdict = Verdict::Failing(Reason::ContainerTerminated);
    assert_eq!(next_of(crashing), pod("b"));
}

#[test]
fn a_new_pod_of_the_newest_revision_needs_a_dry_run_but_no_stamp() {
    let mut world = rollout();
    (world.members[2].role, world.members[2].stamp, world.members[2].stamped_by_us) =
        (Role::None, None, false);
    let mut case = Case::stable(world);
    assert_eq!(case.effect(), Effect::Try { token: 6, pod: pod("c"), from: None });
    case.answer(refused());
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn a_rollout_is_no_reason_to_choose_a_pod_that_is_refused_or_shares_the_fate_of_the_holder() {
    let mut world = rollout();
    (world.members[0].verdict, world.members[2].node) = (Verdict::Silent, world.members[0].node.clone());
    assert_eq!(Case::stable(world).grant().holder, pod("b"), "a silent node");
    // c is active and fails. Other pods of its revision may fail in the same way.
    for (verdict, next) in [
        (Verdict::Failing(Reason::ContainerRestarted), "b"),
        (Verdict::Silent, "b"),
        (Verdict::Ended(Reason::PodDeleted), "d"),
    ] {
        let mut world = rollout();
        world.members.push(member("d", Role::Standby, Verdict::Eligible));
        (world.members[3].revision, world.members[3].created) = (Some("2".into()), 20);
        (world.members[0].role, world.members[2].role) = (Role::Standby, Role::Active);
        world.members[2].verdict = verdict;
        world.declared = declaration(5, Some("c"), &[]);
        let case = Case::new(world, row(5, Some("c"), true));
        assert_eq!(case.grant().holder, pod(next), "{verdict:?}");
    }
    // c was refused, and the pause after it is over.
    let mut world = rollout();
    (world.members[0].verdict, world.members[1].verdict) = (Verdict::Silent, Verdict::Unknown);
    (world.members[2].stamp, world.members[2].stamped_by_us) = (None, false);
    let mut case = Case::stable(world.clone());
    assert_eq!(case.effect(), Effect::Try { token: 6, pod: pod("c"), from: None });
    case.answer(refused());
    world.members[1].verdict = Verdict::Eligible;
    case.now += Duration::from_secs(5);
    case.world(world);
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn evidence_that_comes_during_a_change_counts_right_before_the_strip_and_the_promotion() {
    let failed = [
        Verdict::Ended(Reason::PodDeleted),
        Verdict::Failing(Reason::ProbeRefused),
        Verdict::Silent,
        Verdict::Unknown,
    ];
    let done = [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped];
    for verdict in failed {
        for steps in 1..=done.len() {
            let mut case = Case::stable(with(Verdict::Silent));
            done[..steps - 1].iter().for_each(|outcome| case.answer(outcome.clone()));
            let mut world = with(Verdict::Silent);
            world.members[1].verdict = verdict;
            case.meanwhile(world);
            case.answer(done[steps - 1].clone());
            let grant = case.grant();
            assert_eq!((grant.holder, grant.expected), (pod("c"), 6), "{verdict:?} after {steps} steps");
        }
    }
    // The recheck before a promotion that is repeated.
    let mut case = Case::stable(with(Verdict::Silent));
    to_the_promotion(&mut case);
    case.answer(Outcome::Conflict);
    assert_eq!(case.effect(), Effect::Recheck(pod("b")));
    let mut world = stripped();
    world.members[1].verdict = Verdict::Silent;
    case.meanwhile(world);
    let (declared, row) = (Some(case.group.declared().clone()), Some(case.group.row().clone()));
    case.answer(Outcome::Rechecked { version: Some("12".into()), declared, row });
    assert_eq!(case.grant().holder, pod("c"));
}

#[test]
fn a_candidate_that_fails_during_the_change_hands_back_to_an_active_pod_that_works() {
    let mut case = Case::stable(with(Verdict::Silent));
    case.answer(Outcome::Granted { token: 6 });
    let mut world = settled();
    world.members[1].verdict = Verdict::Silent;
    case.meanwhile(world);
    // It has not lost its label yet.
    case.answer(Outcome::Declared);
    assert_eq!((case.grant().holder, case.grant().expected), (pod("a"), 6));
}

#[test]
fn a_pod_that_may_be_active_is_not_passed_over_for_want_of_evidence() {
    let mut world = stripped();
    world.declared = declaration(6, Some("b"), &["a"]);
    let (declared, row) = own(world.declared.clone(), row(6, Some("b"), false));
    world.declared = declared;
    // The promotion of b may have been late, and the watch does not show it.
    let mut case = Case::new(world.clone(), row);
    assert!(matches!(case.effect(), Effect::Strip { .. }));
    world.members[1].verdict = Verdict::Unknown;
    case.meanwhile(world);
    case.answer(Outcome::Stripped);
    assert!(
        case.asked.is_empty() && matches!(case.group.phase(), Phase::Resuming { .. }),
        "{:?}",
        case.asked
    );
    case.now = case.group.wake().expect("it waits for evidence");
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Verify(pod("b")));
}

#[test]
fn a_change_whose_only_candidate_fails_waits_for_evidence() {
    let mut world = with(Verdict::Silent);
    world.members.truncate(2);
    let mut case = Case::stable(world.clone());
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared] {
        case.answer(outcome);
    }
    let mut failed = stripped();
    failed.members.truncate(2);
    failed.members[1].verdict = Verdict::Silent;
    case.meanwhile(failed.clone());
    case.answer(Outcome::Stripped);
    assert!(
        case.asked.is_empty() && matches!(case.group.phase(), Phase::Resuming { .. }),
        "{:?}",
        case.asked
    );
    failed.members[1].verdict = Verdict::Eligible;
    case.world(failed);
    assert!(matches!(case.effect(), Effect::Strip { token: 6, .. }), "it goes on: {:?}", case.asked);
}

#[test]
fn a_new_pod_whose_dry_run_fails_does_not_hold_the_group_up() {
    // a is silent, b works and has its stamp, c is of the newest revision and cannot be changed: a webhook that only
    // concerns it does not answer (HTTP 500, or the time limit).
    let mut world = rollout();
    world.members[0].verdict = Verdict::Silent;
    (world.members[2].role, world.members[2].stamp, world.members[2].stamped_by_us) =
        (Role::None, None, false);
    let mut case = Case::stable(world);
    let began = case.now;
    for _ in 0..200 {
        let Some((_, effect)) = case.asked.first().cloned() else {
            case.now = case.group.wake().expect("it goes on");
            case.step(Event::Tick);
            continue;
        };
        match effect {
            Effect::Try { .. } => case.answer(Outcome::Failed),
            Effect::Read => {
                let declared = Some(case.group.world().declared.clone());
                case.answer(Outcome::Read { row: Some(case.group.row().clone()), declared });
            }
            Effect::Grant(grant) => return assert_eq!(grant.holder, pod("b")),
            other => panic!("{other:?}"),
        }
    }
    panic!("no grant within {:?}", case.now.checked_sub(began));
}
