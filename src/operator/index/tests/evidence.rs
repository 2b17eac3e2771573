//! Probes, node leases, and the lock.

use leadergroup_agent::answer::Keys;

use super::*;
use crate::api::Promise;

#[test]
fn a_probe_is_looked_at_only_if_it_changes_the_verdict() {
    let mut case = Case::web();
    case.probe("a", ProbeOutcome::Success);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0], ("a".into(), Verdict::Eligible));
    let first = case.index.next_deadline().expect("the proof grows old");
    for _ in 0..3 {
        case.now += s(1);
        case.probe("a", ProbeOutcome::Success);
        assert_eq!(case.dirty(), [""; 0], "it is as well as before");
    }
    // The first proof would be too old by now. Time alone does not make the group dirty while there is a later one.
    case.now = case.now.max(first);
    case.index.advance(case.now);
    assert_eq!(case.dirty(), [""; 0]);
    let next = case.index.next_deadline().expect("the last proof grows old too");
    assert!(next > first);
    case.probe("a", ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    assert_eq!(case.dirty(), ["web"], "there is no fresh proof any more");
    case.seen("web");
    case.probe("a", ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Verdict::Failing(Reason::ProbeRefused));
    // A pod that nobody tracks.
    case.probe("z", ProbeOutcome::Success);
    assert_eq!(case.dirty(), [""; 0]);
}

#[test]
fn a_proof_that_grows_old_makes_the_group_dirty_when_its_time_has_come() {
    let mut case = Case::web();
    case.probe("a", ProbeOutcome::Success);
    case.seen("web");
    let at = case.index.next_deadline().expect("the proof grows old");
    case.index.advance(at.saturating_sub(Duration::from_millis(1)));
    assert_eq!(case.dirty(), [""; 0]);
    case.now = at;
    case.index.advance(at);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Verdict::Unknown);
}

#[test]
fn a_ready_pod_that_this_replica_does_not_hear_may_be_a_candidate_of_another_one() {
    let mut case = Case::web();
    let mut object = case.object("web", "g1", "web", 0);
    object["status"] = json!({ "declaration": { "token": 1, "holder": { "name": "a", "uid": "a" } } });
    case.watch(object);
    let misses = |case: &mut Case| {
        case.seen("web");
        case.index.misses_candidates(&name("web"), case.now)
    };
    let silence_timeout = s(5);
    case.probe("b", ProbeOutcome::Unanswered);
    assert!(!misses(&mut case), "it has just come");
    case.now += silence_timeout;
    case.probe("b", ProbeOutcome::Unanswered);
    assert!(misses(&mut case));
    case.probe("b", ProbeOutcome::Success);
    assert!(!misses(&mut case), "it is heard");
    case.now += s(1);
    case.probe("b", ProbeOutcome::Unanswered);
    assert!(!misses(&mut case), "a single probe was lost");
    case.now += silence_timeout;
    assert!(misses(&mut case));
    let other = case.object("other", "g2", "web", 5);
    case.watch(other.clone());
    assert!(!misses(&mut case), "another group selects it, too");
    case.apply(Event::Group(None, watcher::Event::Delete(sighting(other))));
    assert!(misses(&mut case));
    for _ in 0..9 {
        case.now += s(1);
        case.probe("b", ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    }
    assert!(!misses(&mut case), "it was heard, and does not work");
    case.now += silence_timeout;
    let mut unready = case.manifest("b", "web", &json!({}));
    unready.status.as_mut().expect("a status").conditions = None;
    case.apply(Event::Pod(None, watcher::Event::Apply(unready)));
    case.now += silence_timeout;
    case.probe("b", ProbeOutcome::Unanswered);
    assert!(!misses(&mut case), "it is not ready, and the holder does not count");
}

#[test]
fn the_election_sees_since_when_a_silent_pod_has_not_answered() {
    let mut case = Case::web();
    let seen = |case: &mut Case| {
        let world = case.index.world(&name("web"), Some("a"), case.now).expect("the group");
        let of_a = world.members.into_iter().find(|member| member.pod.uid == "a").expect("the pod");
        (of_a.verdict, of_a.silent_since)
    };
    case.probe("a", ProbeOutcome::Success);
    let heard_at = case.now;
    assert_eq!(seen(&mut case), (Verdict::Eligible, None));
    for _ in 0..5 {
        case.now += s(1);
        case.probe("a", ProbeOutcome::Unanswered);
    }
    assert_eq!(seen(&mut case), (Verdict::Silent, Some(heard_at)));
    // A newer version of the pod changes nothing.
    case.pod("a", "web", &json!({ "annotations": { "some": "thing" } }));
    assert_eq!(seen(&mut case), (Verdict::Silent, Some(heard_at)));
    case.now += s(1);
    case.probe("a", ProbeOutcome::Success);
    assert_eq!(seen(&mut case), (Verdict::Eligible, None));
}

#[test]
fn a_holder_is_not_heard_from_the_first_lost_probe_on_until_one_is_answered() {
    let mut case = Case::web();
    let mut object = case.object("web", "g1", "web", 0);
    object["status"] = json!({ "declaration": { "token": 1, "holder": { "name": "a", "uid": "a" } } });
    case.watch(object);
    let unheard = |case: &Case| case.index.does_not_hear_holder(&name("web"));
    case.probe("b", ProbeOutcome::Unanswered);
    assert!(!unheard(&case), "it is not the holder");
    case.probe("a", ProbeOutcome::Unanswered);
    assert!(unheard(&case));
    case.probe("a", ProbeOutcome::Success);
    assert!(!unheard(&case));
}

#[test]
fn the_targets_are_the_pods_that_can_be_probed() {
    let mut case = Case::web();
    let targets = |case: &Case, probing| -> Vec<bool> {
        let targets = case.index.targets(&name("web"), probing);
        targets.into_iter().map(|(_, target)| target.is_some()).collect()
    };
    assert_eq!(targets(&case, Probing::All), [true, true]);
    assert_eq!(targets(&case, Probing::None), [false, false]);
    assert_eq!(targets(&case, Probing::Holder), [false, false], "there is no holder");
    let mut object = case.object("web", "g1", "web", 0);
    object["status"] = json!({ "declaration": { "token": 1, "holder": { "name": "b", "uid": "b" } } });
    case.watch(object);
    assert_eq!(targets(&case, Probing::Holder), [false, true]);
    let holds = |probing| -> Vec<HoldConnection> {
        let targets = case.index.targets(&name("web"), probing);
        targets.into_iter().filter_map(|(_, target)| target).map(|target| target.hold).collect()
    };
    let (never, kept) = (HoldConnection::Never, HoldConnection::WhenKeptAlive);
    assert_eq!(holds(Probing::All), [never, kept], "to the holder only");
    assert_eq!(holds(Probing::Holder), [never], "the owner holds one already");
    for (probing, holders) in [(Probing::All, vec![false, true]), (Probing::Holder, vec![true])] {
        let targets = case.index.targets(&name("web"), probing);
        let found = targets.into_iter().filter_map(|(_, target)| target).map(|target| target.is_holder);
        assert_eq!(found.collect::<Vec<_>>(), holders, "late answers of the holder are listened to first");
    }
    // What goes elsewhere begins again.
    case.probe("a", ProbeOutcome::Success);
    case.seen("web");
    let first = case.version + 1;
    case.apply(Event::Retargeted("a".into(), first));
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Verdict::Unknown);
}

#[test]
fn a_lost_session_and_other_living_sessions_concern_all_groups() {
    let mut case = Case::web();
    let [own, other] = [SessionId::new(), SessionId::new()];
    case.beat(own, &[own]);
    assert_eq!(case.dirty(), ["web"]);
    let requests = case.beat(own, &[own]);
    assert!(matches!(requests[..], [Request::Heartbeat]), "{requests:?}");
    assert_eq!(case.dirty(), [""; 0], "all is as before");
    case.beat(own, &[own, other]);
    assert_eq!(case.dirty(), ["web"]);
    let requests = case.apply(Event::Lock(LockNews::Lost));
    assert!(matches!(requests[..], [Request::SessionEnded]) && case.index.sessions().own().is_none());
    let again = SessionId::new();
    assert!(matches!(case.beat(again, &[again])[0], Request::SessionEnded));
    assert_eq!(case.index.sessions().own(), Some(again));
}

#[test]
fn a_database_that_may_have_lost_commits_is_read_again_at_once() {
    let mut case = Case::web();
    let own = SessionId::new();
    case.beat(own, &[own]);
    for doubt in [false, true] {
        let requests = case.apply(Event::Lock(LockNews::Beat {
            own,
            living: vec![Peer { session: own, place: None }],
            suspects: Vec::new(),
            doubt,
            yielded: Yielded::None,
            took: Duration::ZERO,
        }));
        let reads = requests.iter().filter(|request| matches!(request, Request::ReadRows)).count();
        assert_eq!(reads, usize::from(doubt), "{requests:?}");
        let says = |request: &Request| matches!(request, Request::Log(Notice::CommitsLost));
        assert_eq!(requests.iter().any(says), doubt);
    }
}

#[test]
fn a_database_that_is_away_ends_the_session_after_its_ttl_and_no_deletion_waits_for_it() {
    let mut case = Case::web();
    let own = SessionId::new();
    case.beat(own, &[own]);
    let mut deleted = case.object("web", "g1", "web", 0);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    case.watch(deleted);
    case.group("other", "g2", "other", 0);
    case.dirty();
    let away = |case: &mut Case| case.index.world(&name("web"), None, case.now).expect("the group").lock_away;
    let down = || Event::Lock(LockNews::Down(LockError::ReadOnly));
    let requests = case.apply(down());
    assert!(matches!(&requests[..], [Request::Log(Notice::DatabaseDown(_))]), "{requests:?}");
    assert_eq!(case.dirty(), ["other", "web"]);
    case.now += s(1);
    assert!(case.apply(down()).is_empty() && !away(&mut case));
    assert_eq!(case.dirty(), [""; 0], "the one that was just looked at");
    case.now += TTL;
    assert!(matches!(case.apply(down())[..], [Request::SessionEnded]));
    assert_eq!(case.dirty(), ["web"], "it is asked whether it still waits");
    case.now += s(10);
    assert!(case.apply(down()).is_empty() && away(&mut case));
    assert_eq!(case.dirty(), ["other"], "the outage is worth a report");
    let other = LockError::NoConnection { detail: "all are busy".to_owned() };
    assert!(case.apply(Event::Lock(LockNews::Down(other))).is_empty(), "a long outage keeps its text");
    let requests = case.beat(own, &[own]);
    assert!(matches!(requests[0], Request::Log(Notice::DatabaseUp)), "{requests:?}");
    assert!(!away(&mut case));
}

#[test]
fn a_lease_that_stands_still_speaks_against_the_pods_of_its_node_that_cannot_be_probed() {
    let mut case = Case::new();
    let mut object = case.object("web", "g1", "web", 0);
    object["spec"]["health"] = json!({});
    case.watch(object);
    case.pod("a", "web", &json!({}));
    case.lease("node-1", 1);
    case.seen("web");
    case.now += s(10);
    case.lease("node-1", 2);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Verdict::Eligible);
    case.now += s(5);
    case.lease("node-1", 2);
    assert_eq!(case.dirty(), [""; 0], "it is as alive as before");
    // The leases of other nodes show that the watch works.
    for renewed in 3..9 {
        case.now += s(10);
        case.lease("node-2", renewed);
        case.index.advance(case.now);
    }
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Verdict::Silent);
    // If the watch fails, nothing is held against the node any more.
    case.apply(Event::WatchFailed(Watched::NodeLeases, None, "gone".to_owned()));
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Verdict::Unknown);
}

#[test]
fn the_silence_of_other_nodes_does_not_count_while_none_is_reached_and_one_is_alive() {
    for (own, renews, other, verdict) in [
        ("node-9", true, ProbeOutcome::Unanswered, Verdict::Unknown),
        ("node-9", false, ProbeOutcome::Unanswered, Verdict::Silent),
        ("node-9", true, ProbeOutcome::Success, Verdict::Silent),
        ("node-1", true, ProbeOutcome::Unanswered, Verdict::Silent),
    ] {
        let case = Case::web();
        let mut case = Case { index: case.index.on_node(Some(own.to_owned())), ..case };
        case.lease("node-1", 1);
        for uid in ["a", "b"] {
            case.probe(uid, ProbeOutcome::Success);
        }
        for second in 1..=8 {
            case.now += s(1);
            if renews && second == 4 {
                case.lease("node-1", 2);
            }
            case.probe("a", ProbeOutcome::Unanswered);
            case.probe("b", other);
            case.index.advance(case.now);
        }
        let what = format!("on {own}, renewed: {renews}, the other: {other:?}");
        assert_eq!(case.seen("web")[0].1, verdict, "{what}");
    }
}

#[test]
fn others_are_asked_about_a_holder_that_is_not_heard_and_their_answer_is_believed() {
    for (own, blind) in [("node-1", false), ("node-9", true)] {
        let case = Case::web();
        let mut case = Case { index: case.index.on_node(Some(own.to_owned())), ..case };
        let [this, other, stranger] = [(); 3].map(|()| SessionId::new());
        case.beat(this, &[this, other]);
        case.lease("node-1", 1);
        for uid in ["a", "b"] {
            case.probe(uid, ProbeOutcome::Success);
        }
        let vouch = || Opinion { what: What::Vouch, pods: vec!["a".into(), "none".into()] };
        let mut asked = Vec::new();
        for second in 1..=8 {
            case.now += s(1);
            if second == 3 {
                case.lease("node-1", 2);
            }
            for uid in ["a", "b"] {
                let requests = case.probe(uid, ProbeOutcome::Unanswered);
                asked.extend(requests.into_iter().map(|request| (second, request)));
            }
            if second == 4 {
                for from in [this, stranger] {
                    case.apply(Event::Opinion(from, vouch()));
                }
            }
            case.index.advance(case.now);
        }
        let asks = asked.iter().map(|(second, request)| match request {
            Request::AskOthers { pod, blind, .. } => (*second, &**pod, *blind),
            other => panic!("{other:?}"),
        });
        assert_eq!(asks.collect::<Vec<_>>(), [3, 6].map(|second| (second, "a", blind)), "on {own}");
        let before = if blind { Verdict::Unknown } else { Verdict::Silent };
        assert_eq!(case.seen("web")[0].1, before, "its own words and those of a stranger are ignored");
        case.dirty();
        let requests = case.apply(Event::Opinion(other, vouch()));
        assert!(
            matches!(&requests[..], [Request::Vouched { pod, .. }] if **pod == *"a"),
            "its owner is to hand it over: {requests:?}"
        );
        assert_eq!(case.dirty(), ["web"]);
        assert_eq!(case.seen("web")[0].1, Verdict::HeardElsewhere);
    }
}

#[test]
fn a_question_is_answered_when_the_pod_answers_or_a_replica_that_sees_answers_one_that_is_blind() {
    for (blind, outcome, answers) in [
        (false, ProbeOutcome::Success, true),
        (false, ProbeOutcome::Unanswered, false),
        (true, ProbeOutcome::Unanswered, true),
    ] {
        let mut case = Case::web();
        let [this, other] = [(); 2].map(|()| SessionId::new());
        case.beat(this, &[this, other]);
        case.probe("a", ProbeOutcome::Success);
        case.now += s(1);
        let question = Opinion { what: What::Ask { blind }, pods: vec!["a".into()] };
        let requests = case.apply(Event::Opinion(other, question));
        assert!(matches!(&requests[..], [Request::ProbeNow(uid)] if **uid == *"a"), "{requests:?}");
        let mut vouched = 0;
        for _ in 0..8 {
            let requests = case.probe("a", outcome);
            vouched += requests.iter().filter(|request| matches!(request, Request::Vouch { .. })).count();
            case.now += s(1);
        }
        assert_eq!(vouched, usize::from(answers), "blind: {blind}, {outcome:?}");
    }
}

#[test]
fn a_question_about_a_pod_that_is_not_active_has_no_effect() {
    let mut case = Case::web();
    let [this, other] = [(); 2].map(|()| SessionId::new());
    case.beat(this, &[this, other]);
    let pods = ["a", "b"].map(Into::into).to_vec();
    let requests = case.apply(Event::Opinion(other, Opinion { what: What::Ask { blind: false }, pods }));
    assert!(matches!(&requests[..], [Request::ProbeNow(uid)] if **uid == *"a"), "{requests:?}");
}

#[test]
fn a_replica_whose_probes_cannot_be_sent_says_so_and_asks_others_about_its_holder_only() {
    let mut case = Case::web();
    let [this, other] = [(); 2].map(|()| SessionId::new());
    case.beat(this, &[this, other]);
    for uid in ["a", "b"] {
        case.probe(uid, ProbeOutcome::Success);
    }
    case.seen("web");
    let coverage = |case: &Case| case.index.group(&name("web")).expect("the group").coverage();
    let mut asked = Vec::new();
    for second in 1..=4 {
        case.now += s(1);
        case.dirty();
        for uid in ["a", "b"] {
            let requests = case.probe(uid, ProbeOutcome::Void(VoidCause::Descriptors));
            asked.extend(requests.into_iter().map(|request| (second, request)));
        }
        case.index.advance(case.now);
    }
    assert!(
        matches!(&asked[..], [(4, Request::AskOthers { pod, blind: true, .. })] if **pod == *"a"),
        "{asked:?}"
    );
    assert_eq!(case.dirty(), ["web"], "there is something to report");
    assert_eq!(coverage(&case), ProbeCoverage::Hindered(VoidCause::Descriptors));
    // The answer is believed once the pod has not been judged for a silence timeout.
    case.apply(Event::Opinion(other, Opinion { what: What::Vouch, pods: vec!["a".into()] }));
    assert_eq!(case.seen("web")[0].1, Verdict::Unknown);
    case.now += s(2);
    assert_eq!(case.seen("web")[0].1, Verdict::HeardElsewhere);
    for uid in ["a", "b"] {
        case.probe(uid, ProbeOutcome::Success);
    }
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Verdict::Eligible);
    assert_eq!(coverage(&case), ProbeCoverage::TcpOnly);
}

/// The group was stored under older rules.
#[test]
fn a_timeout_that_is_no_longer_valid_stops_no_election_and_the_pods_are_probed_with_the_longest_one() {
    let mut case = Case::web();
    let mut object = case.object("web", "g1", "web", 0);
    for (field, value) in [("silenceTimeout", "1h"), ("interval", "100ms"), ("timeout", "1h")] {
        object["spec"]["health"][field] = value.into();
    }
    case.watch(object);
    assert_eq!(case.obstacle("web"), None);
    let group = case.index.group(&name("web")).expect("the group");
    assert_eq!(group.invalid(), None);
    let advice = group.record().object.spec.advice().expect("it is named all the same");
    assert!(advice.starts_with("spec.health.timeout is longer than 4 times health.interval"), "{advice}");
    for uid in ["a", "b"] {
        case.pod(uid, "web", &json!({}));
    }
    let targets = case.index.targets(&name("web"), Probing::All);
    let timeouts = targets.into_iter().filter_map(|(_, target)| Some(target?.probe.timeout));
    assert_eq!(timeouts.collect::<Vec<_>>(), [s(1) * 2 / 5; 2]);
}

/// A replica whose network was down reaches a standby before the holder, which may work as well.
#[test]
fn the_pod_that_is_reached_first_when_the_network_is_back_does_not_replace_the_holder() {
    let case = Case::web();
    let mut case = Case { index: case.index.on_node(Some("node-9".to_owned())), ..case };
    for pod in ["a", "b"] {
        case.probe(pod, ProbeOutcome::Success);
    }
    for _ in 0..10 {
        case.now += s(1);
        for pod in ["a", "b"] {
            case.probe(pod, ProbeOutcome::Unanswered);
        }
    }
    assert_eq!(case.seen("web")[0], ("a".into(), Verdict::Silent));
    case.probe("b", ProbeOutcome::Success);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web"), [("a".into(), Verdict::Unknown), ("b".into(), Verdict::Eligible)]);
    for _ in 0..6 {
        case.now += s(1);
        case.probe("a", ProbeOutcome::Unanswered);
        case.probe("b", ProbeOutcome::Success);
    }
    assert_eq!(case.seen("web")[0], ("a".into(), Verdict::Silent), "it is silent all the same");
}

/// It passes requests on to another pod's agent, and its answers back.
#[test]
fn a_pod_that_answers_with_the_words_of_another_one_s_agent_cannot_say_that_it_has_ended() {
    let keys = Keys::from_seed(&[1; 32]).expect("any seed makes a key");
    let ended = |case: &mut Case, message: &str| {
        for uid in ["a", "b"] {
            let step = ProbeStep::Promised(Promise { boot: keys.boot(), floor: 1, idle: false });
            let event = ProbeEvent { uid: uid.into(), seq: 1, sent_at: case.now, step };
            case.apply(Event::Probe(event));
        }
        let mut pod = case.manifest("b", "web", &json!({}));
        let end = json!([{
            "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": { "terminated": { "exitCode": 0, "message": message } },
        }]);
        pod.status.as_mut().expect("a status").container_statuses =
            serde_json::from_value(end).expect("statuses");
        case.apply(Event::Pod(None, watcher::Event::Apply(pod)));
        let world = case.index.world(&name("web"), Some("a"), case.now).expect("the group");
        world.members.into_iter().flat_map(|member| member.ended).collect::<Vec<_>>()
    };
    let boot = keys.boot();
    for said in [format!("boot {boot}\n"), format!("boot {boot} {}\n", "A".repeat(86)), String::new()] {
        assert_eq!(ended(&mut Case::web(), &said), [], "{said}: anybody can write it");
    }
    assert_eq!(ended(&mut Case::web(), &keys.termination_message()), [boot], "the kubelet has shown it");
}
