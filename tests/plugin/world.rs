//! A namespace with a group, and what an operator and a kubelet would report. Nothing else runs.

use std::{
    fs,
    process::{Command, Output},
};

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use leadergroup::api::LeaderGroup;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::apiserver::ApiServer;

/// A namespace with a group of two pods, of which web-0 is active.
pub(crate) struct World {
    pub(crate) server: &'static ApiServer,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// The user's kubeconfig.
    pub(crate) files: TempDir,
}

impl World {
    pub(crate) async fn new(name: &str) -> Self {
        let server = ApiServer::shared().await;
        let (client, namespace) = (server.client().await, server.namespace(name).await);
        let world = Self { server, client, namespace, files: tempfile::tempdir().unwrap() };
        world.act_as(None);
        world
    }

    /// From now on the commands are those of another user; None is the administrator.
    pub(crate) fn act_as(&self, user: Option<&str>) {
        let text = fs::read_to_string(self.server.kubeconfig()).unwrap();
        let user = user.map_or_else(String::new, |user| format!(", as: {user}"));
        let text = text.replace("}\ncontexts:", &format!("{user}}}\ncontexts:"));
        let text = text.replace("user: admin}", &format!("user: admin, namespace: {}}}", self.namespace));
        fs::write(self.files.path().join("kubeconfig"), text).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-leadergroup"));
        command.env_clear().env("KUBECONFIG", self.files.path().join("kubeconfig")).args(args);
        command
    }

    /// Runs a command. Returns its exit status, what it prints, and what it complains about.
    pub(crate) async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = self.command(args);
        let output: Output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// The output of a command that succeeds.
    pub(crate) async fn text(&self, args: &[&str]) -> String {
        let (status, text, errors) = self.run(args).await;
        assert_eq!(status, 0, "{args:?}: {text}{errors}");
        text
    }

    /// The same as JSON.
    pub(crate) async fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[args, &["-o", "json"]].concat()).await).unwrap()
    }

    /// The complaint of a command that fails.
    pub(crate) async fn complaint(&self, args: &[&str]) -> String {
        let (status, text, errors) = self.run(args).await;
        assert_eq!(status, 1, "{args:?}: {text}{errors}");
        assert!(text.is_empty() && errors.starts_with("kubectl leadergroup: "), "{text}{errors}");
        errors
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    /// What an operator writes into the status of a group.
    pub(crate) async fn report(&self, group: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api::<LeaderGroup>().patch_status(group, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A group that no operator has seen.
    pub(crate) async fn group(&self, name: &str) {
        let group = json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup", "metadata": { "name": name },
            "spec": { "selector": { "matchLabels": { "app": name } } },
        });
        self.create::<LeaderGroup>(group).await;
    }

    /// A Ready pod with this role, on a node that does not exist.
    pub(crate) async fn pod(&self, group: &str, name: &str, role: &str) {
        self.create::<Pod>(json!({
            "metadata": { "name": name, "labels": { "app": group, "leadergroup.dev/role": role } },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "main", "image": "none" }] },
        }))
        .await;
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let pods = self.api::<Pod>();
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    }

    /// A Service with one endpoint.
    pub(crate) async fn service(&self, name: &str, selector: Value, endpoint: &str) {
        self.create::<Service>(json!({
            "metadata": { "name": name }, "spec": { "selector": selector, "ports": [{ "port": 80 }] },
        }))
        .await;
        self.create::<EndpointSlice>(json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4", "ports": [],
            "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": { "ready": true },
                "targetRef": { "kind": "Pod", "name": endpoint, "namespace": self.namespace },
            }],
        }))
        .await;
    }

    /// The group `web` with two pods and a Service. All is well.
    pub(crate) async fn web(&self) {
        self.group("web").await;
        self.pod("web", "web-0", "active").await;
        self.pod("web", "web-1", "standby").await;
        self.service("web", json!({ "app": "web", "leadergroup.dev/role": "active" }), "web-0").await;
        self.report("web", well()).await;
        let uid = self.api::<Pod>().get("web-0").await.unwrap().metadata.uid;
        self.report("web", json!({ "active": { "uid": uid } })).await;
    }
}

/// The status of a group that works.
pub(crate) fn well() -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "observedGeneration": 1,
        "active": { "pod": "web-0", "uid": "u", "node": "node-1", "since": "2026-01-01T00:00:00Z" },
        "token": 3, "eligible": 2, "replicas": 2, "eligibleSummary": "2/2",
        "history": [{
            "token": 3, "from": "web-1", "to": "web-0", "reason": "Silent", "time": "2026-01-01T00:00:00Z",
            "duration": "5s41ms",
        }],
        "conditions": [
            condition("Accepted", "True", "AsExpected", "the spec is valid"),
            condition("Ready", "True", "Active", "web-0 is active"),
            condition("Redundant", "True", "AsExpected", "1 pod could take over"),
        ],
    })
}
