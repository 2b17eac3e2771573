//! An API server for tests: it answers as the test says, and keeps what it was asked. There is no database.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Context, hook_places::HookPlaces};
use crate::{
    health::MachineNetwork,
    operator::{CALL_TIMEOUT, lock::keys::KeyRule},
    routing::Router,
    telemetry::{Metrics, Traces},
};
use leadergroup_lock::{DatabaseConfig, Store};

/// An API server, and what it was asked: each request as a verb and a path.
pub(in crate::operator) struct FakeApi {
    pub(in crate::operator) context: Context,
    asked: Arc<Mutex<Vec<String>>>,
}

impl FakeApi {
    /// Answers a request for the object at this path. What is not there is not found; a number is an error with this
    /// code.
    pub(in crate::operator) fn with(objects: Vec<(&'static str, Value)>) -> Self {
        Self::answering(move |path| {
            objects.iter().find(|(at, _)| *at == path).map(|(_, object)| object.clone())
        })
    }

    /// Answers one request after the other, whatever it asks for.
    pub(in crate::operator) fn in_turn(answers: Vec<Option<Value>>) -> Self {
        let answers = Mutex::new(answers.into_iter());
        Self::answering(move |_| answers.lock().expect("no test panics here").next().flatten())
    }

    fn answering(answer: impl Fn(&str) -> Option<Value> + Send + Sync + 'static) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            noted.lock().expect("no test panics here").push(format!("{} {path}", request.method()));
            let found = answer(&path);
            let (code, answer) = match found {
                Some(Value::Number(code)) => (code.as_u64().unwrap_or(500), failure(&path, &code)),
                Some(object) => (200, object),
                None => (404, failure(&path, &404.into())),
            };
            let code = u16::try_from(code).expect("a status code");
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(answer)
        });
        let store = Store::new(&DatabaseConfig {
            url: "postgres://nobody@127.0.0.1:1/none".into(),
            ..DatabaseConfig::default()
        });
        let context = Context {
            manages_endpoints: false,
            observes_services: false,
            keys: KeyRule { cluster: "cluster".to_owned(), namespaced: false },
            router: Router::new(Client::new(service, "shop"), CALL_TIMEOUT),
            store: store.expect("the URL is one"),
            metrics: Arc::new(Metrics::new()),
            traces: Traces::default(),
            messages: mpsc::channel(1).0,
            pods: Arc::new(MachineNetwork),
            hook_places: HookPlaces::new(),
            leave_place: Arc::new(|| {}),
        };
        Self { context, asked }
    }

    /// What it was asked, in this order.
    pub(in crate::operator) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no test panics here").clone()
    }
}

/// As the API server says it of an object at this path.
fn failure(path: &str, code: &serde_json::Number) -> Value {
    let mut parts = path.rsplit('/');
    let (name, kind) = (parts.next(), parts.next());
    let group = path.strip_prefix("/apis/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let reason = if code.as_u64() == Some(404) { "NotFound" } else { "InternalError" };
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": reason, "code": code,
        "details": { "name": name, "group": group, "kind": kind },
    })
}
