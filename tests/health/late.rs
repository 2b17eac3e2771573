//! Answers that come after the timeout of their probe.

use std::{sync::Arc, time::Duration};

use leadergroup::{
    api::{HoldConnection, LeaderGroupSpec, ProbeScheme},
    health::{
        JudgedAs, NodeLease, PodEvidence, PodFacts, ProbeKind, ProbeOutcome, ProbeStep, Prober,
        ResolvedProbe, Target, Thresholds, Verdict,
    },
};
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc},
    time::timeout,
};

use super::server::{PATIENCE, Server, eventually, finish, read_head};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const SHORT: Duration = Duration::from_millis(100);

/// A target that is probed once, and listened to for so long.
fn target(server: &Server, listen: Duration) -> Target {
    let kind =
        ProbeKind::HttpGet { scheme: ProbeScheme::Http, path: "/".parse().unwrap(), headers: Vec::new() };
    let probe = ResolvedProbe { kind, port: server.address.port(), timeout: SHORT };
    Target {
        ip: server.address.ip(),
        probe,
        interval: Duration::from_hours(1),
        listen,
        hold: HoldConnection::Never,
        threshold: 2,
        is_holder: true,
    }
}

/// A server that gives this answer when it is allowed to.
async fn slow(answer: &'static [u8]) -> (Server, Arc<Notify>) {
    let go = Arc::new(Notify::new());
    let allowed = go.clone();
    let server = Server::start(move |mut stream| {
        let allowed = allowed.clone();
        async move {
            read_head(&mut stream).await;
            allowed.notified().await;
            finish(stream, answer).await;
        }
    })
    .await;
    (server, go)
}

#[tokio::test]
async fn an_answer_after_the_timeout_is_reported_as_late() {
    let (server, go) = slow(OK).await;
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    prober.set_target(&"u".into(), &target(&server, PATIENCE));
    let mut steps = Vec::new();
    while steps.len() < 3 {
        let event = timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("a prober");
        if event.step == ProbeStep::Ended(ProbeOutcome::Unanswered) {
            go.notify_one();
        }
        if event.step != ProbeStep::Accepted {
            steps.push((event.seq, event.sent_at, event.step));
        }
    }
    let (seq, sent_at, _) = steps[0];
    let expected = [ProbeStep::Sent, ProbeStep::Ended(ProbeOutcome::Unanswered), ProbeStep::AnsweredLate];
    assert_eq!(steps, expected.map(|step| (seq, sent_at, step)));
}

#[tokio::test]
async fn a_late_refusal_does_not_count_as_an_answer() {
    let (server, go) = slow(b"HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n").await;
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    prober.set_target(&"u".into(), &target(&server, PATIENCE));
    let mut steps = Vec::new();
    while steps.last() != Some(&ProbeStep::Ended(ProbeOutcome::Unanswered)) {
        let event = timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("a prober");
        steps.push(event.step);
    }
    go.notify_one();
    eventually("the answer is read", || server.open() == 0).await;
    events.close();
    assert!(events.recv().await.is_none(), "nothing follows {steps:?}");
}

#[tokio::test]
async fn nobody_listens_for_longer_than_asked_for() {
    let server = Server::hanging().await;
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    prober.set_target(&"u".into(), &target(&server, SHORT * 2));
    eventually("the connection is closed", || server.accepted() == 1 && server.open() == 0).await;
    events.close();
    let mut steps = Vec::new();
    while let Some(event) = events.recv().await {
        steps.push(event.step);
    }
    steps.retain(|step| *step != ProbeStep::Accepted);
    assert_eq!(steps, [ProbeStep::Sent, ProbeStep::Ended(ProbeOutcome::Unanswered)]);
}

#[tokio::test]
async fn pods_that_hang_leave_a_late_place_to_another_holder() {
    let hanging = Server::hanging().await;
    let (server, go) = slow(OK).await;
    let (sender, mut events) = mpsc::channel(64);
    let mut prober = Prober::new(sender, 4).expect("a prober");
    let hung = Target { interval: SHORT, ..target(&hanging, PATIENCE) };
    prober.set_target(&"hung".into(), &hung);
    // It has taken all that it gets.
    let mut unanswered = 0;
    while unanswered < 8 {
        let event = timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("a prober");
        unanswered += usize::from(event.step == ProbeStep::Ended(ProbeOutcome::Unanswered));
    }
    prober.set_target(&"slow".into(), &target(&server, PATIENCE));
    loop {
        let event = timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("a prober");
        match event.step {
            ProbeStep::Ended(ProbeOutcome::Unanswered) if &*event.uid == "slow" => go.notify_one(),
            ProbeStep::AnsweredLate if &*event.uid == "slow" => break,
            _ => {}
        }
    }
}

#[tokio::test]
async fn no_more_answers_are_listened_to_than_there_are_late_places() {
    let server = Server::hanging().await;
    let (sender, mut events) = mpsc::channel(64);
    let mut prober = Prober::new(sender, 4).expect("a prober");
    for n in 0..12 {
        prober.set_target(&format!("u{n}").into(), &target(&server, PATIENCE * 10));
    }
    let mut unanswered = 0;
    while unanswered < 12 {
        let event = timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("a prober");
        unanswered += usize::from(event.step == ProbeStep::Ended(ProbeOutcome::Unanswered));
    }
    eventually("four are listened to", || (server.accepted(), server.open()) == (12, 4)).await;
}

#[tokio::test]
async fn a_program_that_hangs_is_told_from_a_pod_that_is_not_reached() {
    let server = Server::hanging().await;
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    let interval = Duration::from_millis(500);
    let mut target = Target { interval, ..target(&server, Duration::ZERO) };
    target.probe.timeout = interval;
    prober.set_target(&"u".into(), &target);
    let mut next =
        async || timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("a prober");
    let mut accepted = next().await;
    while accepted.step != ProbeStep::Accepted {
        accepted = next().await;
    }
    let mut ended = next().await;
    while ended.seq != accepted.seq {
        ended = next().await;
    }
    assert_eq!(ended.step, ProbeStep::Ended(ProbeOutcome::Unanswered));
}

#[test]
fn a_late_answer_ends_a_silence_and_proves_nothing_else() {
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "lock": { "ttl": "5s" } });
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
    assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, s(105)), Verdict::Silent { since: s(100) });

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
    assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, s(108)), Verdict::Silent { since: s(103) });
}
