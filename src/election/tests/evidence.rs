//! When evidence replaces the holder, and when a read has to confirm it first.

use super::*;

#[test]
fn each_reason_replaces_the_holder_and_watch_evidence_is_confirmed_first() {
    for (verdict, reason, asks) in [
        (Verdict::Silent, Reason::Silent, false),
        (Verdict::Failing(Reason::ProbeRefused), Reason::ProbeRefused, false),
        (Verdict::Failing(Reason::ContainerRestarted), Reason::ContainerRestarted, false),
        (Verdict::Failing(Reason::PodNotReady), Reason::PodNotReady, true),
        (Verdict::Failing(Reason::ContainerTerminated), Reason::ContainerTerminated, true),
        (Verdict::Ended(Reason::PodDeleted), Reason::PodDeleted, false),
        (Verdict::Ended(Reason::PodFinished), Reason::PodFinished, true),
        (Verdict::Ended(Reason::DisruptionTarget), Reason::DisruptionTarget, true),
    ] {
        let mut case = Case::stable(with(verdict));
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
    for verdict in [Verdict::Eligible, Verdict::Unknown] {
        assert!(Case::stable(with(verdict)).asked.is_empty(), "{verdict:?}");
    }
    let mut case = Case::stable(with(Verdict::Failing(Reason::PodNotReady)));
    case.answer(Outcome::Verified(None));
    assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
}

#[test]
fn a_restart_during_the_read_counts_as_a_crash() {
    let ended = Reason::ContainerTerminated;
    let mut case = Case::stable(with(Verdict::Failing(ended)));
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    // The read shows a running container, but a new one.
    case.meanwhile(with(Verdict::Failing(Reason::ContainerRestarted)));
    case.answer(Outcome::Verified(None));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), ended));
    // The crash still counts if the new container is ready before the outcome of the read.
    let mut case = Case::stable(with(Verdict::Failing(ended)));
    case.meanwhile(with(Verdict::Failing(Reason::ContainerRestarted)));
    case.meanwhile(settled());
    case.answer(Outcome::Verified(None));
    assert_eq!(case.grant().holder, pod("b"));
    // Without a successor, it stays.
    let alone = |verdict| {
        let mut world = with(verdict);
        world.members.truncate(1);
        world
    };
    let mut case = Case::stable(alone(Verdict::Ended(Reason::PodDeleted)));
    case.meanwhile(alone(Verdict::Failing(Reason::ContainerRestarted)));
    case.answer(Outcome::Verified(None));
    assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
}

#[test]
fn only_a_pod_with_fresh_evidence_becomes_the_successor() {
    for verdict in [Verdict::Unknown, Verdict::Silent, Verdict::Failing(Reason::PodNotReady)] {
        let mut world = with(Verdict::Silent);
        (world.members[1].verdict, world.members[2].verdict) = (verdict, verdict);
        assert!(Case::stable(world).asked.is_empty(), "{verdict:?}");
    }
}

#[test]
fn the_successor_is_on_another_node_than_a_silent_holder_and_else_the_oldest() {
    let mut world = with(Verdict::Silent);
    let node = world.members[0].node.clone();
    world.members[1].node = node;
    world.members[2].created = 9;
    assert_eq!(Case::stable(world.clone()).grant().holder, pod("c"));
    world.members[0].verdict = Verdict::Failing(Reason::ProbeRefused);
    assert_eq!(Case::stable(world).grant().holder, pod("b"));
}

#[test]
fn a_holder_that_ended_without_a_successor_frees_the_lock() {
    let mut world = with(Verdict::Ended(Reason::PodDeleted));
    world.members.truncate(1);
    let mut case = Case::stable(world);
    assert!(case.verified(Reason::PodDeleted));
    assert_eq!(case.effect(), Effect::Vacate { token: 5 });
    case.answer(Outcome::Vacated);
    assert!(matches!(&case.asked[0].1, Effect::Finished(finished) if finished.to.is_none()));
    assert_eq!(case.group.holder(), None);
}

/// The watch is behind: it does not show the pod.
#[test]
fn a_holder_that_the_read_shows_keeps_the_lock_even_if_it_is_not_well() {
    let mut world = settled();
    world.members.clear();
    for read in [Reason::PodNotReady, Reason::ContainerTerminated] {
        let mut case = Case::stable(world.clone());
        assert!(case.verified(read));
        assert!(case.asked.is_empty(), "{:?}", case.asked);
    }
    // Meanwhile the watch shows it, and an excuse for what the read shows: its program is starting.
    let mut case = Case::stable(World { members: settled().members.split_off(1), ..settled() });
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    case.meanwhile(settled());
    case.answer(Outcome::Verified(Some(Reason::PodNotReady)));
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    // With a successor, the reason is what the read shows.
    let mut world = settled();
    world.members.remove(0);
    let mut case = Case::stable(world);
    assert!(case.verified(Reason::ContainerTerminated));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::ContainerTerminated));
}

#[test]
fn a_release_whose_answer_was_lost_is_repeated_until_its_result_is_known() {
    let mut world = with(Verdict::Ended(Reason::PodDeleted));
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
        assert!(matches!(case.group.phase(), Phase::Vacating(_)), "{:?}", case.group.phase());
    }
    case.now = case.group.wake().expect("it asks again");
    case.step(Event::Tick);
    case.answer(Outcome::Vacated);
    assert_eq!(case.group.holder(), None);
}

#[test]
fn a_silent_holder_that_answers_again_before_it_loses_its_label_keeps_the_role() {
    // In a group of two, the next holder is the one before the last.
    for (declared, strip) in [(false, &[][..]), (true, &[]), (false, &["b"]), (true, &["b"])] {
        let silent = World { declared: declaration(5, Some("a"), strip), ..with(Verdict::Silent) };
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
    let mut case = Case::stable(with(Verdict::Silent));
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
fn two_terms_in_vain(verdict: Verdict) -> Case {
    let (declared, mut granted) = own(declaration(7, Some("c"), &["a", "b"]), row(7, Some("c"), false));
    granted.pending = vec![pod("a"), pod("b"), pod("c")];
    granted.reason = Some(Reason::Silent);
    Case::new(World { declared, ..with(verdict) }, granted)
}

#[test]
fn a_silent_holder_that_answers_again_keeps_the_role_although_two_others_were_granted_it() {
    let case = two_terms_in_vain(Verdict::Eligible);
    assert_eq!((case.grant().holder, case.grant().expected), (pod("a"), 7));
}

#[test]
fn the_former_holder_of_an_unfinished_term_is_the_pod_that_was_active() {
    let mut case = two_terms_in_vain(Verdict::Silent);
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

/// Answers the calls of a change of holder from a to b, and returns what it says of itself.
fn carry_out(case: &mut Case) -> Finished {
    for outcome in [
        Outcome::Granted { token: 6 },
        Outcome::Declared,
        Outcome::Stripped,
        Outcome::Promoted,
        Outcome::Confirmed,
    ] {
        case.answer(outcome);
    }
    case.finished()
}

#[test]
fn a_change_takes_as_long_as_the_former_pod_was_silent_and_not_only_since_the_verdict() {
    let silent_for = |time: Duration| {
        let mut world = with(Verdict::Silent);
        world.members[0].silent_since = NOW.checked_sub(time);
        world
    };
    let five = Duration::from_secs(5);
    assert_eq!(carry_out(&mut Case::stable(silent_for(five))).took, five);
    // The delay counts from the verdict, and the silence is part of what the change took.
    let mut delayed = silent_for(five);
    delayed.policy.delay = Duration::from_secs(3);
    let mut case = Case::stable(delayed);
    assert!(case.asked.is_empty());
    case.now += Duration::from_secs(3);
    case.step(Event::Tick);
    assert_eq!(carry_out(&mut case).took, Duration::from_secs(8));
    // Meanwhile the silent pod was deleted.
    let mut delayed = silent_for(five);
    delayed.policy.delay = Duration::from_secs(3);
    let mut case = Case::stable(delayed.clone());
    case.now += Duration::from_secs(1);
    (delayed.members[0].verdict, delayed.members[0].silent_since) =
        (Verdict::Ended(Reason::PodDeleted), None);
    case.world(delayed);
    assert_eq!(carry_out(&mut case).took, Duration::from_secs(6));
    // Other evidence counts from its first sight.
    assert_eq!(
        carry_out(&mut Case::stable(with(Verdict::Failing(Reason::ProbeRefused)))).took,
        Duration::ZERO
    );
}
