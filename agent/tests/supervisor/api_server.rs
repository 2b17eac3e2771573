//! An API server with one `LeaderGroup`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::{RawQuery, State},
    http::StatusCode,
    routing::get,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime};

#[derive(Default)]
struct Shared {
    declaration: Mutex<Value>,
    without_agent: AtomicBool,
    reads: AtomicU64,
}

/// A running server. It stops when this is dropped.
pub struct ApiServer {
    shared: Arc<Shared>,
    runtime: Mutex<Option<Runtime>>,
    pub port: u16,
}

impl ApiServer {
    pub fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let path = "/apis/leadergroup.dev/v1alpha1/namespaces/shop/leadergroups";
        let router = Router::new()
            .route(path, get(watch))
            .route(&format!("{path}/web"), get(read))
            .with_state(shared.clone());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime.spawn(async { axum::serve(listener, router).await });
        Self { shared, runtime: Mutex::new(Some(runtime)), port }
    }

    /// Declares a term.
    pub fn declare(&self, token: i64, boot: &str, cleared: bool, lease: Duration) {
        let run = json!({ "token": token, "boot": boot, "leaseMilliseconds": lease.as_millis(), "cleared": cleared });
        *self.shared.declaration.lock().unwrap() = json!({ "token": token, "run": run });
    }

    /// Whether the group has `spec.agent`. It has, unless this says otherwise.
    pub fn set_agent(&self, has_agent: bool) {
        self.shared.without_agent.store(!has_agent, Ordering::Relaxed);
    }

    /// How many reads it has answered.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::Relaxed)
    }

    /// Stops answering. Returns a time after the last answer.
    pub fn stop(&self) -> Instant {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
        Instant::now()
    }
}

async fn read(State(shared): State<Arc<Shared>>) -> Json<Value> {
    shared.reads.fetch_add(1, Ordering::Relaxed);
    let declaration = shared.declaration.lock().unwrap().clone();
    let spec = if shared.without_agent.load(Ordering::Relaxed) { json!({}) } else { json!({ "agent": {} }) };
    Json(json!({ "spec": spec, "status": { "key": "shop/web", "declaration": declaration } }))
}

/// Watches are not served: reads do not depend on them.
async fn watch(RawQuery(_): RawQuery) -> StatusCode {
    StatusCode::SERVICE_UNAVAILABLE
}
