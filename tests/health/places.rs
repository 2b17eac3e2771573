//! Pods that hang, and the places for the probes of others.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    time::Duration,
};

use leadergroup::{
    api::{LeaderGroupSpec, Verdict},
    health::{
        JudgedAs, NodeLease, PodEvidence, PodFacts, ProbeOutcome, ProbeStep, Target, Thresholds, VoidCause,
    },
};
use leadergroup_lock::monotonic;
use serde_json::json;

use super::{
    probed::{Probed, http, target},
    server::{OK, PATIENCE, Server},
};

/// A timeout that does not pass during a test.
const LONG: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_millis(150);

fn regular(address: SocketAddr, timeout: Duration, interval: Duration) -> Target {
    Target { interval, ..target(address, http(), timeout) }
}

/// Probes a pod that is well, until it has answered so often. Each of its probes succeeds.
async fn answers_always(probed: &mut Probed, times: usize) {
    let server = Server::answering(OK).await;
    probed.set("well", &regular(server.address, PATIENCE, Duration::from_millis(40)));
    let mut answers = 0;
    while answers < times {
        let event = probed.next().await;
        if &*event.uid == "well"
            && let ProbeStep::Ended(outcome) = event.step
        {
            assert_eq!(outcome, ProbeOutcome::Success);
            answers += 1;
        }
    }
}

#[tokio::test]
async fn no_more_probes_are_under_way_than_allowed() {
    let server = Server::hanging().await;
    let mut probed = Probed::new(3);
    for n in 0..20 {
        probed.set(&format!("u{n}"), &regular(server.address, SHORT, SHORT));
    }
    let (mut crowded, mut sent, mut waiting) = (0, HashSet::new(), HashSet::new());
    while crowded < 40 || sent.len() < 20 {
        let event = probed.next().await;
        match event.step {
            ProbeStep::Sent => {
                sent.insert(event.uid);
                waiting.insert(event.seq);
            }
            ProbeStep::Ended(ProbeOutcome::Void(VoidCause::Crowded)) => crowded += 1,
            ProbeStep::Ended(ProbeOutcome::Unanswered | ProbeOutcome::Void(VoidCause::Stalled)) => {
                waiting.remove(&event.seq);
            }
            ProbeStep::Accepted | ProbeStep::Waits => {}
            step => panic!("{step:?}"),
        }
        assert!(waiting.len() <= 6, "three places for pods that answer, and three for others");
    }
}

/// One pod takes connections and never answers.
#[tokio::test]
async fn a_pod_that_hangs_takes_no_place_from_others() {
    let hanging = Server::hanging().await;
    let mut probed = Probed::new(8);
    probed.set("hung", &regular(hanging.address, LONG, Duration::from_millis(40)));
    let mut turns = 0;
    while turns < 20 {
        turns += usize::from(matches!(probed.next().await.step, ProbeStep::Sent | ProbeStep::Waits));
    }
    answers_always(&mut probed, 50).await;
    assert!(hanging.most_open() <= 4, "{}", hanging.most_open());
}

/// As many pods hang as there are places, each with its first probe.
#[tokio::test]
async fn a_probe_that_has_waited_for_an_interval_leaves_its_place_to_pods_that_answer() {
    let hanging = Server::hanging().await;
    let mut probed = Probed::new(4);
    for n in 0..4 {
        probed.set(&format!("hung-{n}"), &regular(hanging.address, LONG, Duration::from_millis(40)));
    }
    let mut waits = HashMap::new();
    while waits.values().filter(|turns| **turns >= 3).count() < 4 {
        let event = probed.next().await;
        if event.step == ProbeStep::Waits {
            *waits.entry(event.uid).or_insert(0) += 1;
        }
    }
    answers_always(&mut probed, 20).await;
}

/// A tenant chooses the interval.
#[tokio::test]
async fn a_probe_leaves_the_places_of_pods_that_answer_however_long_its_interval() {
    let (hanging, well) = (Server::hanging().await, Server::answering(OK).await);
    let mut probed = Probed::new(1);
    probed.set("hung", &target(hanging.address, http(), LONG));
    assert_eq!(probed.next().await.step, ProbeStep::Sent);
    probed.set("well", &regular(well.address, PATIENCE, Duration::from_millis(300)));
    while probed.next().await.step != ProbeStep::Ended(ProbeOutcome::Success) {}
}

/// One pod has taken the only place for pods that do not answer, and another the one for pods that do.
#[tokio::test]
async fn a_turn_without_a_place_does_not_cost_the_next_one() {
    let hanging = Server::hanging().await;
    let mut probed = Probed::new(1);
    let interval = Duration::from_millis(200);
    for uid in ["first", "second"] {
        probed.set(uid, &regular(hanging.address, LONG, interval));
        let mut event = probed.next().await;
        while (&*event.uid, event.step) != (uid, ProbeStep::Waits) {
            event = probed.next().await;
        }
    }
    probed.set("third", &regular(hanging.address, LONG, interval));
    let mut times = Vec::new();
    loop {
        let event = probed.next().await;
        if &*event.uid == "third" {
            assert_eq!(event.step, ProbeStep::Ended(ProbeOutcome::Void(VoidCause::Crowded)));
            times.push(event.sent_at);
            // The first probe has no turn. A busy machine may skip a turn now and then, but not every second one.
            if times[1..].windows(2).any(|pair| pair[1] < pair[0] + interval * 3 / 2) {
                return;
            }
        }
    }
}

/// More pods hang than there are places for those that do not answer.
#[tokio::test]
async fn pods_that_hang_take_no_place_from_those_that_answer() {
    let hanging = Server::hanging().await;
    let mut probed = Probed::new(4);
    let interval = Duration::from_millis(100);
    for n in 0..12 {
        probed.set(&format!("hung-{n}"), &regular(hanging.address, interval * 4, interval));
    }
    let mut unanswered = HashSet::new();
    while unanswered.len() < 12 {
        let event = probed.next().await;
        if event.step == ProbeStep::Ended(ProbeOutcome::Unanswered) {
            unanswered.insert(event.uid);
        }
    }
    answers_always(&mut probed, 20).await;
}

/// All places for further probes are taken, so that in most turns none is sent. The pod counts as silent all the same,
/// but not because of a single connection.
#[tokio::test]
async fn the_silence_of_a_pod_is_found_although_few_probes_are_sent() {
    let server = Server::hanging().await;
    let interval = Duration::from_millis(300);
    let timeout = interval * 4;
    let thresholds = Thresholds { silence_timeout: timeout, interval, timeout, failure_threshold: 2 };
    let mut evidence = PodEvidence::new(thresholds);
    let spec: LeaderGroupSpec =
        serde_json::from_value(json!({ "selector": { "matchLabels": { "app": "web" } } })).unwrap();
    let pod = json!({
        "metadata": { "uid": "u" },
        "spec": { "containers": [{ "name": "web", "readinessProbe": { "tcpSocket": { "port": 1 } } }] },
        "status": { "podIP": "198.18.0.1", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    evidence.kubelet(&PodFacts::from_pod(&serde_json::from_value(pod).unwrap(), &spec), monotonic());
    let mut probed = Probed::new(1);
    probed.set("u", &regular(server.address, timeout, interval));
    let (mut unanswered, mut asked) = (0, false);
    // A machine that is busy may stall this process, which ends the period. It begins again with the next probe.
    loop {
        let event = probed.next().await;
        match event.step {
            ProbeStep::Sent | ProbeStep::Waits => evidence.probe_sent(event.seq, event.sent_at),
            ProbeStep::Ended(outcome) => {
                evidence.probe_answered(event.seq, event.sent_at, outcome);
                unanswered += usize::from(outcome == ProbeOutcome::Unanswered);
            }
            ProbeStep::Accepted | ProbeStep::Promised(_) => {}
            ProbeStep::AnsweredLate => panic!("{event:?}"),
        }
        let now = monotonic();
        if matches!(evidence.verdict(JudgedAs::Holder, &NodeLease::default(), now), Verdict::Silent) {
            break;
        }
        asked |= evidence.asks_others(now);
    }
    assert!(unanswered >= 2, "{unanswered} unanswered");
    assert!(asked, "the others are asked before the pod counts as silent");
}
