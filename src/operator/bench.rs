//! The operator's loop without network and database, for `benches/controller.rs`: the watches' and probes' events go in,
//! and the calls that they lead to are started and never carried out.

#![allow(missing_docs)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Config, runtime::watcher};
use serde_json::json;
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, mpsc},
};
use uuid::Uuid;

use super::{
    BACKGROUND, CALL_TIMEOUT, PROBES, QUEUE, STUCK,
    claim::Answer,
    controller::{Driver, Parts},
    events::Voice,
    lock_keeper::LockNews,
    message::{Done, GroupName, Message},
    status,
};
use crate::{
    api::{LeaderGroup, PodRef, Sighting},
    election::{Outcome, Phase, Row},
    health::{Monotonic, ProbeEvent, ProbeOutcome, ProbeStep, Prober},
    routing::Router,
    telemetry::{Liveness, Metrics, Readiness},
};
use leadergroup_lock::{Claimed, DatabaseConfig, Key, LockRow, PROTOCOL, SessionId, Store, Token};

const PODS: usize = 3;
const TOKEN: i64 = 5;
const GRANT: Uuid = Uuid::from_u128(7);

/// A replica that owns groups of three pods, of which the first is active and all answer their probes.
pub struct Bench {
    driver: Driver,
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
        let voice = Voice::new(
            client.clone(),
            "bench",
            Arc::new(Metrics::new()),
            Liveness::new(STUCK),
            &Readiness::default(),
        );
        // What is sent there is answered by this benchmark, or by nobody.
        let (messages, probes) = (mpsc::channel(QUEUE).0, mpsc::channel(QUEUE).0);
        let driver = Driver::new(Parts {
            cluster: "c1".to_owned(),
            router: Router::new(client, CALL_TIMEOUT),
            store: store.expect("the URL is one"),
            prober: Prober::new(probes, PROBES),
            messages,
            voice,
            namespaces: Vec::new(),
            session_ttl: Duration::from_mins(10),
            background: Arc::new(Semaphore::new(BACKGROUND)),
        });
        drop(context);
        let mut bench = Self { driver, groups, version: 1 << 60, runtime };
        bench.settle();
        bench
    }

    /// Lists everything, gives this replica all groups, and writes their status.
    fn settle(&mut self) {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        let groups: Vec<LeaderGroup> = (0..self.groups).map(group).collect();
        self.driver.take(Message::Group(None, watcher::Event::Init));
        for group in &groups {
            let sighting = Sighting(Ok(group.clone()));
            self.driver.take(Message::Group(None, watcher::Event::InitApply(sighting)));
        }
        self.driver.take(Message::Group(None, watcher::Event::InitDone));
        self.driver.take(Message::Pod(None, watcher::Event::Init));
        for (group, pod) in self.pods() {
            let pod = self.pod(group, pod, false);
            self.driver.take(Message::Pod(None, watcher::Event::InitApply(pod)));
        }
        self.driver.take(Message::Pod(None, watcher::Event::InitDone));
        let own = SessionId::new();
        self.driver.take(Message::Lock(LockNews::Beat {
            own,
            living: vec![own],
            suspects: Vec::new(),
            doubt: false,
            yielded: false,
            took: Duration::ZERO,
        }));
        self.driver.turn();
        self.probe_answers();
        self.claim(own);
        self.driver.turn();
        let names: Vec<GroupName> = (0..self.groups).map(name).collect();
        for (name, mut object) in names.into_iter().zip(groups) {
            self.read(&name);
            self.driver.turn();
            let entry = &self.driver.entries[&name];
            object.status = Some(status::status(entry, None, false));
            object.metadata.resource_version = Some("2".to_owned());
            let (uid, object) = (entry.uid.clone(), Ok(Box::new(Sighting(Ok(object)))));
            self.driver.take(Message::Reported { group: name.clone(), uid, object });
            self.driver.turn();
            let entry = &self.driver.entries[&name];
            assert!(matches!(entry.machine.phase(), Phase::Stable) && !entry.machine.busy());
            assert!(!entry.reporting && entry.machine.active().is_some());
        }
    }

    /// Answers the claims.
    fn claim(&mut self, session: SessionId) {
        let answers = (0..self.groups).map(|group| {
            let row = LockRow {
                key: Key::new(format!("c1/shop/g{group}")).expect("a key"),
                holder: None,
                token: Token::new(TOKEN),
                grant: None,
                confirmed: true,
                session: Some(session),
                group: String::new(),
                protocol: PROTOCOL,
                pending: Vec::new(),
                lock_timestamp: Timestamp::UNIX_EPOCH,
                tombstone: false,
            };
            (name(group), group_uid(group).into(), Ok(Answer::Lock(Box::new(Claimed::Ours(row)))))
        });
        let answers = answers.collect();
        self.driver.take(Message::Claimed { session, answers });
    }

    /// Answers the first effect of a group.
    fn read(&mut self, name: &GroupName) {
        let entry = &self.driver.entries[name];
        let declared = entry.declared();
        let row = Row {
            token: TOKEN,
            grant: Some(GRANT),
            owner: declared.holder.clone(),
            confirmed: true,
            pending: Vec::new(),
        };
        let outcome = Outcome::Read { row: Some(row), declared: Some(declared) };
        let done = Done {
            group: name.clone(),
            uid: entry.uid.clone(),
            ticket: 1,
            outcome,
            pods: Vec::new(),
            object: None,
            trouble: None,
        };
        self.driver.take(Message::Done(Box::new(done)));
    }

    /// Deletes the active pods of some groups, so that a change of holder begins, and is not carried on.
    pub fn begin_changes(&mut self, groups: usize) {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        for group in 0..groups {
            let pod = self.pod(group, 0, true);
            self.driver.take(Message::Pod(None, watcher::Event::Apply(pod)));
        }
        self.driver.turn();
        let changing = self.driver.entries.values().filter(|entry| entry.machine.is_changing()).count();
        assert_eq!(changing, groups);
    }

    /// Sends a probe to each pod, all well, and says how long each took the loop, with the turn after it.
    pub fn probe_answers(&mut self) -> Duration {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        self.version += 1;
        let seq = self.version;
        let all = self.pods();
        let began = Instant::now();
        for (group, pod) in &all {
            let uid: Arc<str> = pod_ref(*group, *pod).uid.into();
            let sent_at = Monotonic::now();
            for step in [ProbeStep::Sent, ProbeStep::Ended(ProbeOutcome::Success)] {
                self.driver.probed(&ProbeEvent { uid: uid.clone(), seq, sent_at, step });
            }
            self.driver.turn();
        }
        each(began.elapsed(), all.len())
    }

    /// Shows a newer version of each pod that is otherwise as before, and says how long each took the loop, with the turn
    /// after it.
    pub fn pod_events(&mut self, gone: usize) -> Duration {
        let runtime = self.runtime.handle().clone();
        let _context = runtime.enter();
        let pods: Vec<Pod> = self
            .pods()
            .into_iter()
            .map(|(group, pod)| self.pod(group, pod, group < gone && pod == 0))
            .collect();
        let count = pods.len();
        let began = Instant::now();
        for pod in pods {
            self.driver.take(Message::Pod(None, watcher::Event::Apply(pod)));
            self.driver.turn();
        }
        each(began.elapsed(), count)
    }

    fn pods(&self) -> Vec<(usize, usize)> {
        (0..self.groups).flat_map(|group| (0..PODS).map(move |pod| (group, pod))).collect()
    }

    fn pod(&mut self, group: usize, pod: usize, deleting: bool) -> Pod {
        self.version += 1;
        let PodRef { name, uid } = pod_ref(group, pod);
        let role = if pod == 0 { "active" } else { "standby" };
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop",
                "name": name,
                "uid": uid,
                "resourceVersion": self.version.to_string(),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
                "labels": { "app": format!("g{group}"), "leadergroup.dev/role": role },
                "annotations": { "leadergroup.dev/stamp": format!("{}/{TOKEN}", group_uid(group)) },
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
