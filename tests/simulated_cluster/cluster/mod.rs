//! The cluster around the operator: nodes with their kubelets, and the controllers that create pods, judge nodes and
//! delete what is left on those that are lost. They follow scripts, and use the API server's store directly, while that
//! server runs.

mod supervised;
mod users;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    agenda::Agenda,
    api_server::{ApiServer, DeleteOptions, Kind, Object},
    network::{Pods, Program},
    services,
    slices::Slices,
};
use supervised::{Agents, Supervised};
use workloads::Workload;

/// The namespace of all groups.
pub const NAMESPACE: &str = "shop";
/// How often a kubelet renews its node's Lease.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// After this time without a renewal, the node's pods are marked as not ready.
const NODE_GRACE: Duration = Duration::from_secs(40);
/// How often workloads and nodes are looked at.
const ROUND: Duration = Duration::from_millis(500);
/// How long a container takes to start, and how long to end.
const START: Duration = Duration::from_millis(1_200);
const END: Duration = Duration::from_millis(600);

/// The condition of a pod that is being evicted.
const EVICTED: &str = "DisruptionTarget";

/// A pod as the kubelet of its node knows it.
struct Pod {
    uid: String,
    node: String,
    address: IpAddr,
    program: Program,
    restarts: u64,
    /// When its container runs for the first time.
    starts: Duration,
    /// What there is of it in a group with agents.
    supervised: Option<Supervised>,
}

/// What is to happen.
enum Step {
    Heartbeat(String),
    Ended(String),
    Restarted(String),
    /// The kubelet reports that the container of a pod with an agent has ended.
    Reported(String),
    Round,
}

/// A node.
struct Node {
    /// It has power, and is not frozen.
    is_on: bool,
    /// Its kubelet reaches the API server.
    is_connected: bool,
    renewed: Duration,
    is_cordoned: bool,
}

/// The cluster.
pub struct Cluster {
    api: ApiServer,
    network: Pods,
    agenda: Agenda<Step>,
    nodes: BTreeMap<String, Node>,
    /// The pods by name.
    pods: BTreeMap<String, Pod>,
    /// The Deployments of the groups.
    workloads: BTreeMap<String, Workload>,
    /// The groups as users have created them. One that is deleted is created again when it is gone.
    groups: BTreeMap<String, Value>,
    /// The group whose pods have hooks.
    hooked: Option<String>,
    slices: Slices,
    created: u32,
    agents: Agents,
}

impl Cluster {
    /// A cluster with these nodes, and groups of three pods. The operator writes the endpoints of every other group.
    /// The pods of one group may have agents. Those of the next one have hooks then.
    pub fn new(
        api: ApiServer,
        network: Pods,
        nodes: &[&str],
        (groups, supervised): (usize, Option<usize>),
        seed: u64,
    ) -> Self {
        let mut cluster = Self {
            slices: Slices::new(api.clone(), seed),
            agents: Agents::new(&api, nodes, seed),
            api,
            network,
            agenda: Agenda::default(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            workloads: BTreeMap::new(),
            groups: BTreeMap::new(),
            hooked: None,
            created: 0,
        };
        cluster.create(Kind::Namespace, "", json!({ "metadata": { "name": NAMESPACE } }));
        for (place, node) in (0_u32..).zip(nodes) {
            cluster.create(Kind::Node, "", json!({ "metadata": { "name": node }, "spec": {}, "status": {} }));
            let lease = json!({ "metadata": { "name": node }, "spec": { "holderIdentity": node } });
            cluster.create(Kind::Lease, "kube-node-lease", lease);
            let state = Node { is_on: true, is_connected: true, renewed: Duration::ZERO, is_cordoned: false };
            cluster.nodes.insert((*node).to_owned(), state);
            cluster.agenda.plan(Duration::from_secs(u64::from(place)), Step::Heartbeat((*node).to_owned()));
        }
        for place in 0..groups {
            let (group, managed) = (format!("g{place}"), (place as u64 + seed).is_multiple_of(2));
            let mut object = json!({
                "apiVersion": "leadergroup.dev/v1alpha1",
                "kind": "LeaderGroup",
                "metadata": { "name": group, "namespace": NAMESPACE },
                "spec": {
                    "selector": { "matchLabels": { "app": group } },
                    "health": { "probe": { "httpGet": { "port": 8080, "path": "/healthz" } } },
                    "routing": { "endpoints": if managed { "Managed" } else { "Selector" } },
                },
            });
            if supervised == Some(place) {
                cluster.agents.supervise(&group, &mut object);
            }
            if supervised.is_some_and(|supervised| (supervised + 1) % groups == place) {
                cluster.hook(&group, &mut object, seed);
            }
            cluster.create(Kind::LeaderGroup, NAMESPACE, object.clone());
            cluster.create(Kind::Service, NAMESPACE, services::service(&group, managed));
            cluster.add_workload(&group);
            cluster.groups.insert(group, object);
        }
        cluster.agenda.plan(Duration::ZERO, Step::Round);
        cluster
    }

    /// Gives a group hooks.
    fn hook(&mut self, group: &str, object: &mut Value, seed: u64) {
        let hook = |path: &str, bit: u64| {
            let on_failure = if seed & bit == 0 { "Abort" } else { "Continue" };
            json!({ "path": path, "port": 8080, "timeout": "1s", "onFailure": on_failure })
        };
        object["spec"]["hooks"] = json!({ "promote": hook("/promote", 2), "demote": hook("/demote", 4) });
        self.hooked = Some(group.to_owned());
    }

    fn create(&self, kind: Kind, namespace: &str, object: Value) {
        let created = self.api.store().create(kind, namespace, object);
        created.unwrap_or_else(|failure| panic!("a {kind:?} is refused: {}", failure.message()));
    }

    /// Does what is due.
    pub fn turn(&mut self, now: Duration) {
        while let Some(step) = self.agenda.due(now) {
            match step {
                Step::Heartbeat(node) => self.heartbeat(&node, now),
                // The kubelet repeats what the API server does not answer.
                Step::Ended(pod) if !self.api.is_running() => self.agenda.plan(now + ROUND, Step::Ended(pod)),
                Step::Ended(pod) if !self.notices_end(&pod) => {
                    self.agenda.plan(now + ROUND, Step::Ended(pod));
                }
                Step::Ended(pod) => self.ended(&pod),
                Step::Restarted(pod) => self.restarted(&pod, now),
                Step::Reported(pod) => self.report(&pod, false),
                Step::Round => {
                    self.round(now);
                    self.agenda.plan(now + ROUND, Step::Round);
                }
            }
        }
        self.turn_agents(now);
        self.slices.turn(now);
    }

    fn heartbeat(&mut self, name: &str, now: Duration) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.is_on && node.is_connected && self.api.is_running() {
            node.renewed = now;
            let mut store = self.api.store();
            let time = store.now();
            let renewed = format!("{time:.6}");
            store
                .update(Kind::Lease, "kube-node-lease", name, |lease| {
                    lease["spec"]["renewTime"] = renewed.into();
                })
                .expect("the Lease of a node exists");
        }
        self.agenda.plan(now + HEARTBEAT, Step::Heartbeat(name.to_owned()));
    }

    /// The controllers' and kubelets' view of the whole cluster, as often as they take a look.
    fn round(&mut self, now: Duration) {
        if !self.api.is_running() {
            return;
        }
        self.judge_nodes(now);
        self.report_ready(now);
        self.forget_lost_pods(now);
        self.follow_deletions(now);
        self.follow_workloads(now);
        self.create_groups();
    }

    /// Marks the pods of nodes that have not been heard of.
    fn judge_nodes(&mut self, now: Duration) {
        let silent: BTreeSet<&str> = self
            .nodes
            .iter()
            .filter(|(_, node)| now > node.renewed + NODE_GRACE)
            .map(|(name, _)| name.as_str())
            .collect();
        let mut store = self.api.store();
        for (name, pod) in &self.pods {
            if silent.contains(pod.node.as_str()) {
                // It may be gone.
                drop(store.update(Kind::Pod, NAMESPACE, name, |pod| set_ready(pod, false)));
            }
        }
    }

    /// The objects of some pods were removed by force. Their programs run on until the kubelet notices.
    fn forget_lost_pods(&mut self, now: Duration) {
        let store = self.api.store();
        let has = |name: &str, pod: &Pod| {
            store.get(Kind::Pod, NAMESPACE, name).is_some_and(|found| found.uid() == pod.uid)
        };
        let noticed =
            |pod: &Pod| self.nodes.get(&pod.node).is_some_and(|node| node.is_on && node.is_connected);
        let lost: Vec<String> = self
            .pods
            .iter()
            .filter(|(name, pod)| !has(name, pod) && noticed(pod))
            .map(|(name, _)| name.clone())
            .collect();
        drop(store);
        for name in lost {
            if self.ends_by_itself(&name, now) {
                continue;
            }
            if let Some(pod) = self.pods.remove(&name) {
                self.network.remove(pod.address);
            }
        }
    }

    /// Kubelets end the programs of pods that are being deleted.
    fn follow_deletions(&mut self, now: Duration) {
        let store = self.api.store();
        for (name, pod) in &mut self.pods {
            let is_deleted =
                store.get(Kind::Pod, NAMESPACE, name).is_some_and(|found| found.is_being_deleted());
            let notices = self.nodes.get(&pod.node).is_some_and(|node| node.is_on && node.is_connected);
            if !is_deleted || !notices {
                continue;
            }
            if let Some(supervised) = &mut pod.supervised {
                if supervised.leave(now) {
                    self.agenda.plan(now + END, Step::Ended(name.clone()));
                }
            } else if pod.program != Program::Ended {
                pod.program = Program::Ended;
                self.network.set(pod.address, Program::Ended);
                self.agenda.plan(now + END, Step::Ended(name.clone()));
            }
        }
    }

    /// The kubelet has seen the containers end: the object of the deleted pod goes.
    fn ended(&mut self, name: &str) {
        let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        // Someone else may have removed it.
        drop(self.api.store().delete(Kind::Pod, NAMESPACE, name, &options));
        if let Some(pod) = self.pods.remove(name) {
            self.network.remove(pod.address);
        }
    }

    /// Users create their groups again when they are gone.
    fn create_groups(&mut self) {
        for (name, group) in &self.groups {
            let is_there = self.api.store().get(Kind::LeaderGroup, NAMESPACE, name).is_some();
            if !is_there {
                self.create(Kind::LeaderGroup, NAMESPACE, group.clone());
            }
        }
    }

    /// Creates a pod on the node with the fewest, of those that are heard of.
    fn create_pod(&mut self, group: &str, workload: &Workload, now: Duration) {
        let load = |name: &String| self.pods.values().filter(|pod| pod.node == *name).count();
        let takes_pods = |node: &Node| now <= node.renewed + NODE_GRACE && !node.is_cordoned;
        let fit = self.nodes.iter().filter(|(_, node)| takes_pods(node));
        let Some(node) = fit.map(|(name, _)| name.clone()).min_by_key(load) else { return };
        self.created += 1;
        let name = format!("{group}-{}", self.created);
        let address = IpAddr::from(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + self.created));
        let mut metadata = Self::template(group, workload);
        metadata["name"] = name.as_str().into();
        let mut pod = json!({
            "metadata": metadata,
            "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "program" }] },
            "status": { "phase": "Pending" },
        });
        let supervised = self.agents.pod_of(group, &mut pod);
        let created = self.api.store().create(Kind::Pod, NAMESPACE, pod);
        let created = created.unwrap_or_else(|failure| panic!("a pod is refused: {}", failure.message()));
        self.network.add(address, &node);
        let (uid, starts) = (created.uid().to_owned(), now + START);
        let mut program = Program::Serves;
        if supervised.is_some() {
            program = Program::Ended;
            self.network.set(address, program);
            self.agenda.plan(starts, Step::Restarted(name.clone()));
        }
        self.pods.insert(name, Pod { uid, node, address, program, restarts: 0, starts, supervised });
    }

    /// Kubelets report the pods that have started, and those that were marked while their nodes were not heard of.
    fn report_ready(&mut self, now: Duration) {
        let store = self.api.store();
        let is_reported = |name: &str, restarts: u64, ready: bool| {
            let pod = store.get(Kind::Pod, NAMESPACE, name);
            let reported =
                |pod: &Object| pod.value()["status"]["containerStatuses"][0]["restartCount"] == restarts;
            pod.is_none_or(|pod| is_ready(pod) == ready && reported(pod))
        };
        let runs = |pod: &Pod| now >= pod.starts && pod.program != Program::Ended;
        let ready = |pod: &Pod| pod.supervised.as_ref().is_none_or(|supervised| supervised.is_ready(now));
        let unreported =
            self.pods.iter().filter(|(_, pod)| runs(pod)).map(|(name, pod)| (name, pod, ready(pod)));
        let unreported = unreported.filter(|(name, pod, ready)| !is_reported(name, pod.restarts, *ready));
        let unreported: Vec<_> = unreported.map(|(name, _, ready)| (name.clone(), ready)).collect();
        drop(store);
        for (name, ready) in unreported {
            self.report(&name, ready);
        }
    }

    /// The kubelet reports the state of a pod.
    fn report(&mut self, name: &str, is_ready: bool) {
        let Some(pod) = self.pods.get(name) else { return };
        let reaches = self.nodes.get(&pod.node).is_some_and(|node| node.is_on && node.is_connected);
        if !reaches || !self.api.is_running() {
            return;
        }
        let (address, restarts) = (pod.address.to_string(), pod.restarts);
        let ends = pod.supervised.as_ref().map(|supervised| supervised.ends(pod.program == Program::Ended));
        let second = format!("fd00::{address}");
        let mut store = self.api.store();
        let time = format!("{:.0}", store.now());
        let reported = store.update(Kind::Pod, NAMESPACE, name, |pod| {
            let conditions = pod["status"]["conditions"].take();
            pod["status"] = json!({
                "phase": "Running",
                "podIP": address,
                "podIPs": [{ "ip": address }, { "ip": second }],
                "conditions": conditions,
                "containerStatuses": [{
                    "name": "main", "image": "program", "imageID": "program",
                    "ready": is_ready, "restartCount": restarts,
                    "state": { "running": { "startedAt": time } },
                }],
            });
            if let Some(ends) = ends {
                ends.show(&mut pod["status"]["containerStatuses"][0]);
            }
            set_ready(pod, is_ready);
        });
        // It may have been removed by force.
        drop(reported);
    }

    fn restarted(&mut self, name: &str, now: Duration) {
        let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.program == Program::Ended) else { return };
        if pod.supervised.is_some() {
            return self.start_agent(name, now);
        }
        pod.program = Program::Serves;
        pod.restarts += 1;
        self.network.set(pod.address, Program::Serves);
        self.report(name, true);
    }
}

fn is_ready(pod: &Object) -> bool {
    let conditions = pod.value()["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

fn set_ready(pod: &mut Value, is_ready: bool) {
    let status = if is_ready { "True" } else { "False" };
    let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|it| it["type"] == EVICTED);
    conditions.extend(["Ready", "ContainersReady"].map(|name| json!({ "type": name, "status": status })));
    pod["status"]["conditions"] = conditions.into();
}
