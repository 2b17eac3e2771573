//! What the election of one group sees, and what it would do next. Read-only.
//!
//! A replica that becomes the owner of the group now would see the same: the index is filled from lists instead of
//! watches, the prober probes the pods, and the plan is made by the election's own steps.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{Api, Client, api::ListParams, runtime::watcher};
use tokio::{
    sync::mpsc,
    time::{Instant, interval, sleep, sleep_until, timeout},
};

use crate::{
    api::{Declaration, Reason, Sighting, Verdict},
    election::{Member, Plan, Row, World},
    health::{PodFacts, ProbeOutcome, ProbeStep, Prober},
    operator::{
        cluster::{
            api_server::{ApiServer, NoCluster},
            watch,
        },
        executor::effect::row_of,
        index::{Event, Index, IndexedGroup, Request},
        lock::keys::KeyRule,
        object::{GroupName, record::Record, trim},
        trouble::Trouble,
    },
    ownership::Probing,
    routing::{Router, words},
};
use leadergroup_lock::{LockError, Store, admin::LockInfo, monotonic};

/// How long one call to the API server may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// More pods than this are not probed at the same time.
const PROBES: usize = 256;
/// How often the evidence is weighed, and the node leases are listed.
const LOOK: Duration = Duration::from_millis(500);

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no cluster.
    #[error(transparent)]
    NoCluster(#[from] NoCluster),
    /// The API server refused a read, or cannot be reached.
    #[error(
        "could not read {what}: {problem}; check the connection to the API server and the rights of this account"
    )]
    Api {
        /// What was read.
        what: &'static str,
        /// The API server's or the client's words.
        problem: String,
    },
    /// The API server did not answer.
    #[error("could not read {0}: no answer within {CALL_TIMEOUT:?}; check the connection to the API server")]
    Timeout(&'static str),
    /// There is no such group.
    #[error("there is no LeaderGroup {0}; see `kubectl get leadergroups --all-namespaces`")]
    NoGroup(String),
    /// The group cannot be decoded.
    #[error("{0}")]
    Undecodable(String),
    /// The operating system allows no further thread.
    #[error("cannot start the thread that probes pods: {0}; check the limits of the container")]
    Prober(#[source] io::Error),
}

/// What the election sees, and what it would do.
#[derive(Debug)]
pub struct Explanation {
    /// Namespace and name.
    pub group: String,
    /// The key of the lock's row.
    pub key: String,
    /// The lock's row; none if the group has none yet, else why it could not be read.
    pub lock: Result<Option<LockInfo>, String>,
    /// The declaration in the status.
    pub declared: Declaration,
    /// Why no pod of this group may be promoted, in words.
    pub obstacle: Option<String>,
    /// Which pods other groups select, too, in words.
    pub contested: Option<String>,
    /// The pods, in the order of their names.
    pub pods: Vec<ExplainedPod>,
    /// How long the pods were observed.
    pub observed: Duration,
    /// What the owner would do; none without the lock's row.
    pub plan: Option<Plan>,
}

/// The evidence about one pod.
#[derive(Debug)]
pub struct ExplainedPod {
    /// The facts from the API server.
    pub facts: PodFacts,
    /// How the election sees it.
    pub member: Member,
    /// How often its probes ended with each outcome, in the order of the first time.
    pub probes: Vec<(ProbeOutcome, u32)>,
}

/// Explains a group of the cluster that a kubeconfig or a service account leads to. Observes its pods until there is
/// evidence about each of them, or for `patience` at the longest. `namespace` defaults to the one of the kubeconfig.
pub async fn explain(
    namespace: Option<&str>,
    name: &str,
    store: Result<Store, String>,
    patience: Duration,
) -> Result<Explanation, ExplainError> {
    let client = ApiServer::find().await?.changes;
    let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
    let name = GroupName { namespace: namespace.as_str().into(), name: name.into() };
    let cluster = call("the namespace kube-system", || watch::cluster_uid(&client)).await?;
    // The operator's own setting is not known here.
    let keys = KeyRule { cluster: cluster.clone(), namespaced: false };
    let mut observer = Observer {
        index: Index::new(cluster, &[], patience),
        router: Router::new(client.clone(), CALL_TIMEOUT),
        client,
        probes: HashMap::new(),
    };
    observer.list(&namespace).await?;
    observer.record(&name)?;
    let began = monotonic();
    observer.observe(&name, patience).await?;
    // The owner may have acted in the meantime: the labels and the declaration as they are now, and then the row.
    observer.list(&namespace).await?;
    let record = observer.record(&name)?;
    let (lock, row) = match read_lock(store, &keys, &record).await {
        Ok((info, row)) => (Ok(info), Ok(row)),
        Err(problem) => (Err(problem.clone()), Err(problem)),
    };
    Ok(observer.explanation(&name, &record, lock, row.ok(), monotonic().saturating_sub(began)))
}

/// The lock's row of this group, for people and for the election. A group without a row has never been claimed.
async fn read_lock(
    store: Result<Store, String>,
    keys: &KeyRule,
    record: &Record,
) -> Result<(Option<LockInfo>, Row), String> {
    let store = store?;
    let read = async {
        let info = store.info(&record.key).await?;
        let rows = store.read(std::slice::from_ref(&record.key)).await?;
        Ok::<_, LockError>((info, rows.into_iter().next()))
    };
    let (info, row) = read.await.map_err(|error| error.to_string())?;
    let has_no_row = row.as_ref().is_none_or(|row| row.group != record.tag);
    if let Some(refusal) = keys.refusal(record).filter(|_| has_no_row) {
        return Err(refusal.to_string());
    }
    match row {
        Some(row) if !row.tombstone && row.group != record.tag => {
            Err(format!("the key {} belongs to another group: {}", record.key, row.group))
        }
        row => Ok((info, row.map(row_of).unwrap_or_default())),
    }
}

/// Reads something, within a bound. An API server that is starting asks to come back later.
pub(in crate::operator) async fn call<T, F>(
    what: &'static str,
    read: impl Fn() -> F,
) -> Result<T, ExplainError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let answer = async {
        loop {
            match read().await {
                Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503) => sleep(LOOK).await,
                answer => return answer,
            }
        }
    };
    match timeout(CALL_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| ExplainError::Api { what, problem: words(&error) }),
        Err(_) => Err(ExplainError::Timeout(what)),
    }
}

/// Fills an index from lists and probes.
struct Observer {
    index: Index,
    client: Client,
    router: Router,
    probes: HashMap<Arc<str>, Vec<(ProbeOutcome, u32)>>,
}

impl Observer {
    /// Lists the groups and pods of the namespace. Lists without a resourceVersion are quorum reads.
    async fn list(&mut self, namespace: &str) -> Result<(), ExplainError> {
        let groups: Api<Sighting> = Api::namespaced(self.client.clone(), namespace);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let every = ListParams::default();
        let (groups, pods) = (
            call("the LeaderGroups", || groups.list(&every)).await?.items,
            call("the pods", || pods.list(&every)).await?.items,
        );
        self.apply(Event::Group(None, watcher::Event::Init)).await;
        for group in groups {
            self.apply(Event::Group(None, watcher::Event::InitApply(group))).await;
        }
        self.apply(Event::Group(None, watcher::Event::InitDone)).await;
        self.apply(Event::Pod(None, watcher::Event::Init)).await;
        for mut pod in pods {
            trim(&mut pod);
            self.apply(Event::Pod(None, watcher::Event::InitApply(pod))).await;
        }
        self.apply(Event::Pod(None, watcher::Event::InitDone)).await;
        let nodes: Api<Node> = Api::all(self.client.clone());
        // As in the operator, all else works without the right to them.
        if let Ok(nodes) = call("the nodes", || nodes.list(&every)).await {
            for node in nodes.items {
                self.apply(Event::Node(watcher::Event::Apply(node))).await;
            }
        }
        Ok(())
    }

    fn record(&self, name: &GroupName) -> Result<Arc<Record>, ExplainError> {
        let group = self.index.group(name);
        group.map(|group| group.record().clone()).ok_or_else(|| ExplainError::NoGroup(name.to_string()))
    }

    async fn list_leases(&mut self) -> Result<(), ExplainError> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let every = ListParams::default();
        for lease in call("the node leases", || leases.list(&every)).await?.items {
            self.apply(Event::NodeLease(watcher::Event::Apply(lease))).await;
        }
        self.apply(Event::NodeLease(watcher::Event::InitDone)).await;
        Ok(())
    }

    /// Takes an event in, and reads the owners of pods that the index asks about. It asks for nothing else that a
    /// command without a session could do.
    async fn apply(&mut self, event: Event) {
        for request in self.index.apply(event, monotonic()) {
            if let Request::ReadOwner(record, owner) = request {
                let found = self.router.role_label_use(&record.reference, &owner).await;
                let (group, uid) = (record.name.clone(), record.uid.clone());
                let found = found.map_err(|error| Trouble::from(&error));
                self.index.apply(Event::OwnerRead { group, uid, owner, found }, monotonic());
            }
        }
    }

    /// Probes the pods until there is evidence about each, or time is over.
    async fn observe(&mut self, name: &GroupName, patience: Duration) -> Result<(), ExplainError> {
        let (sender, mut events) = mpsc::channel(PROBES);
        let mut prober = Prober::new(sender, PROBES).map_err(ExplainError::Prober)?;
        let mut unprobed = false;
        for (uid, target) in self.index.targets(name, Probing::All) {
            unprobed |= target.is_none();
            if let Some(first) = target.and_then(|target| prober.set_target(&uid, &target)) {
                self.apply(Event::Retargeted(uid, first)).await;
            }
        }
        let until = Instant::now() + patience;
        let mut looks = interval(LOOK);
        while self.is_open(name) {
            tokio::select! {
                Some(event) = events.recv() => {
                    if let ProbeStep::Ended(outcome) = event.step {
                        self.count(&event.uid, outcome);
                    }
                    self.apply(Event::Probe(event)).await;
                }
                _ = looks.tick() => {
                    if unprobed {
                        self.list_leases().await?;
                    }
                    self.index.advance(monotonic());
                }
                () = sleep_until(until) => break,
            }
        }
        Ok(())
    }

    /// Whether there is a pod without evidence for or against it.
    fn is_open(&self, name: &GroupName) -> bool {
        let group = self.index.group(name);
        group.is_some_and(|group| group.pods().any(|(_, member)| member.verdict == Verdict::Unknown))
    }

    fn count(&mut self, uid: &Arc<str>, outcome: ProbeOutcome) {
        let counts = self.probes.entry(uid.clone()).or_default();
        match counts.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, count)) => *count += 1,
            None => counts.push((outcome, 1)),
        }
    }

    fn explanation(
        mut self,
        name: &GroupName,
        record: &Record,
        lock: Result<Option<LockInfo>, String>,
        row: Option<Row>,
        observed: Duration,
    ) -> Explanation {
        let now = monotonic();
        let holder = row.as_ref().and_then(|row| row.holder.as_ref()).map(|pod| pod.uid.clone());
        let world = self.index.world(name, holder.as_deref(), now).unwrap_or_default();
        let mut pods = self.pods(name);
        pods.sort_by(|one, other| one.facts.name.cmp(&other.facts.name));
        let plan = row.map(|row| plan(&world, row, record.declared(), &pods, now));
        Explanation {
            group: name.to_string(),
            key: record.key.to_string(),
            lock,
            declared: record.declared(),
            obstacle: self.obstacle(name),
            contested: self.index.group(name).and_then(IndexedGroup::contested),
            pods,
            observed,
            plan,
        }
    }

    fn pods(&self, name: &GroupName) -> Vec<ExplainedPod> {
        let Some(group) = self.index.group(name) else { return Vec::new() };
        let explained = |(facts, member): (&PodFacts, Member)| ExplainedPod {
            facts: facts.clone(),
            member,
            probes: self.probes.get(facts.uid.as_str()).cloned().unwrap_or_default(),
        };
        group.pods().map(explained).collect()
    }

    fn obstacle(&self, name: &GroupName) -> Option<String> {
        let group = self.index.group(name)?;
        let reason = group.obstacle()?;
        Some(match reason {
            Reason::InvalidSpec => group.invalid().unwrap_or("the object cannot be read").to_owned(),
            Reason::SelectedByOtherGroup => {
                "a pod that this group selects is active for another one".to_owned()
            }
            Reason::RoleLabelInOwnerSelector => {
                let workload =
                    group.role_label_use().map_or("the owner of the pods", |found| &found.workload);
                format!("{workload} selects its pods by the role label")
            }
            other => other.to_string(),
        })
    }
}

fn plan(world: &World, row: Row, declared: Declaration, pods: &[ExplainedPod], now: Duration) -> Plan {
    let found: HashMap<&str, &PodFacts> =
        pods.iter().map(|pod| (pod.facts.uid.as_str(), &pod.facts)).collect();
    let verdict = |uid: &str| found.get(uid).map_or(Some(Reason::PodDeleted), |facts| facts.against());
    Plan::new(world, row, declared, |pod| verdict(&pod.uid), now)
}

/// Whether none of the probed pods answered: then this machine may not reach the pods at all.
pub fn hears_no_pod(pods: &[ExplainedPod]) -> bool {
    let mut outcomes = pods.iter().flat_map(|pod| &pod.probes).map(|(outcome, _)| outcome).peekable();
    outcomes.peek().is_some()
        && outcomes.all(|outcome| matches!(outcome, ProbeOutcome::Unanswered | ProbeOutcome::Void(_)))
}
