//! A group that is to be given its key by hand, and the tokens that the cluster knows of it. Read-only.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};

use super::explain::{ExplainError, call};
use crate::{
    api::{FENCING_ANNOTATION, FencingToken, LARGEST_TOKEN, Sighting},
    operator::{
        cluster::{api_server::ApiServer, watch},
        object::{GroupName, record::Record},
    },
    routing::stamp_of,
};
use leadergroup_lock::Key;

/// A group and what is known of its tokens.
#[derive(Debug)]
pub struct Claimant {
    /// Namespace and name.
    pub group: String,
    /// The key of its lock.
    pub key: Key,
    /// How the lock's row names the group.
    pub tag: String,
    /// The largest token that the cluster knows of the group; none if it knows none.
    pub known: Option<Known>,
}

/// A token, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The token.
    pub token: i64,
    /// Where it was found, in words.
    pub place: String,
}

/// Reads a group of the cluster that a kubeconfig or a service account leads to, and the marks on its pods. The stamps
/// of earlier groups count as well: restored pods carry them. `namespace` defaults to the one of the kubeconfig.
pub async fn claimant(namespace: Option<&str>, name: &str) -> Result<Claimant, ExplainError> {
    let client = ApiServer::find().await?.changes;
    let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
    let cluster = call("the namespace kube-system", || watch::cluster_uid(&client)).await?;
    let groups: Api<Sighting> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let every = ListParams::default();
    let found = call("the LeaderGroup", || groups.get_opt(name)).await?;
    let full_name = format!("{namespace}/{name}");
    let found = found.ok_or_else(|| ExplainError::NoGroup(full_name.clone()))?;
    let object = found.0.map_err(|unreadable| ExplainError::Undecodable(unreadable.problem))?;
    let pods = call("the pods", || pods.list(&every)).await?.items;
    let named = GroupName { namespace: namespace.as_str().into(), name: name.into() };
    let record = Record::first(object, named, &cluster);
    let record = record.ok_or_else(|| {
        ExplainError::Undecodable(format!("spec.lock.key of {full_name} cannot be used; correct it"))
    })?;
    let status = record.status();
    let declared = status.map(|status| status.declaration.token.max(status.token)).unwrap_or_default();
    let in_status = Some(Known { token: declared, place: "status.token".to_owned() });
    let selector = &record.object.spec.selector;
    let on_pods = pods.iter().filter(|pod| selector.matches(pod.labels())).filter_map(on_pod);
    let known =
        in_status.into_iter().chain(on_pods).filter(|known| (1..=LARGEST_TOKEN).contains(&known.token));
    Ok(Claimant {
        group: full_name,
        key: record.key.clone(),
        tag: record.tag.clone(),
        known: known.max_by_key(|known| known.token),
    })
}

/// The largest token in the marks of a pod.
fn on_pod(pod: &Pod) -> Option<Known> {
    let fencing = pod.annotations().get(FENCING_ANNOTATION).and_then(|text| FencingToken::parse(text));
    let token = stamp_of(pod).map(|stamp| stamp.token).max(fencing.map(|fencing| fencing.token))?;
    Some(Known { token, place: format!("the pod {}", pod.name_any()) })
}
