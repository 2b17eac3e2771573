//! What comes before a planned change, and what happens if the API server does not let it be completed.

use super::*;

fn refused() -> Outcome {
    Outcome::Refused("failed calling webhook (HTTP 500)".to_owned())
}

fn requested(to: Option<&str>) -> World {
    let to = to.map(str::to_owned);
    World { switchover: Some(SwitchoverRequest { id: "one".to_owned(), to }), ..settled() }
}

fn cordoned() -> World {
    let mut world = settled();
    world.members[0].leaving = true;
    world
}

fn preferring_b() -> World {
    let mut world = settled();
    (world.members[1].priority, world.policy.failback) = (10, Some(Duration::ZERO));
    world
}

/// A rollout deletes a next, and b is new.
fn rollout() -> World {
    let mut world = settled();
    world.policy.leaves_before_rollout = true;
    for (member, (revision, created)) in world.members.iter_mut().zip([("1", 1), ("2", 9), ("2", 9)]) {
        (member.revision, member.created) = (Some(revision.into()), created);
        member.workload = Some(Workload { name: "web".into(), ordinal: None });
    }
    world
}

fn dry_run(name: &str) -> Effect {
    Effect::Try { token: 6, pod: pod(name), from: Some(pod("a")) }
}

/// Lets time pass until the group asks for something, and answers reads.
fn next(case: &mut Case) -> Effect {
    for _ in 0..20 {
        match case.asked.first().map(|(_, effect)| effect.clone()) {
            None => {
                case.now = case.group.wake().expect("it goes on");
                case.step(Event::Tick);
            }
            Some(Effect::Read) => {
                let declared = Some(case.group.declared().clone());
                case.answer(Outcome::Read { row: Some(case.group.row().clone()), declared });
            }
            Some(effect) => return effect,
        }
    }
    panic!("nothing but reads");
}

#[test]
fn a_dry_run_shows_before_each_planned_change_that_both_pods_can_be_changed() {
    for (world, reason) in [
        (requested(None), Reason::Switchover),
        (requested(Some("b")), Reason::Switchover),
        (cordoned(), Reason::NodeCordoned),
        (rollout(), Reason::Rollout),
        (preferring_b(), Reason::Failback),
    ] {
        let mut case = Case::trying(world);
        assert_eq!(case.effect(), dry_run("b"), "{reason}: b has a stamp");
        case.answer(Outcome::Accepted);
        assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), reason));
    }
}

/// What the API server lets through now, a webhook may refuse later.
#[test]
fn an_accepted_dry_run_counts_for_a_moment() {
    for (pause, again) in [(9, false), (10, true)] {
        let mut case = Case::trying(requested(None));
        // The request is withdrawn before the answer.
        case.meanwhile(settled());
        case.answer(Outcome::Accepted);
        assert!(case.asked.is_empty(), "{:?}", case.asked);
        case.now += Duration::from_secs(pause);
        case.step(Event::World(cordoned()));
        if again {
            assert_eq!(case.effect(), dry_run("b"));
        } else {
            assert_eq!(case.grant().reason, Reason::NodeCordoned);
        }
    }
}

#[test]
fn an_accepted_dry_run_of_an_earlier_ownership_does_not_count() {
    let mut case = Case::trying(requested(None));
    case.meanwhile(settled());
    case.answer(Outcome::Accepted);
    case.step(Event::Disowned);
    let (row, declared) = (row(5, Some("a"), true), settled().declared);
    case.step(Event::Owned { seed: Uuid::from_u128(2_000), row: None, world: cordoned() });
    case.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
    assert_eq!(case.effect(), dry_run("b"));
}

#[test]
fn a_planned_change_that_the_api_server_refuses_costs_nobody_the_label() {
    for (world, next) in
        [(requested(None), true), (cordoned(), true), (rollout(), true), (preferring_b(), false)]
    {
        let mut case = Case::trying(world);
        case.answer(refused());
        let tried: Vec<_> = case.asked.iter().map(|(_, effect)| effect.clone()).collect();
        assert_eq!(tried, next.then(|| dry_run("c")).into_iter().collect::<Vec<_>>());
        assert_eq!(case.group.holder(), Some(&pod("a")));
    }
    let mut case = Case::trying(requested(Some("b")));
    // It is tried again while the request waits.
    while !case.asked.is_empty() {
        assert_eq!(case.effect(), dry_run("b"));
        case.answer(refused());
        case.now = case.group.wake().expect("a request does not wait for ever");
        case.step(Event::Tick);
    }
    let refusal = case.group.refused_switchover().map(|(_, why)| why.clone());
    assert_eq!(refusal, Some(SwitchoverRefusal::NotEligible("b".to_owned())));
}

#[test]
fn a_planned_change_waits_if_the_label_cannot_be_taken_off_the_holder() {
    let webhook = "failed calling webhook (HTTP 500)";
    let words = || Outcome::HolderRefused(webhook.to_owned());
    let mut case = Case::trying(requested(None));
    case.answer(words());
    let refusal = case.group.refused_switchover().map(|(_, why)| why.clone());
    assert_eq!(refusal, Some(SwitchoverRefusal::HolderRefused("a".to_owned(), webhook.to_owned())));
    assert!(case.asked.is_empty() && *case.group.phase() == Phase::Stable);
    for world in [cordoned(), rollout(), preferring_b()] {
        let mut case = Case::trying(world.clone());
        case.answer(words());
        for pause in [5, 10] {
            assert!(case.asked.is_empty() && *case.group.phase() == Phase::Stable, "{:?}", case.asked);
            let (holder, why) = case.group.refused().next().expect("the reason is known");
            assert_eq!((&holder.pod, why.refusal.message.contains("webhook")), (&pod("a"), true));
            assert!(case.group.is_available(holder), "it works, and stays active");
            assert_eq!(case.group.wake(), Some(case.now + Duration::from_secs(pause)));
            case.now += Duration::from_secs(pause);
            case.step(Event::Tick);
            assert_eq!(case.effect(), dry_run("b"), "it is tried again");
            case.answer(words());
        }
        // The cause of the change is over.
        let mut over = Case { group: case.group.clone(), now: case.now, asked: Vec::new(), tries: true };
        over.world(settled());
        over.now += Duration::from_secs(20);
        over.step(Event::Tick);
        assert_eq!(over.group.refused().count(), 0, "no change needs it any more");
        // A failover does not depend on a dry run.
        let mut failed = world;
        failed.members[0].verdict = Verdict::Silent;
        case.world(failed);
        assert_eq!(case.grant().reason, Reason::Silent);
    }
}

#[test]
fn each_candidate_is_tried_once_if_dry_runs_are_not_answered_and_then_a_pause_follows() {
    for world in [requested(None), cordoned()] {
        let mut case = Case::trying(world);
        for _ in 0..3 {
            for name in ["b", "c"] {
                assert_eq!(next(&mut case), dry_run(name));
                case.answer(Outcome::Failed);
            }
            assert!(case.asked.is_empty() && case.group.wake() > Some(case.now), "{:?}", case.asked);
        }
        assert_eq!(case.group.holder(), Some(&pod("a")));
    }
}

#[test]
fn a_failover_does_not_wait_for_the_dry_run_of_a_planned_change() {
    for world in [requested(None), requested(Some("b")), cordoned(), rollout(), preferring_b()] {
        let mut case = Case::trying(world.clone());
        assert_eq!(case.effect(), dry_run("b"));
        let late = case.asked[0].0;
        let mut failed = world.clone();
        failed.members[0].verdict = Verdict::Silent;
        case.world(failed);
        assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::Silent));
        case.group.step(Event::Outcome(late, refused(), case.group.world().clone()), case.now);
        assert!(case.group.busy(), "the answer to the dry run is of no use");
        // Nor for the next one, after one that was not answered.
        let mut case = Case::trying(world);
        for _ in 0..2 {
            assert_eq!(case.group.holder(), Some(&pod("a")));
            if !case.asked.is_empty() {
                case.answer(Outcome::Failed);
            }
        }
        assert!(case.asked.is_empty(), "each candidate is tried once");
        let mut failed = case.group.world().clone();
        failed.members[0].verdict = Verdict::Silent;
        case.world(failed);
        assert_eq!(case.grant().reason, Reason::Silent);
    }
}

/// Brings a planned change to b to its promotion, after which a has no label.
fn to_the_promotion() -> Case {
    let mut case = Case::stable(requested(Some("b")));
    case.answer(Outcome::Granted { token: 6 });
    case.answer(Outcome::Declared);
    let mut world = case.group.world().clone();
    world.declared = case.group.declared().clone();
    (world.members[0].role, world.members[0].stamp) = (Role::Standby, Some(6));
    case.meanwhile(world);
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Promote { .. }));
    case
}

#[test]
fn a_planned_change_whose_promotion_is_refused_after_all_goes_to_another_pod_or_back() {
    let mut case = to_the_promotion();
    case.answer(refused());
    assert_eq!(case.grant().holder, pod("a"), "the former one works");
    let mut case = to_the_promotion();
    let mut world = case.group.world().clone();
    world.members[0].verdict = Verdict::Unknown;
    case.meanwhile(world);
    case.answer(refused());
    assert_eq!(case.grant().holder, pod("c"));
}

#[test]
fn a_promotion_that_fails_again_and_again_gives_way_to_a_pod_that_works() {
    let mut case = to_the_promotion();
    let mut failed = 0;
    let grant = loop {
        match next(&mut case) {
            Effect::Promote { pod: tried, .. } => {
                assert_eq!(tried, pod("b"));
                failed += 1;
                case.answer(Outcome::Failed);
            }
            Effect::Strip { .. } => case.answer(Outcome::Stripped),
            Effect::Recheck(_) => {
                let (declared, row) = (Some(case.group.declared().clone()), Some(case.group.row().clone()));
                case.answer(Outcome::Rechecked { version: Some("12".into()), declared, row });
            }
            Effect::Verify(verified) => {
                assert_eq!(verified, pod("b"));
                case.answer(Outcome::Verified(None));
            }
            Effect::Grant(grant) => break grant,
            other => panic!("{other:?}"),
        }
        assert!(failed < 10, "the same pod is tried beside others that work");
    };
    assert_eq!((failed, grant.holder), (4, pod("a")));
    // One of the promotions may still take effect. So b is written before the next term is declared.
    case.answer(Outcome::Granted { token: 7 });
    let stamp = Effect::Stamp { token: 6, pods: vec![known("b")] };
    assert_eq!(case.effect(), stamp);
    // As long as it cannot be written, the status says so, and no other pod follows.
    for _ in 0..3 {
        case.answer(Outcome::Stamped(vec![(pod("b"), "denied the request".to_owned())]));
        let (refused, why) = case.group.refused().next().expect("it is known");
        assert_eq!((&refused.pod, why.refusal.message.as_str()), (&pod("b"), "denied the request"));
        loop {
            match next(&mut case) {
                Effect::Verify(_) => case.answer(Outcome::Verified(None)),
                Effect::Grant(grant) => case.answer(Outcome::Granted { token: grant.expected + 1 }),
                other => break assert_eq!(other, stamp),
            }
        }
    }
}
