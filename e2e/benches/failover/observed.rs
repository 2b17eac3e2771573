//! What the API server shows of one candidate: who was decided on, which pods are labelled active, which endpoints are
//! ready, each with the time at which the benchmark saw it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        coordination::v1::Lease,
        core::v1::Pod,
        discovery::v1::{Endpoint, EndpointSlice},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use leadergroup::api::LeaderGroup;
use leadergroup_e2e::moment::Moment;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// The names of some pods, from a time on.
type Seen = (Moment, BTreeSet<String>);

/// What was seen, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<Seen>>>);

impl Trace {
    fn set(&self, value: BTreeSet<String>) {
        let mut values = self.0.lock();
        if values.last().is_none_or(|(_, last)| *last != value) {
            values.push((Moment::now(), value));
        }
    }

    /// The current value.
    pub(crate) fn now(&self) -> BTreeSet<String> {
        self.0.lock().last().map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// The time from a moment until the current value was seen; `None` if it is older.
    pub(crate) fn since(&self, moment: Moment) -> Option<Duration> {
        let seen = self.0.lock().last()?.0;
        (seen > moment).then(|| seen.since(moment))
    }

    /// The most members that a value has had since a moment.
    pub(crate) fn most_since(&self, moment: Moment) -> usize {
        self.0
            .lock()
            .iter()
            .filter(|(seen, _)| *seen > moment)
            .map(|(_, value)| value.len())
            .max()
            .unwrap_or(0)
    }
}

/// Watches one namespace until it is dropped.
#[derive(Debug)]
pub(crate) struct Observed {
    /// The pod that the group's status, or the Lease, names as holder.
    pub(crate) decided: Trace,
    /// The pods with the active label.
    pub(crate) labelled: Trace,
    /// The pods that are ready endpoints of the Service.
    pub(crate) endpoints: Trace,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Observed {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Observed {
    pub(crate) fn start(client: &Client, namespace: &str, role_label: &'static str) -> Self {
        let (decided, labelled, endpoints) = (Trace::default(), Trace::default(), Trace::default());
        let is_active = move |pod: &Pod| {
            let role = pod.labels().get(role_label);
            role.is_some_and(|role| role == "active").then(|| pod.name_any()).into_iter().collect()
        };
        let tasks = vec![
            watch(client, namespace, labelled.clone(), is_active),
            watch(client, namespace, endpoints.clone(), |slice: &EndpointSlice| {
                slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)).filter_map(pod_of).collect()
            }),
            watch(client, namespace, decided.clone(), |lease: &Lease| {
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
                holder.filter(|holder| !holder.is_empty()).into_iter().collect()
            }),
            watch(client, namespace, decided.clone(), |group: &LeaderGroup| {
                let declared = group.status.as_ref().and_then(|status| status.declaration.holder.as_ref());
                declared.map(|holder| holder.name.clone()).into_iter().collect()
            }),
        ];
        Self { decided, labelled, endpoints, tasks }
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
}

fn pod_of(endpoint: &Endpoint) -> Option<String> {
    endpoint.target_ref.as_ref().and_then(|target| target.name.clone())
}

/// Follows all objects of a kind: the trace holds what `look` returns for any of them. Objects that only disappear, or
/// that never exist, change nothing in a trace that another kind writes.
fn watch<K>(
    client: &Client,
    namespace: &str,
    trace: Trace,
    look: impl Fn(&K) -> BTreeSet<String> + Send + 'static,
) -> JoinHandle<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    tokio::spawn(async move {
        let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut listing = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => (listing, seen) = (true, BTreeMap::new()),
                Ok(Event::InitDone) => listing = false,
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    seen.insert(object.name_any(), look(&object));
                }
                Ok(Event::Delete(object)) => {
                    seen.remove(&object.name_any());
                }
                Err(error) => tracing::warn!("watching: {error}"),
            }
            // During a list the state is incomplete. A kind without objects must not clear what another kind writes.
            if !listing && !seen.is_empty() {
                trace.set(seen.values().flatten().cloned().collect());
            }
        }
    })
}
