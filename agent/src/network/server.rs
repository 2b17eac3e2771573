//! Plain HTTP for clients that nobody knows.
//!
//! Anyone who can reach the port can send requests, so everything is bounded: the number of connections, the size of a
//! request, the time for its head, and the time of a whole connection. Bodies are not read. A connection may carry
//! several requests, because the operator keeps one open: it notices at once when the agent ends.
//!
//! A new connection is always served. If there are too many, one of the others is closed: one that has never sent a
//! request, if there is one, and of these the oldest. So clients that send nothing keep nobody out.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue},
};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use crate::log::say;

/// How many connections are served concurrently.
const MAX_CONNECTIONS: usize = 64;
/// Time limit for the head of a request, from the end of the one before it. The operator asks more often than that.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The usual time limit for a connection: after this time the next answer is the last one, and says so.
pub(super) const LONGEST: Duration = Duration::from_mins(10);
/// How much later a connection is closed in any case.
const LAST_ANSWER: Duration = Duration::from_mins(1);
/// Maximum size of the head of a request.
const MAX_HEAD: usize = 16 * 1024;
/// How long to wait if no file descriptor is left for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer to a request.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// When a connection was used last. One that has never sent a request is less than any that has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Used {
    has_asked: bool,
    at: Instant,
}

struct Connection {
    task: AbortHandle,
    used: Arc<Mutex<Used>>,
}

/// Answers GET requests, which are known by their paths, for as long as this is awaited. Connections may be limited in
/// time.
pub(super) async fn serve<A, F>(listener: TcpListener, longest: Option<Duration>, answer: A)
where
    A: Fn(String) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let (mut tasks, mut open) = (JoinSet::new(), Vec::<Connection>::new());
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                has_failed = false;
                while tasks.try_join_next().is_some() {}
                open.retain(|connection| !connection.task.is_finished());
                make_room(&mut open);
                let used = Arc::new(Mutex::new(Used { has_asked: false, at: Instant::now() }));
                let task = tasks.spawn(connection(stream, longest, answer.clone(), used.clone()));
                open.push(Connection { task, used });
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    say(&format!("connections cannot be accepted; trying again: {error}"));
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Closes the connection that is needed least, if there are too many.
fn make_room(open: &mut Vec<Connection>) {
    if open.len() < MAX_CONNECTIONS {
        return;
    }
    let used = |connection: &Connection| *connection.used.lock().unwrap_or_else(PoisonError::into_inner);
    let least = (0..open.len()).min_by_key(|index| used(&open[*index]));
    if let Some(least) = least {
        open.swap_remove(least).task.abort();
    }
}

async fn connection<A, F>(stream: TcpStream, longest: Option<Duration>, answer: A, used: Arc<Mutex<Used>>)
where
    A: Fn(String) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let opened = Instant::now();
    let service = service_fn(|request: Request<Incoming>| {
        *used.lock().unwrap_or_else(PoisonError::into_inner) = Used { has_asked: true, at: Instant::now() };
        let answer = answer.clone();
        async move {
            let mut response = match *request.method() {
                Method::GET | Method::HEAD => answer(request.uri().path().to_owned()).await,
                _ => not_allowed(),
            };
            if longest.is_some_and(|longest| opened.elapsed() >= longest) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
    // Errors of one connection are not reported.
    let served = http.serve_connection(TokioIo::new(stream), service);
    match longest {
        Some(longest) => drop(timeout(longest + LAST_ANSWER, served).await),
        None => drop(served.await),
    }
}

fn not_allowed() -> Answer {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// An answer for people.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    respond(status, TEXT, body)
}

/// An answer in JSON.
pub(super) fn json(body: impl Into<Bytes>) -> Answer {
    respond(StatusCode::OK, JSON, body)
}

/// An answer for Prometheus.
pub(super) fn metrics(body: impl Into<Bytes>) -> Answer {
    respond(StatusCode::OK, METRICS, body)
}

fn respond(status: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests;
