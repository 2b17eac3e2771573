//! Answers that come after the timeout of their probe.

use std::{sync::Arc, time::Duration};

use leadergroup::{
    api::{LeaderGroupSpec, Verdict},
    health::{
        JudgedAs, NodeLease, PodEvidence, PodFacts, ProbeEvent, ProbeOutcome, ProbeStep, Target, Thresholds,
    },
};
use serde_json::json;
use tokio::sync::Semaphore;

use super::{
    probed::{Probed, http},
    server::{OK, PATIENCE, Server, eventually, finish, read_head},
};

const SHORT: Duration = Duration::from_millis(100);
const UNANSWERED: ProbeStep = ProbeStep::Ended(ProbeOutcome::Unanswered);

/// A target that is probed once, and listened to for so long.
fn target(server: &Server, listen: Duration) -> Target {
    Target { listen, is_holder: true, ..super::probed::target(server.address, http(), SHORT) }
}

/// A server that gives this answer once the semaphore is closed.
async fn slow(answer: &'static str) -> (Server, Arc<Semaphore>) {
    let wait = Arc::new(Semaphore::new(0));
    let waits = wait.clone();
    let server = Server::start(move |mut stream| {
        let waits = waits.clone();
        async move {
            read_head(&mut stream).await;
            assert!(waits.acquire().await.is_err(), "it has no permits");
            finish(stream, answer.as_bytes()).await;
        }
    })
    .await;
    (server, wait)
}

/// The steps, without the one that does not come if the server's machine is busy.
fn steps(events: &[ProbeEvent]) -> Vec<ProbeStep> {
    events.iter().map(|event| event.step).filter(|step| *step != ProbeStep::Accepted).collect()
}

#[tokio::test]
async fn an_answer_after_the_timeout_is_reported_as_late() {
    let (server, wait) = slow(OK).await;
    let mut probed = Probed::new(8);
    let mut events = probed.probe("u", &target(&server, PATIENCE), 1).await;
    assert_eq!(steps(&events), [ProbeStep::Sent, UNANSWERED]);
    wait.close();
    events.push(probed.next().await);
    assert_eq!(steps(&events), [ProbeStep::Sent, UNANSWERED, ProbeStep::AnsweredLate]);
    let (seq, sent_at) = (events[0].seq, events[0].sent_at);
    assert!(events.iter().all(|event| (event.seq, event.sent_at) == (seq, sent_at)), "{events:?}");
}

#[tokio::test]
async fn a_late_refusal_does_not_count_as_an_answer() {
    let (server, wait) = slow("HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n").await;
    let mut probed = Probed::new(8);
    let events = probed.probe("u", &target(&server, PATIENCE), 1).await;
    assert_eq!(steps(&events), [ProbeStep::Sent, UNANSWERED]);
    wait.close();
    eventually("the answer is read", || server.open() == 0).await;
    assert_eq!(probed.followed_by().await, []);
}

#[tokio::test]
async fn nobody_listens_for_longer_than_asked_for() {
    let server = Server::hanging().await;
    let mut probed = Probed::new(8);
    let events = probed.probe("u", &target(&server, SHORT * 2), 1).await;
    assert_eq!(steps(&events), [ProbeStep::Sent, UNANSWERED]);
    eventually("the connection is closed", || server.accepted() >= 1 && server.open() == 0).await;
    assert_eq!(probed.followed_by().await, []);
}

#[tokio::test]
async fn pods_that_hang_leave_a_late_place_to_another_holder() {
    let hanging = Server::hanging().await;
    let (server, wait) = slow(OK).await;
    let mut probed = Probed::new(4);
    probed.set("hung", &Target { interval: SHORT, ..target(&hanging, PATIENCE) });
    // It has taken all that it gets.
    let mut unanswered = 0;
    while unanswered < 8 {
        unanswered += usize::from(probed.next().await.step == UNANSWERED);
    }
    let slow = target(&server, PATIENCE);
    assert_eq!(probed.outcome("slow", &slow).await, ProbeOutcome::Unanswered);
    wait.close();
    let mut event = probed.next().await;
    while (&*event.uid, event.step) != ("slow", ProbeStep::AnsweredLate) {
        event = probed.next().await;
    }
}

#[tokio::test]
async fn no_more_answers_are_listened_to_than_there_are_late_places() {
    let server = Server::hanging().await;
    let mut probed = Probed::new(4);
    for n in 0..12 {
        let outcome = probed.outcome(&format!("u{n}"), &target(&server, PATIENCE * 10)).await;
        assert_eq!(outcome, ProbeOutcome::Unanswered);
    }
    eventually("four are listened to", || server.accepted() >= 12 && server.open() == 4).await;
}

#[tokio::test]
async fn a_program_that_hangs_is_told_from_a_pod_that_is_not_reached() {
    let server = Server::hanging().await;
    let mut probed = Probed::new(8);
    let interval = Duration::from_millis(500);
    let mut target = Target { interval, ..target(&server, Duration::ZERO) };
    target.probe.timeout = interval;
    probed.set("u", &target);
    let mut accepted = probed.next().await;
    while accepted.step != ProbeStep::Accepted {
        accepted = probed.next().await;
    }
    let mut ended = probed.next().await;
    while ended.seq != accepted.seq {
        ended = probed.next().await;
    }
    assert_eq!(ended.step, UNANSWERED);
}

#[test]
fn a_late_answer_ends_a_silence_and_proves_nothing_else() {
    let spec =
        json!({ "selector": { "matchLabels": { "app": "web" } }, "health": { "silenceTimeout": "5s" } });
    let spec: LeaderGroupSpec = serde_json::from_value(spec).unwrap();
    let pod = json!({
        "metadata": { "name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "1" },
        "spec": { "containers": [{
            "name": "main", "readinessProbe": { "httpGet": { "path": "/", "port": 80 } }
        }] },
        "status": { "phase": "Running", "podIP": "198.18.0.9",
            "conditions": [{ "type": "Ready", "status": "True" }] }
    });
    let facts = PodFacts::from_pod(&serde_json::from_value(pod).unwrap(), &spec);
    let (s, lease) = (Duration::from_secs, NodeLease::default());
    let mut evidence = PodEvidence::new(Thresholds::of(&spec, Some(s(1))));
    evidence.kubelet(&facts, s(100));
    for second in 0..=5 {
        let sent_at = s(100 + second);
        evidence.probe_sent(second, sent_at);
        evidence.probe_answered(second, sent_at, ProbeOutcome::Unanswered);
    }
    assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, s(105)), Verdict::Silent);

    // The probe of second 3 is answered.
    evidence.probe_answered_late(3, s(103));
    assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, s(105)), Verdict::Unknown);
    // An older answer changes nothing, and does not bring an older silence back.
    evidence.probe_answered_late(2, s(102));
    for second in 6..=8 {
        let sent_at = s(100 + second);
        evidence.probe_sent(second, sent_at);
        evidence.probe_answered(second, sent_at, ProbeOutcome::Unanswered);
    }
    assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, s(107)), Verdict::Unknown);
    assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, s(108)), Verdict::Silent);
}
