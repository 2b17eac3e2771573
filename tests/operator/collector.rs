//! A collector of traces: OTLP over HTTP, as protobuf.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message as _;
use tokio::net::TcpListener;

/// What a collector received.
#[derive(Default)]
struct Received {
    requests: Mutex<Vec<ExportTraceServiceRequest>>,
    refuses: AtomicBool,
    refused: AtomicUsize,
    connections: AtomicUsize,
}

/// A collector that runs until the test ends.
#[derive(Clone)]
pub(crate) struct Collector {
    received: Arc<Received>,
    pub(crate) url: String,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Received::default());
        let serving = received.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                serving.connections.fetch_add(1, Ordering::SeqCst);
                let received = serving.clone();
                let answer = service_fn(move |request| answer(received.clone(), request));
                // A client that goes away is no failure of the test.
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { received, url }
    }

    /// Refuses what comes from now on, or accepts it.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.received.refuses.store(refuses, Ordering::SeqCst);
    }

    pub(crate) fn refused(&self) -> usize {
        self.received.refused.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.received.connections.load(Ordering::SeqCst)
    }

    /// The attributes of the process that sent the traces.
    pub(crate) fn resource(&self) -> Vec<(String, String)> {
        let requests = self.received.requests.lock().unwrap();
        let resource = requests.iter().flat_map(|request| &request.resource_spans).next();
        resource.and_then(|spans| spans.resource.as_ref()).map_or(Vec::new(), |it| texts(&it.attributes))
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.received.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    /// The span without a parent that has this name and these attributes, with the others of its trace, by their
    /// beginning.
    pub(crate) fn trace(&self, name: &str, attributes: &[(&str, &str)]) -> Option<(Span, Vec<Span>)> {
        let spans = self.spans();
        let has = |span: &Span, wanted: &(&str, &str)| {
            texts(&span.attributes).iter().any(|(key, value)| (key.as_str(), value.as_str()) == *wanted)
        };
        let is_root = |span: &&Span| span.parent_span_id.is_empty() && span.name == name;
        let mut roots = spans.iter().filter(is_root);
        let root = roots.find(|span| attributes.iter().all(|wanted| has(span, wanted)))?.clone();
        let same = |span: &&Span| span.trace_id == root.trace_id && span.span_id != root.span_id;
        let mut others: Vec<_> = spans.iter().filter(same).cloned().collect();
        others.sort_by_key(|span| span.start_time_unix_nano);
        Some((root, others))
    }
}

/// Attributes as texts.
pub(crate) fn texts(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

async fn answer(
    received: Arc<Received>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_export = request.method() == Method::POST
        && request.uri().path() == "/v1/traces"
        && request.headers().get("content-type").is_some_and(|kind| kind == "application/x-protobuf");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let status = match ExportTraceServiceRequest::decode(body) {
        Ok(_) if received.refuses.load(Ordering::SeqCst) => {
            received.refused.fetch_add(1, Ordering::SeqCst);
            StatusCode::SERVICE_UNAVAILABLE
        }
        Ok(export) if is_export => {
            received.requests.lock().unwrap().push(export);
            StatusCode::OK
        }
        _ => StatusCode::BAD_REQUEST,
    };
    Ok(Response::builder().status(status).body(Full::default()).unwrap())
}
