//! The operator's loop without network, database and clock, for `benches/controller.rs` and the tests of the
//! controller: the watches' and probes' events go in, and the calls that they lead to are started and never carried
//! out.

#![allow(missing_docs)]
#![allow(clippy::missing_panics_doc, reason = "a benchmark may")]

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Config, runtime::watcher};
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::json;
use tokio::{runtime::Runtime, sync::mpsc};
use uuid::Uuid;

use super::{
    CALL_TIMEOUT, PROBES, QUEUE, STUCK,
    controller::{Controller, Health, Parts},
    executor::Context,
    index::lock_view::LockNews,
    lock::{claim::Answered, keys::KeyRule},
    message::Message,
    object::GroupName,
    status::{self, conditions::View, events::Events},
};
use crate::{
    api::{LeaderGroup, PodRef, Sighting},
    election::Phase,
    health::{ProbeEvent, ProbeOutcome, ProbeStep, Prober},
    ownership::{self, Answer, Yielded},
    routing::{Reported, Router},
    telemetry::{Liveness, Metrics, ReadyChecks},
};
use leadergroup_lock::{
    Claimed, DatabaseConfig, Holder, Key, LockRow, PROTOCOL, Peer, SessionId, Store, Token,
};

const PODS: usize = 3;
pub(super) const TOKEN: i64 = 5;
const GRANT: Uuid = Uuid::from_u128(7);

/// A replica that owns groups of three pods, of which the first is active and all answer their probes.
pub struct Bench {
    pub(super) controller: Controller,
    groups: usize,
    /// The pods are spread over so many nodes.
    nodes: usize,
    /// The node of this replica.
    node: Option<String>,
    /// The session of this replica.
    pub(super) own: SessionId,
    /// The time. It passes only as the caller says.
    pub(super) now: Duration,
    /// The version of the last pod, and the number of the last probe.
    version: u64,
    runtime: Runtime,
}

impl Bench {
    pub fn new(groups: usize, nodes: usize) -> Self {
        let mut bench = Self { nodes, ..Self::before_lists(groups, None, Duration::from_mins(10)) };
        bench.list();
        bench.settle();
        bench
    }

    /// A replica on this node that has seen nothing.
    pub(super) fn before_lists(groups: usize, node: Option<&str>, session_ttl: Duration) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime without threads needs nothing");
        let context = runtime.enter();
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().expect("an address")));
        let client = client.expect("a client without TLS needs nothing");
        let store = Store::new(&DatabaseConfig {
            url: "postgres://nobody@127.0.0.1:1/none".into(),
            ..DatabaseConfig::default()
        });
        let (metrics, readiness) = (Arc::new(Metrics::new()), ReadyChecks::default());
        // What is sent there is answered by this benchmark, or not at all.
        let (messages, probes) = (mpsc::channel(QUEUE).0, mpsc::channel(QUEUE).0);
        let controller = Controller::new(Parts {
            cluster: "c1".to_owned(),
            peers: "c1".to_owned(),
            namespaces: Vec::new(),
            node: node.map(str::to_owned),
            session_ttl,
            prober: Prober::new(probes, PROBES).expect("a thread"),
            events: Events::new(client.clone(), "bench", metrics.clone()),
            context: Context {
                manages_endpoints: false,
                keys: KeyRule { cluster: "c1".to_owned(), namespaced: false },
                router: Router::new(client, CALL_TIMEOUT),
                store: store.expect("the URL is one"),
                metrics,
                messages,
            },
            health: Health {
                liveness: Liveness::new(STUCK),
                lock: readiness.check("lock-store", ""),
                watches: readiness.check("api-server", ""),
            },
        });
        drop(context);
        Self {
            controller,
            groups,
            nodes: PODS,
            node: node.map(str::to_owned),
            own: SessionId::new(),
            now: Duration::from_secs(1_000),
            version: 1 << 60,
            runtime,
        }
    }

    /// Something happens to the controller now.
    pub(super) fn within(&mut self, step: impl FnOnce(&mut Controller, Duration)) {
        let _context = self.runtime.enter();
        step(&mut self.controller, self.now);
    }

    /// A message arrives.
    pub(super) fn take(&mut self, message: Message) {
        self.within(|controller, now| controller.take(message, now));
    }

    /// The loop turns.
    pub(super) fn turn(&mut self) {
        self.within(Controller::turn);
    }

    /// Lists everything.
    pub(super) fn list(&mut self) {
        self.list_groups((0..self.groups).map(group).collect());
    }

    /// Lists these groups, and the pods of all.
    pub(super) fn list_groups(&mut self, groups: Vec<LeaderGroup>) {
        self.take(Message::Group(None, watcher::Event::Init));
        for group in groups {
            self.take(Message::Group(None, watcher::Event::InitApply(Sighting(Ok(group)))));
        }
        self.take(Message::Group(None, watcher::Event::InitDone));
        self.take(Message::Pod(None, watcher::Event::Init));
        for (group, pod) in self.pods() {
            let pod = self.pod(group, pod, false);
            self.take(Message::Pod(None, watcher::Event::InitApply(pod)));
        }
        self.take(Message::Pod(None, watcher::Event::InitDone));
    }

    /// A heartbeat of this replica succeeds, and shows these others as well; the claims to some keys were given up.
    pub(super) fn beat(&mut self, others: &[Peer], yielded: Yielded) {
        let own = Peer { session: self.own, place: self.node.clone() };
        self.take(Message::Lock(LockNews::Beat {
            own: self.own,
            living: std::iter::once(own).chain(others.iter().cloned()).collect(),
            suspects: Vec::new(),
            doubt: false,
            yielded,
            took: Duration::ZERO,
        }));
    }

    /// Gives this replica all groups, and writes their status.
    pub(super) fn settle(&mut self) {
        self.beat(&[], Yielded::None);
        self.turn();
        self.probe_answers();
        self.claim(self.own);
        self.turn();
        for name in (0..self.groups).map(name) {
            self.report(&name);
            let (group, election) = (self.view(&name).group, self.view(&name).group.election());
            assert!(matches!(election.phase(), Phase::Stable) && !election.busy());
            assert!(!group.report.writing && election.active().is_some());
        }
    }

    /// Writes the status of a group.
    pub(super) fn report(&mut self, name: &GroupName) {
        self.version += 1;
        let view = self.view(name);
        let record = view.seen.record();
        let (mut object, uid) = (record.object.clone(), record.uid.clone());
        object.status = Some(status::status(view, None, false));
        object.metadata.resource_version = Some(self.version.to_string());
        let reported = Ok(Box::new(Reported::Done(Sighting(Ok(object)))));
        self.take(Message::Reported { group: name.clone(), uid, reported });
        self.turn();
    }

    pub(super) fn view(&self, name: &GroupName) -> View<'_> {
        self.controller.view(name).expect("the group was listed")
    }

    /// Answers the claims that were made for this session.
    pub(super) fn claim(&mut self, session: SessionId) {
        let answers = (0..self.groups).map(|group| answered(group, Claimed::Ours(row(group, session))));
        let answers = answers.collect();
        self.take(Message::Claimed { session, answers });
    }

    /// Deletes the active pods of some groups, so that a change of holder begins, and is not carried on.
    pub fn begin_changes(&mut self, groups: usize) {
        for group in 0..groups {
            let pod = self.pod(group, 0, true);
            self.take(Message::Pod(None, watcher::Event::Apply(pod)));
        }
        self.turn();
        let changing =
            (0..self.groups).filter(|group| self.view(&name(*group)).group.election().is_changing()).count();
        assert_eq!(changing, groups);
    }

    /// Sends a probe to each pod, all well, and says how long each took the loop, with the turn after it.
    pub fn probe_answers(&mut self) -> Duration {
        let all = self.pods();
        let began = cpu_time();
        for (group, pod) in &all {
            self.probe(*group, *pod, ProbeOutcome::Success);
            self.turn();
        }
        each(cpu_time().saturating_sub(began), all.len())
    }

    /// A probe of a pod is sent, and ends so.
    pub(super) fn probe(&mut self, group: usize, pod: usize, outcome: ProbeOutcome) {
        self.version += 1;
        let (seq, sent_at) = (self.version, self.now);
        let uid: Arc<str> = pod_ref(group, pod).uid.into();
        for step in [ProbeStep::Sent, ProbeStep::Ended(outcome)] {
            let event = ProbeEvent { uid: uid.clone(), seq, sent_at, step };
            self.within(|controller, now| controller.probed(event, now));
        }
    }

    /// Shows a newer version of each pod that is otherwise as before, and says how long each took the loop, with the
    /// turn after it.
    pub fn pod_events(&mut self, gone: usize) -> Duration {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        let pods: Vec<Pod> = self
            .pods()
            .into_iter()
            .map(|(group, pod)| self.pod(group, pod, group < gone && pod == 0))
            .collect();
        let count = pods.len();
        let began = cpu_time();
        for pod in pods {
            self.controller.take(Message::Pod(None, watcher::Event::Apply(pod)), self.now);
            self.controller.turn(self.now);
        }
        each(cpu_time().saturating_sub(began), count)
    }

    /// Renews the lease of each node, and says how long each took the loop, with the turn after it.
    pub fn leases(&mut self) -> Duration {
        self.now += Duration::from_secs(10);
        let renewed = format!(
            "2026-01-01T{:02}:{:02}:00.000000Z",
            self.now.as_secs() / 600 % 24,
            self.now.as_secs() / 10 % 60
        );
        self.of_each_node(|name| {
            let lease = json!({ "metadata": { "name": name }, "spec": { "renewTime": renewed } });
            Message::NodeLease(watcher::Event::Apply(serde_json::from_value(lease).expect("a lease")))
        })
    }

    /// Changes a label of each node, and says how long each took the loop, with the turn after it.
    pub fn node_labels(&mut self) -> Duration {
        self.version += 1;
        let label = self.version.to_string();
        self.of_each_node(|name| {
            let node = json!({ "metadata": { "name": name, "labels": { "changes": label } } });
            Message::Node(watcher::Event::Apply(serde_json::from_value(node).expect("a node")))
        })
    }

    fn of_each_node(&mut self, event: impl Fn(&str) -> Message) -> Duration {
        let events: Vec<Message> = (0..self.nodes).map(|node| event(&format!("node-{node}"))).collect();
        let count = events.len();
        let began = cpu_time();
        for event in events {
            self.take(event);
            self.turn();
        }
        each(cpu_time().saturating_sub(began), count)
    }

    /// A heartbeat shows that other replicas gave up their claims to these groups, and says how long it took the loop,
    /// with the turn after it.
    pub fn heartbeat(&mut self, given_up: std::ops::Range<usize>) -> Duration {
        let mut yielded = Yielded::None;
        given_up.for_each(|group| yielded.add(row(group, self.own).key));
        let began = cpu_time();
        self.beat(&[], yielded);
        self.turn();
        cpu_time().saturating_sub(began)
    }

    /// Claims groups that all name one key, which belongs to another group, and says how long each took the loop.
    pub fn claims_of_one_key(groups: usize) -> Duration {
        let mut bench = Self::before_lists(groups, None, Duration::from_mins(10));
        let mut objects: Vec<LeaderGroup> = (0..groups).map(group).collect();
        for object in &mut objects {
            object.spec.lock.key = Some("one".to_owned());
        }
        bench.list_groups(objects);
        // Those of a key are claimed in the order of their names.
        let mut order: Vec<usize> = (0..groups).collect();
        order.sort_by_key(|group| name(*group));
        let began = cpu_time();
        bench.beat(&[], Yielded::None);
        bench.turn();
        for group in order {
            let view = bench.view(&name(group));
            assert!(matches!(view.group.ownership.phase(), ownership::Phase::Claiming(_)));
            let answers = vec![answered(group, Claimed::Foreign { group: "other".to_owned() })];
            bench.take(Message::Claimed { session: bench.own, answers });
            bench.turn();
        }
        each(cpu_time().saturating_sub(began), groups)
    }

    fn pods(&self) -> Vec<(usize, usize)> {
        (0..self.groups).flat_map(|group| (0..PODS).map(move |pod| (group, pod))).collect()
    }

    pub(super) fn pod(&mut self, group: usize, pod: usize, deleting: bool) -> Pod {
        self.version += 1;
        let number = group * PODS + pod;
        // Of the range for benchmarks, where nobody answers.
        let [.., high, low] = number.to_be_bytes();
        let PodRef { name, uid } = pod_ref(group, pod);
        let role = if pod == 0 { "active" } else { "standby" };
        let mut annotations = json!({ "leadergroup.dev/stamp": format!("{}/{TOKEN}", group_uid(group)) });
        if pod == 0 {
            annotations["leadergroup.dev/fencing-token"] = format!("c1/shop/g{group}/{TOKEN}").into();
        }
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop",
                "name": name,
                "uid": uid,
                "resourceVersion": self.version.to_string(),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
                "labels": { "app": format!("g{group}"), "leadergroup.dev/role": role },
                "annotations": annotations,
            },
            "spec": { "nodeName": format!("node-{}", number % self.nodes), "containers": [{ "name": "main" }] },
            "status": {
                "phase": "Running",
                "podIP": format!("198.18.{high}.{low}"),
                "conditions": [
                    { "type": "Ready", "status": "True" },
                    { "type": "ContainersReady", "status": "True" },
                ],
                "containerStatuses": [{
                    "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
                }],
            },
        }))
        .expect("a pod")
    }
}

/// The processor time of this thread: other programs on the machine do not count.
fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).unwrap_or(0))
}

fn each(all: Duration, count: usize) -> Duration {
    all / u32::try_from(count).unwrap_or(u32::MAX)
}

pub(super) fn name(group: usize) -> GroupName {
    GroupName { namespace: "shop".into(), name: format!("g{group}").into() }
}

pub(super) fn group_uid(group: usize) -> String {
    format!("uid-g{group}")
}

pub(super) fn pod_ref(group: usize, pod: usize) -> PodRef {
    PodRef { name: format!("g{group}-{pod}"), uid: format!("uid-g{group}-{pod}") }
}

pub(super) fn holder(pod: PodRef) -> Holder {
    Holder { uid: pod.uid, namespace: "shop".to_owned(), name: pod.name }
}

/// The answer to the claim of a group.
pub(super) fn answered(group: usize, claimed: Claimed) -> Answered {
    let answer = Ok(Answer::Lock(Box::new(claimed)));
    Answered { name: name(group), uid: group_uid(group).into(), answer, object: None }
}

/// The lock's row of a group, whose first pod holds it.
pub(super) fn row(group: usize, session: SessionId) -> LockRow {
    LockRow {
        key: Key::new(format!("c1/shop/g{group}")).expect("a key"),
        holder: Some(holder(pod_ref(group, 0))),
        token: Token::new(TOKEN),
        grant: Some(GRANT.into()),
        confirmed: true,
        session: Some(session),
        group: String::new(),
        protocol: PROTOCOL,
        pending: Vec::new(),
        lock_timestamp: Timestamp::UNIX_EPOCH,
        tombstone: false,
    }
}

pub(super) fn group(group: usize) -> LeaderGroup {
    serde_json::from_value(json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": {
            "namespace": "shop",
            "name": format!("g{group}"),
            "uid": group_uid(group),
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [crate::api::FINALIZER],
        },
        "spec": {
            "selector": { "matchLabels": { "app": format!("g{group}") } },
            "lock": { "ttl": "10m", "retryInterval": "1m" },
            "health": { "probe": { "tcpSocket": { "port": 8080 } } },
        },
        "status": {
            "token": TOKEN,
            "declaration": { "token": TOKEN, "grant": GRANT.to_string(), "holder": pod_ref(group, 0) },
        },
    }))
    .expect("a group")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_changes_nothing_steps_no_election_and_computes_no_status() {
        let mut bench = Bench::new(2, PODS);
        let versions = |bench: &Bench| [0, 1].map(|group| bench.view(&name(group)).group.version());
        let before = versions(&bench);
        bench.probe_answers();
        bench.pod_events(0);
        assert_eq!(versions(&bench), before);
        assert!([0, 1].into_iter().all(|group| !bench.view(&name(group)).group.report.writing));
        // A change of holder begins in one of them. It is not reported before it had time to end.
        bench.begin_changes(1);
        let after = versions(&bench);
        assert!(after[0] > before[0] && after[1] == before[1]);
        assert!(!bench.view(&name(0)).group.report.writing);
        bench.probe_answers();
        assert_eq!(versions(&bench), after);
    }
}
