//! The operator's Deployment, which is found by the labels of the chart.

use std::collections::BTreeSet;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Container};
use kube::{ResourceExt as _, api::ListParams};

use super::cluster::{Cluster, Part};

/// The labels of the operator's Deployment.
pub(super) const LABELS: &str = "app.kubernetes.io/part-of=leadergroup,app.kubernetes.io/component=operator";
/// The variable with the namespaces that the operator watches.
pub(super) const NAMESPACES: &str = "LEADERGROUP_NAMESPACES";

/// Namespace and name of a Deployment of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    namespace: String,
    name: String,
}

/// All Deployments of operators.
pub(super) async fn deployments(cluster: &Cluster) -> Part<Vec<Deployment>> {
    let labels = ListParams::default().labels(LABELS);
    let everywhere = cluster.of::<Deployment>(None);
    cluster.list(&everywhere, "list the Deployments of all namespaces", labels).await
}

/// An operator that has a ready replica and watches this namespace.
pub(super) fn of_namespace(deployments: &[Deployment], namespace: &str) -> Option<Place> {
    let ready = deployments.iter().filter(|deployment| ready_replicas(deployment) > 0);
    ready.filter(|deployment| watches(deployment, namespace)).map(Place::of).next()
}

/// Whether an operator watches this namespace.
pub(super) fn watches(deployment: &Deployment, namespace: &str) -> bool {
    let watched = watched(deployment);
    watched.is_empty() || watched.contains(namespace)
}

impl Place {
    pub(super) fn of(deployment: &Deployment) -> Self {
        Self { namespace: deployment.namespace().unwrap_or_default(), name: deployment.name_any() }
    }

    /// The command that shows its log.
    pub(super) fn log(&self) -> String {
        format!("`kubectl -n {} logs deployment/{} --tail 20`", self.namespace, self.name)
    }

    /// The command by which it explains a group.
    pub(super) fn explain(&self, group: &str) -> String {
        let Self { namespace, name } = self;
        format!("`kubectl -n {namespace} exec deployment/{name} -- leadergroup explain {group}`")
    }
}

pub(super) fn ready_replicas(deployment: &Deployment) -> i32 {
    deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
}

/// The namespaces that an operator watches; empty for all.
pub(super) fn watched(deployment: &Deployment) -> BTreeSet<String> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let variables = |container: &Container| container.env.clone().unwrap_or_default();
    let mut all = pod.iter().flat_map(|pod| &pod.containers).flat_map(variables);
    let found = all.find(|variable| variable.name == NAMESPACES).and_then(|variable| variable.value);
    let listed = found.unwrap_or_default();
    listed.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::samples::operator;

    #[test]
    fn a_group_is_explained_by_an_operator_that_runs_and_watches_its_namespace() {
        let all = [operator("a", 0, ""), operator("b", 2, "other, more"), operator("c", 1, "more,shop")];
        let place = of_namespace(&all, "shop").expect("the last one");
        assert_eq!(
            place.explain("shop/web"),
            "`kubectl -n c exec deployment/leadergroup -- leadergroup explain shop/web`"
        );
        assert_eq!(of_namespace(&all, "none"), None);
        assert_eq!(
            of_namespace(&[operator("d", 2, "")], "none").map(|place| place.namespace),
            Some("d".into())
        );
    }
}
