//! The control plane machine: etcd, API server, controller manager, scheduler and the cluster's DNS server.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::credentials::Credentials;
use crate::machine::{Machines, wait_until};
use crate::network::{CONTROL, CONTROL_ADDRESS, POD_RANGE, SERVICE_RANGE};
use crate::state::RUN_DIR;

/// The URL of etcd and its JSON gateway.
pub const ETCD: &str = "http://198.18.0.10:2379";
/// The name of etcd's daemon.
pub const ETCD_DAEMON: &str = "etcd";
/// The name of the API server's daemon.
pub const API_SERVER_DAEMON: &str = "kube-apiserver";
const DNS_DAEMON: &str = "coredns";
/// Time limit for each part of the control plane to be ready.
pub const READY_LIMIT: Duration = Duration::from_secs(90);

/// Starts etcd and the API server. Returns when the API server is ready.
pub async fn start_api_server(machines: &Machines, credentials: &Credentials) -> Result<()> {
    let data = Path::new(RUN_DIR).join("etcd");
    let etcd = [
        "--name=e2e".to_owned(),
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-cluster=e2e=http://127.0.0.1:2380".to_owned(),
        // Losing a test cluster in a crash of the whole machine does not matter, and fsync would slow down every
        // write.
        "--unsafe-no-fsync".to_owned(),
        "--quota-backend-bytes=8589934592".to_owned(),
    ];
    machines.start(CONTROL, ETCD_DAEMON, "server", &etcd, true).await?;
    let api_server = [
        format!("--advertise-address={CONTROL_ADDRESS}"),
        format!("--etcd-servers={ETCD}"),
        // The history checker reads every revision of every object directly from etcd.
        "--storage-media-type=application/json".to_owned(),
        "--etcd-compaction-interval=0".to_owned(),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        format!("--tls-cert-file={}", credentials.text("apiserver.crt")),
        format!("--tls-private-key-file={}", credentials.text("apiserver.key")),
        format!("--client-ca-file={}", credentials.text("ca.crt")),
        format!("--token-auth-file={}", credentials.text("tokens.csv")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={}", credentials.text("service-account.pub")),
        format!("--service-account-signing-key-file={}", credentials.text("service-account.key")),
        format!("--kubelet-client-certificate={}", credentials.text("kubelet-client.crt")),
        format!("--kubelet-client-key={}", credentials.text("kubelet-client.key")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--allow-privileged=true".to_owned(),
        // Otherwise open watches delay a clean shutdown by a minute.
        "--shutdown-watch-termination-grace-period=1s".to_owned(),
        // No kube-proxy runs on this machine: webhooks are called at their pods' addresses.
        "--enable-aggregator-routing=true".to_owned(),
        format!("--cert-dir={}", credentials.text("generated")),
    ];
    machines.start(CONTROL, API_SERVER_DAEMON, "kube-apiserver", &api_server, true).await
}

/// Starts controller manager, scheduler and DNS server. The API server must be ready.
pub async fn start_controllers(machines: &Machines, credentials: &Credentials) -> Result<()> {
    let kubeconfig = |user| format!("--kubeconfig={}", credentials.kubeconfig(user).display());
    let controller_manager = [
        kubeconfig("kube-controller-manager"),
        format!("--root-ca-file={}", credentials.text("ca.crt")),
        format!("--service-account-private-key-file={}", credentials.text("service-account.key")),
        "--use-service-account-credentials=true".to_owned(),
        format!("--cluster-cidr={POD_RANGE}"),
        "--allocate-node-cidrs=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        // There is only one; with an election it would exit whenever the API server is unavailable.
        "--leader-elect=false".to_owned(),
        format!("--cert-dir={}", credentials.text("generated")),
    ];
    let scheduler = [
        kubeconfig("kube-scheduler"),
        "--bind-address=127.0.0.1".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--cert-dir={}", credentials.text("generated")),
    ];
    machines
        .start(CONTROL, "kube-controller-manager", "kube-controller-manager", &controller_manager, true)
        .await?;
    machines.start(CONTROL, "kube-scheduler", "kube-scheduler", &scheduler, true).await?;
    start_dns(machines, credentials).await
}

async fn start_dns(machines: &Machines, credentials: &Credentials) -> Result<()> {
    let file = Path::new(RUN_DIR).join("Corefile");
    let text = format!(
        ".:53 {{
            bind {CONTROL_ADDRESS}
            errors
            ready {CONTROL_ADDRESS}:8181
            cache 5
            kubernetes cluster.local in-addr.arpa {{
                kubeconfig {} leadergroup-e2e
                pods insecure
                ttl 5
            }}
        }}
        ",
        credentials.kubeconfig("coredns").display()
    );
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    machines
        .start(CONTROL, DNS_DAEMON, "coredns", &["-conf".to_owned(), file.display().to_string()], true)
        .await
}

/// Waits until the cluster's DNS server has all Services.
pub async fn dns_ready() -> Result<()> {
    wait_until("the cluster's DNS server to be ready", READY_LIMIT, async || {
        Ok(http_get(&format!("{CONTROL_ADDRESS}:8181"), "/ready")
            .await
            .is_ok_and(|answer| answer.contains(" 200 ")))
    })
    .await
}

/// A plain HTTP request; returns the whole answer.
async fn http_get(address: &str, path: &str) -> Result<String> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.take(1 << 16).read_to_string(&mut answer).await?;
        Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(2), talk).await?
}
