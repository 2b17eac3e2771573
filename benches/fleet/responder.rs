//! Stands for the programs in all pods: one thread answers every probe, late or never where a pod is slow or hangs.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

use crate::network::PORT;

/// Connections that wait while the thread is busy. A full queue would look like silent pods.
const BACKLOG: u32 = 4096;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Answers the probes of all pods.
#[derive(Clone, Default)]
pub(crate) struct Responder(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// How long the answers of some pods take.
    delays: RwLock<HashMap<Ipv4Addr, Duration>>,
    /// When a request to each pod that was answered last had arrived.
    heard: Mutex<HashMap<Ipv4Addr, Instant>>,
    answered: AtomicU64,
}

impl Responder {
    pub(crate) fn start() -> Result<Self> {
        let responder = Self::default();
        let shared = Arc::clone(&responder.0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let entered = runtime.enter();
        let listener = listen().context("listening for probes")?;
        drop(entered);
        thread::Builder::new().name("responder".to_owned()).spawn(move || {
            // Real pods run on other machines and do not compete with the operator for the CPU. If this fails, the
            // figures are worse. `None` is this thread.
            let _ = rustix::process::setpriority_process(None, -10);
            runtime.block_on(serve(listener, shared));
        })?;
        Ok(responder)
    }

    /// These pods accept connections and answer after this time, or never if it is `Duration::MAX`. All others answer
    /// at once.
    pub(crate) fn hang(&self, addresses: impl IntoIterator<Item = Ipv4Addr>, delay: Duration) {
        let delays = addresses.into_iter().map(|address| (address, delay)).collect();
        *self.0.delays.write().unwrap_or_else(PoisonError::into_inner) = delays;
    }

    /// All pods answer at once.
    pub(crate) fn heal(&self) {
        self.hang([], Duration::ZERO);
    }

    /// When the last request arrived that this pod has answered.
    pub(crate) fn heard(&self, pod: Ipv4Addr) -> Option<Instant> {
        self.0.heard.lock().unwrap_or_else(PoisonError::into_inner).get(&pod).copied()
    }

    /// How many probes were answered so far.
    pub(crate) fn answered(&self) -> u64 {
        self.0.answered.load(Ordering::Relaxed)
    }
}

fn listen() -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)))?;
    socket.listen(BACKLOG)
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // The peer has closed the connection already, or there is no free file descriptor at the moment.
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(answer(stream, Arc::clone(&shared)));
    }
}

/// Answers one request. An error means that the prober has closed the connection.
async fn answer(mut stream: TcpStream, shared: Arc<Shared>) {
    let begin = Instant::now();
    let Ok(IpAddr::V4(pod)) = stream.local_addr().map(|address| address.ip()) else { return };
    let delay = shared.delays.read().unwrap_or_else(PoisonError::into_inner).get(&pod).copied();
    let mut request = [0; 1024];
    let mut length = 0;
    while !request[..length].ends_with(b"\r\n\r\n") {
        match stream.read(&mut request[length..]).await {
            Ok(read @ 1..) => length += read,
            _ => return,
        }
    }
    if let Some(delay) = delay {
        // The prober closes the connection when it stops waiting.
        let closed = stream.read(&mut request);
        if timeout(delay, closed).await.is_ok() {
            return;
        }
    }
    if stream.write_all(ANSWER).await.is_ok() {
        shared.answered.fetch_add(1, Ordering::Relaxed);
        shared.heard.lock().unwrap_or_else(PoisonError::into_inner).insert(pod, begin);
    }
}
