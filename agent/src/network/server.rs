//! What the agent answers to the operator and the kubelet.

use std::{net::Ipv6Addr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use axum::{
    Json, Router, extract::State as Extracted, http::StatusCode, response::IntoResponse, routing::get,
};
use tokio::{net::TcpListener, time::timeout};

use super::shared::Shared;
use crate::{answer::Answer, moment::Moment};

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

/// Serves until the listener fails.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) -> Result<()> {
    let router = Router::new()
        .route("/answer", get(answer))
        .route("/ready", get(ready))
        .route("/livez", get(|| async { "ok" }))
        .with_state(shared);
    axum::serve(listener, router).await.context("serving")
}

/// What the agent promises, signed.
async fn answer(Extracted(shared): Extracted<Arc<Shared>>) -> Result<Json<Answer>, StatusCode> {
    let answer = timeout(PATIENCE, shared.supervisor.ask()).await.ok().flatten();
    answer.map(Json).ok_or(StatusCode::SERVICE_UNAVAILABLE)
}

/// A standby is ready if it could start the program: its reads are answered. While the program runs, the program
/// reports its own readiness.
async fn ready(Extracted(shared): Extracted<Arc<Shared>>) -> impl IntoResponse {
    if shared.state.borrow().token.is_some() {
        return (StatusCode::OK, "the program runs\n".to_owned());
    }
    let longest = shared.settings.interval * FRESH_INTERVALS;
    let age = shared.read_at.borrow().map(|at| Moment::now().since(at));
    match age {
        Some(age) if age <= longest => (StatusCode::OK, "the program could start\n".to_owned()),
        Some(age) => {
            let text =
                format!("the LeaderGroup was last read {} s ago; see the agent's log\n", age.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
        None => {
            let text = "the LeaderGroup was not read yet; see the agent's log\n".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}
