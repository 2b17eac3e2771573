//! What one probe does with its connection: send the request, read the response.

use std::{
    error::Error as _,
    io,
    net::{IpAddr, SocketAddr},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, Version, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{
    super::probe::{ProbeFailure, ProbeKind, ProbeOutcome, ResolvedProbe, USER_AGENT, VoidCause},
    agent::{self, Checked},
    grpc,
    received::Received,
};
use crate::api::{ProbeScheme, Promise};

/// How much of the response's body is read, as in the kubelet. A longer body is not read to its end.
const MAX_BODY: usize = 10 * 1024;
/// The maximum size of status line and headers. Each probe that waits may hold a buffer of this size.
const MAX_HEAD: usize = 16 * 1024;
/// The maximum number of headers in the response.
const MAX_HEADERS: usize = 256;

/// A connection that the server keeps open.
pub(super) type Kept = Box<dyn AsyncRead + Send + Unpin>;

/// How a probe ended, and its connection if it was to be kept and the server keeps it open.
pub(super) struct Answer {
    pub(super) outcome: ProbeOutcome,
    /// What the agent promises, if it was asked.
    pub(super) promise: Option<Promise>,
    pub(super) kept: Option<Kept>,
}

impl From<ProbeOutcome> for Answer {
    fn from(outcome: ProbeOutcome) -> Self {
        Self { outcome, promise: None, kept: None }
    }
}

/// Runs the probe over an open connection. `keep` asks the server not to close the connection after its answer.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ip: IpAddr,
    probe: &ResolvedProbe,
    keep: bool,
    tls: &TlsConnector,
    checked: &Checked,
) -> Answer {
    let stream = Received::limited(stream);
    let address = SocketAddr::new(ip, probe.port);
    let (scheme, path, headers) = match &probe.kind {
        ProbeKind::TcpSocket => return ProbeOutcome::Success.into(),
        ProbeKind::Grpc { service } => {
            let checked = grpc::check(stream, address, service).await;
            return checked.unwrap_or_else(|error| of_hyper(&error)).into();
        }
        ProbeKind::HttpGet { scheme, path, headers } => (*scheme, path.as_str(), headers.as_slice()),
        ProbeKind::Agent => (ProbeScheme::Http, agent::PATH, &[][..]),
    };
    let Ok(request) = request(address, path, headers, keep) else {
        return ProbeOutcome::Void(VoidCause::System(None)).into();
    };
    let most = if probe.kind == ProbeKind::Agent { MAX_BODY } else { 0 };
    let (mut answer, body) = match scheme {
        ProbeScheme::Http => get(stream, request, keep, most).await,
        ProbeScheme::Https => match tls.connect(ServerName::IpAddress(ip.into()), stream).await {
            Ok(stream) => get(stream, request, keep, most).await,
            Err(error) => return of_io(&error).into(),
        },
    };
    if probe.kind == ProbeKind::Agent && answer.outcome == ProbeOutcome::Success {
        answer.promise = checked.promise(&body);
        if answer.promise.is_none() {
            return ProbeOutcome::Refused(ProbeFailure::NoAgent).into();
        }
    }
    answer
}

/// The outcome for an I/O error. An error that does not certainly come from the other side counts as our own.
pub(super) fn of_io(error: &io::Error) -> ProbeOutcome {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => ProbeOutcome::Refused(ProbeFailure::ConnectionRefused),
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof => {
            ProbeOutcome::Refused(ProbeFailure::Reset)
        }
        Kind::InvalidData => ProbeOutcome::Refused(ProbeFailure::Protocol),
        Kind::TimedOut | Kind::HostUnreachable | Kind::NetworkUnreachable => ProbeOutcome::Unanswered,
        _ => ProbeOutcome::Void(cause(error)),
    }
}

/// The outcome for an error while a connection is being made, after the kernel has accepted the address. Then these
/// come from the network, too: a router says that there is no way to the pod.
pub(super) fn of_connecting(error: &io::Error) -> ProbeOutcome {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::HOSTDOWN | Errno::NONET | Errno::NOPROTOOPT) => ProbeOutcome::Unanswered,
        _ => of_io(error),
    }
}

/// Whether a connection could not be made for a reason of this machine.
pub(crate) fn is_failure_of_this_machine(error: &io::Error) -> bool {
    matches!(of_connecting(error), ProbeOutcome::Void(_))
}

fn cause(error: &io::Error) -> VoidCause {
    let number = error.raw_os_error();
    match number.map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => VoidCause::Descriptors,
        // Out of ports or memory, refused by a local filter, no such address family.
        _ => VoidCause::System(number),
    }
}

fn request(
    address: SocketAddr,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
    keep: bool,
) -> http::Result<Request<Empty<Bytes>>> {
    let mut request = Request::get(path).body(Empty::new())?;
    let all = request.headers_mut();
    for (name, value) in headers {
        all.append(name, value.clone());
    }
    if !all.contains_key(header::HOST) {
        all.insert(header::HOST, address.to_string().try_into()?);
    }
    let text = HeaderValue::from_static;
    all.entry(header::USER_AGENT).or_insert_with(|| text(USER_AGENT));
    all.entry(header::ACCEPT).or_insert_with(|| text("*/*"));
    if keep {
        all.remove(header::CONNECTION);
    } else {
        all.insert(header::CONNECTION, text("close"));
    }
    Ok(request)
}

/// Keeps at most `most` of the body.
async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
    keep: bool,
    most: usize,
) -> (Answer, Vec<u8>) {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let (mut sender, mut connection) = match builder.handshake(TokioIo::new(stream)).await {
        Ok(pair) => pair,
        Err(error) => return (of_hyper(&error).into(), Vec::new()),
    };
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let kept = keep && is_kept_alive(&response);
        let (complete, body) = read_some(response.into_body(), most).await?;
        Ok::<_, hyper::Error>((status, kept && complete, body))
    };
    // Both halves are polled in one future, so nothing keeps running after a probe is dropped.
    let mut answer = std::pin::pin!(answer);
    let answered = tokio::select! {
        biased;
        answered = &mut answer => answered,
        ended = &mut connection => match ended {
            // The connection has finished; the other half still has to read the rest of the response.
            Ok(()) => answer.await.map(|(status, _, body)| (status, false, body)),
            Err(error) => Err(error),
        },
    };
    match answered {
        Ok((status, kept, body)) if (200..400).contains(&status) => {
            let kept = kept.then(|| Box::new(connection.into_parts().io.into_inner()) as Kept);
            (Answer { outcome: ProbeOutcome::Success, promise: None, kept }, body)
        }
        Ok((status, ..)) => (ProbeOutcome::Refused(ProbeFailure::HttpStatus(status)).into(), Vec::new()),
        Err(error) => (of_hyper(&error).into(), Vec::new()),
    }
}

/// Whether the server keeps the connection open after this response.
fn is_kept_alive(response: &Response<Incoming>) -> bool {
    let mut options = response.headers().get_all(header::CONNECTION).into_iter();
    let closes =
        |value: &HeaderValue| value.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("close"));
    response.version() == Version::HTTP_11 && !options.any(closes)
}

/// Reads the body, or the beginning of a long one. Returns whether it was read to its end, and at most `most` of it.
async fn read_some(mut body: Incoming, most: usize) -> Result<(bool, Vec<u8>), hyper::Error> {
    let (mut read, mut kept) = (0, Vec::new());
    while read < MAX_BODY {
        let Some(frame) = body.frame().await else { return Ok((true, kept)) };
        let frame = frame?;
        let data = frame.data_ref().map_or(&[][..], |data| data);
        read += data.len();
        kept.extend(data.iter().take(most - kept.len()));
    }
    Ok((false, kept))
}

fn of_hyper(error: &hyper::Error) -> ProbeOutcome {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return match of_io(error) {
                // It is none of the system, but one of the decoder: the other side has sent something invalid.
                ProbeOutcome::Void(_) if error.raw_os_error().is_none() => {
                    ProbeOutcome::Refused(ProbeFailure::Protocol)
                }
                outcome => outcome,
            };
        }
        source = cause.source();
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return ProbeOutcome::Refused(ProbeFailure::Reset);
    }
    ProbeOutcome::Refused(ProbeFailure::Protocol)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_does_not_come_from_the_other_side_is_no_evidence() {
        let refused = ProbeOutcome::Refused;
        let system = |error: Errno| ProbeOutcome::Void(VoidCause::System(Some(error.raw_os_error())));
        for (error, outcome) in [
            (Errno::CONNREFUSED, refused(ProbeFailure::ConnectionRefused)),
            (Errno::CONNRESET, refused(ProbeFailure::Reset)),
            (Errno::TIMEDOUT, ProbeOutcome::Unanswered),
            (Errno::HOSTUNREACH, ProbeOutcome::Unanswered),
            (Errno::NETUNREACH, ProbeOutcome::Unanswered),
            (Errno::MFILE, ProbeOutcome::Void(VoidCause::Descriptors)),
            (Errno::NFILE, ProbeOutcome::Void(VoidCause::Descriptors)),
            (Errno::AFNOSUPPORT, system(Errno::AFNOSUPPORT)),
            (Errno::ADDRNOTAVAIL, system(Errno::ADDRNOTAVAIL)),
            (Errno::PERM, system(Errno::PERM)),
        ] {
            assert_eq!(of_io(&io::Error::from(error)), outcome, "{error}");
            assert_eq!(of_connecting(&io::Error::from(error)), outcome, "{error}");
        }
    }

    #[test]
    fn a_router_that_knows_no_way_is_no_answer() {
        for error in [Errno::ACCESS, Errno::HOSTDOWN, Errno::NONET, Errno::NOPROTOOPT].map(io::Error::from) {
            assert!(matches!(of_io(&error), ProbeOutcome::Void(_)), "{error} may be an error of our own");
            assert_eq!(of_connecting(&error), ProbeOutcome::Unanswered, "{error}");
        }
    }
}
