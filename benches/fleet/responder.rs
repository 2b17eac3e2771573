//! The programs in all pods: one thread answers every probe, except those of pods that hang.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
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
    hung: RwLock<HashSet<Ipv4Addr>>,
    answered: AtomicU64,
}

impl Responder {
    pub(crate) fn start() -> Result<Self> {
        let responder = Self::default();
        let shared = Arc::clone(&responder.0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context("starting a runtime")?;
        let entered = runtime.enter();
        let listener = listen().context("listening for probes")?;
        drop(entered);
        thread::Builder::new().name("responder".to_owned()).spawn(move || {
            // The pods' programs run on machines of their own: they do not compete with what is measured. Zero is this
            // thread. Without the right to do so the figures are worse, and that is all.
            let _ = rustix::process::setpriority_process(None, -10);
            runtime.block_on(serve(listener, shared));
        })?;
        Ok(responder)
    }

    /// These pods accept connections, and never answer.
    pub(crate) fn hang(&self, addresses: impl IntoIterator<Item = Ipv4Addr>) {
        *self.0.hung.write().unwrap_or_else(PoisonError::into_inner) = addresses.into_iter().collect();
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
        // An attempt that the peer has given up meanwhile, or no file descriptor for another moment.
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(answer(stream, Arc::clone(&shared)));
    }
}

/// Answers one request. Failures are the prober's: it gave up.
async fn answer(mut stream: TcpStream, shared: Arc<Shared>) {
    let hangs = match stream.local_addr().map(|address| address.ip()) {
        Ok(IpAddr::V4(address)) => {
            shared.hung.read().unwrap_or_else(PoisonError::into_inner).contains(&address)
        }
        _ => false,
    };
    let mut request = [0; 1024];
    let mut length = 0;
    while hangs || !request[..length].ends_with(b"\r\n\r\n") {
        // What a hung program is sent is never read; here it is thrown away, to see the end of the connection.
        let start = if hangs { 0 } else { length };
        match stream.read(&mut request[start..]).await {
            Ok(read @ 1..) => length = start + read,
            _ => return,
        }
    }
    if stream.write_all(ANSWER).await.is_ok() {
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
}
