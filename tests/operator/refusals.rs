//! Pods that an admission policy refuses to let be active.

use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use leadergroup::api::{ROLE_LABEL, STAMP_ANNOTATION};
use serde_json::json;

use crate::{
    apiserver::{ApiServer, admission::Policy},
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

#[tokio::test]
async fn a_pod_that_a_policy_refuses_to_let_be_active_is_passed_over_and_reported() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("refusals").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client.clone(), "node-of-refusals").await;
    for name in ["web-0", "web-1", "web-2"] {
        run_pod(&pods, name, "node-of-refusals").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    let token =
        async || groups.get("web").await.unwrap().data["status"]["token"].as_i64().unwrap_or_default();
    let stamped = async || {
        let (all, token) = (pods.list(&ListParams::default()).await.unwrap(), token().await);
        let stamp = |pod: &Pod| pod.annotations().get(STAMP_ANNOTATION).cloned().unwrap_or_default();
        all.iter().all(|pod| stamp(pod).ends_with(&format!("/{token}")))
    };
    eventually("a holder", async || active(&pods).await.len() == 1 && stamped().await).await;
    let first = active(&pods).await.remove(0);

    // The one that would be next: the oldest, and of two of the same second the one with the smaller UID.
    let mut standbys = pods.list(&ListParams::default()).await.unwrap().items;
    standbys.retain(|pod| pod.name_any() != first);
    standbys.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.uid()));
    let (refused, other) = (standbys[0].name_any(), standbys[1].name_any());
    let condition_of_policy = format!(
        "object.metadata.name == '{refused}' && '{ROLE_LABEL}' in object.metadata.labels && \
         object.metadata.labels['{ROLE_LABEL}'] == 'active'"
    );
    let words = "this pod must never be active";
    let promoted = json!({ ROLE_LABEL: "active" });
    let policy = Policy::refuse(
        client.clone(),
        &namespace,
        (condition_of_policy.as_str(), words),
        (refused.as_str(), &promoted),
    )
    .await;
    let before = token().await;

    report(&pods, &first, "False").await;
    eventually("the other standby to be active", async || active(&pods).await == [other.clone()]).await;
    eventually("the condition to say so", async || {
        let (status, _, message) = condition(&groups, "web", "Redundant").await;
        status == "False" && message.contains(words) && message.contains(&refused)
    })
    .await;
    assert_eq!(token().await, before + 2, "one term for each candidate");
    let status = groups.get("web").await.unwrap().data["status"].clone();
    assert_eq!(status["history"][0]["reason"], "PodNotReady", "{status}");
    assert_eq!((&status["history"][0]["from"], &status["history"][0]["to"]), (&json!(first), &json!(other)));
    assert_eq!(status["eligibleSummary"], "1/3");
    eventually("an Event", async || {
        let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let events = events.list(&ListParams::default()).await.unwrap();
        events.iter().any(|event| {
            event.reason.as_deref() == Some("WriteRefused")
                && event.note.as_ref().is_some_and(|note| note.contains(words) && note.contains(&refused))
        })
    })
    .await;

    // No other pod is left. The pod that is left is well, so the reason is the refusal.
    for name in [&first, &other] {
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    eventually("the condition Active to name the refusal", async || {
        let (status, reason, message) = condition(&groups, "web", "Active").await;
        let says = message.starts_with(&format!("none of 1 pods could be active; \"{refused}\""))
            && message.contains(words);
        status == "False" && reason == "WriteRefused" && says
    })
    .await;

    // It is a candidate again once the policy is gone and the pause is over.
    policy.lift(&refused, &promoted).await;
    eventually("the refused pod to be active", async || active(&pods).await == [refused.clone()]).await;
    eventually("the condition to be over", async || {
        !condition(&groups, "web", "Redundant").await.2.contains(words)
    })
    .await;
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
