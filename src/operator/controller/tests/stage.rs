//! A controller without network, database and clock: the events of watches and probes go in, and the calls that they
//! lead to are started and never carried out.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Config, runtime::watcher};
use leadergroup_lock::{
    DatabaseConfig, SessionId, Store,
    controller::{Claimed, Peer},
};
use tokio::{runtime::Runtime, sync::mpsc};

use super::objects::{answered, group, name, pod, pod_ref, row};
use crate::{
    api::{LeaderGroup, Sighting},
    election::Phase,
    health::{MachineNetwork, ProbeEvent, ProbeOutcome, ProbeStep, Prober},
    operator::{
        CALL_TIMEOUT, PROBES, QUEUE, STUCK,
        controller::{Controller, Health, Parts},
        executor::{Context, hook_places::HookPlaces},
        index::{Event, lock_view::LockNews},
        lock::{claim::LARGEST_CLAIM, keys::KeyRule},
        message::Message,
        object::GroupName,
        status::{self, conditions::View, events::Events},
    },
    ownership::Yielded,
    routing::{Reported, Router},
    telemetry::{Liveness, Metrics, ReadyChecks, Traces},
};

/// The pods of each group.
pub(super) const PODS: usize = 3;

/// A replica that owns groups of three pods, of which the first is active and all answer their probes.
pub(super) struct Stage {
    pub(super) controller: Controller,
    pub(super) groups: usize,
    /// The pods are spread over so many nodes.
    pub(super) nodes: usize,
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

impl Stage {
    pub(super) fn new(groups: usize, nodes: usize) -> Self {
        let mut stage = Self { nodes, ..Self::before_lists(groups, None, Duration::from_mins(10)) };
        stage.list();
        stage.adopt_all();
        stage
    }

    /// A replica on this node that has seen nothing.
    pub(super) fn before_lists(groups: usize, node: Option<&str>, session_ttl: Duration) -> Self {
        Self::traced(groups, node, session_ttl, Traces::default())
    }

    /// The same, with traces.
    pub(super) fn traced(groups: usize, node: Option<&str>, session_ttl: Duration, traces: Traces) -> Self {
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
        // What is sent there is answered by the test, or not at all.
        let (messages, probes) = (mpsc::channel(QUEUE).0, mpsc::channel(QUEUE).0);
        let controller = Controller::new(Parts {
            cluster: "c1".to_owned(),
            peers: "c1".to_owned(),
            namespaces: Vec::new(),
            node: node.map(str::to_owned),
            session_ttl,
            wall_clock: Timestamp::now,
            prober: Prober::new(probes, PROBES).expect("a thread"),
            events: Events::new(client.clone(), "test", metrics.clone(), Timestamp::now),
            context: Context {
                manages_endpoints: false,
                observes_services: true,
                keys: KeyRule { cluster: "c1".to_owned(), namespaced: false },
                router: Router::new(client, CALL_TIMEOUT),
                store: store.expect("the URL is one"),
                metrics,
                traces,
                messages,
                pods: Arc::new(MachineNetwork),
                hook_places: HookPlaces::new(),
                leave_place: Arc::new(|| {}),
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

    pub(super) fn traces(&self) -> &Traces {
        self.controller.executor.traces()
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

    /// Something is seen.
    pub(super) fn see(&mut self, event: Event) {
        self.within(|controller, now| controller.seen(event, now));
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
        self.see(Event::Group(None, watcher::Event::Init));
        for group in groups {
            self.see(Event::Group(None, watcher::Event::InitApply(Sighting(Ok(group)))));
        }
        self.see(Event::Group(None, watcher::Event::InitDone));
        self.see(Event::Pod(None, watcher::Event::Init));
        for (group, pod) in self.pods() {
            let pod = self.pod(group, pod, false);
            self.see(Event::Pod(None, watcher::Event::InitApply(pod)));
        }
        self.see(Event::Pod(None, watcher::Event::InitDone));
    }

    /// A heartbeat of this replica succeeds, and shows these others as well; the claims to some keys were given up.
    pub(super) fn beat(&mut self, others: &[Peer], yielded: Yielded) {
        let own = Peer { session: self.own, place: self.node.clone() };
        self.see(Event::Lock(LockNews::Beat {
            own: self.own,
            living: std::iter::once(own).chain(others.iter().cloned()).collect(),
            suspects: Vec::new(),
            doubt: false,
            yielded,
            took: Duration::ZERO,
        }));
    }

    /// Gives this replica all groups, and writes their status.
    pub(super) fn adopt_all(&mut self) {
        self.beat(&[], Yielded::None);
        self.turn();
        self.probe_all();
        // So many are claimed at a time.
        for _ in 0..self.groups.div_ceil(LARGEST_CLAIM) {
            self.claim(self.own);
            self.turn();
        }
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
        object.status = Some(status::status(view, None, false, Timestamp::now()));
        object.metadata.resource_version = Some(self.version.to_string());
        let reported = Ok(Box::new(Reported::Done(Sighting(Ok(object)))));
        self.take(Message::Reported { group: name.clone(), uid, reported });
        self.turn();
    }

    /// A group as it is seen, and as it is run.
    pub(super) fn view(&self, name: &GroupName) -> View<'_> {
        let seen = self.controller.index.group(name).expect("the group was listed");
        View { seen, group: self.controller.groups.get(name).expect("the group was looked at") }
    }

    /// Answers the claims that were made for this session.
    pub(super) fn claim(&mut self, session: SessionId) {
        let answers = (0..self.groups).map(|group| answered(group, Claimed::Ours(row(group, session))));
        let answers = answers.collect();
        self.take(Message::Claimed { session, answers });
    }

    /// Deletes the active pods of some groups, so that a change of holder begins, and is not carried on.
    pub(super) fn begin_changes(&mut self, groups: usize) {
        for group in 0..groups {
            let pod = self.pod(group, 0, true);
            self.see(Event::Pod(None, watcher::Event::Apply(pod)));
        }
        self.turn();
        let changing =
            (0..self.groups).filter(|group| self.view(&name(*group)).group.election().is_changing()).count();
        assert_eq!(changing, groups);
    }

    /// Each pod answers a probe. The loop turns after each of them.
    pub(super) fn probe_all(&mut self) {
        for (group, pod) in self.pods() {
            self.probe(group, pod, ProbeOutcome::Success);
            self.turn();
        }
    }

    /// A probe of a pod is sent, and ends so.
    pub(super) fn probe(&mut self, group: usize, pod: usize, outcome: ProbeOutcome) {
        self.version += 1;
        let (seq, sent_at) = (self.version, self.now);
        let uid: Arc<str> = pod_ref(group, pod).uid.into();
        for step in [ProbeStep::Sent, ProbeStep::Ended(outcome)] {
            let event = ProbeEvent { uid: uid.clone(), seq, sent_at, step };
            self.see(Event::Probe(event));
        }
    }

    /// A newer version of each pod, as before, but that the first ones of so many groups are being deleted.
    pub(super) fn newer_pods(&mut self, deleting: usize) -> Vec<Event> {
        let pods = self.pods().into_iter();
        let newer = pods.map(|(group, pod)| self.pod(group, pod, group < deleting && pod == 0));
        newer.map(|pod| Event::Pod(None, watcher::Event::Apply(pod))).collect()
    }

    /// These are seen, and the loop turns after each of them.
    pub(super) fn see_all(&mut self, events: Vec<Event>) {
        for event in events {
            self.see(event);
            self.turn();
        }
    }

    fn pods(&self) -> Vec<(usize, usize)> {
        (0..self.groups).flat_map(|group| (0..PODS).map(move |pod| (group, pod))).collect()
    }

    /// The next version of a pod.
    pub(super) fn pod(&mut self, group: usize, number: usize, deleting: bool) -> Pod {
        self.version += 1;
        pod(group, number, self.nodes, self.version, deleting)
    }
}
