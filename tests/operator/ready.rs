//! Tests of `leadergroup ready`: it succeeds once the replicas are ready and the API server serves groups.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use leadergroup::{
    api::HumanDuration,
    cli::{InstallationArgs, ready},
};
use serde_json::{Value, json};

use crate::apiserver::ApiServer;

fn args(namespace: &str, timeout: Duration) -> InstallationArgs {
    InstallationArgs {
        deployment: "operator".to_owned(),
        deployment_namespace: namespace.to_owned(),
        namespaces: Vec::new(),
        timeout: HumanDuration(timeout),
    }
}

const SOON: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn it_waits_until_all_replicas_are_ready() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("ready").await;
    let client = server.client().await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let refusal = async || ready(client.clone(), &args(&namespace, SOON)).await.unwrap_err().to_string();
    let said = refusal().await;
    assert!(said.contains("is not ready after 100ms: "), "{said}");

    let deployment = json!({
        "metadata": { "name": "operator" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "operator" } },
            "template": {
                "metadata": { "labels": { "app": "operator" } },
                "spec": { "containers": [{ "name": "operator", "image": "none" }] }
            }
        }
    });
    deployments.create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
    let report = async |status: Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        deployments.patch_status("operator", &PatchParams::default(), &patch).await.unwrap();
    };
    // A status of an older generation says nothing about this one.
    report(json!({ "observedGeneration": 0, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2 })).await;
    assert!(ready(client.clone(), &args(&namespace, SOON)).await.is_err());
    // During an upgrade the old replicas are ready.
    report(json!({ "observedGeneration": 1, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 2 })).await;
    assert!(ready(client.clone(), &args(&namespace, SOON)).await.is_err());

    let waiting = tokio::spawn({
        let (client, args) = (client.clone(), args(&namespace, DEADLINE));
        async move { ready(client, &args).await }
    });
    report(json!({ "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2 })).await;
    let said = waiting.await.unwrap().unwrap();
    assert_eq!(
        said,
        "2 of 2 replicas of the operator are ready\nthe API server lists the LeaderGroups of all namespaces"
    );
    let some = InstallationArgs { namespaces: vec![namespace.clone()], ..args(&namespace, DEADLINE) };
    let said = ready(client.clone(), &some).await.unwrap();
    assert!(said.ends_with(&format!("lists the LeaderGroups of {namespace}")), "{said}");
}

#[tokio::test]
async fn it_names_what_it_cannot_read_and_why() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("unready").await;
    let missing =
        ready(server.client().await, &args(&namespace, DEADLINE / 30)).await.unwrap_err().to_string();
    assert!(
        missing.contains("the Deployment operator cannot be read") && missing.contains("404"),
        "{missing}"
    );
    let stranger = server.client_as("stranger").await;
    let forbidden = ready(stranger, &args(&namespace, DEADLINE / 30)).await.unwrap_err().to_string();
    assert!(forbidden.contains("403"), "{forbidden}");
}
