//! gRPC health probes, of servers that speak HTTP/2.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Frame, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leadergroup::{
    api::HoldConnection,
    health::{ProbeFailure, ProbeKind, ProbeOutcome, Target},
};
use tokio::net::TcpStream;

use super::{
    probed::{Probed, target},
    server::{PATIENCE, Server, eventually, read_head},
};

/// A message with this status, with its prefix.
const fn health(status: u8) -> [u8; 7] {
    [0, 0, 0, 0, 2, 8, status]
}

const SERVING: [u8; 7] = health(1);

/// The frames of a response.
struct Frames(Vec<Frame<Bytes>>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready((!self.0.is_empty()).then(|| Ok(self.0.remove(0))))
    }
}

fn grpc_status(code: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static(code))])
}

/// A response with this message and this status in the trailers.
fn answer(message: &[u8], status: &'static str) -> Response<Frames> {
    let data = Frame::data(Bytes::copy_from_slice(message));
    Response::new(Frames(vec![data, Frame::trailers(grpc_status(status))]))
}

type Asked = (http::request::Parts, Bytes);

/// Serves one connection, and keeps what was asked.
async fn serve(
    stream: TcpStream,
    asked: Arc<Mutex<Vec<Asked>>>,
    answer: impl Fn() -> Response<Frames> + Send + Sync,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (asked, response) = (asked.clone(), answer());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            asked.lock().unwrap().push((head, body));
            Ok::<_, Infallible>(response)
        }
    });
    // The prober closes the connection when it has its answer.
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn server(
    answer: impl Fn() -> Response<Frames> + Clone + Send + Sync + 'static,
) -> (Server, Arc<Mutex<Vec<Asked>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = asked.clone();
    (Server::start(move |stream| serve(stream, kept.clone(), answer.clone())).await, asked)
}

async fn probed(server: &Server, service: &str, hold: HoldConnection) -> (ProbeOutcome, Probed) {
    let kind = ProbeKind::Grpc { service: service.to_owned() };
    let target = Target { hold, is_holder: true, ..target(server.address, kind, PATIENCE) };
    let mut probed = Probed::new(8);
    (probed.outcome("u", &target).await, probed)
}

async fn outcome(answer: impl Fn() -> Response<Frames> + Clone + Send + Sync + 'static) -> ProbeOutcome {
    probed(&server(answer).await.0, "", HoldConnection::Never).await.0
}

#[tokio::test]
async fn a_serving_server_is_well_and_is_asked_as_the_kubelet_asks() {
    for (service, expected) in [("", &b"\0\0\0\0\0"[..]), ("db", b"\0\0\0\0\x04\x0a\x02db")] {
        let (server, asked) = server(|| answer(&SERVING, "0")).await;
        assert_eq!(probed(&server, service, HoldConnection::Never).await.0, ProbeOutcome::Success);
        let asked = asked.lock().unwrap();
        let (head, body) = &asked[0];
        assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/grpc.health.v1.Health/Check"));
        assert_eq!(head.uri.authority().unwrap().as_str(), server.address.to_string());
        let header = |name: &str| head.headers.get(name).unwrap().to_str().unwrap();
        assert_eq!((header("content-type"), header("te")), ("application/grpc", "trailers"));
        assert!(header("user-agent").starts_with("leadergroup/"));
        assert_eq!(&body[..], expected, "{service}");
    }
}

#[tokio::test]
async fn any_other_status_is_a_refusal() {
    let refused = ProbeOutcome::Refused;
    for status in [0, 2, 3] {
        assert_eq!(outcome(move || answer(&health(status), "0")).await, refused(ProbeFailure::NotServing));
    }
    // UNIMPLEMENTED: a server without health checks; here as a response without a message.
    let unimplemented = || {
        let mut response = Response::new(Frames(Vec::new()));
        response.headers_mut().extend(grpc_status("12"));
        response
    };
    assert_eq!(outcome(unimplemented).await, refused(ProbeFailure::GrpcStatus(12)));
    let not_found = || Response::new(Frames(vec![Frame::trailers(grpc_status("5"))]));
    assert_eq!(outcome(not_found).await, refused(ProbeFailure::GrpcStatus(5)));
    let gateway = || Response::builder().status(502).body(Frames(Vec::new())).unwrap();
    assert_eq!(outcome(gateway).await, refused(ProbeFailure::HttpStatus(502)));
}

#[tokio::test]
async fn what_is_no_grpc_is_a_refusal() {
    let protocol = ProbeOutcome::Refused(ProbeFailure::Protocol);
    assert_eq!(outcome(|| answer(b"{}", "0")).await, protocol);
    assert_eq!(outcome(|| answer(&SERVING, "fine")).await, protocol);
    assert_eq!(outcome(|| answer(&[0; 2_000], "0")).await, protocol, "it is too long");
    let without_trailers = || Response::new(Frames(vec![Frame::data(Bytes::from_static(&SERVING))]));
    assert_eq!(outcome(without_trailers).await, protocol);
    let http1 = Server::start(|mut stream| async move {
        read_head(&mut stream).await;
        super::server::finish(stream, b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    })
    .await;
    let (outcome, _probed) = probed(&http1, "", HoldConnection::Never).await;
    assert!(matches!(outcome, ProbeOutcome::Refused(_)), "{outcome:?}");
}

#[tokio::test]
async fn nothing_is_left_of_a_probe_but_the_connection_to_hold() {
    for (hold, held) in [(HoldConnection::Never, 0), (HoldConnection::WhenKeptAlive, 1)] {
        let (server, _asked) = server(|| answer(&SERVING, "0")).await;
        let (outcome, _probed) = probed(&server, "", hold).await;
        assert_eq!(outcome, ProbeOutcome::Success);
        eventually("the probes' connections are closed", || {
            server.accepted() > held && server.open() == held
        })
        .await;
    }
}
