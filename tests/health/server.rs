//! Servers of many behaviours, each on its own port of the loopback address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::timeout,
};

/// Time limit for every wait in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An answer of a server that is well.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that handles all connections in the same way, and counts them.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    most_open: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Server {
    /// Starts a server that passes each connection to `treat`.
    pub(crate) async fn start<F, T>(treat: F) -> Self
    where
        F: Fn(TcpStream) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let [accepted, open, most_open] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let counters = (accepted.clone(), open.clone(), most_open.clone());
        let task = tokio::spawn(async move {
            let (accepted, open, most_open) = counters;
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                most_open.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let (open, treatment) = (open.clone(), treat(stream));
                tokio::spawn(async move {
                    treatment.await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, accepted, open, most_open, task: task.abort_handle() }
    }

    /// A server that answers each request with these bytes, then closes.
    pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |stream| {
            let answer = answer.clone();
            async move {
                let mut stream = stream;
                read_head(&mut stream).await;
                finish(stream, &answer).await;
            }
        })
        .await
    }

    /// A server that accepts and reads, but never answers, until the other side closes.
    pub(crate) async fn hanging() -> Self {
        Self::start(|mut stream| async move { until_closed(&mut stream).await }).await
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// The number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// The largest number of connections that were open at a time.
    pub(crate) fn most_open(&self) -> usize {
        self.most_open.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port without a listener.
pub(crate) async fn closed_port() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap()
}

/// Reads a request's head.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Reads until the other side closes or resets the connection.
pub(crate) async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 1024];
    while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
}

/// Writes the answer, closes, and waits for the other side to close too.
pub(crate) async fn finish(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &[u8]) {
    if stream.write_all(answer).await.is_ok() && stream.shutdown().await.is_ok() {
        until_closed(&mut stream).await;
    }
}

/// Waits for a condition, checking it whenever the runtime schedules this task.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let becoming = async {
        let mut look = tokio::time::interval(Duration::from_millis(1));
        while !is_so() {
            look.tick().await;
        }
    };
    timeout(PATIENCE, becoming).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"));
}
