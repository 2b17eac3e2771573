//! The cluster as a whole: start it, find a running one, and use it in tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node as ApiNode, PersistentVolume, ServiceAccount};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ListParams, PostParams};
use kube::config::KubeConfigOptions;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::cgroup::Cgroups;
use crate::command::progress;
use crate::config::Config;
use crate::control_plane::{self, READY_LIMIT};
use crate::credentials::Credentials;
use crate::database::Database;
use crate::images::{self, Image};
use crate::machine::{Machines, wait_until};
use crate::network::{self, Machine};
use crate::node::{Node, VOLUMES};
use crate::programs;
use crate::state::{self, Lock, RUN_DIR, State, socket};
use crate::supervisor::{Request, ask};

/// Time limit for taking a cluster down.
const DOWN_LIMIT: Duration = Duration::from_mins(2);
/// How often to check during the start that all daemons are still running.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// A running cluster of our own.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) state: State,
    pub(crate) machines: Machines,
    /// The supervisor, if this value owns the cluster. It takes the cluster down when its standard input is closed.
    supervisor: Option<Child>,
}

impl Cluster {
    /// Builds missing programs, starts a cluster, and waits until every node is Ready. The cluster is taken down by
    /// [`Cluster::stop`], or when this process ends for any reason, unless [`Cluster::detach`] was called.
    pub async fn start(config: Config) -> Result<Self> {
        if config.nodes == 0 || config.nodes > network::MAX_NODES {
            bail!("a cluster has 1 to {} nodes", network::MAX_NODES);
        }
        let cgroups = crate::cleanup::check_machine().await?;
        programs::ensure_packages().await?;
        let programs = programs::build(&state::cache()?).await?;
        // Wait for a cluster that is being taken down. For a running cluster, taking the lock fails with a message.
        let gone = async || Ok(Lock::holder()?.is_none() || socket().exists());
        wait_until("an earlier cluster to be taken down", DOWN_LIMIT, gone).await?;
        let started = Instant::now();
        let supervisor = start_supervisor().await?;
        let machines = Machines { programs: programs.clone(), cgroups, logs: state::logs()? };
        let state = State {
            logs: machines.logs.clone(),
            nodes: (1..=config.nodes).map(Machine::node).collect(),
            config,
            programs,
            database_password: uuid::Uuid::new_v4().simple().to_string(),
        };
        let cluster = Self { state, machines, supervisor: Some(supervisor) };
        match Box::pin(cluster.bring_up()).await {
            Ok(()) => {
                progress(&format!("the cluster is up after {:.1} s", started.elapsed().as_secs_f64()));
                Ok(cluster)
            }
            Err(error) => {
                let hint = format!("the cluster did not start; logs are in {}", cluster.state.logs.display());
                let _ = cluster.stop().await;
                Err(error.context(hint))
            }
        }
    }

    /// The cluster that is already running on this machine, started by this process or another.
    pub fn attach() -> Result<Self> {
        let state = State::load()?;
        let machines = Machines {
            programs: state.programs.clone(),
            cgroups: Cgroups::find()?,
            logs: state.logs.clone(),
        };
        Ok(Self { state, machines, supervisor: None })
    }

    /// The running cluster if there is one, otherwise a new one with the default settings that lives as long as this
    /// value. One that is being taken down has no socket any more.
    pub async fn attach_or_start() -> Result<Self> {
        match Lock::holder()? {
            Some(_) if socket().exists() => Self::attach(),
            _ => Box::pin(Self::start(Config::default())).await,
        }
    }

    /// Keeps the cluster running after this process ends.
    pub async fn detach(mut self) -> Result<()> {
        ask(&socket(), &Request::Detach, DOWN_LIMIT).await?;
        self.supervisor = None;
        Ok(())
    }

    /// Takes the cluster down and waits until it is completely removed.
    pub async fn stop(mut self) -> Result<()> {
        ask(&socket(), &Request::Shutdown, DOWN_LIMIT).await?;
        if let Some(mut supervisor) = self.supervisor.take() {
            tokio::time::timeout(DOWN_LIMIT, supervisor.wait())
                .await
                .context("the supervisor does not end")??;
        }
        Ok(())
    }

    /// A kubeconfig file of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        Self::credentials().kubeconfig("admin")
    }

    /// A client of an administrator.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig()).await
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Machine] {
        &self.state.nodes
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Result<&Machine> {
        let names = || self.nodes().iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        self.nodes()
            .iter()
            .find(|node| node.name == name)
            .with_context(|| format!("no node {name:?}, only {}", names()))
    }

    /// The database server.
    pub fn database(&self) -> Database {
        Database::new(self.machines.clone(), self.state.database_password.clone())
    }

    /// The URL of the operator's database, from the host.
    pub fn database_url(&self) -> String {
        self.database().url()
    }

    /// The URL of the operator's database for pods. It is the same, because pods and host share the network of the
    /// cluster.
    pub fn database_url_in_cluster(&self) -> String {
        self.database().url()
    }

    /// The certificate of the authority that signed the database server's and the API server's.
    pub fn authority(&self) -> PathBuf {
        Self::credentials().path("ca.crt")
    }

    /// etcd's address, for its JSON gateway (`/v3/kv/range`, `/v3/watch`).
    pub fn etcd_url(&self) -> &'static str {
        control_plane::ETCD
    }

    /// The built programs.
    pub fn programs(&self) -> &programs::Programs {
        &self.state.programs
    }

    /// One of the built programs, such as `kubectl` or `helm`.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        self.state.programs.path(name)
    }

    /// The directory with the daemons' logs.
    pub fn logs(&self) -> &Path {
        &self.state.logs
    }

    /// The daemons of all machines: their names, process ids, and how often they ended by themselves.
    pub async fn daemons(&self) -> Result<Vec<crate::supervisor::Listed>> {
        self.machines.daemons().await
    }

    /// Builds an image and loads it on every node that is powered on.
    pub async fn load_image(&self, image: &Image) -> Result<()> {
        let folder = Path::new(RUN_DIR).join("images");
        fs::create_dir_all(&folder)?;
        let archive = images::pack(image, &folder).await?;
        self.load_archive(&archive).await
    }

    /// Loads the images of an archive on every node that has power.
    pub async fn load_archive(&self, archive: &Path) -> Result<()> {
        let on = self.nodes().iter().filter(|node| self.has_power(&node.name));
        let imports =
            on.map(|machine| self.as_node(machine)).map(|node| async move { node.import(archive).await });
        try_join_all(imports).await?;
        Ok(())
    }

    /// Changes kube-proxy's `minSyncPeriod` on every node, until it is changed again or the cluster ends.
    pub async fn set_proxy_min_sync_period(&self, period: Duration) -> Result<()> {
        let credentials = Self::credentials();
        try_join_all(self.nodes().iter().map(|machine| self.as_node(machine)).map(|node| {
            let credentials = &credentials;
            async move {
                node.write_proxy_settings(credentials, period)?;
                node.restart_proxy().await
            }
        }))
        .await?;
        Ok(())
    }

    /// Waits until every node is Ready.
    pub async fn nodes_ready(&self, limit: Duration) -> Result<()> {
        let nodes: Api<ApiNode> = Api::all(self.client().await?);
        let wanted = self.nodes().len();
        wait_until("every node to be Ready", limit, async || {
            let list = nodes.list(&ListParams::default()).await?;
            Ok(list.items.iter().filter(|node| is_ready(node)).count() == wanted)
        })
        .await
    }

    /// Waits for a new heartbeat of a node's kubelet. After a power-on, the condition Ready may still be the one from
    /// before the power-off.
    pub async fn sign_of_life(&self, node: &str, limit: Duration) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client().await?, "kube-node-lease");
        let renewed = async || -> Result<_> {
            Ok(leases.get_opt(node).await?.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time))
        };
        let before = renewed().await?;
        wait_until(&format!("a sign of life of {node}"), limit, async || Ok(renewed().await? != before)).await
    }

    pub(crate) fn credentials() -> Credentials {
        Credentials::at(&Path::new(RUN_DIR).join("credentials"))
    }

    pub(crate) fn as_node<'a>(&'a self, machine: &'a Machine) -> Node<'a> {
        Node { machine, machines: &self.machines }
    }

    async fn bring_up(&self) -> Result<()> {
        let nodes = &self.state.nodes;
        let machines: Vec<Machine> =
            [Machine::control(), Machine::database()].into_iter().chain(nodes.clone()).collect();
        let network = async {
            network::create_switch(nodes).await?;
            try_join_all(machines.iter().map(|machine| network::create_machine(machine, nodes))).await
        };
        let folder = Path::new(RUN_DIR).join("credentials");
        let (_, credentials) = tokio::try_join!(network, Credentials::create(&folder, nodes))?;
        let control = async {
            control_plane::start_api_server(&self.machines, &credentials).await?;
            self.api_server_ready().await?;
            control_plane::start_controllers(&self.machines, &credentials).await?;
            let starts = nodes.iter().map(|machine| async {
                let node = self.as_node(machine);
                node.write_proxy_settings(&credentials, self.state.config.proxy_min_sync_period)?;
                wait_until("containerd", READY_LIMIT, async || {
                    Ok(node.folder().join("run/containerd.sock").exists())
                })
                .await?;
                node.start_kubelet(&credentials).await
            });
            tokio::try_join!(try_join_all(starts), self.create_storage())?;
            Ok::<_, anyhow::Error>(())
        };
        let containerds = async {
            let starts = nodes.iter().map(|machine| async { self.as_node(machine).start_containerd().await });
            try_join_all(starts).await?;
            let mut images = Image::standard();
            images.extend(self.state.config.images.clone());
            for image in &images {
                self.load_image(image).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let database = self.database();
        let work = async {
            tokio::try_join!(control, containerds, database.create(&credentials))?;
            self.nodes_ready(READY_LIMIT).await?;
            control_plane::dns_ready().await?;
            self.service_account_ready().await
        };
        // Without this, a daemon that ends would only show as a long wait for something else.
        let watch = async {
            loop {
                tokio::time::sleep(CHECK_EVERY).await;
                self.machines.check_daemons().await?;
            }
        };
        tokio::select! {
            result = work => result?,
            failed = watch => return failed,
        }
        self.state.save()
    }

    /// Waits until the API server reports that it is ready.
    pub async fn api_server_ready(&self) -> Result<()> {
        let client = self.client().await?;
        wait_until("the API server to be ready", READY_LIMIT, async || {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            let answer = tokio::time::timeout(Duration::from_secs(2), client.request_text(request)).await;
            Ok(matches!(answer, Ok(Ok(text)) if text == "ok"))
        })
        .await
    }

    /// Waits for the default service account, without which no pod can be created in a namespace.
    async fn service_account_ready(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        wait_until("the default service account", READY_LIMIT, async || {
            Ok(accounts.get_opt("default").await?.is_some())
        })
        .await
    }

    /// Creates a default `StorageClass` and volumes on each node, so that a chart's `PersistentVolumeClaim` can be
    /// bound.
    async fn create_storage(&self) -> Result<()> {
        let client = self.client().await?;
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": { "name": "standard", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }))?;
        Api::all(client.clone())
            .create(&PostParams::default(), &class)
            .await
            .context("creating the StorageClass")?;
        let volumes: Api<PersistentVolume> = Api::all(client);
        for machine in self.nodes() {
            for number in 1..=VOLUMES {
                let volume: PersistentVolume = serde_json::from_value(json!({
                    "metadata": { "name": format!("{}-{number}", machine.name) },
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "capacity": { "storage": "10Gi" },
                        "local": { "path": self.as_node(machine).volume(number)? },
                        "persistentVolumeReclaimPolicy": "Retain",
                        "storageClassName": "standard",
                        "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                            { "key": "kubernetes.io/hostname", "operator": "In", "values": [machine.name] },
                        ] }] } },
                    },
                }))?;
                volumes.create(&PostParams::default(), &volume).await.context("creating a volume")?;
            }
        }
        Ok(())
    }
}

/// A client for a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig =
        kube::config::Kubeconfig::read_from(kubeconfig).context("reading the kubeconfig file")?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Whether a node's condition Ready is True.
pub fn is_ready(node: &ApiNode) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// Starts the supervisor. Returns when it has cleaned up after an earlier cluster and accepts requests.
async fn start_supervisor() -> Result<Child> {
    let mut supervisor = Command::new(supervisor_program()?)
        .arg("supervise")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot start the supervisor")?;
    let mut line = String::new();
    let mut stdout = BufReader::new(supervisor.stdout.take().context("no stdout")?);
    tokio::time::timeout(DOWN_LIMIT, stdout.read_line(&mut line))
        .await
        .context("the supervisor says nothing")??;
    match line.trim() {
        "ready" => Ok(supervisor),
        "" => bail!(
            "the supervisor ended at once: run `{} supervise` to see why",
            supervisor_program()?.display()
        ),
        problem => bail!("{problem}"),
    }
}

/// The command of this crate: this program itself, or the one that Cargo built next to a test.
fn supervisor_program() -> Result<PathBuf> {
    const NAME: &str = "leadergroup-e2e";
    let this = std::env::current_exe().context("cannot tell which program this is")?;
    if this.file_stem().is_some_and(|name| name == NAME) {
        return Ok(this);
    }
    let beside = this.ancestors().skip(1).take(2).map(|folder| folder.join(NAME)).find(|path| path.is_file());
    beside.with_context(|| {
        format!("{NAME} is not beside {}: build it with `cargo build -p {NAME}`", this.display())
    })
}
