//! An admission webhook for pods that a test controls: a server of its own that lets changes pass, denies them, fails
//! or hangs.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Pod};
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
}

/// Which changes the API server asks about, and what it does without an answer.
pub struct Scope<'a> {
    pub namespace: &'a str,
    /// The labels of the pods.
    pub pods: &'a Value,
    /// `Fail` or `Ignore`.
    pub failure_policy: &'a str,
    pub timeout_seconds: u32,
}

/// A webhook and its configuration in the API server.
pub struct Webhook {
    client: Client,
    namespace: String,
    answer: watch::Sender<Answer>,
    server: AbortHandle,
}

impl Webhook {
    /// Starts a server on this address, which the API server must reach, and has it asked about all updates of these
    /// pods. Waits until that is so for `probe`, which is one of them. From then on it lets all changes pass.
    pub async fn start(client: Client, address: IpAddr, scope: &Scope<'_>, probe: &str) -> Self {
        let (certificate, key) = certificate(address);
        let (answer, answers) = watch::channel(Answer::Deny(403));
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let server = tokio::spawn(listen(listener, acceptor(&certificate, &key), answers)).abort_handle();
        let this = Self { client, namespace: scope.namespace.to_owned(), answer, server };
        let configuration = configuration(scope, &url, &certificate);
        Api::all(this.client.clone()).create(&PostParams::default(), &configuration).await.unwrap();
        this.until(probe, |passes| !passes).await;
        this.set(Answer::Allow);
        this
    }

    /// From now on it answers this. Calls that hang are answered, too.
    pub fn set(&self, answer: Answer) {
        self.answer.send_replace(answer);
    }

    /// Removes it, and waits until `probe` can be changed again.
    pub async fn lift(self, probe: &str) {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        self.set(Answer::Deny(403));
        configurations.delete(&self.namespace, &DeleteParams::default()).await.unwrap();
        self.until(probe, |passes| passes).await;
    }

    /// A configuration takes effect a moment after it was written.
    async fn until(&self, pod: &str, wanted: impl Fn(bool) -> bool) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let change = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/probe": "1" } } }));
        let start = Instant::now();
        while !wanted(pods.patch(pod, &params, &change).await.is_ok()) {
            assert!(
                start.elapsed() < DEADLINE,
                "the webhook is not in force, or still is, after {DEADLINE:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn configuration(scope: &Scope<'_>, url: &str, certificate: &[u8]) -> ValidatingWebhookConfiguration {
    let configuration = json!({
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
    });
    serde_json::from_value(configuration).unwrap()
}

/// A certificate for this address that is its own authority, and its key.
fn certificate(address: IpAddr) -> (Vec<u8>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("openssl.cnf"), "[req]\ndistinguished_name = name\n[name]\n").unwrap();
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
        .expect("the tests need the program openssl: install the package of that name");
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    (std::fs::read(path("certificate")).unwrap(), std::fs::read(path("key")).unwrap())
}

fn acceptor(certificate: &[u8], key: &[u8]) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
}

async fn listen(listener: TcpListener, acceptor: TlsAcceptor, answers: watch::Receiver<Answer>) {
    // Ends the calls under way with the server.
    let mut calls = tokio::task::JoinSet::new();
    loop {
        let accepted: std::io::Result<(TcpStream, SocketAddr)> = listener.accept().await;
        let Ok((stream, _)) = accepted else { continue };
        let (acceptor, answers) = (acceptor.clone(), answers.clone());
        // A call that ends early is the other side's business.
        calls.spawn(async move { drop(reply(stream, acceptor, answers).await) });
        while calls.try_join_next().is_some() {}
    }
}

/// Answers one call, and closes the connection.
async fn reply(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    mut answers: watch::Receiver<Answer>,
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
    let waited = answers.wait_for(|answer| *answer != Answer::Hang).await.map(|answer| *answer);
    let Ok(answer) = waited else { return Ok(()) };
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": answer == Answer::Allow });
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
