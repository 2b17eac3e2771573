//! What goes wrong, and what the user reads then.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::{
    apiserver::{self, ApiServer},
    world::World,
};

#[tokio::test]
async fn errors_say_what_to_do() {
    let world = World::new("plugin-errors").await;
    world.web().await;
    let misspelt = world.complaint(&["status", "wbe"]).await;
    assert!(
        misspelt.contains("there is no LeaderGroup wbe") && misspelt.contains("Did you mean web?"),
        "{misspelt}"
    );
    let elsewhere = world.complaint(&["pause", "-n", "default", "web"]).await;
    assert!(elsewhere.contains("There is one in another namespace: add -n "), "{elsewhere}");
    let context = world.complaint(&["--context", "prod", "status"]).await;
    assert!(context.contains("has no context prod") && context.contains("It has: test."), "{context}");
    let file = world.complaint(&["--kubeconfig", "/nowhere", "status"]).await;
    assert!(file.contains("no access to a cluster"), "{file}");

    // A user with the right to list groups only.
    world.act_as(Some("tired"));
    let refused = world.complaint(&["status"]).await;
    assert!(refused.contains("HTTP 403") && refused.contains("Ask an administrator"), "{refused}");
    let refused = world.complaint(&["doctor", "web"]).await;
    assert!(refused.contains("HTTP 403"), "{refused}");
    let name = json!({ "name": world.namespace });
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": name,
        "rules": [{ "apiGroups": ["leadergroup.dev"], "resources": ["leadergroups"], "verbs": ["get", "list"] }],
    }))
    .unwrap();
    Api::all(world.client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": name,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": world.namespace },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tired" }],
    }))
    .unwrap();
    Api::all(world.client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let start = std::time::Instant::now();
    while world.run(&["status"]).await.0 != 0 {
        assert!(start.elapsed() < apiserver::DEADLINE, "the role is not in force");
    }
    let text = world.text(&["status", "web"]).await;
    assert!(text.contains("could not list the pods") && text.contains("CONDITION"), "{text}");
    let refused = world.complaint(&["switchover", "web"]).await;
    assert!(refused.contains("HTTP 403") && refused.contains("edit may change them"), "{refused}");
    let (_, text, _) = world.run(&["doctor", "web"]).await;
    for words in ["you may not patch leadergroups.leadergroup.dev", "could not list the Services"] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}

#[tokio::test]
async fn a_cluster_without_the_definition_is_recognized() {
    let world = World::new("plugin-bare").await;
    let bare = ApiServer::start(&[]).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(bare.client().await);
    definitions.delete("leadergroups.leadergroup.dev", &DeleteParams::default()).await.unwrap();
    let kubeconfig = bare.kubeconfig();
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap()];
    let start = std::time::Instant::now();
    while !world
        .complaint(&[&args[..], &["status", "web"]].concat())
        .await
        .contains("does not know LeaderGroups")
    {
        assert!(start.elapsed() < apiserver::DEADLINE, "the definition is still served");
    }
    let (status, text, _) = world.run(&[&args[..], &["doctor"]].concat()).await;
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("does not know leadergroup.dev/v1alpha1"), "{text}");
    assert!(text.contains("install the operator's chart"), "{text}");
}
