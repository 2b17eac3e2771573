//! Calls to the API server, each within a time limit and with an explanation of its failure.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{Event, Node, Pod, Service},
        discovery::v1::EndpointSlice,
    },
};
use kube::{
    Api, Client, Config, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
    core::{ObjectList, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    args::Access,
    failure::{Failure, Kind},
    pods::query,
};
use crate::api::{HumanDuration, LeaderGroup, Sighting};

/// How many objects one list request returns.
const PAGE: u32 = 500;

/// The cluster, with the rights of the user.
pub(super) struct Cluster {
    pub(super) client: Client,
    /// The namespace of groups that are named without one.
    pub(super) namespace: String,
    server: String,
    limit: HumanDuration,
}

/// Namespace and name of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupName {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// What could be read, or why it could not.
pub(super) type Part<T> = Result<T, Failure>;

/// A group, and the objects that have to do with it.
pub(super) struct Seen {
    pub(super) group: LeaderGroup,
    pub(super) pods: Part<Vec<Pod>>,
    pub(super) services: Part<Vec<Service>>,
    pub(super) slices: Part<Vec<EndpointSlice>>,
    /// Kubernetes' Events about the group, the oldest first.
    pub(super) events: Part<Vec<Event>>,
    /// The node of the active pod.
    pub(super) node: Part<Option<Node>>,
    pub(super) now: Timestamp,
}

impl Cluster {
    /// Finds the cluster as kubectl does.
    pub(super) async fn find(access: &Access) -> Result<Self, Failure> {
        let config = if access.context.is_some() || access.kubeconfig.is_some() {
            let read = access.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
            let kubeconfig = read.map_err(|error| unusable(&error.to_string()))?;
            let options = KubeConfigOptions { context: access.context.clone(), ..Default::default() };
            let names: Vec<String> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
                match access.context.as_ref().filter(|context| !names.contains(context)) {
                    Some(context) => Failure::new(
                        format!("the kubeconfig has no context {context}"),
                        format!("It has: {}.", names.join(", ")),
                    ),
                    None => unusable(&error.to_string()),
                }
            })?
        } else {
            Config::infer().await.map_err(|error| unusable(&error.to_string()))?
        };
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = access.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| unusable(&error.to_string()))?;
        Ok(Self { client, namespace, server, limit: access.request_timeout })
    }

    /// A group that is written as NAME or NAMESPACE/NAME.
    pub(super) fn name(&self, group: &str) -> GroupName {
        let (namespace, name) = group.split_once('/').unwrap_or((&self.namespace, group));
        GroupName { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Makes a call. `what` completes "could not".
    pub(super) async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        match timeout(self.limit.0, call).await {
            Ok(answer) => answer.map_err(|error| Failure::of_call(what, &self.server, &error)),
            Err(_) => Err(Failure::of_silence(what, &self.server, self.limit)),
        }
    }

    /// The objects of a kind in a namespace, or in all.
    pub(super) fn of<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Lists all objects, in pages.
    pub(super) async fn list<K>(&self, api: &Api<K>, what: &str, params: ListParams) -> Part<Vec<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        Box::pin(self.pages(what, params, async |params| Box::pin(api.list(params)).await)).await
    }

    /// Makes a request for each page of a list.
    async fn pages<K: Clone>(
        &self,
        what: &str,
        params: ListParams,
        page: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
    ) -> Part<Vec<K>> {
        let mut params = params.limit(PAGE);
        let mut found = Vec::new();
        loop {
            let page = self.call(what, page(&params)).await?;
            found.extend(page.items);
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// The groups of a namespace, or of all.
    pub(super) async fn groups(&self, namespace: Option<&str>) -> Part<Vec<Sighting>> {
        let what = match namespace {
            Some(namespace) => format!("list the LeaderGroups of the namespace {namespace}"),
            None => "list the LeaderGroups of all namespaces".to_owned(),
        };
        let listed = self.list(&self.of::<Sighting>(namespace), &what, ListParams::default()).await;
        listed.map_err(|mut failure| {
            if namespace.is_none() && failure.kind == Kind::Forbidden {
                "Leave -A out: you may have the right in single namespaces.".clone_into(&mut failure.remedy);
            }
            failure
        })
    }

    /// What is needed of the pods of a namespace, or of all, to know whether an active one still exists; none if they
    /// may not be read, or if no group has an active pod.
    pub(super) async fn pods_of(
        &self,
        groups: &[Sighting],
        namespace: Option<&str>,
    ) -> Option<Vec<PartialObjectMeta<Pod>>> {
        let has_active = |group: &Sighting| {
            let status = group.0.as_ref().ok().and_then(|group| group.status.as_ref());
            status.is_some_and(|status| status.active.is_some())
        };
        if !groups.iter().any(has_active) {
            return None;
        }
        let pods = self.of::<Pod>(namespace);
        let page = async |params: &ListParams| Box::pin(pods.list_metadata(params)).await;
        Box::pin(self.pages("list the pods", ListParams::default(), page)).await.ok()
    }

    /// One group.
    pub(super) async fn group(&self, name: &GroupName) -> Result<LeaderGroup, Failure> {
        let api = self.of::<Sighting>(Some(&name.namespace));
        let what = format!("read the LeaderGroup {} of the namespace {}", name.name, name.namespace);
        match self.call(&what, Box::pin(api.get(&name.name))).await {
            Ok(Sighting(Ok(group))) => Ok(group),
            Ok(Sighting(Err(unreadable))) => Err(Failure::new(
                format!("{}/{}: {}", name.namespace, name.name, unreadable.problem),
                "Use the plugin of the operator's version.",
            )),
            Err(failure) => Err(self.unless_misspelt(name, failure).await),
        }
    }

    /// A group that is not there may be misspelt, or in another namespace.
    pub(super) async fn unless_misspelt(&self, name: &GroupName, failure: Failure) -> Failure {
        if failure.kind != Kind::NotFound {
            return failure;
        }
        let names = |groups: Vec<Sighting>| groups.into_iter().map(|group| group.meta().clone());
        let here = self.groups(Some(&name.namespace)).await.map(names).into_iter().flatten();
        let here: Vec<String> = here.filter_map(|meta| meta.name).collect();
        let all = self.groups(None).await.map(names).into_iter().flatten();
        let elsewhere: Vec<String> = all
            .filter(|meta| meta.name.as_ref() == Some(&name.name))
            .filter_map(|meta| meta.namespace)
            .collect();
        Failure::no_group(&name.namespace, &name.name, &here, &elsewhere)
    }

    /// Reads a group and what has to do with it. What cannot be read is left out.
    pub(super) async fn see(&self, name: &GroupName) -> Result<Seen, Failure> {
        let group = self.group(name).await?;
        let namespace = Some(name.namespace.as_str());
        let of_group = format!("involvedObject.kind=LeaderGroup,involvedObject.name={}", name.name);
        let (pods, services, slices, events) = (
            self.of::<Pod>(namespace),
            self.of::<Service>(namespace),
            self.of::<EndpointSlice>(namespace),
            self.of::<Event>(namespace),
        );
        let labels = ListParams::default().labels(&query(&group.spec.selector));
        let active = group.status.as_ref().and_then(|status| status.active.as_ref());
        let node = async {
            let Some(name) = active.and_then(|active| active.node.as_ref()) else { return Ok(None) };
            let nodes: Api<Node> = Api::all(self.client.clone());
            self.call("read the node of the active pod", Box::pin(nodes.get_opt(name))).await
        };
        let (pods, services, slices, events, node) = tokio::join!(
            self.list(&pods, "list the pods", labels),
            self.list(&services, "list the Services", ListParams::default()),
            self.list(&slices, "list the EndpointSlices", ListParams::default()),
            self.list(&events, "list the Events", ListParams::default().fields(&of_group)),
            node,
        );
        let events = events.map(|mut events| {
            events.sort_by_key(when);
            events
        });
        Ok(Seen { group, pods, services, slices, events, node, now: Timestamp::now() })
    }
}

/// When an Event happened last.
pub(super) fn when(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    series
        .or(event.event_time.as_ref())
        .map(|time| time.0)
        .or_else(|| event.last_timestamp.as_ref().map(|time| time.0))
        .or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

fn unusable(problem: &str) -> Failure {
    Failure::new(
        format!("no access to a cluster: {problem}"),
        "Check `kubectl config view`; --kubeconfig and --context choose another cluster.",
    )
}
