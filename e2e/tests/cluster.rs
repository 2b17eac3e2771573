//! Tests of the test cluster: what the scenarios rely on, each fault and its undoing, and the complete clean-up.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, ListParams};
use leadergroup_e2e::cgroup::Cgroups;
use leadergroup_e2e::cleanup::{self, leftovers};
use leadergroup_e2e::cluster::Cluster;
use leadergroup_e2e::command::{output, output_with_input};
use leadergroup_e2e::config::Config;
use leadergroup_e2e::images::{self, Image};
use leadergroup_e2e::machine::wait_until;
use leadergroup_e2e::network::{CONTROL_ADDRESS, DATABASE, HOST};
use leadergroup_e2e::scenario::{OPERATOR_NAMESPACE, build_operator};
use leadergroup_e2e::state::Lock;
use tokio::process::Command;

use crate::monitoring::Monitoring;

#[path = "cluster/document.rs"]
mod document;
#[path = "cluster/monitoring.rs"]
mod monitoring;
#[path = "cluster/quick_start.rs"]
mod quick_start;
#[path = "cluster/runbooks.rs"]
mod runbooks;
#[path = "cluster/tutorial.rs"]
mod tutorial;

const LIMIT: Duration = Duration::from_mins(1);
const COMMAND: &str = env!("CARGO_BIN_EXE_leadergroup-e2e");
const HELM_LIMIT: Duration = Duration::from_mins(3);
const GROUP: &str = r"
apiVersion: leadergroup.dev/v1alpha1
kind: LeaderGroup
metadata: { name: web }
spec: { selector: { matchLabels: { app: web } } }
";
const MANIFEST: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 3
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: DoNotSchedule
          labelSelector: { matchLabels: { app: web } }
      containers:
        - name: web
          image: busybox:1.37
          command: [sh, -c, "mkdir -p /tmp/web; hostname > /tmp/web/index.html; exec httpd -f -p 8080 -h /tmp/web"]
          readinessProbe: { httpGet: { port: 8080, path: / }, periodSeconds: 1 }
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  clusterIP: 198.19.1.1
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080 }]
---
apiVersion: v1
kind: Pod
metadata: { name: leak }
spec:
  restartPolicy: Never
  containers:
    - name: leak
      image: busybox:1.37
      command: [tail, /dev/zero]
      resources: { limits: { memory: 32Mi } }
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: data }
spec:
  accessModes: [ReadWriteOnce]
  resources: { requests: { storage: 1Gi } }
---
apiVersion: v1
kind: Pod
metadata: { name: database }
spec:
  securityContext: { runAsNonRoot: true, fsGroup: 999 }
  volumes: [{ name: data, persistentVolumeClaim: { claimName: data } }]
  containers:
    - name: postgres
      image: postgres:15
      env:
        - { name: POSTGRES_USER, value: somebody }
        - { name: POSTGRES_PASSWORD, value: "it's a secret" }
        - { name: POSTGRES_DB, value: things }
        - { name: PGDATA, value: /var/lib/postgresql/data/pgdata }
      volumeMounts: [{ name: data, mountPath: /var/lib/postgresql/data }]
      readinessProbe: { exec: { command: [pg_isready, -h, 127.0.0.1, -U, somebody, -d, things] }, periodSeconds: 1 }
"#;

/// A pod of the Deployment in its current state.
struct Web {
    name: String,
    uid: String,
    node: String,
    address: String,
    restarts: i32,
}

struct Test {
    cluster: Cluster,
    pods: Api<Pod>,
}

impl Test {
    async fn kubectl(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new(self.cluster.program("kubectl")?);
        command.args(args).env("KUBECONFIG", self.cluster.kubeconfig());
        output_with_input(command, input, LIMIT).await
    }

    /// The Ready pods of the Deployment.
    async fn web(&self) -> Result<Vec<Web>> {
        let list = self.pods.list(&ListParams::default().labels("app=web")).await?;
        Ok(list.items.iter().filter_map(web).collect())
    }

    async fn web_on(&self, node: &str) -> Result<Web> {
        self.web()
            .await?
            .into_iter()
            .find(|pod| pod.node == node)
            .with_context(|| format!("no pod on {node}"))
    }

    /// Whether an HTTP server answers a client in the network of `machine` (`None`: the host).
    async fn answers(&self, machine: Option<&str>, address: &str) -> bool {
        let mut command = if let Some(machine) = machine {
            let mut command = self.cluster.command_on(machine, "timeout");
            command.args(["1", "busybox"]);
            command
        } else {
            let mut command = Command::new("timeout");
            command.args(["1", "busybox"]);
            command
        };
        command.args(["wget", "-q", "-O", "-", &format!("http://{address}/")]);
        output(command, LIMIT).await.is_ok()
    }

    /// Waits until a server answers the host, or does not.
    async fn wait_answers(&self, address: &str, wanted: bool) -> Result<()> {
        let what = format!("{address} to {} the host", if wanted { "answer" } else { "be silent to" });
        wait_until(&what, LIMIT, async || Ok(self.answers(None, address).await == wanted)).await
    }
}

fn web(pod: &Pod) -> Option<Web> {
    let status = pod.status.as_ref()?;
    let container: &ContainerStatus = status.container_statuses.as_ref()?.first()?;
    container.ready.then_some(())?;
    Some(Web {
        name: pod.metadata.name.clone()?,
        uid: pod.metadata.uid.clone()?,
        node: pod.spec.as_ref()?.node_name.clone()?,
        address: status.pod_ip.clone()?,
        restarts: container.restart_count,
    })
}

#[tokio::test]
async fn a_cluster_and_its_faults() -> Result<()> {
    let started = Instant::now();
    let cluster = Cluster::start(Config::default()).await?;
    println!("started in {:.1} s", started.elapsed().as_secs_f64());
    let pods = Api::default_namespaced(cluster.client().await?);
    let test = Test { cluster, pods };
    test.kubectl(&["apply", "-f", "-"], MANIFEST).await?;
    wait_until("a Ready pod on each node", LIMIT, async || {
        let nodes: std::collections::BTreeSet<String> =
            test.web().await?.into_iter().map(|pod| pod.node).collect();
        Ok(nodes.len() == 3)
    })
    .await?;

    timed("service", service_answers_everywhere(&test)).await?;
    timed("memory limit", memory_limit(&test)).await?;
    timed("database in a pod", bundled_database(&test)).await?;
    timed("chart with its own database", chart_by_default(&test)).await?;
    timed("freeze and crash", freeze_and_crash(&test)).await?;
    timed("cut off", cut_off(&test)).await?;
    timed("power off", power_off(&test)).await?;
    timed("servers", servers(&test)).await?;

    let refused = Cluster::start(Config::default()).await.err().context("a second cluster started")?;
    ensure!(refused.to_string().contains("is already running on this machine"), "unclear: {refused:#}");
    let other = Cluster::attach()?;
    ensure!(other.kubeconfig() == test.cluster.kubeconfig());

    let stopping = Instant::now();
    test.cluster.stop().await?;
    println!("stopped in {:.1} s", stopping.elapsed().as_secs_f64());
    ensure!(leftovers().is_empty(), "left behind: {:#?}", leftovers());

    timed("half started", half_started()).await?;
    timed("killed owner", killed_owner()).await?;
    timed("killed supervisor", killed_supervisor()).await?;
    println!("all in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a part of the test and prints its duration.
async fn timed(name: &'static str, part: impl Future<Output = Result<()>>) -> Result<()> {
    let started = Instant::now();
    part.await.context(name)?;
    println!("{name}: {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

async fn service_answers_everywhere(test: &Test) -> Result<()> {
    for node in test.cluster.nodes() {
        let machine = node.name.as_str();
        wait_until(&format!("the Service to answer {machine}"), LIMIT, async || {
            Ok(test.answers(Some(machine), "198.19.1.1").await)
        })
        .await?;
        let mut lookup = test.cluster.command_on(machine, "busybox");
        lookup.args(["nslookup", "web.default.svc.cluster.local", CONTROL_ADDRESS]);
        let answer = output(lookup, LIMIT).await?;
        ensure!(answer.contains("198.19.1.1"), "{machine} resolves the Service to {answer}");
        // From a pod, by name, through the resolver configured by the kubelet; also to the pod itself (hairpin).
        let pod = test.web_on(machine).await?;
        let mut seen = std::collections::BTreeSet::new();
        wait_until(&format!("every pod to answer {}", pod.name), LIMIT, async || {
            let fetch = ["exec", &pod.name, "--", "timeout", "5", "wget", "-q", "-O", "-", "http://web/"];
            seen.insert(test.kubectl(&fetch, "").await?);
            Ok(seen.len() == 3)
        })
        .await?;
        // An operator in a pod needs the API server and the database.
        for server in ["198.19.0.1 443", "198.18.0.20 5432"] {
            let connect = format!("timeout 5 nc {server} < /dev/null");
            test.kubectl(&["exec", &pod.name, "--", "sh", "-c", &connect], "").await.context(server)?;
        }
    }
    Ok(())
}

async fn memory_limit(test: &Test) -> Result<()> {
    wait_until("the leaking pod to be killed", LIMIT, async || {
        let pod = test.pods.get("leak").await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let ended = statuses.into_iter().find_map(|status| status.state?.terminated);
        let Some(ended) = ended else { return Ok(false) };
        let reason = ended.reason.unwrap_or_default();
        ensure!(ended.exit_code == 137 && reason == "OOMKilled", "ended with {} {reason}", ended.exit_code);
        Ok(true)
    })
    .await
}

async fn bundled_database(test: &Test) -> Result<()> {
    test.kubectl(&["wait", "--for=condition=Ready", "pod/database", "--timeout=60s"], "").await?;
    let pod = test.pods.get("database").await?;
    let address = pod.status.and_then(|status| status.pod_ip).context("no address")?;
    let mut psql = Command::new("psql");
    psql.args([
        "-qAt",
        "-h",
        &address,
        "-U",
        "somebody",
        "-d",
        "things",
        "-c",
        "SELECT NOW() AT TIME ZONE 'utc' IS NOT NULL",
    ]);
    psql.env("PGPASSWORD", "it's a secret");
    ensure!(output(psql, LIMIT).await?.trim() == "t");
    let mut wrong = Command::new("psql");
    wrong
        .args(["-qAt", "-h", &address, "-U", "somebody", "-d", "things", "-c", "SELECT 1"])
        .env("PGPASSWORD", "wrong");
    ensure!(output(wrong, LIMIT).await.is_err(), "the database takes any password");
    Ok(())
}

/// The chart with default values, which installs PostgreSQL on a volume, and a group.
async fn chart_by_default(test: &Test) -> Result<()> {
    let operator = Image::operator(images::OPERATOR, &build_operator().await?);
    test.cluster.load_image(&operator).await.context("loading the operator")?;
    quick_start::runs_as_printed(&test.cluster).await.context("the README")?;
    tutorial::runs_as_printed(&test.cluster).await.context("the tutorial")?;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/leadergroup");
    let helm = async |args: &[&str]| {
        let mut helm = Command::new(test.cluster.program("helm")?);
        helm.args(["--namespace", OPERATOR_NAMESPACE])
            .args(args)
            .env("KUBECONFIG", test.cluster.kubeconfig());
        output(helm, HELM_LIMIT).await
    };
    // As on a cluster that enforces the strictest Pod Security Standard.
    test.kubectl(&["create", "namespace", OPERATOR_NAMESPACE], "").await?;
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    test.kubectl(&["label", "namespace", OPERATOR_NAMESPACE, restricted], "").await?;
    // The official image of the chart's default tag cannot be pulled here; the cluster's own image contains the
    // installed server.
    let database = ["--set", "postgresql.image.tag=15"];
    let install = ["install", "leadergroup", chart, "--wait", "--timeout", "120s"];
    helm(&[&install[..], &database].concat()).await?;
    test.kubectl(&["apply", "-f", "-"], GROUP).await?;
    let ready = ["wait", "--for=condition=Ready", "leadergroup/web", "--timeout=30s"];
    test.kubectl(&ready, "").await?;
    helm(&["test", "leadergroup", "--timeout", "120s", "--logs"]).await.context("helm test")?;
    runbooks::run_as_printed(&test.cluster, "web").await.context("the runbooks")?;
    let mut monitoring = Monitoring::start(test).await.context("Prometheus")?;
    monitoring.when_all_is_well().await.context("Prometheus, while all is well")?;
    let active = async || -> Result<String> {
        let args = ["get", "pods", "-l", "leadergroup.dev/role=active", "-o", "name"];
        Ok(test.kubectl(&args, "").await?.trim().to_owned())
    };
    let first = active().await?;
    test.kubectl(&["delete", "--wait=false", &first], "").await?;
    wait_until("another pod to be active", LIMIT, async || {
        let now = active().await?;
        Ok(!now.is_empty() && now != first)
    })
    .await?;
    test.kubectl(&ready, "").await?;
    monitoring.after_a_change().await.context("Prometheus, after a change")?;
    monitoring.while_nobody_takes_over(test).await.context("Prometheus, while nobody takes over")?;
    let second = active().await?;
    helm(&["uninstall", "leadergroup", "--wait", "--timeout", "120s"]).await?;
    ensure!(active().await? == second, "the active pod does not keep serving without the operator");
    monitoring.without_operator().await.context("Prometheus, without the operator")?;
    test.kubectl(&["delete", "leadergroup", "web", "--timeout=10s"], "").await?;
    wait_until("a Ready pod on each node", LIMIT, async || Ok(test.web().await?.len() == 3)).await
}

async fn freeze_and_crash(test: &Test) -> Result<()> {
    let pod = test.web_on("node-1").await?;
    let address = format!("{}:8080", pod.address);
    test.wait_answers(&address, true).await?;
    test.cluster.freeze_pod(&pod.uid).await?;
    ensure!(!test.answers(None, &address).await, "a frozen pod answers");
    test.cluster.thaw_pod(&pod.uid)?;
    test.wait_answers(&address, true).await?;
    test.cluster.pause(&pod.uid)?;
    ensure!(!test.answers(None, &address).await, "a stopped pod answers");
    test.cluster.resume(&pod.uid)?;
    test.wait_answers(&address, true).await?;

    test.cluster.kill_pod(&pod.uid)?;
    wait_until("the killed container to be started again", LIMIT, async || {
        Ok(test.web().await?.iter().any(|now| now.uid == pod.uid && now.restarts == pod.restarts + 1))
    })
    .await?;
    let now = test.web_on("node-1").await?;
    ensure!(now.address == pod.address, "the sandbox was killed too");
    let missing =
        test.cluster.freeze_pod("no-such-uid").await.err().context("froze a pod that does not exist")?;
    ensure!(missing.to_string().contains("no pod with the UID"), "unclear: {missing:#}");
    Ok(())
}

async fn cut_off(test: &Test) -> Result<()> {
    let (one, other) = (test.web_on("node-1").await?, test.web_on("node-2").await?);
    let (one_address, other_address) = (format!("{}:8080", one.address), format!("{}:8080", other.address));
    test.cluster.cut_off("node-1").await?;
    ensure!(!test.answers(None, &one_address).await, "a pod of a cut-off node answers");
    ensure!(!test.answers(Some("node-1"), &other_address).await, "a cut-off node reaches another node's pod");
    ensure!(test.answers(Some("node-1"), &one_address).await, "a cut-off node does not reach its own pod");
    test.cluster.reconnect("node-1").await?;
    test.wait_answers(&one_address, true).await?;

    test.cluster.cut_path("node-1", "node-2").await?;
    ensure!(!test.answers(Some("node-1"), &other_address).await, "a cut path is open");
    ensure!(!test.answers(Some("node-2"), &one_address).await, "a cut path is open the other way");
    ensure!(
        test.answers(None, &one_address).await && test.answers(None, &other_address).await,
        "others are cut too"
    );
    test.cluster.heal_path("node-1", "node-2").await?;
    wait_until("the healed path", LIMIT, async || Ok(test.answers(Some("node-1"), &other_address).await))
        .await?;

    test.cluster.cut_one_way(HOST, "node-1", Some(8080)).await?;
    ensure!(!test.answers(None, &one_address).await, "a cut port is open");
    ensure!(test.answers(Some("node-2"), &one_address).await, "the port is cut for others too");
    test.cluster.heal_one_way(HOST, "node-1", Some(8080)).await?;
    test.wait_answers(&one_address, true).await
}

async fn power_off(test: &Test) -> Result<()> {
    let before = test.web_on("node-2").await?;
    test.cluster.power_off("node-2").await?;
    ensure!(!test.answers(None, &format!("{}:8080", before.address)).await, "a pod without power answers");
    let again = test.cluster.power_off("node-2").await.err().context("powered off twice")?;
    ensure!(again.to_string().contains("powered off already"), "unclear: {again:#}");
    let running = test.cluster.daemons().await?;
    ensure!(
        !running.iter().any(|daemon| daemon.name.ends_with("node-2") && daemon.pid.is_some()),
        "a daemon survived"
    );
    test.cluster.power_on("node-2").await?;
    test.cluster.sign_of_life("node-2", LIMIT).await?;
    wait_until("the pod of the booted node to run again", LIMIT, async || {
        let now = test.web().await?.into_iter().find(|pod| pod.uid == before.uid);
        Ok(match now {
            Some(now) if now.restarts > before.restarts => {
                test.answers(None, &format!("{}:8080", now.address)).await
            }
            _ => false,
        })
    })
    .await?;
    // Its kube-proxy works again, too.
    wait_until("the Service to answer the booted node", LIMIT, async || {
        Ok(test.answers(Some("node-2"), "198.19.1.1").await)
    })
    .await
}

async fn servers(test: &Test) -> Result<()> {
    let database = test.cluster.database();
    let started = || async { database.sql("leadergroup", "SELECT pg_postmaster_start_time()").await };
    let first = started().await?;
    let mut verified = Command::new("psql");
    verified.args([
        &format!("{}?sslmode=verify-full", database.url()),
        "-qAtc",
        "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    ]);
    verified.env("PGSSLROOTCERT", test.cluster.authority());
    ensure!(output(verified, LIMIT).await?.trim() == "t", "the database is not reached by TLS");
    database.restart().await?;
    let second = started().await?;
    ensure!(first != second, "the database was not restarted");
    database.kill().await?;
    ensure!(database.sql("leadergroup", "SELECT 1").await.is_err(), "a killed database answers");
    ensure!(database.kill().await.is_err() && database.stop().await.is_err(), "it is killed twice");
    database.start().await?;
    database.pause().await?;
    let mut ask = Command::new("timeout");
    ask.args(["1", "psql", &test.cluster.database_url(), "-c", "SELECT 1"]);
    ensure!(output(ask, LIMIT).await.is_err(), "a paused database answers");
    database.resume()?;
    ensure!(database.sql("leadergroup", "SELECT 1").await?.trim() == "1");

    let api_server = test.cluster.api_server();
    api_server.kill().await?;
    ensure!(test.pods.list(&ListParams::default()).await.is_err(), "a killed API server answers");
    ensure!(api_server.stop().await.is_err() && api_server.pause().await.is_err(), "it is stopped twice");
    api_server.start().await?;
    api_server.stop().await?;
    test.cluster.cut_path("node-3", DATABASE).await?;
    test.cluster.power_off("node-3").await?;
    test.cluster.heal(LIMIT).await?;
    ensure!(test.pods.list(&ListParams::default()).await?.items.len() >= 3);
    Ok(())
}

/// A daemon joins the cgroup hierarchies one after the other. A clean-up in between must end it.
async fn half_started() -> Result<()> {
    let lock = Lock::take()?;
    let entries = Cgroups::find()?.create_machine("half")?;
    let mut daemon = Command::new("sleep").arg("600").kill_on_drop(true).spawn()?;
    let pid = daemon.id().context("no process id")?;
    std::fs::write(entries.first().context("no hierarchy")?, pid.to_string())?;
    cleanup::remove_all().await?;
    drop(lock);
    ensure!(!daemon.wait().await?.success(), "it was left to run");
    ensure!(leftovers().is_empty(), "left behind: {:#?}", leftovers());
    Ok(())
}

/// If a process dies while it starts a cluster, nothing remains.
async fn killed_owner() -> Result<()> {
    let mut up = Command::new(COMMAND).arg("up").stdout(Stdio::null()).spawn()?;
    wait_until("etcd to be started", LIMIT, async || Ok(!leftovers().is_empty() && leftovers().len() > 10))
        .await?;
    up.kill().await?;
    let gone = wait_until("nothing to be left of it", LIMIT, async || Ok(leftovers().is_empty())).await;
    gone.with_context(|| format!("left behind: {:#?}", leftovers()))
}

/// The next command removes the remains of a killed supervisor.
async fn killed_supervisor() -> Result<()> {
    output(command("up"), LIMIT * 2).await?;
    let pid = Lock::holder()?.context("no supervisor")?;
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("no process id")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    ensure!(leftovers().len() > 10, "the supervisor's death alone took the cluster down");
    output(command("down"), LIMIT).await?;
    ensure!(leftovers().is_empty(), "left behind: {:#?}", leftovers());
    output(command("down"), LIMIT).await.context("down is not idempotent")?;
    Ok(())
}

fn command(action: &str) -> Command {
    let mut command = Command::new(COMMAND);
    command.arg(action);
    command
}
