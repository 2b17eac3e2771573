//! The operator's loop without network and database, for `benches/controller.rs`: the watches' and probes' events go
//! in, and the calls that they lead to are started and never carried out.

#![allow(missing_docs)]

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
    claim::{Answer, Answered},
    conditions::View,
    controller::{Controller, Health, Parts},
    events::Events,
    executor::Context,
    keys::KeyRule,
    lock_view::{LockNews, Yielded},
    message::Message,
    object::GroupName,
    status,
};
use crate::{
    api::{LeaderGroup, PodRef, Sighting},
    election::Phase,
    health::{Monotonic, ProbeEvent, ProbeOutcome, ProbeStep, Prober},
    routing::{Reported, Router},
    telemetry::{Liveness, Metrics, ReadyChecks},
};
use leadergroup_lock::{
    Claimed, DatabaseConfig, Holder, Key, LockRow, PROTOCOL, Peer, SessionId, Store, Token,
};

const PODS: usize = 3;
const TOKEN: i64 = 5;
const GRANT: Uuid = Uuid::from_u128(7);

/// A replica that owns groups of three pods, of which the first is active and all answer their probes.
pub struct Bench {
    controller: Controller,
    groups: usize,
    /// The version of the last pod, and the number of the last probe.
    version: u64,
    runtime: Runtime,
}

impl Bench {
    #[allow(clippy::missing_panics_doc, reason = "a benchmark may")]
    pub fn new(groups: usize) -> Self {
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
            node: None,
            session_ttl: Duration::from_mins(10),
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
        let mut bench = Self { controller, groups, version: 1 << 60, runtime };
        bench.settle();
        bench
    }

    /// Lists everything, gives this replica all groups, and writes their status.
    fn settle(&mut self) {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        let groups: Vec<LeaderGroup> = (0..self.groups).map(group).collect();
        self.controller.take(Message::Group(None, watcher::Event::Init));
        for group in &groups {
            let sighting = Sighting(Ok(group.clone()));
            self.controller.take(Message::Group(None, watcher::Event::InitApply(sighting)));
        }
        self.controller.take(Message::Group(None, watcher::Event::InitDone));
        self.controller.take(Message::Pod(None, watcher::Event::Init));
        for (group, pod) in self.pods() {
            let pod = self.pod(group, pod, false);
            self.controller.take(Message::Pod(None, watcher::Event::InitApply(pod)));
        }
        self.controller.take(Message::Pod(None, watcher::Event::InitDone));
        let own = SessionId::new();
        self.controller.take(Message::Lock(LockNews::Beat {
            own,
            living: vec![Peer { session: own, place: None }],
            suspects: Vec::new(),
            doubt: false,
            yielded: Yielded::None,
            took: Duration::ZERO,
        }));
        self.controller.turn();
        self.probe_answers();
        self.claim(own);
        self.controller.turn();
        let names: Vec<GroupName> = (0..self.groups).map(name).collect();
        for (name, mut object) in names.into_iter().zip(groups) {
            let view = self.view(&name);
            object.status = Some(status::status(view, None, false));
            object.metadata.resource_version = Some("2".to_owned());
            let uid = view.seen.record().uid.clone();
            let reported = Ok(Box::new(Reported::Done(Sighting(Ok(object)))));
            self.controller.take(Message::Reported { group: name.clone(), uid, reported });
            self.controller.turn();
            let (group, election) = (self.view(&name).group, self.view(&name).group.election());
            assert!(matches!(election.phase(), Phase::Stable) && !election.busy());
            assert!(!group.report.writing && election.active().is_some());
        }
    }

    fn view(&self, name: &GroupName) -> View<'_> {
        self.controller.view(name).expect("the group was listed")
    }

    /// Answers the claims.
    fn claim(&mut self, session: SessionId) {
        let answers = (0..self.groups).map(|group| {
            let row = LockRow {
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
            };
            let answer = Ok(Answer::Lock(Box::new(Claimed::Ours(row))));
            Answered { name: name(group), uid: group_uid(group).into(), answer, object: None }
        });
        let answers = answers.collect();
        self.controller.take(Message::Claimed { session, answers });
    }

    /// Deletes the active pods of some groups, so that a change of holder begins, and is not carried on.
    pub fn begin_changes(&mut self, groups: usize) {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        for group in 0..groups {
            let pod = self.pod(group, 0, true);
            self.controller.take(Message::Pod(None, watcher::Event::Apply(pod)));
        }
        self.controller.turn();
        let changing =
            (0..self.groups).filter(|group| self.view(&name(*group)).group.election().is_changing()).count();
        assert_eq!(changing, groups);
    }

    /// Sends a probe to each pod, all well, and says how long each took the loop, with the turn after it.
    pub fn probe_answers(&mut self) -> Duration {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        self.version += 1;
        let seq = self.version;
        let all = self.pods();
        let began = cpu_time();
        for (group, pod) in &all {
            let uid: Arc<str> = pod_ref(*group, *pod).uid.into();
            let sent_at = Monotonic::now();
            for step in [ProbeStep::Sent, ProbeStep::Ended(ProbeOutcome::Success)] {
                self.controller.probed(ProbeEvent { uid: uid.clone(), seq, sent_at, step });
            }
            self.controller.turn();
        }
        each(cpu_time().saturating_sub(began), all.len())
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
            self.controller.take(Message::Pod(None, watcher::Event::Apply(pod)));
            self.controller.turn();
        }
        each(cpu_time().saturating_sub(began), count)
    }

    fn pods(&self) -> Vec<(usize, usize)> {
        (0..self.groups).flat_map(|group| (0..PODS).map(move |pod| (group, pod))).collect()
    }

    fn pod(&mut self, group: usize, pod: usize, deleting: bool) -> Pod {
        self.version += 1;
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
            "spec": { "nodeName": format!("node-{pod}"), "containers": [{ "name": "main" }] },
            "status": {
                "phase": "Running",
                "podIP": format!("10.{pod}.{}.{}", group / 250, group % 250 + 1),
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

fn name(group: usize) -> GroupName {
    GroupName { namespace: "shop".into(), name: format!("g{group}").into() }
}

fn group_uid(group: usize) -> String {
    format!("uid-g{group}")
}

fn pod_ref(group: usize, pod: usize) -> PodRef {
    PodRef { name: format!("g{group}-{pod}"), uid: format!("uid-g{group}-{pod}") }
}

fn holder(pod: PodRef) -> Holder {
    Holder { uid: pod.uid, namespace: "shop".to_owned(), name: pod.name }
}

fn group(group: usize) -> LeaderGroup {
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
        let mut bench = Bench::new(2);
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
