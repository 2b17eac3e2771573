//! The requests to the collector of traces: HTTP/1.1 by hyper, and rustls with the public certificate authorities.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::{runtime::Handle, time::timeout};

/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an answer.
const MAX_ANSWER: usize = 64 * 1024;

type Connections = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The way to the collector.
#[derive(Debug)]
pub(super) struct Collector {
    connections: Connections,
    /// The exporter's thread has no runtime of its own.
    runtime: Handle,
    /// Whether the last request failed, so that this is logged once.
    failed: AtomicBool,
}

impl Collector {
    /// Makes no connection yet.
    pub(super) fn new() -> Result<Self, rustls::Error> {
        let ring = rustls::crypto::ring::default_provider();
        let tls = HttpsConnectorBuilder::new().with_provider_and_webpki_roots(ring)?;
        let connector = tls.https_or_http().enable_http1().build();
        let connections = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { connections, runtime: Handle::current(), failed: AtomicBool::new(false) })
    }

    /// Logs the first failure after a success, and the first success after a failure.
    fn note(&self, problem: Option<&str>) {
        match (problem, self.failed.swap(problem.is_some(), Ordering::Relaxed)) {
            (Some(problem), false) => tracing::warn!(
                problem,
                "traces cannot be sent: they are dropped until the collector that tracing.endpoint names accepts them"
            ),
            (None, true) => tracing::info!("traces are sent again"),
            _ => {}
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let connections = self.connections.clone();
        // The time limit needs the runtime, too.
        let exchange = async { timeout(REQUEST_TIMEOUT, exchange(connections, request)).await };
        let answer = match self.runtime.spawn(exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(format!("no answer within {REQUEST_TIMEOUT:?}").into()),
            Err(stopping) => Err(stopping.into()),
        };
        let problem = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answered {}", answer.status())),
            Err(error) => Some(with_causes(&**error)),
        };
        self.note(problem.as_deref());
        answer
    }
}

async fn exchange(connections: Connections, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (parts, body) = connections.request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// The text of an error, and those of its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
