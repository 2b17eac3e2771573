//! Whether the program is ready, as it says itself: a question to it on localhost, as the kubelet's probes ask.

use std::{
    fmt,
    future::pending,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::Shared};
use http::{
    Request, Uri,
    header::{CONNECTION, HOST},
};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::oneshot, time::timeout};

/// Time limit for one question.
const LIMIT: Duration = Duration::from_secs(1);
/// Maximum size of the head of the program's answer. Its body is not read.
const MAX_HEAD: usize = 16 * 1024;

/// How to ask the program whether it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyCheck {
    /// A GET request, which is answered with a status from 200 to 399.
    Http {
        /// The port on localhost.
        port: u16,
        /// The path and the query.
        path: String,
    },
    /// A connection, which is accepted.
    Tcp {
        /// The port on localhost.
        port: u16,
    },
}

/// A text that says no such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write http://:PORT/PATH or tcp://:PORT; the program is asked on localhost")]
pub struct NoReadyCheck;

impl FromStr for ReadyCheck {
    type Err = NoReadyCheck;

    fn from_str(text: &str) -> Result<Self, NoReadyCheck> {
        let port = |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or(NoReadyCheck);
        if let Some(rest) = text.strip_prefix("tcp://:") {
            return Ok(Self::Tcp { port: port(rest)? });
        }
        let rest = text.strip_prefix("http://:").ok_or(NoReadyCheck)?;
        let (of_port, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = if path.is_empty() { "/" } else { path };
        path.parse::<Uri>().map_err(|_| NoReadyCheck)?;
        Ok(Self::Http { port: port(of_port)?, path: path.to_owned() })
    }
}

impl fmt::Display for ReadyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { port, path } => write!(f, "http://:{port}{path}"),
            Self::Tcp { port } => write!(f, "tcp://:{port}"),
        }
    }
}

/// A question that is being asked. All who want to know the answer wait for the same.
type Question = Shared<oneshot::Receiver<Result<(), String>>>;

/// The program, as far as it can be asked.
#[derive(Debug)]
pub(super) struct Program {
    check: Option<ReadyCheck>,
    /// The last question, and the token of the program that it was sent to.
    asked: Mutex<Option<(i64, Question)>>,
}

impl Program {
    pub(super) fn new(check: Option<ReadyCheck>) -> Self {
        Self { check, asked: Mutex::new(None) }
    }

    /// Asks the program with this token whether it is ready. Without a check it is.
    pub(super) async fn ready(&self, token: i64) -> Result<(), String> {
        let Some(check) = &self.check else { return Ok(()) };
        let question = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let current = asked.take().filter(|(of, question)| *of == token && question.peek().is_none());
            let (_, question) = asked.insert(current.unwrap_or_else(|| (token, ask(check.clone()))));
            question.clone()
        };
        question.await.unwrap_or_else(|_| Err("it was not asked".to_owned()))
    }
}

/// Starts to ask. The request is not cancelled when no caller waits for the answer any more.
fn ask(check: ReadyCheck) -> Question {
    let (said, answer) = oneshot::channel();
    tokio::spawn(async move {
        let answered = timeout(LIMIT, exchange(&check)).await;
        let answered = answered.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())));
        let _ = said.send(answered.map_err(|error| format!("{check}: {error}")));
    });
    answer.shared()
}

async fn exchange(check: &ReadyCheck) -> Result<(), String> {
    match check {
        ReadyCheck::Tcp { port } => connect(*port).await.map(drop).map_err(|error| error.to_string()),
        ReadyCheck::Http { port, path } => {
            let stream = connect(*port).await.map_err(|error| error.to_string())?;
            let status = status(stream, path).await.map_err(|error| error.to_string())?;
            if (200..400).contains(&status) { Ok(()) } else { Err(format!("status {status}")) }
        }
    }
}

/// Programs may listen on the addresses of one family only.
async fn connect(port: u16) -> io::Result<TcpStream> {
    let [v4, v6] = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    match TcpStream::connect((v4, port)).await {
        Ok(stream) => Ok(stream),
        Err(error) => TcpStream::connect((v6, port)).await.map_err(|_| error),
    }
}

/// The status of the answer to one GET request.
async fn status(stream: TcpStream, path: &str) -> anyhow::Result<u16> {
    let mut http = http1::Builder::new();
    let (mut requests, connection) =
        http.max_buf_size(MAX_HEAD).handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(HOST, "localhost").header(CONNECTION, "close");
    let answer = requests.send_request(request.body(Empty::new())?);
    // If the connection ends without an answer, the request fails.
    let driven = async {
        let _ = connection.await;
        pending().await
    };
    tokio::select! {
        answer = answer => Ok(answer?.status().as_u16()),
        never = driven => never,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        sync::Semaphore,
        task::JoinSet,
    };

    use super::*;

    /// A program that answers each request with this status once it is allowed to. Returns its port, and how often it
    /// was asked.
    async fn program(status: &'static str, allowed: Arc<Semaphore>) -> (u16, Arc<AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read(&mut [0; 1024]).await;
                allowed.acquire().await.expect("open").forget();
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (port, asked)
    }

    fn http(port: u16) -> Arc<Program> {
        Arc::new(Program::new(Some(ReadyCheck::Http { port, path: "/healthz".to_owned() })))
    }

    #[test]
    fn checks_are_read_as_they_are_written() {
        for text in ["http://:8080/healthz?full=1", "http://:80/", "tcp://:6379"] {
            assert_eq!(text.parse::<ReadyCheck>().expect("a check").to_string(), text);
        }
        assert_eq!("http://:80".parse(), Ok(ReadyCheck::Http { port: 80, path: "/".to_owned() }));
        for wrong in ["", ":80", "http://80/", "http://db:80/", "tcp://:0", "tcp://:80/x", "http://:80/a b"] {
            assert_eq!(wrong.parse::<ReadyCheck>(), Err(NoReadyCheck), "{wrong}");
        }
    }

    #[tokio::test]
    async fn the_program_decides_by_its_status() {
        for (status, is_ready) in
            [("200 OK", true), ("302 Found", true), ("404 No", false), ("503 No", false)]
        {
            let (port, _) = program(status, Arc::new(Semaphore::new(1))).await;
            assert_eq!(http(port).ready(7).await.is_ok(), is_ready, "{status}");
        }
        let (port, _) = program("not HTTP", Arc::new(Semaphore::new(1))).await;
        assert!(http(port).ready(7).await.is_err());
        let tcp = |port| Program::new(Some(ReadyCheck::Tcp { port }));
        assert_eq!(tcp(port).ready(7).await, Ok(()));
        let unused =
            TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("one").port();
        let refused = tcp(unused).ready(7).await.expect_err("nobody listens");
        assert!(refused.starts_with(&format!("tcp://:{unused}: Connection refused")), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_does_not_answer_is_not_ready() {
        let (port, _) = program("200 OK", Arc::new(Semaphore::new(0))).await;
        let silent = http(port).ready(7).await;
        assert_eq!(silent, Err(format!("http://:{port}/healthz: no answer within 1 s")));
    }

    #[tokio::test]
    async fn those_who_ask_at_the_same_time_share_one_question_to_the_same_program() {
        let allowed = Arc::new(Semaphore::new(0));
        let (port, asked) = program("200 OK", allowed.clone()).await;
        let program = http(port);
        let mut all = JoinSet::new();
        for _ in 0..20 {
            let program = program.clone();
            all.spawn(async move { program.ready(7).await });
        }
        while asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        allowed.add_permits(1);
        while let Some(answer) = all.join_next().await {
            assert_eq!(answer.expect("no panic"), Ok(()));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // Later ones ask again.
        allowed.add_permits(1);
        assert_eq!(program.ready(7).await, Ok(()));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        // What the program of an earlier term says counts for no later one.
        let earlier = tokio::spawn({
            let program = program.clone();
            async move { program.ready(7).await }
        });
        while asked.load(Ordering::SeqCst) == 2 {
            tokio::task::yield_now().await;
        }
        allowed.add_permits(2);
        assert_eq!(program.ready(8).await, Ok(()));
        assert_eq!(asked.load(Ordering::SeqCst), 4);
        assert_eq!(earlier.await.expect("no panic"), Ok(()));
    }
}
