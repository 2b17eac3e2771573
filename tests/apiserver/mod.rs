//! A temporary Kubernetes API server for tests: a real kube-apiserver with a real etcd on loopback, with the CRD
//! installed. There are no controllers and no nodes, so pods stay as the tests write them.
//!
//! All tests of a binary share one server ([`ApiServer::shared`]); each test gets its own namespace. A watcher
//! process ends the servers and removes their directory when the test process ends for any reason.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test's support fails by panicking")]

pub mod admission;
pub mod programs;
pub mod webhook;

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use leadergroup::api::LeaderGroup;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::OnceCell;

/// Time limit for every operation here.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// A running or stopped API server with its own etcd.
pub struct ApiServer {
    directory: PathBuf,
    address: Ipv4Addr,
    port: u16,
    extra: Vec<String>,
    etcd: Mutex<Option<Child>>,
    server: Mutex<Option<Child>>,
    /// Ends both servers when its standard input is closed, which also happens when this process ends.
    watcher: Option<Child>,
}

impl ApiServer {
    /// The server that all tests of this binary share. Do not stop it.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<ApiServer> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start(&[])).await
    }

    /// A separate server with additional arguments, which can be stopped and started again.
    pub async fn start(arguments: &[&str]) -> Self {
        static STARTED: AtomicU16 = AtomicU16::new(0);
        let directory = tempfile::Builder::new().prefix("leadergroup-api-").tempdir().unwrap().keep();
        let server = Self {
            watcher: Some(watcher(&directory)),
            // Each process has its own address and each server its own ports, so that they stay free while the server
            // is stopped.
            address: loopback_address(),
            port: 20_000 + 10 * STARTED.fetch_add(1, Ordering::Relaxed),
            directory,
            extra: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            etcd: Mutex::new(None),
            server: Mutex::new(None),
        };
        server.write_credentials();
        *server.etcd.lock().unwrap() = Some(server.spawn("etcd", server.etcd_command()));
        server.launch().await;
        server.install_definition().await;
        server
    }

    /// A client as cluster administrator. It belongs to the runtime of the calling test.
    pub async fn client(&self) -> Client {
        Client::try_from(self.config().await).unwrap()
    }

    /// A client that impersonates another user.
    pub async fn client_as(&self, user: &str) -> Client {
        let mut config = self.config().await;
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).unwrap()
    }

    /// The client configuration of the cluster administrator.
    pub async fn config(&self) -> Config {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).unwrap();
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
    }

    /// A kubeconfig file of the cluster administrator, for other programs.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where etcd can be asked directly: every revision is kept, objects are JSON.
    pub fn etcd_url(&self) -> String {
        format!("http://{}:{}", self.address, self.port + 1)
    }

    /// Creates a namespace with a new, unused name that begins with `name`.
    pub async fn namespace(&self, name: &str) -> String {
        let namespaces: Api<Namespace> = Api::all(self.client().await);
        let mut namespace = Namespace::default();
        namespace.metadata.generate_name = Some(format!("{name}-"));
        namespaces.create(&PostParams::default(), &namespace).await.unwrap().metadata.name.unwrap()
    }

    /// Starts the API server's process and waits until it is ready. Does nothing if it is running.
    pub async fn launch(&self) {
        {
            let mut server = self.server.lock().unwrap();
            if server.is_none() {
                *server = Some(self.spawn("kube-apiserver", self.server_command()));
            }
        }
        let start = Instant::now();
        while !self.is_ready().await {
            let ended = self.server.lock().unwrap().as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "kube-apiserver ended while starting, {ended:?}: {}", self.log());
            assert!(
                start.elapsed() < DEADLINE,
                "kube-apiserver is not ready within {DEADLINE:?}: {}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the API server's process at once, as a crash does. etcd stays.
    pub fn kill(&self) {
        if let Some(mut child) = self.server.lock().unwrap().take() {
            // First remove the file, so that the watcher cannot kill another process that has got the same id.
            fs::remove_file(self.directory.join("kube-apiserver.pid")).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Freezes the API server: connections stay open, but it does not answer.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a frozen API server.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// The last log lines of the servers.
    pub fn log(&self) -> String {
        let tail = |program: &str| {
            let log = fs::read_to_string(self.directory.join(format!("{program}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        format!("etcd:\n{}\nkube-apiserver:\n{}", tail("etcd"), tail("kube-apiserver"))
    }

    fn signal(&self, signal: Signal) {
        let server = self.server.lock().unwrap();
        let child = server.as_ref().expect("the server runs");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    async fn is_ready(&self) -> bool {
        // The server writes its certificate during the start; before that no connection is possible.
        if !self.directory.join("certificates/apiserver.crt").exists() {
            return false;
        }
        let Ok(client) = Client::try_from(self.config().await) else { return false };
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        client.request_text(request).await.is_ok_and(|answer| answer == "ok")
    }

    /// Removes all validation from the CRD: from now on this server stores anything as a group, as with a CRD of a
    /// newer version. Not for the shared server.
    pub async fn take_validation_off(&self) {
        let anything = serde_json::json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let mut definition = definition();
        let version = &mut definition.spec.versions[0];
        version.schema =
            Some(serde_json::from_value(serde_json::json!({ "openAPIV3Schema": anything })).unwrap());
        self.apply_definition(definition).await;
        self.until_anything_is_stored(true).await;
    }

    /// Restores the validation; stored objects stay as they are.
    pub async fn put_validation_on(&self) {
        self.apply_definition(definition()).await;
        self.until_anything_is_stored(false).await;
    }

    /// Waits until an invalid group is accepted, or refused.
    async fn until_anything_is_stored(&self, accepted: bool) {
        let resource = ApiResource::erase::<LeaderGroup>(&());
        let group = DynamicObject::new("odd", &resource);
        let group = group.data(serde_json::json!({ "spec": { "deletionPolicy": "Explode" } }));
        let groups: Api<DynamicObject> = Api::namespaced_with(self.client().await, "default", &resource);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let start = Instant::now();
        while groups.create(&params, &group).await.is_ok() != accepted {
            assert!(start.elapsed() < DEADLINE, "the definition is not in force within {DEADLINE:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn apply_definition(&self, definition: CustomResourceDefinition) {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client().await);
        let name = definition.metadata.name.clone().unwrap();
        let params = PatchParams::apply("tests").force();
        definitions.patch(&name, &params, &Patch::Apply(definition)).await.unwrap();
    }

    async fn install_definition(&self) {
        self.apply_definition(definition()).await;
        let client = self.client().await;
        let start = Instant::now();
        // Requests are served a moment after the condition Established is set.
        while client.list_api_group_resources("leadergroup.dev/v1alpha1").await.is_err() {
            assert!(start.elapsed() < DEADLINE, "the custom resource is not served within {DEADLINE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn write_credentials(&self) {
        let output = Command::new("openssl")
            .args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"])
            .arg(self.directory.join("service-account.key"))
            .output()
            .expect("the tests need the program openssl: install the package of that name");
        assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
        let token = uuid::Uuid::new_v4();
        fs::write(self.directory.join("tokens.csv"), format!("{token},admin,admin,system:masters\n"))
            .unwrap();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters:\n- name: test\n  cluster:\n    server: https://{}:{}\n    certificate-authority: {}\n\
             users:\n- name: admin\n  user: {{token: {token}}}\n\
             contexts:\n- name: test\n  context: {{cluster: test, user: admin}}\n",
            self.address,
            self.port,
            self.directory.join("certificates/apiserver.crt").display(),
        );
        fs::write(self.kubeconfig(), kubeconfig).unwrap();
    }

    fn etcd_command(&self) -> Command {
        let mut command = Command::new(programs::find(&["etcd", "server"]));
        let peers = format!("http://{}:{}", self.address, self.port + 2);
        command
            .arg(format!("--data-dir={}", self.directory.join("etcd").display()))
            .arg(format!("--listen-client-urls={}", self.etcd_url()))
            .arg(format!("--advertise-client-urls={}", self.etcd_url()))
            .arg(format!("--listen-peer-urls={peers}"))
            .arg(format!("--initial-advertise-peer-urls={peers}"))
            .arg(format!("--initial-cluster=default={peers}"))
            .arg("--unsafe-no-fsync");
        command
    }

    fn server_command(&self) -> Command {
        let mut command = Command::new(programs::find(&["kube-apiserver"]));
        let path = |name: &str| self.directory.join(name).display().to_string();
        let key = path("service-account.key");
        command
            .arg(format!("--etcd-servers={}", self.etcd_url()))
            .arg("--etcd-compaction-interval=0")
            .arg("--storage-media-type=application/json")
            .arg(format!("--bind-address={}", self.address))
            .arg(format!("--secure-port={}", self.port))
            // This address is not used, but without it the server requires a network interface besides loopback.
            .args(["--advertise-address=198.18.0.1", "--endpoint-reconciler-type=none"])
            // A second family for dual-stack Services, of a block that is reserved for documentation.
            .arg("--service-cluster-ip-range=198.19.0.0/24,2001:db8:198::/112")
            .arg(format!("--cert-dir={}", path("certificates")))
            .arg(format!("--token-auth-file={}", path("tokens.csv")))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!("--service-account-key-file={key}"))
            .arg(format!("--service-account-signing-key-file={key}"))
            .arg("--authorization-mode=RBAC")
            // There is no controller that creates service accounts, but the tests need pods.
            .arg("--disable-admission-plugins=ServiceAccount")
            .args(&self.extra);
        command
    }

    /// Starts the program in its own process group, so that Ctrl-C reaches only the tests.
    fn spawn(&self, name: &str, mut command: Command) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.directory.join(format!("{name}.log")))
            .unwrap();
        let child = command
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        fs::write(self.directory.join(format!("{name}.pid")), child.id().to_string()).unwrap();
        child
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(mut watcher) = self.watcher.take() {
            drop(watcher.stdin.take());
            // Reap the servers here, so that the watcher sees their end.
            for child in [&self.server, &self.etcd] {
                if let Some(mut child) = child.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    child.wait().unwrap();
                }
            }
            watcher.wait().unwrap();
        }
    }
}

/// The CRD as shipped.
fn definition() -> CustomResourceDefinition {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds/leadergroups.yaml");
    serde_saphyr::from_str(&fs::read_to_string(manifest).unwrap()).unwrap()
}

/// A loopback address that no other process uses, derived from the process id.
fn loopback_address() -> Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | a, b, c)
}

/// Starts a process that ends the servers and removes everything when this process has ended.
fn watcher(directory: &Path) -> Child {
    const SCRIPT: &str = r#"
        cat > /dev/null
        for program in kube-apiserver etcd; do
            pid=$(cat "$1/$program.pid" 2> /dev/null) || continue
            kill -KILL "$pid" 2> /dev/null
            while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
        done
        rm -rf "$1"
    "#;
    Command::new("sh")
        .args(["-c", SCRIPT, "sh"])
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap()
}
