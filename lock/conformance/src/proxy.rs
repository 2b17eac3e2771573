//! A proxy between a program and PostgreSQL that understands the protocol well enough to break it at a chosen message,
//! and that can add latency.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::postgres::Server;

/// What happens to one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks before the server receives the statement.
    RequestLost,
    /// The connection breaks while the server works on it.
    Cut,
    /// The server has executed and committed it, and the connection breaks before the answer is sent.
    AnswerLost,
    /// The answer does not come, and the connection stays open.
    Hang,
    /// The server executes it, and the proxy is frozen before the answer passes.
    Freeze,
    /// The server executes it, and the answer waits until it is [let through](Proxy::let_answers_through).
    Late,
}

/// The server behind the proxy.
#[derive(Debug, Clone)]
pub enum Backend {
    /// A port on loopback.
    Port(u16),
    /// PostgreSQL's socket, where no password is needed. Checking one would take longer than anything else here.
    Socket(PathBuf),
}

impl Backend {
    /// The server's socket.
    pub fn of(server: &Server) -> Self {
        Self::Socket(server.socket().join(format!(".s.PGSQL.{}", server.port())))
    }

    async fn connect(
        &self,
    ) -> std::io::Result<(Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>)> {
        Ok(match self {
            Self::Port(port) => {
                let (from, to) = TcpStream::connect(("127.0.0.1", *port)).await?.into_split();
                (Box::new(from), Box::new(to))
            }
            Self::Socket(path) => {
                let (from, to) = UnixStream::connect(path).await?.into_split();
                (Box::new(from), Box::new(to))
            }
        })
    }
}

/// Which traffic is stopped. Answers are stopped only if requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Frozen {
    No,
    Requests,
    Both,
}

/// A proxy. It listens on loopback until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    to: Mutex<Backend>,
    armed: Mutex<Option<Armed>>,
    fired: AtomicBool,
    frozen: watch::Sender<Frozen>,
    latency: watch::Sender<Duration>,
    refuses: AtomicBool,
    /// Whether late answers may pass.
    passes: watch::Sender<bool>,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// How many statements are let through first.
    skip: usize,
    /// Only statements with this text count.
    text: &'static str,
}

impl Proxy {
    /// Starts a proxy in front of this server.
    pub async fn before(to: Backend) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let own = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            to: Mutex::new(to),
            armed: Mutex::default(),
            fired: AtomicBool::new(false),
            frozen: watch::Sender::new(Frozen::No),
            latency: watch::Sender::new(Duration::ZERO),
            refuses: AtomicBool::new(false),
            passes: watch::Sender::new(false),
        });
        let accepting = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(serve(client, Arc::clone(&shared)));
                }
            }
        });
        Ok(Self { port: own, shared, accepting })
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same URL, through the proxy. A text that is not such a URL stays as it is.
    pub fn url(&self, url: &str) -> String {
        let port = url.parse().map_or(self.port, |direct: PgConnectOptions| direct.get_port());
        url.replace(&format!(":{port}/"), &format!(":{}/", self.port))
    }

    /// Makes new connections lead to another server.
    pub fn lead_to(&self, other: Backend) {
        *self.shared.to.lock() = other;
    }

    /// Breaks one statement, after `skip` others.
    pub fn arm(&self, fault: Fault, skip: usize) {
        self.arm_at("", fault, skip);
    }

    /// Breaks one statement with this text, after `skip` others of its kind.
    pub fn arm_at(&self, text: &'static str, fault: Fault, skip: usize) {
        self.shared.fired.store(false, Ordering::SeqCst);
        *self.shared.armed.lock() = Some(Armed { fault, skip, text });
    }

    /// Whether the fault has happened since the proxy was armed.
    pub fn has_fired(&self) -> bool {
        self.shared.fired.load(Ordering::SeqCst)
    }

    /// Ends the fault. Returns whether it was used since the proxy was armed.
    pub fn disarm(&self) -> bool {
        *self.shared.armed.lock() = None;
        self.has_fired()
    }

    /// Stops all traffic in both directions, as if a cable was cut, or lets it through again.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(if frozen { Frozen::Both } else { Frozen::No });
    }

    /// Lets answers through, and stops requests.
    pub fn freeze_requests(&self) {
        self.shared.frozen.send_replace(Frozen::Requests);
    }

    /// Lets the answers through that are late.
    pub fn let_answers_through(&self) {
        self.shared.passes.send_replace(true);
    }

    /// Makes the proxy close new connections at once, or accept them again.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Sets the latency in each direction, also for messages that are already on their way.
    pub fn slow_down(&self, latency: Duration) {
        self.shared.latency.send_replace(latency);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    /// The fault for a batch that executes these statements.
    fn next(&self, executed: &[String]) -> Option<Fault> {
        let mut armed = self.armed.lock();
        match armed.as_mut()? {
            Armed { text, .. } if !executed.iter().any(|statement| statement.contains(*text)) => None,
            Armed { skip: 0, fault, .. } => {
                let fault = *fault;
                *armed = None;
                self.fired.store(true, Ordering::SeqCst);
                Some(fault)
            }
            Armed { skip, .. } => {
                *skip -= 1;
                None
            }
        }
    }

    /// Waits until traffic in this direction may pass.
    async fn thawed(&self, direction: Frozen) {
        // The sender is in `self`, so this has no other end.
        let _ = self.frozen.subscribe().wait_for(|frozen| *frozen < direction).await;
    }

    /// Waits until the messages that arrived at this time have been passed on.
    async fn gone_its_way(&self, came: Instant) {
        let mut latency = self.latency.subscribe();
        loop {
            let there = came + *latency.borrow_and_update();
            tokio::select! {
                () = sleep_until(there) => return,
                _ = latency.changed() => {}
            }
        }
    }
}

/// One connection; when either side or a fault ends it, both sides are closed.
async fn serve(mut client: TcpStream, shared: Arc<Shared>) {
    if shared.refuses.load(Ordering::SeqCst) {
        return;
    }
    let Ok(first) = startup(&mut client).await else { return };
    shared.gone_its_way(Instant::now()).await;
    shared.thawed(Frozen::Requests).await;
    let to = shared.to.lock().clone();
    let Ok((server_in, server_out)) = to.connect().await else { return };
    let (client_in, client_out) = client.into_split();
    let swallow = Mutex::new(None);
    tokio::select! {
        _ = requests(first, client_in, server_out, &shared, &swallow) => {}
        _ = answers(server_in, client_out, &shared, &swallow) => {}
    }
}

/// Reads the first message, which has no type. Requests for encryption are refused, so that all else can be read.
async fn startup(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    const SSL: [u8; 4] = 80_877_103_u32.to_be_bytes();
    const GSS: [u8; 4] = 80_877_104_u32.to_be_bytes();
    loop {
        let mut message = client.read_u32().await?.to_be_bytes().to_vec();
        read_rest(client, &mut message).await?;
        if !matches!(message.get(4..8), Some(code) if code == SSL || code == GSS) {
            return Ok(message);
        }
        client.write_all(b"N").await?;
    }
}

/// Passes requests on in batches: all messages up to the one that makes the server answer.
async fn requests(
    mut batch: Vec<u8>,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    swallow: &Mutex<Option<Fault>>,
) -> std::io::Result<()> {
    shared.gone_its_way(Instant::now()).await;
    to.write_all(&batch).await?;
    batch.clear();
    let mut statements = Statements::default();
    loop {
        let start = batch.len();
        let kind = from.read_u8().await?;
        batch.push(kind);
        batch.extend(from.read_u32().await?.to_be_bytes());
        read_rest_after(&mut from, &mut batch, start + 1).await?;
        statements.note(kind, &batch[start + 5..]);
        // The server answers Parse, Bind, Describe, Execute and Close only after a Sync.
        if matches!(kind, b'P' | b'B' | b'D' | b'E' | b'C') {
            continue;
        }
        shared.gone_its_way(Instant::now()).await;
        shared.thawed(Frozen::Requests).await;
        let executed = std::mem::take(&mut statements.executed);
        let fault = if executed.is_empty() { None } else { shared.next(&executed) };
        match fault {
            Some(Fault::RequestLost) => return Ok(()),
            Some(Fault::Freeze) => {
                shared.frozen.send_replace(Frozen::Both);
            }
            Some(fault @ (Fault::AnswerLost | Fault::Hang | Fault::Late)) => *swallow.lock() = Some(fault),
            Some(Fault::Cut) | None => {}
        }
        to.write_all(&batch).await?;
        batch.clear();
        if fault == Some(Fault::Cut) {
            return Ok(());
        }
    }
}

/// Which statements of a connection a batch executes.
#[derive(Debug, Default)]
struct Statements {
    /// The texts of the prepared statements, by name.
    prepared: HashMap<Vec<u8>, String>,
    /// The texts of the portals, by name.
    portals: HashMap<Vec<u8>, String>,
    /// The texts of the statements that the batch executes.
    executed: Vec<String>,
}

impl Statements {
    fn note(&mut self, kind: u8, body: &[u8]) {
        let mut texts = body.split(|&byte| byte == 0);
        let first = texts.next().unwrap_or_default().to_vec();
        let second = texts.next().unwrap_or_default();
        match kind {
            b'P' => drop(self.prepared.insert(first, String::from_utf8_lossy(second).into_owned())),
            b'B' => {
                let text = self.prepared.get(second).cloned().unwrap_or_default();
                self.portals.insert(first, text);
            }
            b'E' => self.executed.push(self.portals.get(&first).cloned().unwrap_or_default()),
            b'Q' => self.executed.push(String::from_utf8_lossy(&first).into_owned()),
            _ => {}
        }
    }
}

async fn read_rest(from: &mut (impl AsyncRead + Unpin), message: &mut Vec<u8>) -> std::io::Result<()> {
    read_rest_after(from, message, 0).await
}

/// Reads the rest of a message, whose length is at this position.
async fn read_rest_after(
    from: &mut (impl AsyncRead + Unpin),
    message: &mut Vec<u8>,
    place: usize,
) -> std::io::Result<()> {
    let length = message[place..place + 4].iter().fold(0_usize, |all, &byte| all << 8 | usize::from(byte));
    message.resize(place + length.max(4), 0);
    from.read_exact(&mut message[place + 4..]).await.map(drop)
}

/// Passes answers on, or drops the one that the fault is for: all messages up to `ReadyForQuery`.
async fn answers(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    swallow: &Mutex<Option<Fault>>,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut came = Instant::now();
    loop {
        // Messages that the server sends together are passed on together.
        let together = !from.buffer().is_empty();
        let kind = from.read_u8().await?;
        if !together {
            came = Instant::now();
        }
        let mut message = vec![kind];
        message.extend(from.read_u32().await?.to_be_bytes());
        read_rest_after(&mut from, &mut message, 1).await?;
        shared.gone_its_way(came).await;
        shared.thawed(Frozen::Both).await;
        let fault = *swallow.lock();
        match fault {
            None => to.write_all(&message).await?,
            Some(Fault::AnswerLost) if kind == b'Z' => return Ok(()),
            Some(Fault::Late) => {
                // The sender is in `shared`, so this has no other end.
                let _ = shared.passes.subscribe().wait_for(|passes| *passes).await;
                *swallow.lock() = None;
                to.write_all(&message).await?;
            }
            Some(_) => {}
        }
    }
}
