//! What all subjects use: the servers, the replicas, the groups, and the observer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::{
    apiserver::ApiServer,
    measure::Latencies,
    network::{self, Fault},
    observer::Observer,
    outcome::Outcome,
    plan::Plan,
    postgres::{Database, Server},
    replica::{NAMES, Replica, Settings},
    responder::Responder,
    usage::Record,
    workload::{PODS, Workload, sleep_since},
};

/// The settings of production servers. Those of the tests are for speed and for reading etcd directly.
const API_SERVER: [&str; 2] =
    ["--storage-media-type=application/vnd.kubernetes.protobuf", "--etcd-compaction-interval=5m"];
const POSTGRES: [(&str, &str); 2] = [("fsync", "on"), ("shared_buffers", "256MB")];
/// Longer than the operator puts off a report of a change that does not concern the active pod.
const REPORTS_PUT_OFF: Duration = Duration::from_secs(12);

/// The running servers, replicas and groups, and what measures them.
pub(crate) struct Bench {
    pub(crate) plan: Plan,
    pub(crate) client: Client,
    pub(crate) observer: Observer,
    pub(crate) workload: Workload,
    pub(crate) responder: Responder,
    pub(crate) record: Record,
    pub(crate) api_server: ApiServer,
    pub(crate) postgres: Server,
    pub(crate) database: Database,
    pub(crate) replicas: BTreeMap<usize, Replica>,
    /// How often pods were deleted and replaced; part of the names of new pods.
    pub(crate) generation: usize,
    settings: Settings,
    load: String,
}

impl Bench {
    /// Starts everything, except that it creates no group.
    pub(crate) async fn start(plan: Plan) -> Result<Self> {
        let begin = Instant::now();
        let load = fs::read_to_string("/proc/loadavg").context("reading the machine's load")?;
        let load = load.split_whitespace().next().unwrap_or_default().to_owned();
        let api_server = ApiServer::start(&API_SERVER).await;
        let postgres = block_in_place(|| Server::start(&POSTGRES));
        let database = postgres.database().await;
        let client = api_server.client().await;
        let responder = Responder::start()?;
        println!("writing {} pods for {} groups", plan.groups * PODS, plan.groups);
        let workload = Workload::start(&client, plan.groups, plan.probed).await?;
        let observer = Observer::start(&client);
        let settings = Settings { kubeconfig: api_server.kubeconfig(), database_url: database.url() };
        let record = Record::start(port_of(&settings.kubeconfig)?);
        let directory = settings.kubeconfig.parent().context("a file without a directory")?;
        let pid = fs::read_to_string(directory.join("kube-apiserver.pid"))?.parse()?;
        record.of("API server", pid);
        let mut bench = Self {
            plan,
            client,
            observer,
            workload,
            responder,
            record,
            api_server,
            postgres,
            database,
            replicas: BTreeMap::new(),
            generation: 0,
            settings,
            load,
        };
        for number in 0..NAMES.len() {
            bench.start_replica(number).await?;
        }
        println!("ready after {:.0} s", begin.elapsed().as_secs_f64());
        Ok(bench)
    }

    pub(crate) fn describe(&self) -> Value {
        json!({
            "groups": self.plan.groups,
            "pods": self.plan.groups * PODS,
            "probed": self.plan.probed,
            "replicas": NAMES.len(),
            "cores": thread::available_parallelism().map_or(0, std::num::NonZero::get),
            // Other work on the machine makes all figures worse.
            "load at the start": self.load,
        })
    }

    pub(crate) fn wants(&self, subject: &str) -> bool {
        self.plan.wants(subject)
    }

    /// Starts a replica, and waits until it is ready.
    pub(crate) async fn start_replica(&mut self, number: usize) -> Result<()> {
        let mut replica = Replica::start(number, &self.settings)?;
        self.record.of(replica.name, replica.pid());
        replica.wait_ready(self.plan.limit()).await?;
        self.replicas.insert(number, replica);
        Ok(())
    }

    /// The running replica with this number.
    pub(crate) fn take_replica(&mut self, number: usize) -> Result<Replica> {
        self.replicas.remove(&number).with_context(|| format!("replica {number} does not run"))
    }

    /// How many groups these replicas own.
    pub(crate) async fn share(&self, names: &[&str]) -> Result<usize> {
        let names: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
        let names = names.join(", ");
        let count = self
            .database
            .number(&format!(
                "select count(*) from leadergroup.lock join leadergroup.session on session.id = lock.session
                 where not session.dead and not lock.tombstone and split_part(session.name, '/', 2) in ({names})"
            ))
            .await;
        Ok(usize::try_from(count)?)
    }

    /// Waits until these replicas own all groups.
    pub(crate) async fn wait_adopted(&self, names: &[&str]) -> Result<()> {
        let begin = Instant::now();
        loop {
            // One query for all of them: groups may move from one to another.
            let count = self.share(names).await?;
            if count == self.plan.groups {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < self.plan.limit(),
                "{count} of {} groups have an owner",
                self.plan.groups
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// So many groups, evenly spread over all.
    pub(crate) fn choose(&self, count: usize) -> BTreeSet<usize> {
        let count = count.min(self.plan.groups);
        (0..count).map(|number| number * self.plan.groups / count).collect()
    }

    /// Waits until each of these groups has a new holder, and returns the times since `from`.
    pub(crate) async fn failovers(
        &self,
        groups: &BTreeSet<usize>,
        mark: usize,
        from: impl Fn(usize) -> Instant,
    ) -> Result<Latencies> {
        let changes = self.observer.changes_of(groups, mark, self.plan.limit()).await?;
        let times = changes.iter().map(|(group, change)| change.at.saturating_duration_since(from(*group)));
        Ok(Latencies::of(times.collect()))
    }

    /// Reports changes of holder since the mark that no fault explains: any change in another group, and a second
    /// change in one of these groups.
    pub(crate) fn no_other_change(
        &self,
        what: &str,
        groups: &BTreeSet<usize>,
        mark: usize,
        outcome: &mut Outcome,
    ) {
        let mut seen = BTreeSet::new();
        let changes = self.observer.since(mark);
        let wrong: Vec<_> = changes
            .iter()
            .filter(|change| !(groups.contains(&change.group) && seen.insert(change.group)))
            .collect();
        if let Some(first) = wrong.first() {
            outcome.wrong(format!(
                "{what}: {} changes of holder without a cause, the first of group {} to {}",
                wrong.len(),
                first.group,
                first.pod
            ));
        }
    }

    /// Waits until nothing changes any more and each group has a holder. Returns the time of the last change.
    pub(crate) async fn settle(&self) -> Result<Instant> {
        let quiet = self.observer.quiet(self.plan.quiet(), self.plan.limit()).await?;
        let holders = self.observer.holders();
        let missing: Vec<_> = (0..self.plan.groups).filter(|group| !holders.contains_key(group)).collect();
        ensure!(
            missing.is_empty(),
            "{} groups have no active pod, such as group {}",
            missing.len(),
            missing[0]
        );
        Ok(quiet)
    }

    /// Waits until every group has a holder and no report is due. The operator puts off reports of minor changes.
    pub(crate) async fn rest(&self) -> Result<()> {
        self.observer.quiet(REPORTS_PUT_OFF, self.plan.limit()).await?;
        self.settle().await?;
        Ok(())
    }

    /// The share of a core that each replica uses, measured for this time.
    pub(crate) async fn cores(&self, time: Duration) -> Result<Vec<f64>> {
        let cpu = |replica: &Replica| crate::usage::cpu(replica.pid());
        let begin = Instant::now();
        let before = self.replicas.values().map(cpu).collect::<Result<Vec<_>>>()?;
        sleep_since(begin, time).await;
        let passed = begin.elapsed().as_secs_f64();
        let after = self.replicas.values().map(cpu).collect::<Result<Vec<_>>>()?;
        Ok(after
            .iter()
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before).as_secs_f64() / passed)
            .collect())
    }

    /// The memory that each replica has now, and the most that it ever had, in megabytes.
    pub(crate) fn memory(&self) -> Result<Vec<(f64, f64)>> {
        self.replicas.values().map(|replica| crate::usage::memory(replica.pid())).collect()
    }

    /// Reports a subject's failure, and ends all faults so that the next subject can be measured.
    pub(crate) async fn ended(&mut self, result: Result<()>, outcome: &mut Outcome) -> Result<()> {
        let Err(error) = result else { return Ok(()) };
        outcome.wrong(format!("{error:#}"));
        network::heal(Fault::Silent)?;
        network::heal(Fault::Refusing)?;
        self.responder.heal();
        self.workload.restore_power();
        for number in 0..NAMES.len() {
            if !self.replicas.contains_key(&number) {
                self.start_replica(number).await?;
            }
        }
        Ok(())
    }

    /// Terminates the replicas.
    pub(crate) async fn stop(&mut self, outcome: &mut Outcome) {
        outcome.figure("observer", json!({ "relists": self.observer.relists() }));
        for (_, replica) in std::mem::take(&mut self.replicas) {
            outcome.figure("log", json!({ "replica": replica.name, "lines": replica.log_lines() }));
            if outcome.is_wrong() {
                eprintln!("the last lines of replica {}:\n{}", replica.name, replica.tail());
            }
            if let Err(error) = replica.terminate(Duration::from_secs(30)).await {
                outcome.wrong(format!("{error:#}"));
            }
        }
    }
}

/// The API server's port.
fn port_of(kubeconfig: &Path) -> Result<u16> {
    let text = fs::read_to_string(kubeconfig)?;
    let port = text.lines().find_map(|line| line.trim().strip_prefix("server: ")?.rsplit(':').next());
    Ok(port.context("a kubeconfig without a server")?.parse()?)
}
