//! The clients of one group on every node, and the pods that they call.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufWriter, Write as _},
    os::unix::fs::MetadataExt,
    path::Path,
    rc::Rc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;
use tokio::process::Command;

use super::{
    books::Book,
    ledger::{Operation, audit},
    overlap::{Exempt, Limits, Record, Term, overlaps},
    recorded::{address_successors, terms},
    tables,
    verdict::Verdict,
};
use crate::{
    client::{Call, Calls, Client},
    cluster::Cluster,
    history::History,
    images::{Content, Image},
    moment::Moment,
    network,
    scenario::{
        Active, LEAVES_AFTER, PORT, Scenario, Stage, TOLD, eventually, spread_over_nodes, target_folder,
    },
};

/// The image of the pods.
const IMAGE: &str = "docker.io/leadergroup/clients-view:0.1.0";
/// How long a client keeps a connection, as the pools of HTTP clients do. In each change some connections are open.
const KEPT: Duration = Duration::from_secs(3);
/// How long a change takes on its way from the first node to the last one, beside kube-proxy's `minSyncPeriod`.
const ON_THE_WAY: Duration = Duration::from_millis(500);

/// Clients that call and write to a group through its Service, from every node of our own cluster.
///
/// Start it when the group is served, tell it of faults, and ask for its [`Verdict`] at the end. If nodes may lose
/// power, call [`Fleet::mended`] when they have it again.
pub struct Fleet {
    stage: Rc<Stage>,
    namespace: String,
    group: String,
    target: String,
    clients: Vec<Caller>,
    /// Calls of clients that were replaced.
    earlier: Vec<(Role, Record)>,
    nodes: Vec<Exempt>,
    pods: Vec<Exempt>,
    /// Until when the books are judged, if commits were lost.
    books_until: Option<Moment>,
}

/// One client.
struct Caller {
    node: String,
    role: Role,
    client: Client,
    /// The network that it is in. A node that boots has another one.
    network: Network,
}

/// A network namespace: its inode, whose number is used again, and when it was made.
type Network = (u64, i64, i64);

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Role {
    /// Whether it keeps its connections.
    keeps: bool,
    /// Whether it writes and reads; otherwise it asks for the pod's name.
    writes: bool,
}

const ROLES: [Role; 4] = [
    Role { keeps: false, writes: false },
    Role { keeps: true, writes: false },
    Role { keeps: false, writes: true },
    Role { keeps: true, writes: true },
];

/// The Deployment of pods that serve and write, for a workload of this name. [`Fleet::prepare`] loads its image.
pub fn deployment(namespace: &str, name: &str, replicas: i32) -> Result<Deployment> {
    let token = "metadata.annotations['leadergroup.dev/fencing-token']";
    let pod = json!({
        "terminationGracePeriodSeconds": 2,
        "automountServiceAccountToken": false,
        "containers": [{
            "name": "web",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "args": ["serve", "--book", book_of(namespace, name)],
            "env": [{ "name": "DATABASE", "value": tables::url() }],
            "ports": [{ "name": "http", "containerPort": 8080 }],
            "readinessProbe": {
                "httpGet": { "path": "/", "port": "http" }, "periodSeconds": 2, "timeoutSeconds": 1,
            },
            "resources": {
                "requests": { "cpu": "5m", "memory": "16Mi" }, "limits": { "memory": "96Mi" },
            },
            "volumeMounts": [{ "name": "leadergroup", "mountPath": "/etc/leadergroup", "readOnly": true }],
        }],
        "volumes": [{ "name": "leadergroup", "downwardAPI": { "items": [
            { "path": "fencing-token", "fieldRef": { "fieldPath": token } },
        ] } }],
    });
    spread_over_nodes(name, replicas, LEAVES_AFTER, pod)
}

fn book_of(namespace: &str, group: &str) -> String {
    format!("{namespace}/{group}")
}

impl Fleet {
    /// Loads the image of the pods on every node, and opens the books of a group. Call it before the pods are created.
    pub async fn prepare(stage: &Stage, namespace: &str, group: &str) -> Result<()> {
        let cluster = stage.own()?;
        let content =
            Content::Program { path: stage.program.clone(), installed: "/leadergroup-e2e".to_owned() };
        cluster
            .load_image(&Image { name: IMAGE.to_owned(), content })
            .await
            .context("loading the program")?;
        tables::open(&cluster.database(), &book_of(namespace, group)).await
    }

    /// Starts the clients of a group of the scenario whose Service has the same name.
    pub async fn start(s: &Scenario, group: &str) -> Result<Self> {
        let service = s.services().get(group).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        let mut fleet = Self {
            stage: Rc::clone(&s.stage),
            namespace: s.namespace.clone(),
            group: group.to_owned(),
            target: format!("{address}:{PORT}"),
            clients: Vec::new(),
            earlier: Vec::new(),
            nodes: Vec::new(),
            pods: Vec::new(),
            books_until: None,
        };
        for node in s.stage.own()?.nodes() {
            for role in ROLES {
                fleet.clients.push(fleet.call(&node.name, role)?);
            }
        }
        Ok(fleet)
    }

    fn call(&self, node: &str, role: Role) -> Result<Caller> {
        let network = network_of(node)?;
        let program = self.stage.program.to_str().context("the program's path is no text")?;
        let mut command: Command = self.stage.own()?.command_on(node, program);
        command.args(["call", &self.target]);
        if role.keeps {
            command.args(["--keep-alive-ms", &KEPT.as_millis().to_string()]);
        }
        if role.writes {
            // A client that follows another one must not use its numbers.
            let started = self.clients.len() + self.earlier.len();
            let writer = format!("{node}-{}-{started}", if role.keeps { "kept" } else { "new" });
            command.args(["--every-ms", "100", "--timeout-ms", "2000"]);
            for book in [Book::Fenced, Book::Plain] {
                command.args([
                    "--path",
                    &format!("/write/{book}/{writer}/{{}}"),
                    "--path",
                    &format!("/read/{book}"),
                ]);
            }
        } else {
            command.args(["--every-ms", "20"]);
        }
        let client = Client::spawn(&format!("{} on {node}, {role:?}", self.group), command)?;
        Ok(Caller { node: node.to_owned(), role, client, network })
    }

    /// Waits until every client [has reached](Self::has_reached) the active pod.
    pub async fn reaches(&self, active: &Active) -> Result<()> {
        eventually("every client to reach the active pod", TOLD, async || self.has_reached(active)).await
    }

    /// Fails unless every client that asks for the pod's name reaches the active pod, and the pod has written to both
    /// books in its term. Clients on nodes that are away are left out.
    pub fn has_reached(&self, active: &Active) -> Result<()> {
        let own = format!("{} {} ", active.pod, active.token);
        let mut wrote = BTreeMap::from([(Book::Fenced, false), (Book::Plain, false)]);
        for caller in self.clients.iter().filter(|caller| !self.is_away(&caller.node)) {
            if caller.role.writes {
                for call in caller.client.latest(200).all() {
                    let answer = call.answer.as_deref().unwrap_or_default();
                    for (book, wrote) in &mut wrote {
                        *wrote |=
                            answer.starts_with(&own) && call.path.starts_with(&format!("/write/{book}/"));
                    }
                }
            } else {
                let last = caller.client.latest(1);
                let reached = last.answered_by(&active.pod) > 0;
                ensure!(reached, "on {}: {last}; {} is active", caller.node, active.pod);
            }
        }
        ensure!(wrote.values().all(|wrote| *wrote), "{} has written: {wrote:?}", active.pod);
        Ok(())
    }

    /// Notes that a pod hangs or is cut off from now on. Call it before the fault.
    pub fn pod_hangs(&mut self, uid: &str) {
        begin(&mut self.pods, uid);
    }

    /// Notes that a node does not hear of changes from now on. Call it before the fault.
    pub fn node_is_away(&mut self, node: &str) {
        begin(&mut self.nodes, node);
    }

    /// Notes that PostgreSQL loses commits from now on. The books are judged up to here only: what was committed in
    /// them may be lost, too, while a pod remembers it. Call it before the fault.
    pub fn loses_commits(&mut self) {
        self.books_until.get_or_insert_with(Moment::now);
    }

    /// The calls so far of the clients that ask for the pod's name through new connections.
    pub fn calls(&self) -> Vec<Calls> {
        let asks = |caller: &&Caller| !caller.role.keeps && !caller.role.writes;
        self.clients.iter().filter(asks).map(|caller| caller.client.calls()).collect()
    }

    /// Notes that all faults were undone, and starts the clients of nodes that had no power again.
    pub async fn mended(&mut self) -> Result<()> {
        let now = Moment::now();
        for exempt in self.nodes.iter_mut().chain(&mut self.pods).filter(|exempt| exempt.until.is_none()) {
            exempt.until = Some(now);
        }
        for index in 0..self.clients.len() {
            let Caller { node, role, network, .. } = &self.clients[index];
            if network_of(node)? != *network {
                let next = self.call(node, *role)?;
                let last = std::mem::replace(&mut self.clients[index], next);
                let record = Record { node: last.node, calls: last.client.stop().await?.into_all() };
                self.earlier.push((last.role, record));
            }
        }
        Ok(())
    }

    /// Ends the clients and judges their records. The history must go up to now. Give it only when PostgreSQL and the
    /// API server work.
    pub async fn verdict(self, history: &History) -> Result<Verdict> {
        let terms = terms(history, &self.namespace, &self.group)?;
        let cluster = self.stage.own()?;
        let mut records = self.earlier;
        for Caller { node, role, client, .. } in self.clients {
            records.push((role, Record { node, calls: client.stop().await?.into_all() }));
        }
        let silent = silent(&records);
        let records: Vec<Record> = records.into_iter().map(|(_, record)| record).collect();
        let limits = Limits {
            overlap: period(cluster) + ON_THE_WAY,
            successors: address_successors(history, &terms),
            nodes: self.nodes,
            pods: self.pods,
        };
        let all = || records.iter().flat_map(|record| &record.calls);
        let book = book_of(&self.namespace, &self.group);
        let audit = async |of: Book| -> Result<_> {
            let entries = tables::entries(&cluster.database(), &book, of.is_fenced()).await?;
            let counts = |call: &&Call| self.books_until.is_none_or(|until| call.end < until);
            let operations: Vec<Operation> =
                all().filter(counts).filter_map(|call| Operation::of(call, &of.to_string())).collect();
            Ok(audit(&entries, &operations))
        };
        let served = overlaps(&terms, &records, &limits);
        let verdict = Verdict {
            served,
            fenced: audit(Book::Fenced).await?,
            control: audit(Book::Plain).await?,
            silent,
            refused: all().filter(|call| is_refused(call)).count(),
        };
        if verdict.ensure().is_err() {
            dump(&self.namespace, &self.group, &terms, &records).context("writing the record")?;
        }
        Ok(verdict)
    }

    fn is_away(&self, node: &str) -> bool {
        self.nodes.iter().any(|exempt| exempt.name == node && exempt.until.is_none())
    }
}

fn begin(all: &mut Vec<Exempt>, name: &str) {
    if !all.iter().any(|exempt| exempt.name == name && exempt.until.is_none()) {
        all.push(Exempt { name: name.to_owned(), from: Moment::now(), until: None });
    }
}

/// The clients without an answer. A client that was restarted on its node continues the record of its predecessor.
fn silent(records: &[(Role, Record)]) -> Vec<String> {
    let mut heard: BTreeMap<String, bool> = BTreeMap::new();
    for (role, Record { node, calls }) in records {
        let is_heard = heard.entry(format!("{node}, {role:?}")).or_default();
        *is_heard |= calls.iter().any(|call| call.answer.is_ok());
    }
    heard.into_iter().filter(|(_, is_heard)| !is_heard).map(|(client, _)| client).collect()
}

fn is_refused(call: &Call) -> bool {
    call.answer.as_ref().is_err_and(|error| error == "status 409")
}

/// kube-proxy's `minSyncPeriod`.
fn period(cluster: &Cluster) -> Duration {
    cluster.state.config.proxy_min_sync_period
}

/// The network that a node has now.
fn network_of(node: &str) -> Result<Network> {
    let path = Path::new("/run/netns").join(network::namespace(node));
    let found = fs::metadata(&path).with_context(|| format!("{node} has no network"))?;
    Ok((found.ino(), found.ctime(), found.ctime_nsec()))
}

/// Writes the terms and the calls to a file, for the search after a violation.
fn dump(namespace: &str, group: &str, terms: &[Term], records: &[Record]) -> Result<()> {
    let folder = target_folder()?.join("e2e-dump").join(namespace);
    fs::create_dir_all(&folder)?;
    let mut file = BufWriter::new(fs::File::create(folder.join(format!("calls-of-{group}.txt")))?);
    for term in terms {
        writeln!(file, "{term:?}")?;
    }
    for Record { node, calls } in records {
        for call in calls {
            writeln!(file, "{node} {}", serde_json::to_string(call)?)?;
        }
    }
    Ok(file.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_was_started_again_is_silent_only_if_the_one_before_was() {
        let record = |node: &str, role, answer: Option<&str>| {
            let answer = answer.map(str::to_owned).ok_or("timeout".to_owned());
            let call = Call::through_any(Moment::default(), Moment::default(), answer);
            (role, Record { node: node.to_owned(), calls: vec![call] })
        };
        let mut records = vec![record("one", ROLES[0], Some("web")), record("one", ROLES[0], None)];
        assert_eq!(silent(&records), [""; 0]);
        records.push((ROLES[0], Record { node: "one".to_owned(), calls: vec![] }));
        assert_eq!(silent(&records), [""; 0], "it has just begun");
        records.push(record("one", ROLES[1], None));
        records.push(record("two", ROLES[0], None));
        assert_eq!(silent(&records).len(), 2, "others do not answer for it");
    }
}
