//! What the agent answers to the operator and the kubelet.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use http::StatusCode;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, socket_with,
    sockopt::{set_ipv6_v6only, set_socket_reuseaddr},
};
use tokio::{net::TcpListener, time::timeout};

use super::{
    metrics,
    readiness::{Readiness, judge},
    server::{Answer, json, metrics, text},
    shared::Shared,
};
use crate::moment::Moment;

/// The supervisor answers at once, unless it waits for killed processes.
const PATIENCE: Duration = Duration::from_secs(1);
/// A standby is ready if the last read that was answered is not older than this many intervals.
const FRESH_INTERVALS: u32 = 3;

/// How many connections may wait until they are accepted.
const WAITING: i32 = 128;

/// Listens on all addresses of the pod, of both families where the kernel has both.
pub(super) fn listen(port: u16) -> Result<TcpListener> {
    let both = listen_on(AddressFamily::INET6, &(Ipv6Addr::UNSPECIFIED, port).into());
    both.or_else(|_| listen_on(AddressFamily::INET, &(Ipv4Addr::UNSPECIFIED, port).into()))
        .with_context(|| format!("listening on port {port}; choose another one with --port"))
}

fn listen_on(family: AddressFamily, address: &SocketAddr) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    if family == AddressFamily::INET6 {
        // Whatever net.ipv6.bindv6only of the node says.
        set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, address)?;
    rustix::net::listen(&socket, WAITING)?;
    TcpListener::from_std(socket.into())
}

/// The answer to a request for this path.
pub(super) async fn answer(path: String, shared: Arc<Shared>) -> Answer {
    match path.as_str() {
        "/answer" => promise(&shared).await,
        "/ready" => match ready(&shared).await {
            Ok(why) => text(StatusCode::OK, format!("{why}\n")),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/metrics" => {
            let (state, read) = (shared.state.borrow(), shared.last_read.borrow());
            metrics(metrics::text(&state, &shared.reads, read.as_ref(), Moment::now()))
        }
        "/livez" => text(StatusCode::OK, "ok\n"),
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /answer, /ready, /livez and /metrics\n"),
    }
}

/// What the agent promises, signed.
async fn promise(shared: &Shared) -> Answer {
    let promise = timeout(PATIENCE, shared.decider.ask()).await.ok().flatten();
    match promise.and_then(|promise| serde_json::to_vec(&promise).ok()) {
        Some(promise) => json(promise),
        None => text(StatusCode::SERVICE_UNAVAILABLE, "the supervisor does not answer\n"),
    }
}

/// Whether the pod is ready, and why it is or is not.
async fn ready(shared: &Shared) -> Result<String, String> {
    let token = match readiness(shared) {
        Readiness::CouldStart => return Ok("the program could start".to_owned()),
        Readiness::Not(why) => return Err(why),
        Readiness::IfProgram(token) => token,
    };
    let answer = shared.program.ready(token).await;
    // The program may have been told to end while it was asked.
    match readiness(shared) {
        Readiness::IfProgram(still) if still == token => {
            answer.map(|()| "the program runs".to_owned()).map_err(|error| format!("the program: {error}"))
        }
        Readiness::Not(why) => Err(why),
        Readiness::IfProgram(_) | Readiness::CouldStart => Err("the program has ended".to_owned()),
    }
}

fn readiness(shared: &Shared) -> Readiness {
    let (state, read) = (shared.state.borrow(), shared.last_read.borrow());
    judge(&state, read.as_ref(), Moment::now(), shared.settings.interval * FRESH_INTERVALS)
}
