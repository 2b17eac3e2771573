//! Requested changes of holder.

use super::*;

fn request(id: &str, to: Option<&str>) -> SwitchoverRequest {
    SwitchoverRequest { id: id.to_owned(), to: to.map(str::to_owned) }
}

fn requested(to: Option<&str>) -> World {
    World { switchover: Some(request("one", to)), ..settled() }
}

/// Answers the steps of a change of holder under token 6 until its confirmation, and shows the result.
fn complete(case: &mut Case, to: &str) {
    case.answer(Outcome::Granted { token: 6 });
    let Effect::Declare { next, .. } = case.effect() else { panic!("{:?}", case.asked) };
    case.answer(Outcome::Declared);
    let mut world = case.group.world().clone();
    world.declared = next;
    for member in &mut world.members {
        member.role = if member.pod == pod(to) { Role::Active } else { Role::Standby };
        member.stamp = Some(6);
    }
    case.answer(Outcome::Stripped);
    case.meanwhile(world);
    case.answer(Outcome::Promoted);
    case.answer(Outcome::Confirmed);
}

fn refusal(case: &Case) -> Option<SwitchoverRefusal> {
    case.group.refused_switchover().map(|(request, why)| {
        assert_eq!(request, "one");
        why.clone()
    })
}

#[test]
fn a_requested_switchover_is_carried_out_once() {
    for (to, expected) in [(None, "b"), (Some("c"), "c")] {
        let mut case = Case::stable(requested(to));
        let grant = case.grant();
        assert_eq!((grant.holder, grant.reason), (pod(expected), Reason::Switchover));
        complete(&mut case, expected);
        assert_eq!(case.group.declared().switchover.as_deref(), Some("one"));
        assert_eq!(case.group.holder(), Some(&pod(expected)));
        // The new owner after a restart of the operator sees the same request.
        let (world, row) = (case.group.world().clone(), case.group.row().clone());
        let mut next = Case::new(world.clone(), row);
        next.rest(|effect| matches!(effect, Effect::Stamp { .. }));
        // The next one is another request.
        next.world(World { switchover: Some(request("two", Some("a"))), ..world });
        let grants = next.asked.iter().filter_map(|(_, effect)| match effect {
            Effect::Grant(grant) => Some(grant.holder.clone()),
            _ => None,
        });
        assert_eq!(grants.collect::<Vec<_>>(), [pod("a")]);
    }
}

#[test]
fn a_request_is_refused_with_the_reason() {
    use SwitchoverRefusal as R;
    let unfit = |verdict| {
        let mut world = requested(Some("b"));
        (world.members[1].verdict, world.members[2].verdict) = (verdict, verdict);
        world
    };
    let paused = World { policy: Policy { paused: true, ..Policy::default() }, ..requested(None) };
    let anywhere = World { switchover: Some(request("one", None)), ..unfit(Verdict::Unknown) };
    for (world, why) in [
        (paused, R::Paused),
        (requested(Some("d")), R::NoSuchPod("d".to_owned())),
        (requested(Some("a")), R::AlreadyActive("a".to_owned())),
        (unfit(Verdict::Unknown), R::NotEligible("b".to_owned())),
        (unfit(Verdict::Silent), R::NotEligible("b".to_owned())),
        (anywhere, R::NoCandidate),
    ] {
        let mut case = Case::stable(world.clone());
        case.rest(|effect| matches!(effect, Effect::Stamp { .. }));
        assert_eq!(refusal(&case), Some(why));
        // It stays refused, also if a pod could become active later.
        let verdict = Verdict::Eligible;
        let mut well = world;
        (well.policy.paused, well.members[1].verdict, well.members[2].verdict) = (false, verdict, verdict);
        case.world(well);
        assert!(case.asked.is_empty(), "{:?}", case.asked);
    }
}

#[test]
fn a_request_waits_for_proof_that_a_pod_works() {
    let mut world = requested(None);
    (world.members[1].verdict, world.members[2].verdict) = (Verdict::Unknown, Verdict::Unknown);
    let mut case = Case::stable(world);
    assert!(case.asked.is_empty() && case.group.wake().is_some() && refusal(&case).is_none());
    case.now += Duration::from_secs(1);
    case.world(requested(None));
    assert_eq!(case.grant().holder, pod("b"));
}

#[test]
fn a_failover_fulfils_a_request_that_allows_its_holder() {
    for (to, fulfils) in [(None, true), (Some("b"), true), (Some("c"), false)] {
        let mut world = requested(to);
        world.members[0].verdict = Verdict::Silent;
        let mut case = Case::stable(world);
        assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::Silent));
        case.answer(Outcome::Granted { token: 6 });
        let Effect::Declare { next, .. } = case.effect() else { panic!("{:?}", case.asked) };
        assert_eq!(next.switchover.is_some(), fulfils, "{to:?}");
    }
}

/// Lets time pass and answers reads until the group is at rest; `answer` answers the grants. Returns how many there
/// were.
fn grants_until_rest(case: &mut Case, mut answer: impl FnMut(&mut Case)) -> u32 {
    let mut grants = 0;
    for _ in 0..1_000 {
        let Some((_, effect)) = case.asked.first().cloned() else {
            let Some(wake) = case.group.wake() else { break };
            case.now = wake;
            case.step(Event::Tick);
            continue;
        };
        match effect {
            Effect::Grant(_) => {
                grants += 1;
                answer(case);
            }
            Effect::Read => {
                let declared = Some(case.group.world().declared.clone());
                case.answer(Outcome::Read { row: Some(row(5, Some("a"), true)), declared });
            }
            other => panic!("{other:?}"),
        }
    }
    grants
}

#[test]
fn a_switchover_that_fails_again_and_again_is_given_up() {
    let mut case = Case::stable(requested(Some("b")));
    let grants = grants_until_rest(&mut case, |case| case.answer(Outcome::Failed));
    assert!((5..15).contains(&grants), "{grants}");
    assert_eq!(refusal(&case), Some(SwitchoverRefusal::Failed));
    assert_eq!(case.group.holder(), Some(&pod("a")));
}

#[test]
fn if_the_requested_pod_fails_in_the_middle_the_former_one_stays() {
    let mut case = Case::stable(requested(Some("b")));
    case.answer(Outcome::Granted { token: 6 });
    let mut world = case.group.world().clone();
    world.members[1].verdict = Verdict::Failing(Reason::ProbeRefused);
    case.meanwhile(world);
    case.answer(Outcome::Declared);
    let grant = case.grant();
    assert_eq!((grant.holder, grant.reason), (pod("a"), Reason::Resumed));
}

#[test]
fn a_switchover_back_to_the_former_pod_can_fail_without_an_outage() {
    // The declared term has taken the label from b. So the term that is granted to b cannot have made it active yet.
    for unfit in [Verdict::Unknown, Verdict::Failing(Reason::ProbeRefused)] {
        let mut world = requested(Some("b"));
        world.declared = declaration(5, Some("a"), &["b"]);
        let mut case = Case::stable(world);
        case.answer(Outcome::Granted { token: 6 });
        let mut world = case.group.world().clone();
        world.members[1].verdict = unfit;
        case.meanwhile(world);
        case.answer(Outcome::Declared);
        let grant = case.grant();
        assert_eq!((grant.holder, grant.reason), (pod("a"), Reason::Resumed), "{unfit:?}");
    }
}

#[test]
fn a_holder_without_fresh_evidence_keeps_the_role_if_the_requested_pod_fails() {
    let mut case = Case::stable(requested(Some("b")));
    case.answer(Outcome::Granted { token: 6 });
    let mut world = case.group.world().clone();
    (world.members[0].verdict, world.members[1].verdict) = (Verdict::Unknown, Verdict::Unknown);
    case.meanwhile(world);
    case.answer(Outcome::Declared);
    assert_eq!(case.grant().holder, pod("a"), "not c: there is no evidence against a");
}

#[test]
fn a_request_that_names_no_pod_passes_over_one_whose_dry_run_is_not_answered() {
    for (to, follows) in [(None, true), (Some("b"), false)] {
        let mut world = requested(to);
        (world.members[1].stamped_by_us, world.members[1].priority) = (false, 10);
        let mut case = Case::trying(world);
        assert!(matches!(case.effect(), Effect::Try { pod: tried, .. } if tried == pod("b")));
        case.answer(Outcome::Failed);
        let tries =
            case.asked.iter().any(|(_, it)| matches!(it, Effect::Try { pod: it, .. } if *it == pod("c")));
        assert_eq!(tries, follows, "{to:?}");
    }
}

#[test]
fn a_switchover_that_the_next_owner_gives_up_is_no_failover() {
    // The former owner had declared a term for b and ended.
    let mut world = settled();
    world.declared = declaration(6, Some("b"), &["a"]);
    world.members[1].verdict = Verdict::Failing(Reason::ProbeRefused);
    let mut unfinished = row(6, Some("b"), false);
    (unfinished.pending, unfinished.reason) = (vec![pod("a"), pod("b")], Some(Reason::Rollout));
    let mut case = Case::new(world, unfinished);
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::Rollout));
    for _ in 0..20 {
        let outcome = match case.asked[0].1 {
            Effect::Grant(_) => Outcome::Granted { token: 7 },
            Effect::Stamp { .. } => {
                let mut world = case.group.world().clone();
                world.members[1].stamp = Some(6);
                case.meanwhile(world);
                Outcome::Stamped(Vec::new())
            }
            Effect::Declare { .. } => Outcome::Declared,
            Effect::Strip { .. } => Outcome::Stripped,
            Effect::Promote { .. } => Outcome::Promoted,
            Effect::Confirm { .. } => Outcome::Confirmed,
            Effect::Finished(_) => break,
            ref other => panic!("{other:?}"),
        };
        case.answer(outcome);
    }
    assert_eq!((case.finished().from, case.finished().to), (Some(pod("a")), Some(pod("a"))));
    assert!(!case.group.lapses.has("uid-b"), "it was never active");
}
