//! The collector for the project's own cluster: reads etcd through its built-in JSON gateway.
//!
//! It watches the *whole* key space and keeps the kinds that it can decode. The revision of each change of the store
//! is one larger than that of the previous change, so a missing number is a missed revision, and the collector stops
//! with an error at the first hole. The API server must store JSON (`--storage-media-type=application/json`), and the
//! store must not be compacted.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::watch, task::JoinHandle, time};

use super::{Change, History, Kind, Object, ObjectId, operator_wrote};
use crate::moment::Moment;

/// Time limit for one connection to etcd, and how long etcd may be unavailable.
const CONNECT: Duration = Duration::from_secs(3);
const AWAY: Duration = Duration::from_mins(1);
const RETRY: Duration = Duration::from_millis(100);
/// Limit of one line. A single answer of etcd is far smaller.
const LONGEST_LINE: usize = 64 << 20;

/// Records the objects of a cluster from its etcd.
#[derive(Debug)]
pub struct EtcdCollector {
    etcd: String,
    shared: Arc<Mutex<Recorded>>,
    progress: watch::Receiver<Progress>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Recorded {
    cluster: Option<String>,
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Progress {
    SeenTo(i64),
    Failed(String),
}

impl Drop for EtcdCollector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EtcdCollector {
    /// Starts at the store's first revision. `etcd` is the client URL, such as `http://198.18.0.10:2379`.
    pub fn start(etcd: &str) -> Self {
        let etcd = etcd.trim_start_matches("http://").trim_end_matches('/');
        let shared = Arc::new(Mutex::new(Recorded::default()));
        // Revision 1 is the empty store.
        let (progress_tx, progress) = watch::channel(Progress::SeenTo(1));
        let stream = Stream {
            etcd: etcd.to_owned(),
            shared: Arc::clone(&shared),
            progress: progress_tx,
            seen_to: 1,
            keys_at: BTreeSet::new(),
        };
        Self { etcd: etcd.to_owned(), shared, progress, task: tokio::spawn(stream.run()) }
    }

    /// Waits until everything up to now has been seen, and returns the revision.
    pub async fn catch_up(&self, within: Duration) -> Result<i64> {
        let now =
            time::timeout(within, current_revision(&self.etcd)).await.context("etcd does not answer")??;
        let mut progress = self.progress.clone();
        let wait = progress.wait_for(|progress| match progress {
            Progress::SeenTo(revision) => *revision >= now,
            Progress::Failed(_) => true,
        });
        let reached = time::timeout(within, wait).await;
        let reached =
            reached.map_err(|_| anyhow!("the history did not reach revision {now} within {within:?}"))?;
        match &*reached.context("the history collector ended")? {
            Progress::SeenTo(_) => Ok(now),
            Progress::Failed(error) => bail!("the history has a hole: {error}"),
        }
    }

    /// The history recorded so far. Call [`Self::catch_up`] first, otherwise the end may be missing.
    pub fn history(&self) -> History {
        let recorded = self.shared.lock();
        let complete_to = match &*self.progress.borrow() {
            Progress::SeenTo(revision) => *revision,
            Progress::Failed(_) => 0,
        };
        History {
            cluster: recorded.cluster.clone(),
            changes: recorded.changes.clone(),
            baseline: 0,
            complete_to,
            terms: None,
            one_clock: true,
            clock_set: Vec::new(),
            faults: None,
            deadlines: Vec::new(),
            grants_apart: BTreeSet::new(),
            unanswered: Vec::new(),
            late: Vec::new(),
        }
    }
}

/// The store's revision now. `etcd` is an address with a port.
pub async fn current_revision(etcd: &str) -> Result<i64> {
    #[derive(Deserialize)]
    struct Answer {
        header: Header,
    }
    let body = json!({ "key": ByteString(vec![0]), "count_only": true });
    let response = post(etcd, "/v3/kv/range", &body).await?;
    let answer = response.into_body().collect().await.context("reading etcd's answer")?.to_bytes();
    let answer: Answer = serde_json::from_slice(&answer).context("etcd's answer to a range request")?;
    Ok(answer.header.revision.0)
}

async fn post(etcd: &str, path: &str, body: &Value) -> Result<Response<Incoming>> {
    let connect = async {
        let stream = TcpStream::connect(etcd).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        anyhow::Ok((sender, connection))
    };
    let connected = time::timeout(CONNECT, connect).await;
    let (mut sender, connection) = connected
        .map_err(|_| anyhow!("etcd at {etcd} does not accept connections"))
        .and_then(|done| done.with_context(|| format!("connecting to etcd at {etcd}")))?;
    // Ends with the response's body.
    tokio::spawn(connection);
    let request = Request::post(path)
        .header("host", etcd)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    let response = sender.send_request(request).await.context("asking etcd")?;
    ensure!(response.status().is_success(), "etcd answered {} to {path}", response.status());
    Ok(response)
}

/// protobuf's JSON form writes 64-bit integers as strings.
#[derive(Clone, Copy, Debug, Default)]
struct Int64(i64);

impl<'de> Deserialize<'de> for Int64 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Deserialize)]
struct Header {
    revision: Int64,
}

#[derive(Debug, Deserialize)]
struct Line {
    result: Option<Answer>,
    error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    canceled: bool,
    cancel_reason: String,
    compact_revision: Int64,
    events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(default)]
    r#type: String,
    kv: KeyValue,
}

#[derive(Debug, Deserialize)]
struct KeyValue {
    key: ByteString,
    #[serde(default)]
    value: ByteString,
    mod_revision: Int64,
}

struct Stream {
    etcd: String,
    shared: Arc<Mutex<Recorded>>,
    progress: watch::Sender<Progress>,
    seen_to: i64,
    /// The keys seen at `seen_to`: one transaction may change several, and a new watch starts at `seen_to` again.
    keys_at: BTreeSet<Vec<u8>>,
}

enum Ended {
    /// The connection was lost: continue from where it ended.
    Broken(anyhow::Error),
    /// The missed changes are lost.
    Hole(anyhow::Error),
}

impl Stream {
    async fn run(mut self) {
        let mut broken_since: Option<Moment> = None;
        loop {
            let seen = self.seen_to;
            let error = match self.watch().await {
                Ended::Hole(error) => error,
                Ended::Broken(error) => {
                    if self.seen_to > seen {
                        broken_since = None;
                    }
                    if Moment::now().since(*broken_since.get_or_insert_with(Moment::now)) < AWAY {
                        time::sleep(RETRY).await;
                        continue;
                    }
                    error
                }
            };
            self.progress.send_replace(Progress::Failed(format!("{error:#}")));
            return;
        }
    }

    async fn watch(&mut self) -> Ended {
        let create = json!({ "create_request": {
            "key": ByteString(vec![0]),
            "range_end": ByteString(vec![0]),
            "start_revision": self.seen_to.to_string(),
            "fragment": true,
        }});
        let mut body = match post(&self.etcd, "/v3/watch", &create).await {
            Ok(response) => response.into_body(),
            Err(error) => return Ended::Broken(error),
        };
        let mut pending = BytesMut::new();
        let mut searched = 0;
        loop {
            let frame = match body.frame().await {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Ended::Broken(anyhow!(error).context("reading the watch")),
                None => return Ended::Broken(anyhow!("etcd closed the watch")),
            };
            pending.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(end) = pending[searched..].iter().position(|byte| *byte == b'\n') {
                let line = pending.split_to(searched + end + 1);
                searched = 0;
                if let Err(error) = self.line(&line) {
                    return Ended::Hole(error);
                }
            }
            searched = pending.len();
            if searched > LONGEST_LINE {
                return Ended::Hole(anyhow!("etcd sent {searched} bytes without a line end"));
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        let line: Line = parse(line).context("a line of etcd's watch")?;
        if let Some(error) = line.error {
            bail!("etcd: {error}");
        }
        let answer = line.result.unwrap_or_default();
        ensure!(
            !answer.canceled,
            "etcd cancelled the watch: {} (compacted at {})",
            answer.cancel_reason,
            answer.compact_revision.0
        );
        let mut changes = Vec::new();
        let (seen, seen_at) = (Moment::now(), Timestamp::now());
        for event in answer.events {
            let revision = event.kv.mod_revision.0;
            if revision == self.seen_to {
                if !self.keys_at.insert(event.kv.key.0.clone()) {
                    continue;
                }
            } else {
                ensure!(revision == self.seen_to + 1, "revision {revision} follows {}", self.seen_to);
                self.seen_to = revision;
                self.keys_at = BTreeSet::from([event.kv.key.0.clone()]);
            }
            let Some((id, value)) = self.known(&event)? else { continue };
            let mut change =
                Change { revision, seen, seen_at, id, state: None, operator: None, raw: "".into() };
            if let Some(mut json) = value {
                let metadata = json.get_mut("metadata").and_then(Value::as_object_mut);
                let fields = metadata.and_then(|metadata| metadata.remove("managedFields"));
                change.operator = operator_wrote(fields.as_ref());
                let state = Object::read(change.id.kind, &json).with_context(|| change.id.to_string())?;
                change.state = Some(state);
                change.raw = json.to_string().into();
            }
            changes.push(change);
        }
        self.shared.lock().changes.append(&mut changes);
        self.progress.send_replace(Progress::SeenTo(self.seen_to));
        Ok(())
    }

    /// The object of an event, if its kind is kept. The value is `None` for a deletion.
    fn known(&self, event: &Event) -> Result<Option<(ObjectId, Option<Value>)>> {
        let Ok(key) = std::str::from_utf8(&event.kv.key.0) else { return Ok(None) };
        let deleted = event.r#type == "DELETE";
        if key == "/registry/namespaces/kube-system" && !deleted {
            let json: Value = parse(&event.kv.value.0)?;
            self.shared.lock().cluster =
                json.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
        }
        let Some(id) = object_id(key) else { return Ok(None) };
        if deleted {
            return Ok(Some((id, None)));
        }
        let json: Value = parse(&event.kv.value.0).with_context(|| {
            format!("{key} is not stored as JSON; is --storage-media-type=application/json set?")
        })?;
        Ok(Some((id, Some(json))))
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .with_context(|| format!("not JSON: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(80)])))
}

/// Parses keys such as `/registry/pods/default/web-0`; `None` for kinds that are not kept.
pub(super) fn object_id(key: &str) -> Option<ObjectId> {
    let rest = key.strip_prefix("/registry/")?;
    let (kind, rest) = [
        (Kind::Pod, "pods/"),
        (Kind::Service, "services/specs/"),
        (Kind::EndpointSlice, "endpointslices/"),
        (Kind::LeaderGroup, "leadergroup.dev/leadergroups/"),
        (Kind::Event, "events/"),
    ]
    .into_iter()
    .find_map(|(kind, prefix)| Some((kind, rest.strip_prefix(prefix)?)))?;
    let (namespace, name) = rest.split_once('/')?;
    Some(ObjectId { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}
