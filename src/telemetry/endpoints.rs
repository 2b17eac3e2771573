//! `/livez`, `/readyz` and `/metrics` over plain HTTP.
//!
//! Whoever can reach the port can ask, so everything is bounded: connections, the size of a request, and the time that one
//! connection may take. A connection carries one request; bodies are not read.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Liveness, Metrics, Readiness};

/// How many connections are served at a time; others wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// How long a request's head may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one connection may take in all.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request's head may be.
const MAX_HEAD: usize = 16 * 1024;
/// How long the answers that are under way may still take once we shut down.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How long to wait when the system has no descriptor left for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What the endpoints tell of.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// `/metrics`.
    pub metrics: Arc<Metrics>,
    /// `/livez`.
    pub liveness: Liveness,
    /// `/readyz`.
    pub readiness: Readiness,
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for health checks and metrics: {source}; choose a free address and port")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Listens, and answers once it is run.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Begins to listen; port 0 takes any free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let refuse = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown`, and then for at most a second longer those who have asked already.
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
        // Whoever is not done by then is cut off as the set is dropped.
        let _ = timeout(LAST_ANSWERS, async { while connections.join_next().await.is_some() {} }).await;
    }
}

async fn serve(stream: TcpStream, endpoints: Endpoints, permit: OwnedSemaphorePermit) {
    let answer = service_fn(|request| {
        let endpoints = endpoints.clone();
        async move { Ok::<_, Infallible>(answer(&request, endpoints).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD).keep_alive(false);
    // What goes wrong with one asker is the asker's affair.
    let _ = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(stream), answer)).await;
    drop(permit);
}

async fn answer(request: &Request<Incoming>, endpoints: Endpoints) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/livez" => verdict(endpoints.liveness.check()),
        "/readyz" => verdict(endpoints.readiness.check_all()),
        "/metrics" => {
            // Ten thousand groups take their time to write down; the event loop must not wait for that.
            let encoded = tokio::task::spawn_blocking(move || endpoints.metrics.encode()).await;
            match encoded {
                Ok(Ok(metrics)) => respond(StatusCode::OK, OPEN_METRICS, metrics),
                Ok(Err(_)) | Err(_) => {
                    text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n")
                }
            }
        }
        _ => text(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics\n"),
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
