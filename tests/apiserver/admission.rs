//! Policies that refuse changes to pods.

use std::time::Instant;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Pod,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::DEADLINE;

/// A policy that refuses changes to pods, or other objects, of one namespace.
pub struct Policy {
    client: Client,
    namespace: String,
}

impl Policy {
    /// Installs a policy that refuses, with this message, each update of a pod for which this CEL expression is true.
    /// Waits until the policy refuses to set `labels` on `pod`.
    pub async fn refuse(
        client: Client,
        namespace: &str,
        (condition, message): (&str, &str),
        (pod, labels): (&str, &Value),
    ) -> Self {
        let this = Self::install(client, namespace, ("", "pods"), (condition, message)).await;
        this.until_refused(pod, labels, true).await;
        this
    }

    /// Installs a policy that refuses, with this message, each update of an object of this API group and resource for
    /// which this CEL expression is true. It takes effect a moment later.
    pub async fn install(
        client: Client,
        namespace: &str,
        (group, resource): (&str, &str),
        (condition, message): (&str, &str),
    ) -> Self {
        let params = PostParams::default();
        let policy = json!({
            "metadata": { "name": namespace },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [
                        { "apiGroups": [group], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource] }
                    ],
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } }
                },
                "validations": [
                    { "expression": format!("!({condition})"), "message": message, "reason": "Forbidden" }
                ]
            }
        });
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(policy).unwrap();
        Api::all(client.clone()).create(&params, &policy).await.unwrap();
        let binding = json!({
            "metadata": { "name": namespace },
            "spec": { "policyName": namespace, "validationActions": ["Deny"] }
        });
        let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(binding).unwrap();
        Api::all(client.clone()).create(&params, &binding).await.unwrap();
        Self { client, namespace: namespace.to_owned() }
    }

    /// Removes the policy, and waits until the same change is accepted.
    pub async fn lift(self, pod: &str, labels: &Value) {
        self.remove().await;
        self.until_refused(pod, labels, false).await;
    }

    /// Removes the policy. It loses its effect a moment later.
    pub async fn remove(&self) {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        bindings.delete(&self.namespace, &DeleteParams::default()).await.unwrap();
    }

    /// A policy takes effect a moment after it was created.
    async fn until_refused(&self, pod: &str, labels: &Value, refused: bool) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let change = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        let start = Instant::now();
        while pods.patch(pod, &params, &change).await.is_err() != refused {
            assert!(start.elapsed() < DEADLINE, "the policy is not in force within {DEADLINE:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}
