//! An admission webhook for pods that a test controls: a server of its own that lets changes pass, denies them, fails
//! or hangs.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::Pod,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;

/// The time limit for a change of the configuration to take effect.
const DEADLINE: Duration = Duration::from_mins(1);

/// What the webhook answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It lets the change pass.
    Allow,
    /// It denies the change with this HTTP status.
    Deny(u16),
    /// It fails (HTTP 500).
    Fail,
    /// It accepts the connection and does not answer.
    Hang,
    /// It returns a patch that does not apply to the pod. Only for one that mutates.
    BadPatch,
}

/// Which changes the API server asks about, and what it does without an answer.
pub struct Scope<'a> {
    pub namespace: &'a str,
    /// The labels of the pods.
    pub pods: &'a Value,
    /// Whether it may change the pods.
    pub mutates: bool,
    /// `Fail` or `Ignore`.
    pub failure_policy: &'a str,
    pub timeout_seconds: u32,
}

/// A change of a pod that the API server has asked about.
#[derive(Clone, Debug)]
pub struct Call {
    pub pod: String,
    /// Its labels, and those that it is to have.
    pub labels: [BTreeMap<String, String>; 2],
    pub dry_run: bool,
}

/// A webhook and its configuration in the API server.
pub struct Webhook {
    client: Client,
    namespace: String,
    mutates: bool,
    answer: watch::Sender<Answer>,
    calls: Calls,
    server: AbortHandle,
}

type Calls = Arc<Mutex<Vec<Call>>>;
/// A certificate and its key.
type Pair = (Vec<u8>, Vec<u8>);

impl Webhook {
    /// Starts a server on this address, which the API server must reach, and has it asked about all updates of these
    /// pods. Waits until that is so for `probe`, which is one of them. From then on it lets all changes pass.
    pub async fn start(client: Client, address: IpAddr, scope: &Scope<'_>, probe: &str) -> Result<Self> {
        let (certificate, key) = certificate_for(address)?;
        let (answer, answers) = watch::channel(Answer::Deny(403));
        let calls = Calls::default();
        let listener = TcpListener::bind((address, 0)).await?;
        let url = format!("https://{}/", listener.local_addr()?);
        let server = listen(listener, acceptor(&certificate, &key)?, answers, Arc::clone(&calls));
        let server = tokio::spawn(server).abort_handle();
        let namespace = scope.namespace.to_owned();
        let this = Self { client, namespace, mutates: scope.mutates, answer, calls, server };
        this.create(configuration(scope, &url, &certificate)).await.context("creating the webhook")?;
        this.until(probe, |passes| !passes).await?;
        this.set(Answer::Allow);
        Ok(this)
    }

    /// From now on it answers this. Calls that hang are answered, too.
    pub fn set(&self, answer: Answer) {
        lock(&self.calls).clear();
        self.answer.send_replace(answer);
    }

    /// The calls that have come since the answer was set, in their order.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.calls).clone()
    }

    /// How many there are.
    pub fn asked(&self) -> usize {
        lock(&self.calls).len()
    }

    /// Removes it, and waits until `probe` can be changed again.
    pub async fn lift(self, probe: &str) -> Result<()> {
        self.set(Answer::Deny(403));
        self.delete().await.context("deleting the webhook")?;
        self.until(probe, |passes| passes).await
    }

    async fn create(&self, configuration: Value) -> Result<()> {
        let params = PostParams::default();
        if self.mutates {
            self.mutating().create(&params, &serde_json::from_value(configuration)?).await?;
        } else {
            self.validating().create(&params, &serde_json::from_value(configuration)?).await?;
        }
        Ok(())
    }

    async fn delete(&self) -> Result<()> {
        let params = DeleteParams::default();
        if self.mutates {
            self.mutating().delete(&self.namespace, &params).await?;
        } else {
            self.validating().delete(&self.namespace, &params).await?;
        }
        Ok(())
    }

    fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    fn validating(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    /// A configuration takes effect a moment after it was written.
    async fn until(&self, pod: &str, wanted: impl Fn(bool) -> bool) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let change = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/probe": "1" } } }));
        let start = Instant::now();
        while !wanted(pods.patch(pod, &params, &change).await.is_ok()) {
            ensure!(
                start.elapsed() < DEADLINE,
                "the webhook is not in force, or still is, after {DEADLINE:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn configuration(scope: &Scope<'_>, url: &str, certificate: &[u8]) -> Value {
    json!({
        "metadata": { "name": scope.namespace },
        "webhooks": [{
            "name": "pods.webhook.test",
            "clientConfig": { "url": url, "caBundle": k8s_openapi::ByteString(certificate.to_vec()) },
            "rules": [
                { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"] }
            ],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": scope.namespace } },
            "objectSelector": { "matchLabels": scope.pods },
            "failurePolicy": scope.failure_policy,
            "timeoutSeconds": scope.timeout_seconds,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"]
        }]
    })
}

/// The same for all webhooks at this address.
fn certificate_for(address: IpAddr) -> Result<Pair> {
    static MADE: Mutex<BTreeMap<IpAddr, Pair>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pair) = made.get(&address) {
        return Ok(pair.clone());
    }
    let pair = certificate(address)?;
    made.insert(address, pair.clone());
    Ok(pair)
}

/// A certificate for this address that is its own authority, and its key.
fn certificate(address: IpAddr) -> Result<Pair> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("openssl.cnf"), "[req]\ndistinguished_name = name\n[name]\n")?;
    let output = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "30",
        ])
        .args(["-subj", "/CN=webhook", "-addext"])
        .arg(format!("subjectAltName=IP:{address}"))
        .args(["-addext", "basicConstraints=critical,CA:TRUE", "-config"])
        .arg(path("openssl.cnf"))
        .arg("-keyout")
        .arg(path("key"))
        .arg("-out")
        .arg(path("certificate"))
        .output()
        .context("the tests need the program openssl: install the package of that name")?;
    ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    Ok((std::fs::read(path("certificate"))?, std::fs::read(path("key"))?))
}

fn acceptor(certificate: &[u8], key: &[u8]) -> Result<TlsAcceptor> {
    let chain = vec![CertificateDer::from_pem_slice(certificate)?];
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key)?)))
}

fn lock(calls: &Calls) -> std::sync::MutexGuard<'_, Vec<Call>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn call(request: &Value) -> Call {
    let labels =
        |of: &str| serde_json::from_value(request[of]["metadata"]["labels"].clone()).unwrap_or_default();
    Call {
        pod: request["name"].as_str().unwrap_or_default().to_owned(),
        labels: [labels("oldObject"), labels("object")],
        dry_run: request["dryRun"] == true,
    }
}

async fn listen(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    answers: watch::Receiver<Answer>,
    calls: Calls,
) {
    // Ends the calls under way with the server.
    let mut under_way = tokio::task::JoinSet::new();
    loop {
        let accepted: std::io::Result<(TcpStream, SocketAddr)> = listener.accept().await;
        let Ok((stream, _)) = accepted else { continue };
        let (acceptor, answers, calls) = (acceptor.clone(), answers.clone(), Arc::clone(&calls));
        // A call that ends early is the other side's business.
        under_way.spawn(async move { drop(reply(stream, acceptor, answers, &calls).await) });
        while under_way.try_join_next().is_some() {}
    }
}

/// Answers one call, and closes the connection.
async fn reply(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    mut answers: watch::Receiver<Answer>,
    calls: &Calls,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let (mut line, mut length) = (String::new(), 0);
    while stream.read_line(&mut line).await? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body)?;
    lock(calls).push(call(&review["request"]));
    let waited = answers.wait_for(|answer| *answer != Answer::Hang).await.map(|answer| *answer);
    let Ok(answer) = waited else { return Ok(()) };
    let allowed = matches!(answer, Answer::Allow | Answer::BadPatch);
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": allowed });
    if answer == Answer::BadPatch {
        let patch = json!([{ "op": "replace", "path": "/metadata/absent/name", "value": "x" }]);
        response["patchType"] = "JSONPatch".into();
        response["patch"] = json!(k8s_openapi::ByteString(patch.to_string().into_bytes()));
    }
    if let Answer::Deny(code) = answer {
        response["status"] = json!({ "code": code, "message": "the test says no" });
    }
    let status = if answer == Answer::Fail { "500 Internal Server Error" } else { "200 OK" };
    let text =
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
    let text = text.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(format!("{head}{text}").as_bytes()).await?;
    stream.shutdown().await
}
