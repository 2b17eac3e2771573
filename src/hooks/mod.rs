//! Hooks: the HTTP requests by which pods learn their role.
//!
//! This module owns the request and says whether it succeeded. It decides neither when it is sent nor what follows from
//! a failure. It connects to pods as the prober of [`health`](crate::health) does, and like that it uses nothing of the
//! response but its status: a tenant chooses path and port.

use std::{io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;

use crate::{
    api::{HookSpec, HumanDuration, LeaderGroupSpec, RoleChange},
    health::{Network, ProbeRefusal, USER_AGENT, address, is_failure_of_this_machine},
};

/// How long a connection may take to be accepted. A pod whose network is gone must not hold a change up for longer.
const CONNECT: Duration = Duration::from_secs(1);
/// The maximum size of status line and headers.
const MAX_HEAD: usize = 16 * 1024;

/// Why a pod was not told its role.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    /// The pod has no address or no such port.
    #[error(transparent)]
    NoAddress(#[from] ProbeRefusal),
    /// The pod's address accepts no connection.
    #[error("no connection to {address}: {error}; check that the container listens on this port")]
    Connect { address: SocketAddr, error: io::Error },
    /// The connection was lost, or the response is not HTTP.
    #[error("POST http://{address}{path}: {error}")]
    Exchange { address: SocketAddr, path: String, error: hyper::Error },
    /// Any status but 200-299.
    #[error("POST http://{address}{path}: HTTP {}; the log of the container may say why", status.as_u16())]
    Status { address: SocketAddr, path: String, status: StatusCode },
    /// The answer is late. The request may have taken effect.
    #[error("POST http://{address}{path}: no answer within {}", HumanDuration(*within))]
    Timeout { address: SocketAddr, path: String, within: Duration },
    /// The path is no path of a URL.
    #[error("spec.hooks: `{path}` is not a valid path: {error}")]
    Path { path: String, error: http::Error },
}

impl HookError {
    /// Whether the request failed here, so that it says nothing about the pod.
    pub(crate) fn is_our_own(&self) -> bool {
        matches!(self, Self::Connect { error, .. } if is_failure_of_this_machine(error))
    }
}

/// Tells a pod its role. `Ok` means that it has answered with a status from 200 to 299.
pub(crate) async fn tell(
    network: &dyn Network,
    pod: &Pod,
    spec: &LeaderGroupSpec,
    hook: &HookSpec,
    change: &RoleChange<'_>,
) -> Result<(), HookError> {
    let address = address(pod, spec, &hook.port)?;
    let path = || hook.path.clone();
    let body = serde_json::to_vec(change).expect("texts and numbers serialise");
    let request = Request::post(&hook.path)
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| HookError::Path { path: path(), error })?;
    let exchange = async {
        let connecting = timeout(CONNECT, network.connect(address)).await;
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let stream =
            connecting.map_err(late).flatten().map_err(|error| HookError::Connect { address, error })?;
        let sent = post(TokioIo::new(stream), request).await;
        sent.map_err(|error| HookError::Exchange { address, path: path(), error })
    };
    let within = hook.timeout.0;
    let late = |_| HookError::Timeout { address, path: path(), within };
    let status = timeout(within, exchange).await.map_err(late)??;
    if status.is_success() { Ok(()) } else { Err(HookError::Status { address, path: path(), status }) }
}

async fn post(
    stream: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<StatusCode, hyper::Error> {
    let mut builder = http1::Builder::new();
    let (mut sender, connection) = builder.max_buf_size(MAX_HEAD).handshake(stream).await?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    // Both halves are polled in one future, so nothing keeps running after it is dropped.
    tokio::select! {
        biased;
        answered = &mut answer => answered.map(|response| response.status()),
        ended = connection => {
            ended?;
            answer.await.map(|response| response.status())
        }
    }
}

#[cfg(test)]
mod tests;
