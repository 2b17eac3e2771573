//! What the agent answers to the operator and the kubelet.

use std::{net::Ipv6Addr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use http::StatusCode;
use tokio::{net::TcpListener, time::timeout};

use super::{
    server::{Answer, json, text},
    shared::Shared,
};
use crate::moment::Moment;

/// The supervisor answers at once, unless it waits for killed processes.
const PATIENCE: Duration = Duration::from_secs(1);
/// A standby is ready if the last read that was answered is not older than this many intervals.
const FRESH_INTERVALS: u32 = 3;

/// Listens on all addresses of the pod, of both families where the kernel has both.
pub(super) async fn listen(port: u16) -> Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await,
    }
    .with_context(|| format!("listening on port {port}; choose another one with --port"))
}

/// The answer to a request for this path.
pub(super) async fn answer(path: String, shared: Arc<Shared>) -> Answer {
    match path.as_str() {
        "/answer" => promise(&shared).await,
        "/ready" => match ready(&shared) {
            Ok(why) => text(StatusCode::OK, format!("{why}\n")),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/livez" => text(StatusCode::OK, "ok\n"),
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /answer, /ready and /livez\n"),
    }
}

/// What the agent promises, signed.
async fn promise(shared: &Shared) -> Answer {
    let promise = timeout(PATIENCE, shared.supervisor.ask()).await.ok().flatten();
    match promise.and_then(|promise| serde_json::to_vec(&promise).ok()) {
        Some(promise) => json(promise),
        None => text(StatusCode::SERVICE_UNAVAILABLE, "the supervisor does not answer\n"),
    }
}

/// A standby is ready if it could start the program: its reads are answered. While the program runs, the program
/// reports its own readiness.
fn ready(shared: &Shared) -> Result<String, String> {
    if shared.state.borrow().token.is_some() {
        return Ok("the program runs".to_owned());
    }
    let longest = shared.settings.interval * FRESH_INTERVALS;
    match shared.read_at.borrow().map(|at| Moment::now().since(at)) {
        Some(age) if age <= longest => Ok("the program could start".to_owned()),
        Some(age) => {
            Err(format!("the LeaderGroup was last read {} s ago; see the agent's log", age.as_secs()))
        }
        None => Err("the LeaderGroup was not read yet; see the agent's log".to_owned()),
    }
}
