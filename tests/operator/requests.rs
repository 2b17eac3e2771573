//! How many requests to the API server a change of holder needs: each one is time in which no pod is routed to.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::{ROLE_LABEL, STAMP_ANNOTATION};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    audit::Audit,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

const PODS: [&str; 3] = ["web-0", "web-1", "web-2"];

/// The test's own requests are made as another user, so that the log tells them from the operator's.
async fn tester(server: &ApiServer) -> Client {
    let mut config = server.config().await;
    config.auth_info.impersonate = Some("tester".to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    Client::try_from(config).unwrap()
}

/// Reports how often the main container of a ready pod was restarted.
async fn restarted(pods: &Api<Pod>, name: &str, count: i32) {
    let main = json!({
        "name": "main", "image": "none", "imageID": "", "ready": true, "restartCount": count,
        "state": { "running": {} },
    });
    let patch = Patch::Merge(json!({ "status": { "containerStatuses": [main] } }));
    pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Whether one pod is active, all others are its standbys, and the group is reported Ready.
async fn is_at_rest(groups: &Api<DynamicObject>, pods: &Api<Pod>) -> bool {
    let token = groups.get("web").await.unwrap().data["status"]["token"].clone();
    let settled = |pod: &Pod| {
        let stamp = pod.annotations().get(STAMP_ANNOTATION).cloned().unwrap_or_default();
        pod.metadata.deletion_timestamp.is_some()
            || (pod.labels().contains_key(ROLE_LABEL) && stamp.ends_with(&format!("/{token}")))
    };
    let all = pods.list(&ListParams::default()).await.unwrap();
    all.iter().all(settled)
        && active(pods).await.len() == 1
        && condition(groups, "web", "Ready").await.0 == "True"
}

/// What a request was for, without the reports of the status.
fn purpose(request: &Value) -> Option<String> {
    let (verb, object) = (request["verb"].as_str().unwrap(), &request["objectRef"]);
    let (resource, name) = (object["resource"].as_str().unwrap(), object["name"].as_str().unwrap_or("all"));
    let body = &request["requestObject"];
    if verb != "patch" {
        return Some(format!("{verb} {resource} {name}"));
    }
    if resource == "pods" {
        let role = &body["metadata"]["labels"][ROLE_LABEL];
        let verb = if request["requestURI"].as_str().unwrap().contains("dryRun") { "try" } else { "label" };
        return Some(format!("{verb} {name} {}", role.as_str().unwrap_or("nothing")));
    }
    let steps = body.as_array().cloned().unwrap_or_default();
    let changes = |path: &str| steps.iter().any(|step| step["path"] == path && step["op"] != "test");
    if changes("/metadata/finalizers") {
        return Some("finalizer".to_owned());
    }
    changes("/status/declaration").then(|| "declare".to_owned())
}

#[tokio::test]
async fn a_change_of_holder_declares_strips_and_promotes_and_reads_only_what_could_be_refuted() {
    let audit = Audit::new();
    let server = audit.start().await;
    let client = tester(&server).await;
    let namespace = server.namespace("requests").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client, "node-of-requests").await;
    for name in PODS {
        run_pod(&pods, name, "node-of-requests").await;
        restarted(&pods, name, 0).await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(&server, &namespace, &database.url());
    let since = |before: usize| -> Vec<String> {
        audit.requests().split_off(before).iter().filter_map(purpose).collect()
    };
    // The requests from the evidence to the label of the next holder.
    let next = async |old: &str, before: usize| {
        eventually("the next holder", async || {
            let now = active(&pods).await;
            now.len() == 1 && now != [old]
        })
        .await;
        let new = active(&pods).await.remove(0);
        let label = format!("label {new} active");
        eventually("its label in the log", async || since(before).contains(&label)).await;
        let mut requests = since(before);
        // Watches may list again on their own.
        requests.retain(|request| !request.starts_with("list "));
        requests.truncate(requests.iter().position(|request| *request == label).unwrap() + 1);
        (new, requests)
    };
    let at_rest = async || {
        eventually("rest", async || is_at_rest(&groups, &pods).await).await;
        (active(&pods).await.remove(0), audit.requests().len())
    };

    let steps = |old: &str, new: &str| {
        ["declare".to_owned(), format!("label {old} standby"), format!("label {new} active")]
    };

    // Evidence that no read could refute, as silence and refused probes are.
    let (old, before) = at_rest().await;
    restarted(&pods, &old, 1).await;
    let (new, requests) = next(&old, before).await;
    assert_eq!(requests, steps(&old, &new));

    // No read could refute a deletionTimestamp either.
    let (old, before) = at_rest().await;
    pods.delete(&old, &DeleteParams::default()).await.unwrap();
    let (new, requests) = next(&old, before).await;
    assert_eq!(requests, steps(&old, &new));
    pods.delete(&old, &DeleteParams::default().grace_period(0)).await.unwrap();
    run_pod(&pods, &old, "node-of-requests").await;

    // A report of the kubelet is confirmed by a read.
    let (old, before) = at_rest().await;
    report(&pods, &old, "False").await;
    let (new, requests) = next(&old, before).await;
    assert_eq!(requests, [&[format!("get pods {old}")], &steps(&old, &new)[..]].concat());
    report(&pods, &old, "True").await;

    // A pod that is gone cannot be written: a read shows that it has no label any more. Before that, it is read if the
    // watch has not shown a deletionTimestamp.
    let (old, before) = at_rest().await;
    pods.delete(&old, &DeleteParams::default().grace_period(0)).await.unwrap();
    let (new, requests) = next(&old, before).await;
    let read = format!("get pods {old}");
    let expected = ["declare".to_owned(), read.clone(), format!("label {new} active")];
    assert_eq!(requests.strip_prefix(&[read][..]).unwrap_or(&requests), expected);
    run_pod(&pods, &old, "node-of-requests").await;

    // A planned change: two dry runs at the same time come first.
    report(&pods, &old, "True").await;
    let (old, before) = at_rest().await;
    let request =
        Patch::Merge(json!({ "metadata": { "annotations": { "leadergroup.dev/switchover": "one" } } }));
    groups.patch("web", &PatchParams::default(), &request).await.unwrap();
    let (new, mut requests) = next(&old, before).await;
    requests[..2].sort();
    let mut tries = [format!("try {new} active"), format!("try {old} standby")];
    tries.sort();
    assert_eq!(requests, [&tries, &steps(&old, &new)[..]].concat());

    // The deletion of a group: one list, one write for each pod, one for the finalizer.
    let (_, before) = at_rest().await;
    groups.delete("web", &DeleteParams::default()).await.unwrap();
    eventually("the group to be gone", async || groups.get_opt("web").await.unwrap().is_none()).await;
    let gone = || since(before).last().is_some_and(|last| last == "finalizer");
    eventually("the end in the log", async || gone()).await;
    let mut requests = since(before);
    requests.sort();
    let mut expected: Vec<String> = PODS.iter().map(|name| format!("label {name} nothing")).collect();
    expected.splice(0..0, ["finalizer".to_owned()]);
    expected.push("list pods all".to_owned());
    assert_eq!(requests, expected);
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
