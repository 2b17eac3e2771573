//! Reads of the pods' owners.

use k8s_openapi::{
    api::apps::v1::{ReplicaSet, StatefulSet},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference},
};
use kube::Api;

use super::{GroupRef, Router, RoutingError};

impl Router {
    /// Whether an owner selects its pods by the group's role label. False for owners of other kinds than `ReplicaSet`
    /// and `StatefulSet`, and for owners that are gone.
    pub async fn selects_by_role(
        &self,
        group: &GroupRef,
        owner: &OwnerReference,
    ) -> Result<bool, RoutingError> {
        let selector = match owner.kind.as_str() {
            "ReplicaSet" => {
                let api = Api::<ReplicaSet>::namespaced(self.client.clone(), &group.namespace);
                let found = self.get("read a ReplicaSet", &api, &owner.name).await?;
                found.and_then(|found| found.spec).map(|spec| spec.selector)
            }
            "StatefulSet" => {
                let api = Api::<StatefulSet>::namespaced(self.client.clone(), &group.namespace);
                let found = self.get("read a StatefulSet", &api, &owner.name).await?;
                found.and_then(|found| found.spec).map(|spec| spec.selector)
            }
            _ => None,
        };
        Ok(selector.is_some_and(|selector| names(&selector, &group.marks.label)))
    }
}

fn names(selector: &LabelSelector, label: &str) -> bool {
    let by_value = selector.match_labels.as_ref().is_some_and(|labels| labels.contains_key(label));
    let by_expression = selector.match_expressions.iter().flatten().any(|expression| expression.key == label);
    by_value || by_expression
}
