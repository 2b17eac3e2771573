//! The fence between two terms, and what keeps a late promotion from taking effect.

use super::*;

/// Term 6 of b was declared but not confirmed; then b failed, and c becomes the holder.
fn overtaken(declared: &str) -> Case {
    let mut world = settled();
    world.declared = declaration(6, Some(declared), &["a"]);
    world.members[0].role = Role::Standby;
    world.members[1].verdict = Verdict::Silent;
    world.members[0].verdict = Verdict::Unknown;
    Case::new(world, row(6, Some("b"), false))
}

#[test]
fn the_holder_of_a_term_that_was_not_confirmed_is_fenced_off_before_the_next_is_declared() {
    let mut case = overtaken("b");
    assert_eq!(case.grant().holder, pod("c"));
    case.answer(Outcome::Granted { token: 7 });
    let fence = Effect::Strip { token: 6, pods: vec![known("b")] };
    assert_eq!(case.effect(), fence);
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.token == 7));
    case.answer(Outcome::Declared);
    assert!(matches!(case.effect(), Effect::Strip { token: 7, pods } if pods.contains(&known("b"))));
    // A healthy pod keeps the role if it was promoted in the meantime.
    for (role, active) in [(Role::Active, true), (Role::Standby, false)] {
        let mut case = overtaken("b");
        let mut world = case.group.world().clone();
        world.members[1].verdict = Verdict::Unknown;
        case.meanwhile(world.clone());
        case.answer(Outcome::Granted { token: 7 });
        assert_eq!(case.effect(), Effect::Stamp { token: 6, pods: vec![known("b")] });
        (world.members[1].role, world.members[1].stamp) = (role, Some(6));
        case.meanwhile(world.clone());
        let mut failed =
            Case { group: case.group.clone(), now: NOW, asked: case.asked.clone(), tries: case.tries };
        case.answer(Outcome::Stamped(Vec::new()));
        if active {
            assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 7));
        } else {
            assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.token == 7));
        }
        world.members[1] = member("b", role, Verdict::Silent);
        failed.meanwhile(world);
        failed.answer(Outcome::Stamped(Vec::new()));
        assert_eq!(failed.effect(), fence);
    }
    // If the former holder cannot be fenced, no other pod is declared.
    let mut case = overtaken("b");
    case.answer(Outcome::Granted { token: 7 });
    case.answer(Outcome::Failed);
    assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
    // A new owner fences it, too.
    let world = case.group.world().clone();
    let mut case = Case::new(world, row(7, Some("c"), false));
    case.answer(Outcome::Granted { token: 8 });
    assert_eq!(case.effect(), fence);
}

#[test]
fn the_fence_of_an_active_pod_is_not_left_out_because_the_watch_has_lost_sight_of_it() {
    // The promotion of a under the declared term is late.
    let mut world = settled();
    world.declared = declaration(6, Some("a"), &["b"]);
    let mut case = Case::new(world, row(6, Some("a"), false));
    assert_eq!(case.grant().holder, pod("a"));
    case.answer(Outcome::Granted { token: 7 });
    case.answer(Outcome::Stamped(Vec::new()));
    assert!(matches!(case.effect(), Effect::Strip { token: 6, .. }));
    // The watch begins again with a list from the past.
    let mut past = case.group.world().clone();
    past.members.clear();
    case.meanwhile(past);
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("a")));
}

#[test]
fn a_term_of_another_database_with_the_same_token_is_fenced_off() {
    // In this replica's database token 5 is vacant. Another one granted 5 to b, and that was declared.
    let mut world = settled();
    world.declared = declaration(5, Some("b"), &[]);
    world.members.iter_mut().for_each(|member| member.role = Role::Standby);
    world.members[1].stamp = None;
    world.members[1].verdict = Verdict::Unknown;
    let mut case = Case::new(world, row(5, None, true));
    assert_eq!(case.grant().holder, pod("a"));
    case.answer(Outcome::Granted { token: 6 });
    assert_eq!(case.effect(), Effect::Stamp { token: 5, pods: vec![known("b")] });
}

#[test]
fn a_holder_that_carries_its_own_stamp_without_the_label_is_not_promoted_under_that_term() {
    let mut world = settled();
    let (declared, row) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    world.declared = declared;
    world.members[0].role = Role::Standby;
    let unspent = Case::new(world.clone(), row.clone());
    assert!(matches!(unspent.effect(), Effect::Strip { token: 6, .. }));
    world.members[1].stamp = Some(6);
    let case = Case::new(world.clone(), row.clone());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
    // The same if only the recheck shows it.
    let mut case = unspent;
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("b")));
    let (declared, row) = (Some(world.declared.clone()), Some(row));
    case.meanwhile(world);
    case.answer(Outcome::Rechecked { version: Some("12".into()), declared, row });
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
}

#[test]
fn a_promotion_that_met_another_version_is_repeated_only_while_the_term_stands() {
    let mut world = settled();
    let (declared, held) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    world.declared = declared.clone();
    world.members[0].role = Role::Standby;
    let resumed = || {
        let mut case = Case::new(world.clone(), held.clone());
        case.answer(Outcome::Stripped);
        assert_eq!(case.effect(), Effect::Recheck(pod("b")));
        case
    };
    for (declared, row, stands) in [
        (declared.clone(), held.clone(), true),
        (declaration(7, Some("c"), &["b"]), held.clone(), false),
        (declared.clone(), row(7, Some("c"), false), false),
    ] {
        let mut case = resumed();
        case.answer(Outcome::Rechecked {
            version: Some("12".into()),
            declared: Some(declared),
            row: Some(row),
        });
        if stands {
            let (token, version) = (6, "12".to_owned());
            assert_eq!(case.effect(), Effect::Promote { token, pod: pod("b"), version });
            case.answer(Outcome::Conflict);
            assert_eq!(case.effect(), Effect::Recheck(pod("b")));
        } else {
            assert!(case.asked.is_empty() && matches!(case.group.phase(), Phase::BackingOff { .. }));
        }
    }
}

#[test]
fn a_pod_that_has_left_the_group_is_not_promoted_after_a_recheck() {
    let mut world = settled();
    let (declared, held) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    world.declared = declared;
    world.members[0].role = Role::Standby;
    let mut case = Case::new(world.clone(), held.clone());
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("b")));
    let (declared, held) = (Some(world.declared.clone()), Some(held));
    // Whether it was fenced off in the meantime cannot be seen any more.
    world.members.remove(1);
    case.meanwhile(world);
    case.answer(Outcome::Rechecked { version: Some("12".into()), declared, row: held });
    assert!(!matches!(case.effect(), Effect::Promote { .. }), "{:?}", case.asked);
}

/// After lost commits the active pod keeps the role, but the declared term was not carried out on it.
#[test]
fn an_active_pod_is_fenced_with_the_stamp_of_the_declared_term_and_keeps_its_label() {
    let mut world = settled();
    world.declared = declaration(6, Some("a"), &[]);
    let mut case = Case::new(world.clone(), Row::default());
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::LostCommits));
    case.answer(Outcome::Granted { token: 7 });
    assert_eq!(case.effect(), Effect::Stamp { token: 6, pods: vec![unknown("a")] });
    let fenced = |case: &mut Case| case.answer(Outcome::Stamped(Vec::new()));
    let recheck = |case: &mut Case, token: i64| {
        assert_eq!(case.effect(), Effect::Recheck(pod("a")));
        let declared = Declaration { token, ..case.group.declared().clone() };
        let row = case.group.row().clone();
        let read = Some("12".to_owned());
        case.answer(Outcome::Rechecked { version: read, declared: Some(declared), row: Some(row) });
    };
    let fence = Effect::Promote { token: 6, pod: pod("a"), version: "12".to_owned() };
    let mut foreign =
        Case { group: case.group.clone(), now: NOW, asked: case.asked.clone(), tries: case.tries };
    fenced(&mut case);
    // Another replica has declared a later term: this write would be late.
    let mut late = Case { group: case.group.clone(), now: NOW, asked: case.asked.clone(), tries: case.tries };
    recheck(&mut late, 8);
    assert!(late.asked.is_empty() && matches!(late.group.phase(), Phase::BackingOff { .. }));
    recheck(&mut case, 6);
    assert_eq!(case.effect(), fence);
    case.answer(Outcome::Promoted);
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.token == 7));
    // A larger stamp is of a later term, or foreign: the next read shows which.
    world.members[0].stamp = Some(9);
    foreign.meanwhile(world);
    fenced(&mut foreign);
    assert!(foreign.asked.is_empty() && matches!(foreign.group.phase(), Phase::BackingOff { .. }));
    foreign.now = foreign.group.wake().expect("it reads again");
    foreign.step(Event::Tick);
    let (declared, row) = (foreign.group.world().declared.clone(), foreign.group.row().clone());
    foreign.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
    assert_eq!(foreign.effect(), Effect::Stamp { token: 6, pods: vec![unknown("a")] });
    fenced(&mut foreign);
    recheck(&mut foreign, 6);
    assert_eq!(foreign.effect(), fence, "it is foreign, and put right");
}

/// The lock is free, and its row has the token of the declared term, but that may be of another grant.
#[test]
fn a_free_row_does_not_show_that_the_declared_term_was_confirmed() {
    let mut world = settled();
    (world.members[0].role, world.members[0].stamp) = (Role::Standby, Some(4));
    let free = Row { holder: None, grant: Some(Uuid::from_u128(8)), ..row(5, Some("c"), true) };
    let mut case = Case::new(world, free);
    let holder = case.grant().holder;
    case.answer(Outcome::Granted { token: 6 });
    assert_eq!(case.effect(), Effect::Stamp { token: 5, pods: vec![known("a")] }, "{holder:?} is next");
}

#[test]
fn a_pod_that_another_replica_has_promoted_meanwhile_is_stripped_after_an_unused_term() {
    let mut world = settled();
    world.members[0].role = Role::Standby;
    world.declared = Declaration::default();
    let mut case = Case::new(world, Row::default());
    assert_eq!(case.grant().holder, pod("a"));
    case.answer(Outcome::Granted { token: 6 });
    // The replica of another database was faster: it has declared a term with the same holder, and promoted it.
    assert!(matches!(case.effect(), Effect::Declare { .. }));
    case.meanwhile(settled());
    case.answer(Outcome::Rejected(Rejection::Outdated));
    case.now = case.group.wake().expect("it reads again");
    case.step(Event::Tick);
    let row = case.group.row().clone();
    case.answer(Outcome::Read { row: Some(row), declared: Some(settled().declared) });
    assert!(matches!(case.effect(), Effect::Declare { .. }));
    // The pod leaves the selector, so that the watch does not show its label. This replica has not promoted it.
    let mut left = settled();
    left.members.remove(0);
    case.meanwhile(left);
    case.answer(Outcome::Declared);
    assert!(case.verified(Reason::PodDeleted));
    assert_eq!(case.grant().holder, pod("b"));
    case.answer(Outcome::Granted { token: 7 });
    match case.effect() {
        Effect::Declare { next, .. } => assert_eq!((next.token, next.strip), (7, vec![pod("a")])),
        other => panic!("not a declaration: {other:?}"),
    }
}
