//! The connections of a caller: a new one for each call, or kept ones. Each has a number, which the calls name.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The most bytes of an answer.
const LONGEST: usize = 16 << 10;
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// The connections to one address.
#[derive(Debug)]
pub(super) struct Connections {
    target: SocketAddr,
    /// How long a connection is kept; `None`: each call has its own.
    keep: Option<Duration>,
    idle: Mutex<Vec<Kept>>,
    opened: AtomicU64,
}

/// An open connection on which no call is waiting.
#[derive(Debug)]
struct Kept {
    number: u64,
    since: Instant,
    stream: TcpStream,
}

/// The connection of one call.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Its number.
    pub(super) number: u64,
    /// The connection, if an earlier call opened it.
    kept: Option<Kept>,
}

impl Chosen {
    /// Whether an earlier call opened it.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }
}

impl Connections {
    pub(super) fn new(target: SocketAddr, keep: Option<Duration>) -> Self {
        Self { target, keep, idle: Mutex::default(), opened: AtomicU64::new(0) }
    }

    /// Chooses the connection of the next call: an idle one that is open and not too old, or else a new one.
    pub(super) fn choose(&self) -> Chosen {
        let mut idle = self.idle.lock();
        while let Some(kept) = idle.pop() {
            let young = self.keep.is_some_and(|keep| kept.since.elapsed() < keep);
            // Data without a request is no answer, and no data is the end of the connection.
            let open =
                matches!(kept.stream.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
            if young && open {
                return Chosen { number: kept.number, kept: Some(kept) };
            }
        }
        Chosen { number: self.opened.fetch_add(1, Ordering::Relaxed), kept: None }
    }

    /// Sends a GET request and returns the status and the body. A connection without an answer is closed.
    pub(super) async fn get(&self, chosen: Chosen, path: &str) -> Result<(String, String)> {
        let Chosen { number, kept } = chosen;
        let mut kept = match kept {
            Some(kept) => kept,
            None => Kept { number, since: Instant::now(), stream: self.open().await? },
        };
        let keep = self.keep.is_some();
        let version = if keep { "1.1" } else { "1.0" };
        let request = format!("GET {path} HTTP/{version}\r\nHost: service\r\n\r\n");
        kept.stream.write_all(request.as_bytes()).await.map_err(|error| anyhow!("{}", error.kind()))?;
        let answer = read(&mut kept.stream, keep).await?;
        if keep {
            self.idle.lock().push(kept);
        }
        Ok(answer)
    }

    /// Waits until the server has closed every idle connection.
    #[cfg(test)]
    pub(super) async fn closed(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for kept in &idle {
            let _ = kept.stream.readable().await;
        }
        *self.idle.lock() = idle;
    }

    async fn open(&self) -> Result<TcpStream> {
        TcpStream::connect(self.target).await.map_err(|error| anyhow!("{}", error.kind()))
    }
}

/// Reads an answer: up to its announced length if the connection is kept, or else up to the end of the connection.
async fn read(stream: &mut TcpStream, kept: bool) -> Result<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        if kept
            && let Some(length) = length(&bytes)
            && bytes.len() >= length
        {
            break;
        }
        let mut part = [0; 1024];
        let read = stream.read(&mut part).await.map_err(|error| anyhow!("{}", error.kind()))?;
        if read == 0 || bytes.len() > LONGEST {
            break;
        }
        bytes.extend_from_slice(&part[..read]);
    }
    if length(&bytes).is_some_and(|length| bytes.len() < length) {
        return Err(anyhow!("the answer is cut short"));
    }
    let answer = String::from_utf8(bytes).context("the answer is no text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is cut short")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    Ok((status.to_owned(), body.trim().to_owned()))
}

/// The length of the whole answer, if it is announced.
fn length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(END_OF_HEAD.len()).position(|window| window == END_OF_HEAD)?;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let body = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    Some(head + END_OF_HEAD.len() + body)
}
