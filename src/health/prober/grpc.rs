//! A probe by the gRPC health checking protocol: `grpc.health.v1.Health/Check` over HTTP/2 without TLS, as the kubelet
//! sends it. Its two messages have one field each, so they are encoded and decoded here.

use std::{future::Future, net::SocketAddr, sync::Arc};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http2, rt::Executor};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

use super::super::probe::{ProbeFailure, ProbeOutcome, USER_AGENT, VoidCause};

const METHOD: &str = "/grpc.health.v1.Health/Check";
/// The status of a server that works, in a `HealthCheckResponse`.
const SERVING: u64 = 1;
/// The maximum size of a response. One that says `SERVING` has seven bytes.
const MAX_RESPONSE: usize = 1024;
/// The maximum size of the headers, and of the trailers.
const MAX_HEADERS: u32 = 16 * 1024;

/// Asks for the health of a service; the empty name stands for the whole server.
pub(super) async fn check(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    service: &str,
) -> Result<ProbeOutcome, hyper::Error> {
    let Ok(request) = request(address, service) else {
        return Ok(ProbeOutcome::Void(VoidCause::System(None)));
    };
    // Nothing keeps running after a probe is dropped.
    let tasks = Tasks::default();
    let mut builder = http2::Builder::new(tasks.clone());
    builder.max_header_list_size(MAX_HEADERS);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    tasks.execute(async move {
        // An error of the connection is one of the request, too.
        let _ = connection.await;
    });
    let (head, body) = sender.send_request(request).await?.into_parts();
    if head.status != StatusCode::OK {
        return Ok(ProbeOutcome::Refused(ProbeFailure::HttpStatus(head.status.as_u16())));
    }
    // A response without a message has its status in the headers.
    match refusal(&head.headers) {
        Some(refusal) => Ok(refusal),
        None => read(body).await,
    }
}

fn request(address: SocketAddr, service: &str) -> http::Result<Request<Full<Bytes>>> {
    let text = HeaderValue::from_static;
    Request::post(format!("http://{address}{METHOD}"))
        .header(header::CONTENT_TYPE, text("application/grpc"))
        .header(header::TE, text("trailers"))
        .header(header::USER_AGENT, text(USER_AGENT))
        .body(Full::new(encoded(service)))
}

/// Reads the message and the trailers.
async fn read(mut body: Incoming) -> Result<ProbeOutcome, hyper::Error> {
    let protocol = ProbeOutcome::Refused(ProbeFailure::Protocol);
    let mut message = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        if let Some(refusal) = frame.trailers_ref().and_then(refusal) {
            return Ok(refusal);
        }
        if frame.is_trailers() {
            return Ok(match status(message.freeze()) {
                Some(SERVING) => ProbeOutcome::Success,
                Some(_) => ProbeOutcome::Refused(ProbeFailure::NotServing),
                None => protocol,
            });
        }
        if let Some(data) = frame.data_ref() {
            if message.len() + data.len() > MAX_RESPONSE {
                return Ok(protocol);
            }
            message.extend_from_slice(data);
        }
    }
    // A response ends with its trailers.
    Ok(protocol)
}

/// The outcome if the status of the call is not OK, such as `UNIMPLEMENTED` from a server without health checks.
fn refusal(headers: &HeaderMap) -> Option<ProbeOutcome> {
    let status = headers.get("grpc-status")?.to_str().ok().and_then(|text| text.parse().ok());
    match status {
        Some(0) => None,
        Some(code) => Some(ProbeOutcome::Refused(ProbeFailure::GrpcStatus(code))),
        None => Some(ProbeOutcome::Refused(ProbeFailure::Protocol)),
    }
}

/// A `HealthCheckRequest` with its prefix: not compressed, and the length.
fn encoded(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        // Field 1, with a length.
        message.put_u8(1 << 3 | 2);
        put_varint(&mut message, service.len() as u64);
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put(message);
    framed.freeze()
}

/// The status in a `HealthCheckResponse` with its prefix. A field that has its default, 0, is not sent. None if it is
/// not one, or is compressed.
fn status(mut framed: Bytes) -> Option<u64> {
    let compressed = framed.try_get_u8().ok()?;
    let length = framed.try_get_u32().ok()?;
    if compressed != 0 || usize::try_from(length).ok()? != framed.len() {
        return None;
    }
    let mut status = 0;
    while framed.has_remaining() {
        let tag = take_varint(&mut framed)?;
        let skipped = match (tag >> 3, tag & 7) {
            (1, 0) => {
                status = take_varint(&mut framed)?;
                0
            }
            (_, 0) => {
                take_varint(&mut framed)?;
                0
            }
            (_, 1) => 8,
            (_, 2) => usize::try_from(take_varint(&mut framed)?).ok()?,
            (_, 5) => 4,
            _ => return None,
        };
        if framed.len() < skipped {
            return None;
        }
        framed.advance(skipped);
    }
    Some(status)
}

fn put_varint(buffer: &mut BytesMut, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return buffer.put_u8(low & 0x7f);
        }
        buffer.put_u8(low | 0x80);
    }
}

fn take_varint(buffer: &mut Bytes) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = buffer.try_get_u8().ok()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// The tasks of one connection, which end with it.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.lock().spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_encoded_as_protobuf_does() {
        assert_eq!(&encoded("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&encoded("db")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'd', b'b']);
        let long = "x".repeat(200);
        assert_eq!(&encoded(&long)[..8], [0, 0, 0, 0, 203, 0x0a, 0xc8, 1]);
    }

    #[test]
    fn a_response_is_decoded_as_protobuf_does() {
        let of = |bytes: &[u8]| status(Bytes::copy_from_slice(bytes));
        assert_eq!(of(&[0, 0, 0, 0, 2, 8, 1]), Some(SERVING));
        assert_eq!(of(&[0, 0, 0, 0, 2, 8, 2]), Some(2));
        assert_eq!(of(&[0, 0, 0, 0, 0]), Some(0), "a default is not sent");
        // Unknown fields of each wire type, before and after.
        let strange =
            [&[0, 0, 0, 0, 22, 0x12, 1, b'x', 8, 1, 0x18, 0x96, 1, 0x21][..], &[0; 8], &[0x2d], &[0; 4]];
        let strange = strange.concat();
        assert_eq!(of(&strange), Some(SERVING));
        for wrong in [
            &[][..],
            &[0, 0, 0, 0],
            &[1, 0, 0, 0, 2, 8, 1],
            &[0, 0, 0, 0, 3, 8, 1],
            &[0, 0, 0, 0, 1, 8],
            &[0, 0, 0, 0, 2, 0x0b, 1],
            &[0, 0, 0, 0, 2, 0x12, 9],
            &[0, 0, 0, 0, 3, 0x12, 9, b'x'],
            &[0, 0, 0, 0, 11, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
        ] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }
}
