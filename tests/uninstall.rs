//! Tests of `leadergroup uninstall` with a real API server: no object gets stuck, and the labels are settled
//! according to the groups.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

mod apiserver;

use std::time::{Duration, Instant};

use apiserver::ApiServer;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::Pod,
    rbac::v1::{ClusterRole, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
};
use leadergroup::{
    api::{FINALIZER, HumanDuration, LeaderGroup, ROLE_LABEL, STAMP_ANNOTATION},
    cli::{InstallationArgs, UninstallArgs, UninstallError, uninstall},
};
use serde_json::{Value, json};

/// A namespace with an operator's Deployment, and the groups and pods of a test.
struct World {
    client: Client,
    namespace: String,
}

impl World {
    async fn new() -> Self {
        Self::on(ApiServer::shared().await).await
    }

    async fn on(server: &ApiServer) -> Self {
        let world = Self { client: server.client().await, namespace: server.namespace("uninstall").await };
        let deployment: Deployment = object(json!({
            "metadata": { "name": "operator" },
            "spec": {
                "replicas": 2,
                "selector": { "matchLabels": { "app": "operator" } },
                "template": {
                    "metadata": { "labels": { "app": "operator" } },
                    "spec": { "containers": [{ "name": "operator", "image": "none" }] }
                }
            }
        }));
        world.api::<Deployment>().create(&PostParams::default(), &deployment).await.unwrap();
        world
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn group(&self, name: &str, deletion_policy: &str, finalizers: &[&str]) -> DynamicObject {
        let group: DynamicObject = object(json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "name": name, "finalizers": finalizers },
            "spec": { "selector": { "matchLabels": { "app": name } }, "deletionPolicy": deletion_policy }
        }));
        self.groups().create(&PostParams::default(), &group).await.unwrap()
    }

    /// The groups, including undecodable ones.
    fn groups(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<LeaderGroup>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    async fn pod(&self, name: &str, role: Option<&str>, stamp: Option<&DynamicObject>) -> Pod {
        let pod: Pod = object(json!({
            "metadata": {
                "name": name,
                "labels": role.map(|role| json!({ ROLE_LABEL: role })).unwrap_or(json!({ "app": "operator" })),
                "annotations": stamp.map(|group| json!({ STAMP_ANNOTATION: format!("{}/3", group.uid().unwrap()) })),
            },
            "spec": { "containers": [{ "name": "main", "image": "none" }] }
        }));
        self.api().create(&PostParams::default(), &pod).await.unwrap()
    }

    async fn role(&self, pod: &str) -> Option<String> {
        self.api::<Pod>().get(pod).await.unwrap().labels().get(ROLE_LABEL).cloned()
    }

    async fn finalizers(&self, group: &str) -> Vec<String> {
        self.groups().get(group).await.unwrap().finalizers().to_vec()
    }

    fn args(&self) -> UninstallArgs {
        UninstallArgs {
            installation: InstallationArgs {
                deployment: "operator".into(),
                deployment_namespace: self.namespace.clone(),
                namespaces: vec![self.namespace.clone()],
                timeout: HumanDuration(apiserver::DEADLINE),
            },
            keep_labels: false,
        }
    }
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
async fn each_group_is_settled_according_to_its_deletion_policy() {
    let world = World::new().await;
    let strip = world.group("strip", "RemoveLabels", &[FINALIZER, "example.com/other"]).await;
    let keep = world.group("keep", "Retain", &[FINALIZER]).await;
    world.group("without", "RemoveLabels", &[]).await;
    world.pod("strip-1", Some("active"), Some(&strip)).await;
    world.pod("strip-2", Some("standby"), Some(&strip)).await;
    world.pod("keep-1", Some("active"), Some(&keep)).await;
    world.pod("others", Some("active"), None).await;

    assert_eq!(uninstall(world.client.clone(), &world.args()).await.unwrap(), 3);

    assert_eq!(
        world.finalizers("strip").await,
        ["example.com/other"],
        "only the operator's own finalizer goes"
    );
    assert!(world.finalizers("keep").await.is_empty() && world.finalizers("without").await.is_empty());
    assert_eq!((world.role("strip-1").await, world.role("strip-2").await), (None, None));
    assert_eq!(world.role("keep-1").await.as_deref(), Some("active"));
    assert_eq!(
        world.role("others").await.as_deref(),
        Some("active"),
        "a pod without the group's stamp is not ours"
    );
    let deployment = world.api::<Deployment>().get("operator").await.unwrap();
    assert_eq!(deployment.spec.unwrap().replicas, Some(0));
    // A second run has nothing to do.
    assert_eq!(uninstall(world.client.clone(), &world.args()).await.unwrap(), 3);
}

#[tokio::test]
async fn labels_can_be_kept_for_an_operator_that_comes_back() {
    let world = World::new().await;
    let group = world.group("strip", "RemoveLabels", &[FINALIZER]).await;
    let before = world.pod("strip-1", Some("active"), Some(&group)).await;
    uninstall(world.client.clone(), &UninstallArgs { keep_labels: true, ..world.args() }).await.unwrap();
    assert!(world.finalizers("strip").await.is_empty());
    let after = world.api::<Pod>().get("strip-1").await.unwrap();
    assert_eq!(after.resource_version(), before.resource_version(), "the pod is not touched");
}

#[tokio::test]
async fn a_deletion_that_waits_for_the_finalizer_goes_through() {
    let world = World::new().await;
    world.group("leaving", "RemoveLabels", &[FINALIZER]).await;
    let groups = world.groups();
    assert!(
        groups.delete("leaving", &DeleteParams::default()).await.unwrap().is_left(),
        "it waits for the finalizer"
    );
    uninstall(world.client.clone(), &world.args()).await.unwrap();
    assert!(groups.get_opt("leaving").await.unwrap().is_none());
}

#[tokio::test]
async fn undecodable_groups_are_released_like_the_others() {
    let server = ApiServer::start(&[]).await;
    server.take_validation_off().await;
    let world = World::on(&server).await;
    for name in ["good", "living", "leaving"] {
        let deletion_policy = if name == "good" { "RemoveLabels" } else { "Explode" };
        let group = world.group(name, deletion_policy, &[FINALIZER]).await;
        world.pod(&format!("{name}-1"), Some("active"), Some(&group)).await;
    }
    let groups = world.groups();
    assert!(groups.delete("leaving", &DeleteParams::default()).await.unwrap().is_left());
    // The harder case: the stored object is not valid.
    server.put_validation_on().await;

    assert_eq!(uninstall(world.client.clone(), &world.args()).await.unwrap(), 3);

    assert!(groups.get_opt("leaving").await.unwrap().is_none());
    for name in ["good", "living"] {
        assert!(world.finalizers(name).await.is_empty(), "{name}");
    }
    for pod in ["good-1", "living-1", "leaving-1"] {
        assert_eq!(world.role(pod).await, None, "{pod}");
    }
}

#[tokio::test]
async fn nothing_is_touched_before_the_operator_has_stopped() {
    let world = World::new().await;
    let group = world.group("strip", "RemoveLabels", &[FINALIZER]).await;
    world.pod("strip-1", Some("active"), Some(&group)).await;
    world.pod("operator-1", None, None).await;
    let mut args = world.args();
    args.installation.timeout = HumanDuration(Duration::from_secs(1));
    match uninstall(world.client.clone(), &args).await {
        Err(error @ UninstallError::StillRunning { .. }) => {
            assert!(
                error.to_string().contains("operator-1") && error.to_string().contains("delete these pods"),
                "{error}"
            );
        }
        other => panic!("the operator is still running: {other:?}"),
    }
    assert_eq!(world.finalizers("strip").await, [FINALIZER]);
    assert_eq!(world.role("strip-1").await.as_deref(), Some("active"));

    world.api::<Pod>().delete("operator-1", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(uninstall(world.client.clone(), &world.args()).await.unwrap(), 1);
    assert_eq!(world.role("strip-1").await, None);
}

#[tokio::test]
async fn without_deployment_and_groups_there_is_nothing_to_do() {
    let world = World::new().await;
    let mut args = world.args();
    args.installation.deployment = "another".into();
    assert_eq!(uninstall(world.client.clone(), &args).await.unwrap(), 0);
}

/// Grants rights in the namespace to a user of the same name, as the chart does with `watchNamespaces`.
async fn allow_in(world: &World, on_pods: &[&str]) -> Client {
    let role: ClusterRole = object(json!({
        "metadata": { "name": world.namespace },
        "rules": [
            { "apiGroups": ["leadergroup.dev"], "resources": ["leadergroups"], "verbs": ["get", "list", "patch"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": on_pods },
            { "apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"] }
        ]
    }));
    Api::<ClusterRole>::all(world.client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let binding: RoleBinding = object(json!({
        "metadata": { "name": "operator" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": world.namespace },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": world.namespace }]
    }));
    world.api::<RoleBinding>().create(&PostParams::default(), &binding).await.unwrap();
    let client = ApiServer::shared().await.client_as(&world.namespace).await;
    let resource = ApiResource::erase::<LeaderGroup>(&());
    let groups = Api::<DynamicObject>::namespaced_with(client.clone(), &world.namespace, &resource);
    let start = Instant::now();
    // A granted right takes effect a moment later.
    while groups.list(&ListParams::default()).await.is_err() {
        assert!(start.elapsed() < apiserver::DEADLINE, "the right does not arrive");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client
}

#[tokio::test]
async fn a_namespace_without_rights_does_not_block_the_others() {
    let world = World::new().await;
    let group = world.group("strip", "RemoveLabels", &[FINALIZER]).await;
    world.pod("strip-1", Some("active"), Some(&group)).await;
    let client = allow_in(&world, &["get", "list", "patch"]).await;
    let gone = format!("{}-gone", world.namespace);
    let mut args = world.args();
    args.installation.namespaces = vec![gone.clone(), world.namespace.clone()];
    match uninstall(client, &args).await {
        Err(error @ UninstallError::Incomplete(_)) => {
            let text = error.to_string();
            assert!(text.contains(&gone) && text.contains("403") && !text.contains("strip"), "{text}");
            assert!(text.contains("watchNamespaces"), "it says what to do: {text}");
        }
        other => panic!("the groups of the namespace without rights are unknown: {other:?}"),
    }
    assert!(world.finalizers("strip").await.is_empty());
    assert_eq!(world.role("strip-1").await, None);
}

#[tokio::test]
async fn labels_that_are_out_of_reach_hold_up_only_groups_that_stay() {
    let world = World::new().await;
    for name in ["staying", "leaving"] {
        let group = world.group(name, "RemoveLabels", &[FINALIZER]).await;
        world.pod(&format!("{name}-1"), Some("active"), Some(&group)).await;
    }
    let groups = world.groups();
    assert!(groups.delete("leaving", &DeleteParams::default()).await.unwrap().is_left());
    let client = allow_in(&world, &["watch"]).await;
    let mut args = world.args();
    args.installation.deployment = "another".into();
    match uninstall(client, &args).await {
        Err(error @ UninstallError::Incomplete(_)) => {
            let text = error.to_string();
            assert!(text.contains("/staying: ") && !text.contains("/leaving: "), "{text}");
        }
        other => panic!("the labels of one that stays are not settled: {other:?}"),
    }
    assert!(groups.get_opt("leaving").await.unwrap().is_none());
    assert_eq!(world.finalizers("staying").await, [FINALIZER]);
}

#[tokio::test]
async fn an_api_server_out_of_reach_is_not_taken_for_missing_rights() {
    // Nobody listens on port 1 of the loopback address.
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let args = UninstallArgs {
        installation: InstallationArgs {
            deployment: "operator".into(),
            deployment_namespace: "leadergroup".into(),
            namespaces: Vec::new(),
            timeout: HumanDuration(apiserver::DEADLINE),
        },
        keep_labels: false,
    };
    let error = uninstall(Client::try_from(config).unwrap(), &args).await.unwrap_err().to_string();
    assert!(error.contains("check that the API server runs") && error.contains("KUBECONFIG"), "{error}");
    assert!(!error.contains("rights"), "{error}");
}

#[tokio::test]
async fn an_account_without_rights_is_told_which_are_missing() {
    let world = World::new().await;
    let client = ApiServer::shared().await.client_as("nobody").await;
    let error = uninstall(client, &world.args()).await.unwrap_err().to_string();
    assert!(error.contains("scale the operator's Deployment") && error.contains("rights"), "{error}");
    assert!(!error.contains("check that the API server runs"), "{error}");
}
