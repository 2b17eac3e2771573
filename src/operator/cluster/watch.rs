//! The watches, each a task that forwards its events to the controller, and the ping of the API server.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use leadergroup_lock::Clock;

use crate::{
    api::{GROUP_LABEL, Sighting},
    operator::{
        index::{
            Event, node_labels,
            watch_health::{Scope, WATCH_SECONDS, Watched},
        },
        message::Message,
        object::trim,
    },
    routing::{OtherSlice, other_slices},
};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// After this time without a failure the next pause is the first one again.
const CALM: Duration = Duration::from_secs(10);

/// Pauses between attempts. They stay short, because failovers depend on the watches.
#[derive(Debug, Default)]
struct Pauses {
    tried: u32,
    last_failure: Option<Duration>,
    last_expiry: Option<Duration>,
}

impl Pauses {
    /// The pause after a failure. There is none if the version to continue from has expired (HTTP 410), as after a long
    /// interruption: the API server answers, and the next attempt lists everything. If that happens again soon, it is a
    /// failure like any other.
    fn after(&mut self, error: &watcher::Error, failure: Duration) -> Duration {
        let expired = matches!(error, watcher::Error::WatchError(status) if status.code == 410);
        let is_soon = |last: Option<Duration>| last.is_some_and(|last| failure.saturating_sub(last) <= CALM);
        if expired && !is_soon(self.last_expiry.replace(failure)) {
            return Duration::ZERO;
        }
        let last = self.last_failure.replace(failure);
        if !is_soon(last) {
            self.tried = 0;
        }
        let pause = FIRST_PAUSE * 2_u32.pow(self.tried.min(8));
        self.tried += 1;
        pause.min(LONGEST_PAUSE)
    }
}

/// What the watches have in common.
pub(in crate::operator) struct Watches {
    pub(in crate::operator) client: Client,
    pub(in crate::operator) clock: Clock,
    /// Empty: all namespaces.
    pub(in crate::operator) namespaces: Vec<String>,
    /// Whether the Services that name a group, and their `EndpointSlices`, are watched.
    pub(in crate::operator) services: bool,
    /// Whether the slices that others write for any Service are watched.
    pub(in crate::operator) other_slices: bool,
    pub(in crate::operator) messages: mpsc::Sender<Message>,
}

impl Watches {
    /// Starts the watches. They end when the controller no longer reads the messages.
    pub(in crate::operator) fn start(&self) {
        let all = watcher::Config::default();
        for (scope, groups) in self.scopes::<Sighting>() {
            self.forward(groups, all.clone(), Watched::Groups, scope, Event::Group, |_| {});
        }
        for (scope, pods) in self.scopes::<Pod>() {
            self.forward(pods, all.clone(), Watched::Pods, scope, Event::Pod, trim);
        }
        if self.services {
            self.start_services();
        }
        if self.other_slices {
            self.start_other_slices();
        }
        let leases = Api::<Lease>::namespaced(self.client.clone(), "kube-node-lease");
        self.forward(
            leases,
            all.clone(),
            Watched::NodeLeases,
            None,
            |_, event| Event::NodeLease(event),
            |_| {},
        );
        let nodes = Api::<Node>::all(self.client.clone());
        self.forward(nodes, all, Watched::Nodes, None, |_, event| Event::Node(event), node_labels::trim);
    }

    /// The Services that name a group, and their slices. Kubernetes copies all labels of a Service to the slices that
    /// it writes for it, so both watches show only what was labelled for the operator, whatever else the cluster has.
    fn start_services(&self) {
        let named = watcher::Config::default().labels(GROUP_LABEL);
        for (scope, services) in self.scopes::<Service>() {
            let trim = |service: &mut Service| service.status = None;
            self.forward(services, named.clone(), Watched::Services, scope, Event::Service, trim);
        }
        for (scope, slices) in self.scopes::<EndpointSlice>() {
            self.forward(slices, named.clone(), Watched::EndpointSlices, scope, Event::Slice, |_| {});
        }
    }

    /// The slices of all Services that others write. Those have the label of a group only if their Service had it
    /// while Kubernetes wrote them.
    fn start_other_slices(&self) {
        let others = watcher::Config::default().labels(&other_slices(None));
        for (scope, slices) in self.scopes::<OtherSlice>() {
            let trim = |slice: &mut OtherSlice| slice.meta_mut().annotations = None;
            self.forward(slices, others.clone(), Watched::OtherSlices, scope, Event::OtherSlice, trim);
        }
    }

    fn scopes<K>(&self) -> Vec<(Scope, Api<K>)>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        if self.namespaces.is_empty() {
            return vec![(None, Api::all(self.client.clone()))];
        }
        let scoped = |name: &String| (Some(name.as_str().into()), Api::namespaced(self.client.clone(), name));
        self.namespaces.iter().map(scoped).collect()
    }

    fn forward<K>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        watched: Watched,
        scope: Scope,
        wrap: fn(Scope, watcher::Event<K>) -> Event,
        trim: fn(&mut K),
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let stream = watcher(api, config.timeout(WATCH_SECONDS)).modify(move |object| {
            object.meta_mut().managed_fields = None;
            trim(object);
        });
        tokio::spawn(pump(stream, self.clock, watched, scope, wrap, self.messages.clone()));
    }
}

async fn pump<K>(
    stream: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send,
    clock: Clock,
    watched: Watched,
    scope: Scope,
    wrap: fn(Scope, watcher::Event<K>) -> Event,
    messages: mpsc::Sender<Message>,
) {
    let mut stream = std::pin::pin!(stream);
    let mut pauses = Pauses::default();
    while let Some(event) = stream.next().await {
        let (event, pause) = match event {
            Ok(event) => (wrap(scope.clone(), event), None),
            Err(error) => {
                let failed = Event::WatchFailed(watched, scope.clone(), explain(&error));
                (failed, Some(pauses.after(&error, clock.now())))
            }
        };
        if messages.send(Message::Seen(event)).await.is_err() {
            return;
        }
        // The stream tries again when it is polled.
        if let Some(pause) = pause {
            sleep(pause).await;
        }
    }
}

/// What to report about a failure: the API server's own message if there is one.
fn explain(error: &watcher::Error) -> String {
    use watcher::Error as E;
    match error {
        E::InitialListFailed(kube::Error::Api(status))
        | E::WatchStartFailed(kube::Error::Api(status))
        | E::WatchFailed(kube::Error::Api(status)) => {
            let remedy = match status.code {
                403 => "; give the operator's service account this permission (the chart's roles do)",
                404 => {
                    "; install the CRD leadergroups.leadergroup.dev: kubectl apply -f crds/leadergroups.yaml"
                }
                _ => "",
            };
            format!("{} (HTTP {}){remedy}", status.message, status.code)
        }
        other => other.to_string(),
    }
}

/// The UID of the namespace `kube-system`, which identifies the cluster.
pub(in crate::operator) async fn cluster_uid(client: &Client) -> Result<String, kube::Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    Ok(namespaces.get("kube-system").await?.metadata.uid.unwrap_or_default())
}

/// Whether the API server answered. A refusal or a failure of its own is an answer too. A status that a proxy may have
/// sent, because it could not reach the API server either, is not.
fn is_reached(error: Option<&kube::Error>) -> bool {
    match error {
        None => true,
        Some(kube::Error::Api(status)) => !matches!(status.code, 502..=504),
        Some(_) => false,
    }
}

/// Pings the API server once an interval and reports the result, because a silent watch proves nothing. After
/// `patience` without an answer the replica is unfit to own groups.
pub(in crate::operator) async fn ping(
    client: Client,
    clock: Clock,
    every: Duration,
    patience: Duration,
    fit: watch::Sender<bool>,
    messages: mpsc::Sender<Message>,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_answer = clock.now();
    loop {
        ticks.tick().await;
        let sent = clock.now();
        let answer = timeout(PING_TIMEOUT, cluster_uid(&client)).await;
        let reachable = matches!(&answer, Ok(answer) if is_reached(answer.as_ref().err()));
        if reachable {
            last_answer = sent;
        }
        let now_fit = clock.now().saturating_sub(last_answer) < patience;
        fit.send_if_modified(|fit| std::mem::replace(fit, now_fit) != now_fit);
        if messages.send(Message::Seen(Event::ApiServer { reachable })).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn failed(code: u16) -> watcher::Error {
        watcher::Error::WatchError(Status::failure("no", "Because").with_code(code).boxed())
    }

    #[test]
    fn the_pauses_grow_while_failures_follow_each_other() {
        let mut pauses = Pauses::default();
        let mut after = |millis| pauses.after(&failed(500), Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 200, 600, 1_400, 2_400].map(&mut after), [200, 400, 800, 1_000, 1_000]);
        assert_eq!([13_000, 14_000].map(after), [200, 400]);
    }

    #[test]
    fn an_expired_version_is_replaced_without_a_pause_unless_that_repeats_itself() {
        let mut pauses = Pauses::default();
        let mut after = |(code, second)| pauses.after(&failed(code), Duration::from_secs(second)).as_millis();
        let failures = [(500, 0), (500, 1), (410, 1), (410, 1), (500, 2), (410, 3), (410, 14)];
        assert_eq!(failures.map(&mut after), [200, 400, 0, 800, 1_000, 1_000, 0]);
    }

    #[test]
    fn an_api_server_that_refuses_is_there() {
        let said = |code| kube::Error::Api(Status::failure("no", "Because").with_code(code).boxed());
        assert!(is_reached(None));
        for code in [401, 403, 404, 429, 500] {
            assert!(is_reached(Some(&said(code))), "{code}");
        }
        for code in [502, 503, 504] {
            assert!(!is_reached(Some(&said(code))), "{code}");
        }
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(!is_reached(Some(&kube::Error::Service(Box::new(broken)))));
    }
}
