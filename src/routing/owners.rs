//! Reads of the pods' owners.

use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, StatefulSet},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use kube::Api;

use super::{GroupRef, Router, RoutingError};

/// A workload that sets the group's role label on its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleLabelUse {
    /// Kind and name of what a user has written: for a `ReplicaSet` its Deployment.
    pub workload: String,
    /// Whether it also selects its pods by the label.
    pub selects: bool,
}

impl Router {
    /// Whether an owner's pod template has the group's role label. None for owners of other kinds than `ReplicaSet` and
    /// `StatefulSet`, and for owners that are gone.
    pub async fn role_label_use(
        &self,
        group: &GroupRef,
        owner: &OwnerReference,
    ) -> Result<Option<RoleLabelUse>, RoutingError> {
        let (client, namespace, label) = (self.client.clone(), &group.namespace, &group.marks.label);
        Ok(match owner.kind.as_str() {
            "ReplicaSet" => {
                let api = Api::<ReplicaSet>::namespaced(client, namespace);
                let found = self.get("read a ReplicaSet", &api, &owner.name).await?;
                found.and_then(|found| {
                    let spec = found.spec?;
                    found_in(label, owner, &found.metadata, &spec.selector, spec.template.as_ref())
                })
            }
            "StatefulSet" => {
                let api = Api::<StatefulSet>::namespaced(client, namespace);
                let found = self.get("read a StatefulSet", &api, &owner.name).await?;
                found.and_then(|found| {
                    let spec = found.spec?;
                    found_in(label, owner, &found.metadata, &spec.selector, Some(&spec.template))
                })
            }
            _ => None,
        })
    }
}

fn found_in(
    label: &str,
    owner: &OwnerReference,
    metadata: &ObjectMeta,
    selector: &LabelSelector,
    template: Option<&PodTemplateSpec>,
) -> Option<RoleLabelUse> {
    let selects = names(selector, label);
    let labels = template.and_then(|template| template.metadata.as_ref()?.labels.as_ref());
    let sets = labels.is_some_and(|labels| labels.contains_key(label));
    let mut above = metadata.owner_references.iter().flatten();
    let author = above.find(|owner| owner.controller == Some(true)).unwrap_or(owner);
    (selects || sets).then(|| RoleLabelUse { workload: format!("{} {}", author.kind, author.name), selects })
}

fn names(selector: &LabelSelector, label: &str) -> bool {
    let by_value = selector.match_labels.as_ref().is_some_and(|labels| labels.contains_key(label));
    let by_expression = selector.match_expressions.iter().flatten().any(|expression| expression.key == label);
    by_value || by_expression
}
