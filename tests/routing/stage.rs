//! A namespace with a group and pods, and short methods for operations on them.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use leadergroup::{
    api::{Declaration, FINALIZER, LeaderGroup, PodAt, PodRef, Role, STAMP_ANNOTATION, Sighting},
    routing::{GroupRef, Router, has_its_fencing_token, stamp_of},
};
use serde_json::{Value, json};

use crate::apiserver::{ApiServer, DEADLINE};

/// The key of the group's lock.
pub const KEY: &str = "c1/shop/orders";

pub struct Stage {
    pub client: Client,
    pub namespace: String,
    pub router: Router,
    pub group: GroupRef,
}

impl Stage {
    pub async fn new(name: &str) -> Self {
        Self::on(ApiServer::shared().await, name).await
    }

    pub async fn on(server: &ApiServer, name: &str) -> Self {
        let client = server.client().await;
        let namespace = server.namespace(name).await;
        let group = create_group(&client, &namespace).await;
        Self { router: Router::new(client.clone(), DEADLINE), client, namespace, group }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn groups(&self) -> Api<LeaderGroup> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The groups, including undecodable ones.
    pub fn sighted(&self) -> Api<Sighting> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn pod(&self, name: &str) -> PodRef {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": "orders" } },
            "spec": { "containers": [{ "name": "main", "image": "none" }] },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let pod = self.pods().create(&PostParams::default(), &pod).await.unwrap();
        PodRef { name: name.to_owned(), uid: pod.uid().unwrap() }
    }

    pub async fn replace(&self, pod: &PodRef) -> PodRef {
        self.remove(pod).await;
        self.pod(&pod.name).await
    }

    pub async fn remove(&self, pod: &PodRef) {
        self.pods().delete(&pod.name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    pub async fn read(&self, pod: &PodRef) -> Pod {
        self.pods().get(&pod.name).await.unwrap()
    }

    pub async fn version(&self, pod: &PodRef) -> String {
        self.read(pod).await.resource_version().unwrap()
    }

    /// The pods with their present versions, as a watch shows them.
    pub async fn seen(&self, pods: &[PodRef]) -> Vec<PodAt> {
        let mut seen = Vec::new();
        for pod in pods {
            seen.push(PodAt { pod: pod.clone(), version: Some(self.version(pod).await) });
        }
        seen
    }

    /// The role of the pod and the token of its stamp. Every write of the router leaves the fencing token that belongs
    /// to them.
    pub async fn mark(&self, pod: &PodRef) -> (Role, Option<i64>) {
        let pod = self.read(pod).await;
        let role = self.group.marks.role(&pod);
        let stamp = stamp_of(&pod).map(|stamp| stamp.token);
        if stamp.is_some() {
            assert!(has_its_fencing_token(&pod, role, KEY), "{:?}", pod.metadata.annotations);
        }
        (role, stamp)
    }

    /// A write to the pod by another client.
    pub async fn edit(&self, pod: &PodRef, metadata: Value) {
        let patch = json!({ "metadata": metadata });
        self.pods().patch(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub async fn stamp_foreign(&self, pod: &PodRef, group: &str, token: i64) {
        self.edit(pod, json!({ "annotations": { STAMP_ANNOTATION: format!("{group}/{token}") } })).await;
    }

    pub async fn declared(&self) -> Declaration {
        let group = self.router.group(&self.group).await.unwrap().unwrap();
        group.status.unwrap_or_default().declaration
    }

    /// Declares a term, whatever was declared before.
    pub async fn declare(&self, token: i64, holder: &PodRef) -> Declaration {
        let next = term(token, holder, &[]);
        let declared = self.router.declare(&self.group, &self.declared().await, &next).await.unwrap();
        assert_eq!(declared, leadergroup::routing::Declared::Done);
        next
    }

    /// Somebody removes the declaration.
    pub async fn undeclare(&self) {
        let patch = Patch::Merge(json!({ "status": { "declaration": null } }));
        self.groups().patch_status("orders", &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(self.declared().await.token, 0);
    }

    /// Replaces the group by another one of the same name.
    pub async fn replace_group(&self) -> GroupRef {
        self.remove_group().await;
        create_group(&self.client, &self.namespace).await
    }

    pub async fn remove_group(&self) {
        self.router.set_finalizer(&self.group, false).await.unwrap();
        self.groups().delete("orders", &DeleteParams::default()).await.unwrap();
    }

    pub async fn finalizers(&self) -> Vec<String> {
        self.sighted().get("orders").await.unwrap().finalizers().to_vec()
    }
}

async fn create_group(client: &Client, namespace: &str) -> GroupRef {
    let group = json!({
        "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup",
        "metadata": { "name": "orders", "finalizers": [FINALIZER] },
        "spec": { "selector": { "matchLabels": { "app": "orders" } } },
    });
    let groups: Api<LeaderGroup> = Api::namespaced(client.clone(), namespace);
    let group: LeaderGroup = serde_json::from_value(group).unwrap();
    GroupRef::of(&groups.create(&PostParams::default(), &group).await.unwrap()).unwrap()
}

/// The pods without versions.
pub fn unseen(pods: &[PodRef]) -> Vec<PodAt> {
    pods.iter().cloned().map(PodAt::from).collect()
}

pub fn term(token: i64, holder: &PodRef, strip: &[PodRef]) -> Declaration {
    let grant = Some(uuid::Uuid::new_v4().to_string());
    Declaration {
        token,
        grant,
        holder: Some(holder.clone()),
        strip: strip.to_vec(),
        ..Declaration::default()
    }
}
