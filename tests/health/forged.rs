//! What a pod may answer for an agent, and what of it counts.

use leadergroup::{
    api::Promise,
    health::{ProbeFailure, ProbeKind, ProbeOutcome, ProbeStep},
};
use leadergroup_agent::answer::Keys;

use super::{
    probed::{Probed, target},
    server::{OK, PATIENCE, Server},
};

/// What a probe of an agent has brought, if the pod answers so.
async fn answered(head: &str, body: &[u8]) -> (Vec<Promise>, ProbeOutcome) {
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len());
    let server = Server::answering([head.as_bytes(), body].concat()).await;
    let mut probed = Probed::new(8);
    probed.set("u", &target(server.address, ProbeKind::Agent, PATIENCE));
    let mut promises = Vec::new();
    loop {
        match probed.next().await.step {
            ProbeStep::Promised(promise) => promises.push(promise),
            ProbeStep::Ended(ProbeOutcome::Void(_)) => {}
            ProbeStep::Ended(outcome) => return (promises, outcome),
            _ => {}
        }
    }
}

fn keys(seed: u8) -> Keys {
    Keys::from_seed(&[seed; 32]).unwrap()
}

/// What the agent with these keys says.
fn signed(keys: &Keys, floor: i64, idle: bool) -> String {
    serde_json::to_string(&keys.sign(Promise { boot: keys.boot(), floor, idle })).unwrap()
}

#[tokio::test]
async fn only_what_the_agent_has_signed_counts() {
    let (own, other) = (keys(1), keys(2));
    let promise = Promise { boot: own.boot(), floor: 7, idle: true };
    let answer = signed(&own, 7, true);
    assert_eq!(answered("200 OK", answer.as_bytes()).await, (vec![promise], ProbeOutcome::Success));
    let [own_boot, other_boot] = [own.boot().to_string(), other.boot().to_string()];
    let mut padded = answer.clone();
    padded.insert_str(1, &format!(r#""pad":"{}","#, "x".repeat(1 << 20)));
    let forgeries: Vec<(&str, Vec<u8>)> = vec![
        ("another key", signed(&other, 7, true).replace(&other_boot, &own_boot).into()),
        ("for another boot", answer.replace(&own_boot, &other_boot).into()),
        ("for another token", answer.replace(":7,", ":8,").into()),
        ("of a running program", signed(&own, 7, false).replace("false", "true").into()),
        ("a huge floor", signed(&own, i64::MAX, true).into()),
        ("a floor below zero", signed(&own, -1, true).into()),
        ("no number", answer.replace(":7,", ":7.5e300,").into()),
        ("truncated", answer.as_bytes()[..answer.len() - 1].into()),
        ("without its signature", answer.split(",\"signature\"").next().unwrap().into()),
        ("twice", answer.repeat(2).into()),
        ("a field twice", answer.replacen('{', "{\"idle\":true,", 1).into()),
        ("huge", padded.into()),
        ("deep", "[".repeat(5_000).into()),
        ("no text", vec![0xff; 4_096]),
        ("of a program that is no agent", b"ok".to_vec()),
        ("nothing", Vec::new()),
    ];
    for (what, body) in forgeries {
        let wanted = (Vec::new(), ProbeOutcome::Refused(ProbeFailure::NoAgent));
        assert_eq!(answered("200 OK", &body).await, wanted, "{what}");
    }
    let failed = answered("503 Service Unavailable", answer.as_bytes()).await;
    assert_eq!(failed, (Vec::new(), ProbeOutcome::Refused(ProbeFailure::HttpStatus(503))));
}

#[tokio::test]
async fn an_agent_elsewhere_is_not_asked_because_a_pod_points_to_it() {
    let elsewhere = Server::answering(OK).await;
    let head = format!("302 Found\r\nlocation: http://{}/answer", elsewhere.address);
    let wanted = (Vec::new(), ProbeOutcome::Refused(ProbeFailure::NoAgent));
    assert_eq!(answered(&head, b"").await, wanted);
    assert_eq!(elsewhere.accepted(), 0);
}
