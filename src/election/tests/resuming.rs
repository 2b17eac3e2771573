//! Unfinished terms, and rows that have lost commits.

use super::*;

#[test]
fn a_new_owner_begins_a_new_term_for_the_holder_of_an_unfinished_one() {
    let mut granted = row(6, Some("b"), false);
    granted.pending = vec![pod("a"), pod("b")];
    let mut world = with(Verdict::Silent);
    let declares_7 = |case: &Case| {
        matches!(case.effect(), Effect::Declare { next, .. }
            if next.token == 7 && next.holder == Some(pod("b")) && next.strip == [pod("a")])
    };
    // Granted, perhaps fenced: the new owner cannot tell whether the previous term was confirmed, so it fences and
    // then declares.
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
    case.answer(Outcome::Granted { token: 7 });
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert!(declares_7(&case), "{:?}", case.asked);
    // Declared, perhaps stripped: the promotion of the previous owner may be on its way, so its holder is fenced, even
    // though it is the holder of the new term, too.
    world.declared = declaration(6, Some("b"), &["a"]);
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!((case.grant().holder, case.grant().expected), (pod("b"), 6));
    case.answer(Outcome::Granted { token: 7 });
    assert_eq!(case.effect(), Effect::Stamp { token: 6, pods: vec![known("b")] });
    let mut stamped = world.clone();
    (stamped.members[1].stamp, stamped.members[1].version) = (Some(6), "12".to_owned());
    case.meanwhile(stamped);
    case.answer(Outcome::Stamped(Vec::new()));
    assert!(declares_7(&case), "{:?}", case.asked);
    case.answer(Outcome::Declared);
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Promote { token: 7, version, .. } if version == "12"));
    // Promoted: it confirms.
    (world.members[0].role, world.members[1].role) = (Role::Standby, Role::Active);
    world.members[1].stamp = Some(6);
    // It reports why the old pod went, as the row says.
    for (recorded, told) in [(Some(Reason::Silent), Reason::Silent), (None, Reason::Resumed)] {
        granted.reason = recorded;
        let mut case = Case::new(world.clone(), granted.clone());
        assert_eq!(case.effect(), Effect::Confirm { token: 6 });
        case.answer(Outcome::Confirmed);
        let finished = case.finished();
        assert_eq!((finished.reason, finished.from, finished.to), (told, Some(pod("a")), Some(pod("b"))));
    }
    // Confirmed: only the stamps are missing.
    granted.confirmed = true;
    world.members[0].stamp = Some(6);
    world.members[2].stamp = Some(6);
    assert!(Case::new(world, granted).asked.is_empty());
}

/// The term of a planned change was confirmed. Later, somebody has removed its declaration.
fn undeclared() -> (World, Row) {
    let row = Row { reason: Some(Reason::NodeCordoned), ..row(5, Some("a"), true) };
    (World { declared: Declaration::default(), ..settled() }, row)
}

#[test]
fn a_holder_without_a_declaration_is_replaced_for_the_evidence_and_not_for_the_reason_of_its_term() {
    let (mut world, confirmed) = undeclared();
    world.members.remove(0);
    let mut case = Case::new(world, confirmed);
    if case.effect() == Effect::Verify(pod("a")) {
        case.answer(Outcome::Verified(Some(Reason::PodDeleted)));
    }
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::PodDeleted));
}

#[test]
fn a_holder_without_a_declaration_keeps_its_role_and_the_reason_of_its_term_is_not_told_again() {
    let (world, confirmed) = undeclared();
    let case = Case::new(world, confirmed);
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::Resumed));
}

/// Nothing is promoted under a confirmed term, so no promotion of it can arrive late.
#[test]
fn an_owner_whose_declaration_was_removed_begins_another_term() {
    let (_, confirmed) = own(declaration(5, Some("a"), &[]), row(5, Some("a"), true));
    let mut world = settled();
    world.declared = Declaration::default();
    world.members[0].role = Role::Standby;
    let case = Case::new(world, confirmed);
    assert_eq!((case.grant().expected, case.grant().reason), (5, Reason::Resumed));
}

/// Somebody has raised the token of the row: no term has ended under it.
#[test]
fn a_free_row_without_a_grant_does_not_show_that_the_declared_term_is_over() {
    let mut unseen = settled();
    unseen.members.remove(0);
    let (mut group, seed) = (Group::new(unseen.clone()), Uuid::from_u128(1_000));
    let row = Some(Row { token: 5, ..Row::default() });
    let asked = group.step(Event::Owned { seed, row, world: unseen }, NOW);
    assert!(matches!(asked[..], [(_, Effect::Read)]), "{asked:?}");
}

#[test]
fn an_owner_continues_its_own_term_where_it_stopped() {
    let (declared, mut granted) = own(declaration(6, Some("b"), &["a"]), row(6, Some("b"), false));
    granted.pending = vec![pod("a"), pod("b")];
    let mut world = with(Verdict::Silent);
    // Granted: whether it was fenced is not known.
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next == declared));
    // Declared, perhaps stripped: it strips, and reads the holder again before it promotes.
    world.declared = declared;
    let mut case = Case::new(world.clone(), granted.clone());
    assert_eq!(case.effect(), Effect::Strip { token: 6, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert_eq!(case.effect(), Effect::Recheck(pod("b")));
}

#[test]
fn an_unfinished_term_of_a_pod_that_fails_is_overtaken() {
    let mut world = settled();
    world.members[1].verdict = Verdict::Silent;
    world.members[0].verdict = Verdict::Failing(Reason::ProbeRefused);
    let case = Case::new(world, row(6, Some("b"), false));
    assert_eq!((case.grant().holder, case.grant().expected), (pod("c"), 6));
}

#[test]
fn an_unproven_active_pod_of_an_unfinished_term_is_not_replaced() {
    let mut case = Case::new(with(Verdict::Unknown), row(6, Some("a"), false));
    case.now += Duration::from_mins(1);
    if case.asked.is_empty() {
        case.step(Event::Tick);
    }
    assert_eq!(case.grant().holder, pod("a"));
}

#[test]
fn an_unproven_holder_of_an_unfinished_term_is_read_before_another_pod_follows() {
    let waited = || {
        // If b has been promoted, the watch does not show it yet.
        let mut world = settled();
        world.declared = declaration(6, Some("b"), &["a"]);
        world.members[0].role = Role::Standby;
        (world.members[0].verdict, world.members[1].verdict) = (Verdict::Silent, Verdict::Unknown);
        let mut case = Case::new(world, row(6, Some("b"), false));
        case.now = case.group.wake().expect("it waits for evidence");
        case.step(Event::Tick);
        assert_eq!(case.effect(), Effect::Verify(pod("b")));
        case
    };
    let mut case = waited();
    case.answer(Outcome::Verified(None));
    assert_eq!(case.grant().holder, pod("c"));

    let mut case = waited();
    let mut read = case.group.world().clone();
    read.members[1].role = Role::Active;
    case.meanwhile(read);
    case.answer(Outcome::Verified(None));
    case.now = case.group.wake().expect("it reads again");
    case.step(Event::Tick);
    let (row, declared) = (case.group.row().clone(), case.group.declared().clone());
    case.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
    assert_eq!(case.grant().holder, pod("b"));

    let mut case = waited();
    case.answer(Outcome::Verified(Some(Reason::PodDeleted)));
    assert_eq!(case.grant().holder, pod("c"));
}

#[test]
fn a_holder_that_shows_up_again_is_declared_before_it_is_promoted() {
    let mut world = with(Verdict::Failing(Reason::ProbeRefused));
    world.members.truncate(1);
    let (_, row) = own(declaration(6, Some("b"), &[]), row(6, Some("b"), false));
    let mut case = Case::new(world.clone(), row);
    assert_eq!(case.effect(), Effect::Verify(pod("b")));
    // The read shows the pod, which is not ready yet.
    world.members.push(member("b", Role::Standby, Verdict::Failing(Reason::PodNotReady)));
    case.meanwhile(world.clone());
    case.answer(Outcome::Verified(Some(Reason::PodNotReady)));
    world.members[1].verdict = Verdict::Eligible;
    case.world(world);
    assert_eq!(case.effect(), Effect::Strip { token: 5, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Declare { next, .. } if next.token == 6), "{:?}", case.asked);
}

#[test]
fn after_lost_commits_the_active_pod_keeps_the_role_under_a_new_token() {
    for lost in [row(4, Some("c"), true), Row::default()] {
        let grant = Case::new(settled(), lost).grant();
        assert_eq!((grant.holder, grant.reason, grant.floor), (pod("a"), Reason::LostCommits, 5));
    }
    let other = Row { grant: Some(Uuid::from_u128(8)), ..row(5, Some("c"), true) };
    assert_eq!(Case::new(settled(), other).grant().holder, pod("a"), "the same token, granted twice");
}

/// Two replicas that use different databases, as during a change of the URL, would outbid each other endlessly.
#[test]
fn a_group_whose_row_is_repeatedly_behind_waits_in_between() {
    let mut case = Case::new(settled(), Row::default());
    assert_eq!(case.grant().reason, Reason::LostCommits);
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped, Outcome::Promoted] {
        case.answer(outcome);
    }
    let under = |token| {
        let mut world = settled();
        world.declared = declaration(token, Some("a"), &[]);
        world.members.iter_mut().for_each(|member| member.stamp = Some(token));
        world
    };
    case.meanwhile(World { declared: case.group.declared().clone(), ..under(6) });
    case.answer(Outcome::Confirmed);
    let outbid = under(7);
    case.world(outbid.clone());
    assert_eq!(case.effect(), Effect::Read);
    let (row, declared) = (Some(row(6, Some("a"), true)), Some(outbid.declared.clone()));
    case.answer(Outcome::Read { row: row.clone(), declared: declared.clone() });
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(5)));
    case.now = NOW + Duration::from_secs(5);
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Read);
    case.answer(Outcome::Read { row, declared });
    let grant = case.grant();
    assert_eq!((grant.holder, grant.reason, grant.floor), (pod("a"), Reason::LostCommits, 7));
}

/// The same, where each of them does not hear the holder of the other: the paths between nodes are cut.
#[test]
fn a_group_whose_row_is_repeatedly_behind_waits_in_between_also_before_it_replaces_the_holder() {
    // The watch has not shown the label of a yet.
    let under = |token| {
        let mut world = settled();
        world.declared = declaration(token, Some("a"), &["b"]);
        world.members.iter_mut().for_each(|member| member.stamp = Some(token));
        (world.members[0].role, world.members[0].verdict) = (Role::Standby, Verdict::Silent);
        world
    };
    let begun = |case: &mut Case, token: i64| {
        let grant = loop {
            match case.effect() {
                Effect::Grant(grant) => break grant,
                Effect::Verify(_) => case.answer(Outcome::Verified(None)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((grant.holder, grant.floor), (pod("b"), token));
    };
    let mut case = Case::new(under(6), row(5, Some("b"), true));
    begun(&mut case, 6);
    for outcome in [Outcome::Granted { token: 7 }, Outcome::Declared, Outcome::Stripped, Outcome::Promoted] {
        case.answer(outcome);
    }
    let mut done = under(7);
    done.declared = case.group.declared().clone();
    done.members[1].role = Role::Active;
    case.meanwhile(done);
    case.answer(Outcome::Confirmed);
    // The other one makes a active again.
    let outbid = under(8);
    case.world(outbid.clone());
    assert_eq!(case.effect(), Effect::Read);
    let (row, declared) = (Some(row(7, Some("b"), true)), Some(outbid.declared.clone()));
    case.answer(Outcome::Read { row: row.clone(), declared: declared.clone() });
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    assert_eq!(case.group.wake(), Some(NOW + Duration::from_secs(5)));
    case.now = NOW + Duration::from_secs(5);
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Read);
    case.answer(Outcome::Read { row, declared });
    begun(&mut case, 8);
}

#[test]
fn after_lost_commits_an_active_pod_that_the_watch_has_not_shown_keeps_the_role() {
    let mut unseen = settled();
    unseen.members.remove(0);
    let mut case = Case::new(unseen.clone(), Row::default());
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    case.meanwhile(settled());
    case.answer(Outcome::Verified(None));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::LostCommits));
    // It is really gone: another pod is elected.
    let mut case = Case::new(unseen, Row::default());
    case.answer(Outcome::Verified(Some(Reason::PodDeleted)));
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::FirstHolder));
}

/// The watch is from before the declared holder was created, and still shows the label of the pod that it replaced.
#[test]
fn after_lost_commits_a_watch_that_is_behind_makes_no_former_holder_active_again() {
    let mut behind = settled();
    behind.members.retain(|member| member.pod != pod("b"));
    let replaced = World { declared: declaration(6, Some("b"), &["a"]), ..behind };
    let mut case = Case::new(replaced, row(4, Some("c"), true));
    assert_eq!(case.effect(), Effect::Verify(pod("b")));
    case.answer(Outcome::Verified(None));
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    let mut shown = World { declared: declaration(6, Some("b"), &["a"]), ..settled() };
    (shown.members[0].role, shown.members[1].role) = (Role::Standby, Role::Active);
    case.world(shown.clone());
    case.now = case.group.wake().expect("it is looked again");
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Read);
    case.answer(Outcome::Read { row: Some(row(4, Some("c"), true)), declared: Some(shown.declared) });
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::LostCommits));
}

/// Somebody removed its label before the database lost commits.
#[test]
fn after_lost_commits_the_declared_holder_keeps_the_role_without_its_label_if_it_works() {
    let elected_with = |row: Row, change: &dyn Fn(&mut World)| {
        let mut world = settled();
        world.members[0].role = Role::None;
        // Another pod would be elected.
        world.members[1].priority = 1;
        change(&mut world);
        let mut case = Case::new(world, row);
        case.answer(Outcome::Verified(None));
        case
    };
    let elected = |change: &dyn Fn(&mut World)| elected_with(Row::default(), change);
    // The row may have another term of the same token, of another database.
    let same_token = Row { grant: Some(Uuid::from_u128(77)), ..row(5, Some("a"), true) };
    for row in [Row::default(), same_token] {
        let grant = elected_with(row, &|_| {}).grant();
        assert_eq!((grant.holder, grant.reason), (pod("a"), Reason::LostCommits));
    }
    for verdict in [Verdict::Silent, Verdict::Unknown, Verdict::Failing(Reason::ProbeRefused)] {
        let grant = elected(&|world| world.members[0].verdict = verdict).grant();
        assert_eq!((grant.holder, grant.reason), (pod("b"), Reason::FirstHolder), "{verdict:?}");
    }
    let paused = elected(&|world| world.policy.paused = true);
    assert!(matches!(paused.effect(), Effect::Stamp { .. }), "it is a standby");
}

/// The declared term, which the row has lost, was not carried out: the pod of the term before is still labelled.
#[test]
fn after_lost_commits_the_pod_that_is_labelled_keeps_the_role_if_it_works() {
    let regained = |verdict| {
        let world = World { declared: declaration(6, Some("b"), &["a"]), ..with(verdict) };
        let mut case = Case::new(world, row(4, Some("c"), true));
        assert_eq!(case.effect(), Effect::Verify(pod("b")));
        case.answer(Outcome::Verified(None));
        case
    };
    let grant = regained(Verdict::Eligible).grant();
    assert_eq!((grant.holder, grant.reason), (pod("a"), Reason::LostCommits));
    for verdict in [Verdict::Silent, Verdict::Unknown] {
        assert!(matches!(regained(verdict).effect(), Effect::Strip { .. }), "{verdict:?}");
    }
}

/// Two databases act as primary, and each has an owner that makes another pod active.
#[test]
fn a_change_that_another_owner_overtakes_again_and_again_waits_longer_each_time() {
    let mut case = Case::stable(with(Verdict::Ended(Reason::PodDeleted)));
    let (mut pauses, mut overtaken) = (Vec::new(), false);
    for _ in 0..200 {
        match case.asked.first().map(|(_, effect)| effect.clone()) {
            Some(Effect::Grant(grant)) => {
                overtaken = false;
                case.answer(Outcome::Granted { token: grant.expected.max(grant.floor) + 1 });
            }
            Some(Effect::Declare { .. }) => {
                overtaken = true;
                case.answer(Outcome::Declared);
            }
            Some(Effect::Strip { .. }) if overtaken => {
                case.answer(Outcome::Rejected(Rejection::Outdated));
                pauses
                    .push(case.group.wake().expect("it is tried again").saturating_sub(case.now).as_millis());
            }
            Some(Effect::Strip { .. }) => case.answer(Outcome::Stripped),
            Some(Effect::Stamp { .. }) => case.answer(Outcome::Stamped(Vec::new())),
            Some(Effect::Verify(_)) => case.answer(Outcome::Verified(Some(Reason::PodDeleted))),
            Some(Effect::Read) => {
                // The other owner's pod is gone by now.
                let other = declaration(case.group.row().token + 1, Some("z"), &["a", "b"]);
                case.answer(Outcome::Read { row: Some(case.group.row().clone()), declared: Some(other) });
            }
            Some(effect) => panic!("{effect:?}"),
            None => {
                case.now = case.group.wake().expect("it goes on");
                case.step(Event::Tick);
            }
        }
    }
    assert_eq!(pauses[..9], [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
}
