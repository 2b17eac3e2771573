//! A simulated server with a namespace, and short methods for objects in it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use leadergroup::{
    api::{FINALIZER, LeaderGroup, PodRef},
    routing::GroupRef,
};
use serde_json::{Value, json};

use crate::api_server::{ApiServer, Clock, Kind, Object};

pub const NAMESPACE: &str = "shop";

pub struct Stage {
    pub server: ApiServer,
    pub client: Client,
}

impl Stage {
    pub fn new() -> Self {
        let start = "2026-01-01T00:00:00Z".parse().unwrap();
        let server = ApiServer::new(Clock::starting_at(start), 7);
        let namespace = json!({ "metadata": { "name": NAMESPACE } });
        server.store().create(Kind::Namespace, "", namespace).unwrap();
        let client = server.client("one");
        Self { server, client }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn pod(&self, name: &str) -> PodRef {
        let pod = self.server.store().create(Kind::Pod, NAMESPACE, pod(name)).unwrap();
        PodRef { name: name.to_owned(), uid: pod.uid().to_owned() }
    }

    pub fn label(&self, name: &str, label: &str, value: &str) -> Arc<Object> {
        let change = |pod: &mut Value| pod["metadata"]["labels"][label] = value.into();
        self.server.store().update(Kind::Pod, NAMESPACE, name, change).unwrap()
    }

    pub fn group(&self) -> GroupRef {
        let group = json!({
            "metadata": { "name": "orders", "finalizers": [FINALIZER] },
            "spec": { "selector": { "matchLabels": { "app": "orders" } } },
        });
        let group = self.server.store().create(Kind::LeaderGroup, NAMESPACE, group).unwrap();
        let group: LeaderGroup = serde_json::from_value(group.value().clone()).unwrap();
        GroupRef::of(&group).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.server.unsupported(), [""; 0]);
        }
    }
}

/// A pod of a scheduler that has placed it already.
pub fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": "orders" } },
        "spec": {
            "nodeName": "n1",
            "terminationGracePeriodSeconds": 30,
            "containers": [{ "name": "main", "image": "none" }],
        },
    })
}
