//! The five steps of a change, and what follows if one of them fails.

use std::collections::BTreeMap;

use super::*;

#[test]
fn a_change_goes_through_five_steps_in_this_order() {
    let mut case = Case::stable(with(Verdict::Silent));
    let id = case.grant().id;
    case.answer(Outcome::Granted { token: 6 });
    let next = Declaration {
        token: 6,
        grant: Some(id.to_string()),
        holder: Some(pod("b")),
        strip: vec![pod("a")],
        ..Declaration::default()
    };
    assert_eq!(case.effect(), Effect::Declare { previous: declaration(5, Some("a"), &[]), next });
    case.answer(Outcome::Declared);
    assert_eq!(case.effect(), Effect::Strip { token: 6, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    let version = "11".to_owned();
    assert_eq!(case.effect(), Effect::Promote { token: 6, pod: pod("b"), version });
    case.answer(Outcome::Promoted);
    assert_eq!(case.effect(), Effect::Confirm { token: 6 });
    case.answer(Outcome::Confirmed);
    assert!(matches!(&case.asked[0].1, Effect::Finished(finished)
        if finished.token == 6 && finished.from == Some(pod("a")) && finished.to == Some(pod("b"))));
    assert_eq!(case.group.holder(), Some(&pod("b")));
}

#[test]
fn a_term_keeps_what_a_newer_version_has_declared() {
    let unknown = BTreeMap::from([("lease".to_owned(), "b1".into())]);
    let declared = Declaration { unknown: unknown.clone(), ..declaration(5, Some("a"), &[]) };
    let mut case = Case::stable(World { declared, ..with(Verdict::Silent) });
    case.grant();
    case.answer(Outcome::Granted { token: 6 });
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.unknown == unknown));
}

#[test]
fn a_failure_at_any_step_but_the_last_leads_back_to_reading() {
    let answers = [
        Outcome::Granted { token: 6 },
        Outcome::Declared,
        Outcome::Stripped,
        Outcome::Promoted,
        Outcome::Confirmed,
    ];
    for broken in 0..answers.len() {
        for outcome in [Outcome::Failed, Outcome::Rejected(Rejection::Outdated)] {
            let is_repeated = broken == 4 && matches!(outcome, Outcome::Failed);
            let next = if is_repeated { Effect::Confirm { token: 6 } } else { Effect::Read };
            let mut case = Case::stable(with(Verdict::Silent));
            answers[..broken].iter().for_each(|answer| case.answer(answer.clone()));
            case.answer(outcome);
            assert!(case.asked.is_empty());
            case.now = case.group.wake().expect("it waits");
            case.step(Event::Tick);
            assert_eq!(case.effect(), next, "after step {broken}");
        }
    }
}

#[test]
fn a_token_exceeds_every_declaration_and_stamp_but_absurd_ones() {
    let mut world = with(Verdict::Silent);
    world.members[1].stamp = Some(90);
    world.members[2].stamp = Some((1 << 53) - 1);
    assert_eq!(Case::stable(world.clone()).grant().floor, 90);
    world.members[1].stamp = None;
    assert_eq!(Case::stable(world).grant().floor, 5);
}

#[test]
fn a_late_grant_is_not_continued_if_its_holder_has_failed() {
    let mut case = Case::stable(with(Verdict::Silent));
    let grant = case.grant();
    case.answer(Outcome::Unknown);
    case.now = case.group.wake().expect("it waits");
    case.step(Event::Tick);
    assert_eq!(case.grant(), grant, "the identical request");
    let mut world = with(Verdict::Silent);
    world.members[1].verdict = Verdict::Failing(Reason::ProbeRefused);
    case.meanwhile(world);
    case.answer(Outcome::Granted { token: 6 });
    assert_eq!((case.grant().holder, case.grant().expected), (pod("c"), 6));
}

#[test]
fn a_replica_that_stops_finishes_its_change_and_begins_no_other() {
    let stopping = || World { stopping: true, ..with(Verdict::Silent) };
    assert!(Case::stable(stopping()).asked.is_empty());
    let mut case = Case::stable(with(Verdict::Silent));
    assert_eq!(case.grant().holder, pod("b"));
    case.meanwhile(stopping());
    case.answer(Outcome::Granted { token: 6 });
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    case.answer(Outcome::Promoted);
    assert_eq!(case.effect(), Effect::Confirm { token: 6 });
    // By now the new holder has failed, too.
    let mut world = World { declared: case.group.declared().clone(), ..stopping() };
    world.members[0].role = Role::Standby;
    world.members[1] =
        Member { stamp: Some(6), ..member("b", Role::Active, Verdict::Failing(Reason::ProbeRefused)) };
    case.meanwhile(world.clone());
    case.answer(Outcome::Confirmed);
    assert!(matches!(case.effect(), Effect::Finished(finished) if finished.to == Some(pod("b"))));
    case.step(Event::Tick);
    assert!(case.asked.is_empty());
    case.world(World { stopping: false, ..world });
    assert_eq!(case.grant().holder, pod("c"), "the next owner goes on");
}

/// The status reports a request as carried out if the declaration names it, and no change is under way.
#[test]
fn a_grant_or_a_declaration_that_failed_does_not_count_as_made() {
    let mut case = Case::stable(with(Verdict::Silent));
    let id = case.grant().id;
    assert_eq!(case.group.row().grant, Some(GRANT));
    case.answer(Outcome::Granted { token: 6 });
    assert_eq!((case.group.row().grant, case.group.declared().token), (Some(id), 6), "it is being declared");
    case.answer(Outcome::Unknown);
    assert_eq!(case.group.declared().token, 5);
}
