//! A replica whose watches are late: a proxy between it and the API server, which passes every request and holds back
//! what chosen watches show.

use std::{collections::BTreeSet, fs, path::PathBuf, sync::Arc};

use kube::client::ConfigExt as _;
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};
use tokio_rustls::TlsConnector;

use crate::apiserver::ApiServer;

type Held = BTreeSet<&'static str>;

/// The proxy. It speaks HTTP/1.1 without TLS, so that each watch has a connection of its own, and can be told from
/// other calls.
pub(crate) struct Proxy {
    directory: TempDir,
    held: watch::Sender<Held>,
    task: AbortHandle,
}

impl Proxy {
    pub(crate) async fn before(server: &ApiServer) -> Self {
        let mut tls = server.config().await.rustls_client_config().unwrap();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let direct = fs::read_to_string(server.kubeconfig()).unwrap();
        let url = direct.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
        let address = url.strip_prefix("https://").unwrap().to_owned();
        let directory = tempfile::tempdir().unwrap();
        let through = direct.replace(url, &format!("http://{}", listener.local_addr().unwrap()));
        fs::write(directory.path().join("kubeconfig"), through).unwrap();
        let held = watch::Sender::new(Held::new());
        let task = tokio::spawn(accept(listener, address, TlsConnector::from(Arc::new(tls)), held.clone()));
        Self { directory, held, task: task.abort_handle() }
    }

    /// A kubeconfig file for programs that are to use the proxy.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// From now on nothing that happens to objects of this kind, such as `pods`, is shown by a watch.
    pub(crate) fn hold(&self, kind: &'static str) {
        self.held.send_modify(|held| {
            held.insert(kind);
        });
    }

    /// The watches show what they have held back, and go on.
    pub(crate) fn release(&self) {
        self.held.send_modify(Held::clear);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, address: String, tls: TlsConnector, held: watch::Sender<Held>) {
    // Ends the connections with the proxy.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let (address, tls, held) = (address.clone(), tls.clone(), held.subscribe());
        // A connection that breaks is the other side's business.
        connections.spawn(async move { drop(serve(near, &address, &tls, held).await) });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(
    near: TcpStream,
    address: &str,
    tls: &TlsConnector,
    held: watch::Receiver<Held>,
) -> std::io::Result<()> {
    let far = TcpStream::connect(address).await?;
    let name = ServerName::IpAddress(far.peer_addr()?.ip().into());
    let far = tls.connect(name, far).await?;
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), split(far));
    let asked = watch::Sender::new(None);
    tokio::select! {
        done = requests(near_in, far_out, &asked) => done,
        done = answers(far_in, near_out, asked.subscribe(), held) => done,
    }
}

/// Passes requests on, and notes what the present one watches. Each begins when the one before has been answered.
async fn requests(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    asked: &watch::Sender<Option<String>>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut buffer).await?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else { return Ok(()) };
        if read.starts_with(b"GET ") {
            asked.send_replace(watched(read));
        }
        to.write_all(read).await?;
        to.flush().await?;
    }
}

/// The kind of the objects that a request watches, such as `pods`.
fn watched(request: &[u8]) -> Option<String> {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let target = std::str::from_utf8(line).ok()?.split(' ').nth(1)?;
    let (path, query) = target.split_once('?')?;
    query.contains("watch=true").then(|| path.rsplit('/').next().unwrap_or_default().to_owned())
}

/// Passes answers on, but for those of watches that are held.
async fn answers(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    asked: watch::Receiver<Option<String>>,
    mut held: watch::Receiver<Held>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut buffer).await?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else { return Ok(()) };
        let kind = asked.borrow().clone();
        let passes = |held: &Held| kind.as_deref().is_none_or(|kind| !held.contains(kind));
        if held.wait_for(passes).await.is_err() {
            return Ok(());
        }
        to.write_all(read).await?;
    }
}
