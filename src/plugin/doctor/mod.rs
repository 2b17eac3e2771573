//! `doctor`: looks for what is wrong with the installation, the rights of the user, and the groups.

mod finding;
mod group;
mod installation;
mod remedies;
mod rights;
mod services;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{DaemonSet, Deployment, StatefulSet},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, CustomResourceExt as _, ResourceExt, api::ListParams};

pub(super) use finding::{Finding, is_any_wrong, text};

use super::cluster::{Cluster, GroupName, Part};
use crate::{
    api::{LeaderGroup, Sighting},
    plugin::{failure::Failure, operator},
};
use finding::Level;
use group::Namespace;
use installation::Operator;
use workloads::Workload;

/// What is looked at.
pub(super) enum Patient<'a> {
    Group(&'a GroupName),
    Namespace(&'a str),
    All,
}

/// Looks at everything. Fails only if there is no such group.
pub(super) async fn findings(cluster: &Cluster, patient: &Patient<'_>) -> Result<Vec<Finding>, Failure> {
    let resources = cluster.client.list_api_group_resources("leadergroup.dev/v1alpha1");
    let served = cluster.call("ask for the served kinds", Box::pin(resources)).await.map(drop);
    let is_served = served.is_ok();
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let definition = Box::pin(definitions.get(LeaderGroup::crd_name()));
    let definition = cluster.call("read the definition", definition).await;
    let mut all = installation::of_definition(served, definition);
    let (namespace, groups) = match patient {
        Patient::Group(name) if is_served => {
            (name.namespace.as_str(), Ok(vec![Sighting(Ok(cluster.group(name).await?))]))
        }
        Patient::Namespace(namespace) if is_served => (*namespace, cluster.groups(Some(namespace)).await),
        Patient::All if is_served => (cluster.namespace.as_str(), cluster.groups(None).await),
        _ => (cluster.namespace.as_str(), Ok(Vec::new())),
    };
    let (groups, refused) = match groups {
        Ok(groups) => (groups, None),
        Err(failure) => (Vec::new(), Some(failure)),
    };
    let now = Timestamp::now();
    let is_heard = groups
        .iter()
        .filter_map(|group| group.0.as_ref().ok())
        .any(|group| installation::is_heard(group, now));
    let namespaces: BTreeSet<String> = groups.iter().filter_map(ResourceExt::namespace).collect();
    let deployments = operator::deployments(cluster).await;
    let operators: BTreeMap<String, Operator> = namespaces
        .iter()
        .map(|namespace| (namespace.clone(), Operator::of(&deployments, namespace, is_heard)))
        .collect();
    all.extend(installation::of_operator(deployments, &namespaces, is_heard));
    all.extend(rights::findings(namespace, rights::reviewed(cluster, namespace).await));
    if let Some(failure) = refused {
        all.push(Finding::new(Level::Wrong, "groups", failure.problem, failure.remedy));
    } else if groups.is_empty() && is_served {
        all.push(Finding::new(
            Level::Hint,
            "groups",
            "there are none to look at",
            "-A looks at all namespaces",
        ));
    }
    all.extend(of_groups(cluster, &groups, &operators).await);
    Ok(all)
}

async fn of_groups(
    cluster: &Cluster,
    groups: &[Sighting],
    operators: &BTreeMap<String, Operator>,
) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut seen: BTreeMap<String, (Namespace, &Operator)> = BTreeMap::new();
    for (namespace, operator) in operators {
        let read = read(cluster, namespace).await;
        all.extend(unread(namespace, &read));
        all.extend(astray(namespace, &read));
        seen.insert(namespace.clone(), (read, operator));
    }
    for group in groups {
        match &group.0 {
            Ok(found) => {
                let namespace = found.namespace().and_then(|namespace| seen.get(&namespace));
                all.extend(
                    namespace.iter().flat_map(|(read, operator)| group::findings(found, read, operator)),
                );
            }
            Err(unreadable) => {
                let about = format!("{}/{}", group.namespace().unwrap_or_default(), group.name_any());
                let remedy = "correct the field, or use the plugin of the operator's version";
                all.push(Finding::new(Level::Wrong, about, unreadable.problem.clone(), remedy));
            }
        }
    }
    all
}

async fn read(cluster: &Cluster, namespace: &str) -> Namespace {
    let of = Some(namespace);
    let all = ListParams::default;
    let (pods, services, slices) = (cluster.of(of), cluster.of(of), cluster.of(of));
    let (policies, groups) = (cluster.of(of), cluster.groups(of));
    let (pods, services, slices, policies, groups, (workloads, unread_workloads)) = tokio::join!(
        cluster.list(&pods, "list the pods", all()),
        cluster.list(&services, "list the Services", all()),
        cluster.list(&slices, "list the EndpointSlices", all()),
        cluster.list(&policies, "list the NetworkPolicies", all()),
        groups,
        workloads(cluster, namespace),
    );
    let groups = groups.map(|groups| groups.iter().map(ResourceExt::name_any).collect()).unwrap_or_default();
    Namespace { pods, services, slices, workloads, unread_workloads, policies, groups }
}

/// The workloads that could be read, and why others could not be.
async fn workloads(cluster: &Cluster, namespace: &str) -> (Vec<Workload>, Vec<Failure>) {
    let of = Some(namespace);
    let all = ListParams::default;
    let (deployments, sets, daemons) =
        (cluster.of::<Deployment>(of), cluster.of::<StatefulSet>(of), cluster.of::<DaemonSet>(of));
    let (deployments, sets, daemons) = tokio::join!(
        cluster.list(&deployments, "list the Deployments", all()),
        cluster.list(&sets, "list the StatefulSets", all()),
        cluster.list(&daemons, "list the DaemonSets", all()),
    );
    sorted([workloads_of(deployments), workloads_of(sets), workloads_of(daemons)])
}

fn workloads_of<K: Into<Workload>>(listed: Part<Vec<K>>) -> Part<Vec<Workload>> {
    listed.map(|all| all.into_iter().map(Into::into).collect())
}

/// What could be read, and what could not.
fn sorted<T>(parts: impl IntoIterator<Item = Part<Vec<T>>>) -> (Vec<T>, Vec<Failure>) {
    let (mut read, mut unread) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Ok(found) => read.extend(found),
            Err(failure) => unread.push(failure),
        }
    }
    (read, unread)
}

/// What could not be read, so that nothing is found in it.
fn unread(namespace: &str, read: &Namespace) -> Vec<Finding> {
    let failures = [
        read.pods.as_ref().err(),
        read.services.as_ref().err(),
        read.slices.as_ref().err(),
        read.policies.as_ref().err(),
    ];
    let about = format!("the namespace {namespace}");
    let told = failures.into_iter().flatten().chain(&read.unread_workloads);
    told.map(|failure| {
        Finding::new(Level::Unknown, about.clone(), failure.problem.clone(), failure.remedy.clone())
    })
    .collect()
}

/// The Services whose label names a group that does not exist.
fn astray(namespace: &str, read: &Namespace) -> Vec<Finding> {
    let found = services::without_group(read.services.iter().flatten(), &read.groups).into_iter();
    let about = |service: &str| format!("{namespace}/{service}");
    found.map(|(service, text, remedy)| Finding::new(Level::Hint, about(&service), text, remedy)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_read_hides_nothing_else() {
        let refused = Failure::new("could not list the DaemonSets: forbidden", "");
        let (read, unread) = sorted([Ok(vec![1, 2]), Err(refused.clone()), Ok(vec![3])]);
        assert_eq!((read, unread), (vec![1, 2, 3], vec![refused]));
    }
}
