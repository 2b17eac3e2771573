//! Sequences of events, and the groups to look at, the worlds and the requests that come of them.

mod evidence;
mod objects;
mod placement;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::runtime::watcher;
use serde_json::{Value, json};

use super::{
    Event, Index, IndexedGroup, Notice, Request, coverage::ProbeCoverage, lock_view::LockNews,
    watch_health::Watched,
};
use crate::{
    api::{HoldConnection, Reason, Role, Sighting, Verdict},
    health::{ProbeEvent, ProbeFailure, ProbeOutcome, ProbeStep, VoidCause},
    operator::object::GroupName,
    ownership::{Opinion, Probing, What, Yielded},
    routing::RoleLabelUse,
};
use leadergroup_lock::{LockError, SessionId, controller::Peer};

const TTL: Duration = Duration::from_secs(5);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn name(name: &str) -> GroupName {
    GroupName { namespace: "shop".into(), name: name.into() }
}

/// An index and its time.
struct Case {
    index: Index,
    now: Duration,
    version: u64,
}

impl Case {
    fn new() -> Self {
        Self { index: Index::new("c1".to_owned(), &[], TTL), now: s(100), version: 10 }
    }

    /// Group `web`, which selects the pods with the label `app: web`, and its pods `a` and `b`; nothing is dirty.
    fn web() -> Self {
        let mut case = Self::new();
        case.group("web", "g1", "web", 0);
        case.pod("a", "web", &json!({}));
        case.pod("b", "web", &json!({}));
        case.seen("web");
        case
    }

    fn apply(&mut self, event: Event) -> Vec<Request> {
        self.index.apply(event, self.now)
    }

    /// A group that selects by the label `app` and was created in this second.
    fn object(&mut self, name: &str, uid: &str, app: &str, second: u32) -> Value {
        self.version += 1;
        json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": {
                "namespace": "shop", "name": name, "uid": uid, "resourceVersion": self.version.to_string(),
                "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            },
            "spec": {
                "selector": { "matchLabels": { "app": app } },
                "health": { "probe": { "tcpSocket": { "port": 80 } } },
            },
        })
    }

    fn group(&mut self, name: &str, uid: &str, app: &str, second: u32) -> Vec<Request> {
        let object = self.object(name, uid, app, second);
        self.watch(object)
    }

    fn watch(&mut self, object: Value) -> Vec<Request> {
        self.apply(Event::Group(None, watcher::Event::Apply(sighting(object))))
    }

    /// A ready pod with the label `app`, with `more` in its metadata.
    fn manifest(&mut self, uid: &str, app: &str, more: &Value) -> Pod {
        self.version += 1;
        let mut pod = json!({
            "metadata": {
                "namespace": "shop", "name": uid, "uid": uid, "resourceVersion": self.version.to_string(),
                "labels": { "app": app },
            },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "main" }] },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            pod["metadata"][key] = value.clone();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn pod(&mut self, uid: &str, app: &str, more: &Value) -> Vec<Request> {
        let pod = self.manifest(uid, app, more);
        self.apply(Event::Pod(None, watcher::Event::Apply(pod)))
    }

    /// A probe of a pod that was sent now and ended so.
    fn probe(&mut self, uid: &str, outcome: ProbeOutcome) -> Vec<Request> {
        self.version += 1;
        let steps = [ProbeStep::Sent, ProbeStep::Ended(outcome)];
        let events =
            steps.map(|step| ProbeEvent { uid: uid.into(), seq: self.version, sent_at: self.now, step });
        events.into_iter().flat_map(|event| self.apply(Event::Probe(event))).collect()
    }

    fn beat(&mut self, own: SessionId, living: &[SessionId]) -> Vec<Request> {
        self.apply(Event::Lock(LockNews::Beat {
            own,
            living: living.iter().map(|session| Peer { session: *session, place: None }).collect(),
            suspects: Vec::new(),
            doubt: false,
            yielded: Yielded::None,
            took: Duration::ZERO,
        }))
    }

    fn lease(&mut self, node: &str, renewed: u32) {
        let lease = json!({
            "metadata": { "name": node },
            "spec": { "renewTime": format!("2026-01-01T00:{renewed:02}:00.000000Z") },
        });
        let lease: Lease = serde_json::from_value(lease).expect("a lease");
        self.apply(Event::NodeLease(watcher::Event::Apply(lease)));
    }

    fn dirty(&mut self) -> Vec<String> {
        self.index.take_dirty().into_iter().map(|name| name.name.to_string()).collect()
    }

    /// Looks at a group: its pods and their verdicts.
    fn seen(&mut self, group: &str) -> Vec<(String, Verdict)> {
        let world = self.index.world(&name(group), Some("a"), self.now).expect("the group");
        world.members.into_iter().map(|member| (member.pod.uid, member.verdict)).collect()
    }

    fn obstacle(&self, group: &str) -> Option<Reason> {
        self.index.group(&name(group)).and_then(IndexedGroup::obstacle)
    }
}

fn sighting(object: Value) -> Sighting {
    serde_json::from_value(object).expect("any object is one")
}

/// The UIDs of the pods that are not to be probed any more.
fn stopped(requests: &[Request]) -> Vec<&str> {
    requests
        .iter()
        .filter_map(|request| match request {
            Request::StopProbing(uid) => Some(&**uid),
            _ => None,
        })
        .collect()
}

fn forgotten(requests: &[Request]) -> bool {
    requests.iter().any(|request| matches!(request, Request::Forget(_)))
}
