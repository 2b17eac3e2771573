//! What the servers answer for webhooks and policies that do not let a change pass.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    operations::{Call, Id, Operation, Version},
    simulated,
    world::World,
};
use crate::{
    api_server::{Hook, Kind, Verdict},
    apiserver::{
        ApiServer as Real,
        admission::Policy,
        webhook::{Answer, Scope, Webhook},
    },
};

fn change(dry_run: bool) -> Operation {
    let metadata = json!({ "labels": { "role": "active" } });
    let call =
        Call::Merge { metadata, rest: json!({}), uid: Id::Right, version: Version::Last, status: false };
    Operation { kind: Kind::Pod, name: "a", call, dry_run }
}

/// The answer to a change, and to its dry run, without the address of the webhook.
async fn answers(world: &mut World) -> [Value; 2] {
    let mut found = [false, true].map(|dry_run| json!(dry_run));
    for answer in &mut found {
        let dry_run = *answer == true;
        *answer = world.perform(&change(dry_run)).await;
        let message = answer["body"]["message"].as_str().unwrap_or_default();
        if let Some((begin, (_, end))) =
            message.split_once("https://").and_then(|(begin, rest)| Some((begin, rest.split_once('/')?)))
        {
            answer["body"]["message"] = format!("{begin}{end}").into();
            let causes = &mut answer["body"]["details"]["causes"];
            causes.as_array_mut().into_iter().flatten().for_each(|cause| cause["message"] = Value::Null);
        }
    }
    found
}

#[tokio::test]
async fn both_word_refusals_and_failures_of_webhooks_alike() {
    let server = Real::shared().await;
    let namespace = server.namespace("webhook").await;
    let mut real = World::real(server.client().await, &namespace).await;
    let server_of_fake = simulated(1);
    let mut fake = World::simulated(&server_of_fake, &real);
    assert_eq!(real.create_pod("a").await, fake.create_pod("a").await);
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    let failure = "an error on the server (\"unknown\") has prevented the request from succeeding";
    let answering = vec![
        (Answer::Deny(403), Verdict::Deny(403, "the test says no".into())),
        (Answer::Deny(409), Verdict::Deny(409, "the test says no".into())),
        (Answer::Fail, Verdict::Fail(failure.into())),
        (Answer::Allow, Verdict::Allow),
    ];
    // What answers has a time limit that a busy machine cannot exceed.
    for (timeout_seconds, cases) in [(10, answering), (1, vec![(Answer::Hang, Verdict::Hang)])] {
        let scope = Scope {
            namespace: &namespace,
            pods: &json!({}),
            mutates: false,
            failure_policy: "Fail",
            timeout_seconds,
        };
        let webhook = Webhook::start(server.client().await, address, &scope, "a").await.unwrap();
        for (answer, verdict) in cases {
            webhook.set(answer);
            let verdict = move |_: &crate::api_server::Review<'_>| verdict.clone();
            let timeout = Duration::from_secs(timeout_seconds.into());
            let hook = Hook { timeout, ..Hook::webhook("pods.webhook.test", verdict) };
            *server_of_fake.hooks() = vec![hook];
            assert_eq!(answers(&mut real).await, answers(&mut fake).await, "{answer:?}");
        }
        webhook.lift("a").await.unwrap();
    }
}

#[tokio::test]
async fn both_word_refusals_of_policies_alike() {
    let server = Real::shared().await;
    let namespace = server.namespace("policy").await;
    let mut real = World::real(server.client().await, &namespace).await;
    let server_of_fake = simulated(1);
    let mut fake = World::simulated(&server_of_fake, &real);
    assert_eq!(real.create_pod("a").await, fake.create_pod("a").await);
    let labels = json!({ "role": "active" });
    let condition = "has(object.metadata.labels) && 'role' in object.metadata.labels";
    let policy = Policy::refuse(server.client().await, &namespace, (condition, "no"), ("a", &labels)).await;
    server_of_fake.hooks().push(Hook::policy(&namespace, |_| Verdict::Deny(403, "no".into())));
    assert_eq!(answers(&mut real).await, answers(&mut fake).await);
    policy.lift("a", &labels).await;
}
