//! A server, real or simulated, and what its answers have shown.

use std::{collections::BTreeMap, time::Duration};

use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::{Request, header};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::operations::{Call, Id, Operation, Step, Version};
use crate::api_server::{ApiServer, Kind, as_go_writes};

const DEADLINE: Duration = Duration::from_secs(30);
const SENTINEL: &str = "zz-last";
const WRONG: &str = "11111111-2222-4333-8444-555555555555";

pub struct World {
    client: Client,
    namespace: String,
    /// Complete objects as the real server completes them, so that defaults are the same for both.
    templates: BTreeMap<Kind, Value>,
    /// UIDs and versions in the order in which they have been seen.
    uids: Vec<String>,
    versions: Vec<String>,
    /// What has been seen of each object.
    seen: BTreeMap<(Kind, String), Seen>,
}

#[derive(Default)]
struct Seen {
    uids: Vec<String>,
    versions: Vec<String>,
}

const KINDS: [Kind; 3] = [Kind::Pod, Kind::LeaderGroup, Kind::EndpointSlice];

impl World {
    pub async fn real(client: Client, namespace: &str) -> Self {
        let mut world = Self::new(client, namespace);
        for (kind, minimal) in [
            (
                Kind::Pod,
                json!({ "spec": { "containers": [{ "name": "main", "image": "none" }], "nodeName": "n1" } }),
            ),
            (Kind::LeaderGroup, json!({ "spec": { "selector": { "matchLabels": { "app": "x" } } } })),
            (
                Kind::EndpointSlice,
                json!({
                    "addressType": "IPv4",
                    "endpoints": [{ "addresses": ["198.18.0.7"], "conditions": { "ready": true } }],
                    "ports": [{ "name": "web", "port": 80, "protocol": "TCP" }],
                }),
            ),
        ] {
            let mut body = minimal;
            body["metadata"] = json!({ "name": "template" });
            body["apiVersion"] = kind.api_version().into();
            body["kind"] = kind.traits().name.into();
            let path = format!("{}?dryRun=All", world.path(kind));
            let (code, mut template) = world.send(&request("POST", &path, "application/json", &body)).await;
            assert_eq!(code, 201, "{template}");
            template["metadata"] = json!({});
            world.templates.insert(kind, template);
        }
        world
    }

    pub fn simulated(server: &ApiServer, real: &Self) -> Self {
        let namespace = json!({ "metadata": { "name": real.namespace } });
        server.store().create(Kind::Namespace, "", namespace).unwrap();
        let templates = real.templates.clone();
        Self { templates, ..Self::new(server.client("compared"), &real.namespace) }
    }

    fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            templates: BTreeMap::new(),
            uids: Vec::new(),
            versions: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    fn path(&self, kind: Kind) -> String {
        let root = if kind.traits().group.is_empty() { "api" } else { "apis" };
        format!("/{root}/{}/namespaces/{}/{}", kind.api_version(), self.namespace, kind.traits().plural)
    }

    async fn send(&self, request: &Request<Vec<u8>>) -> (u16, Value) {
        let response = self.client.send(request.clone().map(Body::from)).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body).into_owned()));
        (code, body)
    }

    /// The answer, in a form that is the same for both servers.
    pub async fn perform(&mut self, operation: &Operation) -> Value {
        let request = self.request(operation);
        let (code, body) = self.send(&request).await;
        let key = (operation.kind, operation.name.to_owned());
        if code < 300 && body["kind"] == operation.kind.traits().name && !operation.dry_run {
            let seen = self.seen.entry(key).or_default();
            let text = |field: &str| body["metadata"][field].as_str().unwrap_or_default().to_owned();
            for (known, new) in [(&mut seen.uids, text("uid")), (&mut seen.versions, text("resourceVersion"))]
            {
                if known.last() != Some(&new) {
                    known.push(new);
                }
            }
        }
        let is_new = operation.dry_run && matches!(operation.call, Call::Create { .. });
        json!({ "code": code, "body": self.normal(body, is_new) })
    }

    fn request(&self, operation: &Operation) -> Request<Vec<u8>> {
        let Operation { kind, name, call, dry_run } = operation;
        let (all, key) = (self.path(*kind), (*kind, (*name).to_owned()));
        let one = format!("{all}/{name}");
        let dry = if *dry_run { "?dryRun=All" } else { "?" };
        let part = |status: bool| if status { format!("{one}/status{dry}") } else { format!("{one}{dry}") };
        match call {
            Call::Get => request("GET", &one, "", &Value::Null),
            Call::List { selector, metadata, limit } => list(&all, selector, *metadata, *limit),
            Call::Create { labels, finalizers, scheduled } => {
                let mut body = self.templates[kind].clone();
                body["metadata"] = json!({ "name": name, "labels": labels, "finalizers": finalizers });
                if *kind == Kind::Pod && !scheduled {
                    body["spec"].as_object_mut().unwrap().remove("nodeName");
                }
                request("POST", &format!("{all}{dry}"), "application/json", &body)
            }
            Call::Merge { metadata, rest, uid, version, status } => {
                let mut body = rest.clone();
                body["metadata"] = metadata.clone();
                self.precondition(&key, *uid, *version, &mut body["metadata"]);
                request("PATCH", &part(*status), "application/merge-patch+json", &body)
            }
            Call::Json { steps, status, as_go } => {
                let body = steps.iter().map(|step| self.step(&key, step)).collect();
                let request = request("PATCH", &part(*status), "application/json-patch+json", &body);
                if *as_go { request.map(|_| as_go_writes(&body).into_bytes()) } else { request }
            }
            Call::Replace { change, uid, version } => {
                let mut body = self.replacement(*kind, name, change);
                self.precondition(&key, *uid, *version, &mut body["metadata"]);
                request("PUT", &part(false), "application/json", &body)
            }
            Call::Delete { grace, uid, version } => {
                let mut body = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {} });
                self.precondition(&key, *uid, *version, &mut body["preconditions"]);
                if let Some(grace) = grace {
                    body["gracePeriodSeconds"] = (*grace).into();
                }
                if *dry_run {
                    body["dryRun"] = json!(["All"]);
                }
                request("DELETE", &one, "application/json", &body)
            }
        }
    }

    fn step(&self, key: &(Kind, String), step: &Step) -> Value {
        let test = |path: &str, value: Option<String>| json!({ "op": "test", "path": path, "value": value });
        match step {
            Step::TestUid(id) => test("/metadata/uid", self.uid(key, *id)),
            Step::TestVersion(version) => test("/metadata/resourceVersion", self.version(key, *version)),
            Step::Plain(step) => step.clone(),
        }
    }

    fn replacement(&self, kind: Kind, name: &str, change: &Value) -> Value {
        let mut body = self.templates[&kind].clone();
        body["metadata"] = json!({ "name": name });
        for (field, value) in change.as_object().unwrap() {
            if field == "metadata" {
                body["metadata"]["labels"] = value["labels"].clone();
                body["metadata"]["annotations"] = value["annotations"].clone();
            } else if kind == Kind::EndpointSlice {
                body[field] = value.clone();
            }
        }
        body
    }

    fn precondition(&self, key: &(Kind, String), id: Id, version: Version, fields: &mut Value) {
        for (field, value) in [("uid", self.uid(key, id)), ("resourceVersion", self.version(key, version))] {
            if let Some(value) = value {
                fields[field] = value.into();
            }
        }
    }

    fn uid(&self, key: &(Kind, String), id: Id) -> Option<String> {
        let seen = self.seen.get(key);
        match id {
            Id::None => None,
            Id::Right => seen.and_then(|seen| seen.uids.last()).cloned(),
            Id::First => seen.and_then(|seen| seen.uids.first()).cloned(),
            Id::Wrong => Some(WRONG.to_owned()),
        }
    }

    fn version(&self, key: &(Kind, String), version: Version) -> Option<String> {
        let versions: &[String] = self.seen.get(key).map_or(&[], |seen| &seen.versions);
        match version {
            Version::None => None,
            Version::Last => versions.last().cloned(),
            Version::Former => versions.iter().rev().nth(1).cloned(),
            Version::First => versions.first().cloned(),
            Version::Zero => Some("0".to_owned()),
        }
    }

    /// UIDs and versions become numbers in the order in which they were seen, times become words.
    fn normal(&mut self, mut body: Value, is_new: bool) -> Value {
        if body["kind"] == "Status" {
            return self.normal_status(body);
        }
        if let Some(items) = body.get_mut("items").map(Value::take) {
            let is_null = items.is_null();
            let items: Vec<Value> = serde_json::from_value::<Option<_>>(items).unwrap().unwrap_or_default();
            let items: Vec<Value> = items.into_iter().map(|item| self.normal_object(item, false)).collect();
            let list = &body["metadata"];
            return json!({
                "kind": body["kind"], "items": items, "null": is_null, "left": list["remainingItemCount"],
                "continues": list["continue"].as_str().is_some_and(|token| !token.is_empty()),
            });
        }
        self.normal_object(body, is_new)
    }

    fn normal_object(&mut self, mut object: Value, is_new: bool) -> Value {
        let index = |known: &mut Vec<String>, value: &Value| {
            let text = value.as_str().unwrap_or_default().to_owned();
            let found = known.iter().position(|known| *known == text);
            found.unwrap_or_else(|| {
                known.push(text);
                known.len() - 1
            })
        };
        let metadata = &mut object["metadata"];
        if is_new {
            metadata["uid"] = Value::Null;
        } else {
            metadata["uid"] = index(&mut self.uids, &metadata["uid"]).into();
            metadata["resourceVersion"] = index(&mut self.versions, &metadata["resourceVersion"]).into();
        }
        for time in ["creationTimestamp", "deletionTimestamp"] {
            if metadata[time].is_string() {
                metadata[time] = "a time".into();
            }
        }
        if let Value::Object(fields) = metadata {
            fields.retain(|name, value| name != "managedFields" && !value.is_null());
        }
        // Within lists only custom resources and metadata name their kind.
        if let Value::Object(fields) = &mut object {
            fields.retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
        }
        object
    }

    fn normal_status(&mut self, mut status: Value) -> Value {
        let uid = status["details"]["uid"].as_str().map(str::to_owned);
        if let Some(uid) = uid {
            status["details"]["uid"] = self.uids.iter().position(|known| *known == uid).into();
        }
        // The texts of validations differ in details.
        if status["code"] == 422 {
            status["message"] = Value::Null;
            status["details"]["causes"] = Value::Null;
        }
        if status["code"] == 400 {
            status["message"] = Value::Null;
        }
        let mut message = status["message"].as_str().unwrap_or_default().to_owned();
        for (index, uid) in self.uids.iter().enumerate() {
            message = message.replace(uid, &format!("UID {index}"));
        }
        // Where the real server quotes the error of its storage.
        if let Some((begin, end)) = message.split_once("StorageError: ") {
            let end = end.split_once("AdditionalErrorMsg: ").map_or(end, |(_, end)| end);
            message = format!("{begin}{end}");
        }
        message.retain(|letter| !letter.is_ascii_digit());
        status["message"] = message.into();
        status
    }

    /// The events of several watches: of each kind all since the beginning, those of a label, and those after a version
    /// in the middle.
    pub async fn watch_all(&mut self) -> Vec<Vec<Value>> {
        for kind in KINDS {
            let mut body = self.templates[&kind].clone();
            body["metadata"] = json!({ "name": SENTINEL, "labels": { "role": "active" } });
            let (code, answer) =
                self.send(&request("POST", &self.path(kind), "application/json", &body)).await;
            assert_eq!(code, 201, "{answer}");
        }
        let mut found = Vec::new();
        for kind in KINDS {
            let known = self.seen.iter().filter(|((of, _), _)| *of == kind);
            let versions: Vec<String> = known.flat_map(|(_, seen)| seen.versions.clone()).collect();
            let Some(first) = versions.iter().min_by_key(|version| version.parse::<u64>().unwrap()) else {
                continue;
            };
            let middle = &versions[versions.len() / 2];
            for (after, selector) in [(first, ""), (first, "role%3Dactive"), (first, "role"), (middle, "")] {
                found.push(self.watch(kind, after, selector).await);
            }
        }
        found
    }

    /// Creates a pod.
    pub async fn create_pod(&mut self, name: &'static str) -> Value {
        let (labels, finalizers) = (json!({}), json!([]));
        let call = Call::Create { labels, finalizers, scheduled: true };
        self.perform(&Operation { kind: Kind::Pod, name, call, dry_run: false }).await
    }

    /// The first version of a pod that has been created.
    pub fn first_version(&self, name: &str) -> String {
        self.seen[&(Kind::Pod, name.to_owned())].versions[0].clone()
    }

    /// The events after a version, up to the sentinel.
    pub async fn watch(&mut self, kind: Kind, after: &str, selector: &str) -> Vec<Value> {
        let path = format!(
            "{}?watch=true&timeoutSeconds=60&labelSelector={selector}&resourceVersion={after}",
            self.path(kind)
        );
        let stream = self.client.request_stream(request("GET", &path, "", &Value::Null)).await.unwrap();
        let mut lines = stream.lines();
        let mut found = Vec::new();
        while let Some(line) = timeout(DEADLINE, lines.next()).await.expect("the sentinel is on its way") {
            let mut event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let object = event["object"].take();
            let is_last = event["type"] == "ERROR" || object["metadata"]["name"] == SENTINEL;
            event["object"] = self.normal(object, false);
            found.push(event);
            if is_last {
                break;
            }
        }
        found
    }
}

fn request(method: &str, path: &str, content: &str, body: &Value) -> Request<Vec<u8>> {
    let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, "application/json");
    if !content.is_empty() {
        request = request.header(header::CONTENT_TYPE, content);
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    request.body(body).unwrap()
}

fn list(path: &str, selector: &str, metadata: bool, limit: Option<usize>) -> Request<Vec<u8>> {
    let selector = selector.replace(' ', "%20").replace('!', "%21");
    let limit = limit.map_or_else(String::new, |limit| format!("&limit={limit}"));
    let mut request = request("GET", &format!("{path}?labelSelector={selector}{limit}"), "", &Value::Null);
    if metadata {
        let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        request.headers_mut().insert(header::ACCEPT, accept.parse().unwrap());
    }
    request
}
