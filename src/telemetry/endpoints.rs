//! `/livez`, `/readyz` and `/metrics` over plain HTTP.
//!
//! Anyone who can reach the port can send requests, so everything is bounded: the number of connections, the size of
//! a request, and the time of one connection. A connection carries one request; bodies are not read.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, bind, socket_with,
        sockopt::{set_ipv6_v6only, set_socket_reuseaddr},
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Liveness, Metrics, ReadyChecks};

/// How many connections are served concurrently; others wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// How many connections the kernel's queue has.
const WAITING: i32 = 1024;
/// Time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for one connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the head of a request.
const MAX_HEAD: usize = 16 * 1024;
/// Time limit for responses in progress during shutdown.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How long to wait if no file descriptor is left for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The data behind the endpoints.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// `/metrics`.
    pub metrics: Arc<Metrics>,
    /// `/livez`.
    pub liveness: Liveness,
    /// `/readyz`.
    pub readiness: ReadyChecks,
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for health checks and metrics: {source}; choose a free address and port")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// A listening server. It answers requests while [`Server::run`] runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Starts to listen. Port 0 selects any free port. `[::]` is every address, of both families where the kernel has
    /// both.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let refuse = |source| BindError { address, source };
        let listener = match listen(address) {
            Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && lacks_ipv6(&error) => {
                listen((Ipv4Addr::UNSPECIFIED, address.port()).into())
            }
            outcome => outcome,
        };
        let listener = listener.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        Ok(Self { listener, address })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `shutdown`, and requests in progress for at most one more second.
    pub async fn run(self, endpoints: Endpoints, shutdown: CancellationToken) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        let accepting = async {
            while let Ok(permit) = permits.clone().acquire_owned().await {
                while connections.try_join_next().is_some() {}
                match self.listener.accept().await {
                    Ok((stream, _)) => {
                        connections.spawn(serve(stream, endpoints.clone(), permit));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection for health checks and metrics");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            () = shutdown.cancelled() => {}
        }
        // Dropping the set closes the remaining connections.
        let _ = timeout(LAST_ANSWERS, async { while connections.join_next().await.is_some() {} }).await;
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // Whatever net.ipv6.bindv6only of the node says.
        set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    rustix::net::listen(&socket, WAITING)?;
    TcpListener::from_std(socket.into())
}

/// Whether the kernel has no IPv6, or has it turned off.
fn lacks_ipv6(error: &io::Error) -> bool {
    let codes = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

async fn serve(stream: TcpStream, endpoints: Endpoints, permit: OwnedSemaphorePermit) {
    let answer = service_fn(|request| {
        let endpoints = endpoints.clone();
        async move { Ok::<_, Infallible>(answer(&request, endpoints).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD).keep_alive(false);
    // Errors of one connection are not reported.
    let _ = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(stream), answer)).await;
    drop(permit);
}

async fn answer(request: &Request<Incoming>, endpoints: Endpoints) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/livez" => verdict(endpoints.liveness.check()),
        "/readyz" => verdict(endpoints.readiness.check_all()),
        "/metrics" => {
            // Encoding the metrics of ten thousand groups takes time; the event loop must not wait for it.
            let encoded = tokio::task::spawn_blocking(move || endpoints.metrics.encode()).await;
            match encoded {
                Ok(Ok(metrics)) => respond(StatusCode::OK, OPEN_METRICS, metrics),
                Ok(Err(_)) | Err(_) => {
                    text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be encoded\n")
                }
            }
        }
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /livez, /readyz and /metrics\n"),
    }
}

fn verdict(check: Result<(), String>) -> Response<Full<Bytes>> {
    match check {
        Ok(()) => text(StatusCode::OK, "ok\n"),
        Err(mut wrong) => {
            if !wrong.ends_with('\n') {
                wrong.push('\n');
            }
            text(StatusCode::SERVICE_UNAVAILABLE, wrong)
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, TEXT, body)
}

fn respond(status: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
