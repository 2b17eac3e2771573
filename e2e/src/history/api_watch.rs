//! The collector for existing clusters: watches through the API server.
//!
//! A watch delivers every change after the revision it starts from, or returns 410 Gone. In the second case a part of
//! the history is lost, and the collector fails. Each watch is short, because the server ends a short watch with a
//! bookmark, which shows how far it came if nothing happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, Pod, Service},
    discovery::v1::EndpointSlice,
    events::v1::Event,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams},
};
use leadergroup::api::LeaderGroup;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle, time};

use super::{Change, History, Kind, Object, ObjectId, operator_wrote};
use crate::moment::Moment;

const WATCH_SECONDS: u32 = 10;
/// What is recorded. Events are not: the API server has no watch cache for them, so their watch sends no bookmarks and
/// never shows how far it has got.
const KINDS: [Kind; 4] = [Kind::Pod, Kind::Service, Kind::EndpointSlice, Kind::LeaderGroup];
/// How long the API server may be unavailable, and how often to retry.
const AWAY: Duration = Duration::from_mins(1);
const RETRY: Duration = Duration::from_millis(200);

/// Records the objects of one namespace.
pub struct ApiCollector {
    client: Client,
    namespace: String,
    cluster: String,
    baseline: i64,
    changes: Arc<Mutex<Vec<Change>>>,
    progress: BTreeMap<Kind, watch::Receiver<Progress>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Clone, Debug)]
enum Progress {
    SeenTo(i64),
    Failed(String),
}

impl Drop for ApiCollector {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl ApiCollector {
    /// Starts now, with the current content of the namespace as the baseline.
    pub async fn start(client: Client, namespace: &str) -> Result<Self> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system = namespaces.get("kube-system").await.context("reading the namespace kube-system")?;
        let mut collector = Self {
            namespace: namespace.to_owned(),
            cluster: system.metadata.uid.unwrap_or_default(),
            baseline: 0,
            changes: Arc::default(),
            progress: BTreeMap::new(),
            tasks: Vec::new(),
            client,
        };
        for kind in KINDS {
            let api = collector.api(kind);
            let list =
                api.list(&ListParams::default()).await.with_context(|| format!("listing {kind:?}s"))?;
            let revision = revision_of(list.metadata.resource_version.as_deref())?;
            collector.baseline = collector.baseline.max(revision);
            for object in list.items {
                let change = change(kind, namespace, object, false)?;
                collector.changes.lock().push(change);
            }
            let (progress_tx, progress) = watch::channel(Progress::SeenTo(revision));
            let follower = Follower {
                kind,
                namespace: namespace.to_owned(),
                api,
                changes: Arc::clone(&collector.changes),
                progress: progress_tx,
                seen_to: revision,
            };
            collector.progress.insert(kind, progress);
            collector.tasks.push(tokio::spawn(follower.run()));
        }
        Ok(collector)
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let resource = match kind {
            Kind::Pod => ApiResource::erase::<Pod>(&()),
            Kind::Service => ApiResource::erase::<Service>(&()),
            Kind::EndpointSlice => ApiResource::erase::<EndpointSlice>(&()),
            Kind::LeaderGroup => ApiResource::erase::<LeaderGroup>(&()),
            Kind::Event => ApiResource::erase::<Event>(&()),
        };
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// Waits until everything up to now has been seen, and returns the revision.
    pub async fn catch_up(&self, within: Duration) -> Result<i64> {
        // A list without a resourceVersion reads the newest state.
        let mut now = 0;
        for kind in KINDS {
            let list = self.api(kind).list(&ListParams::default().limit(1)).await?;
            now = now.max(revision_of(list.metadata.resource_version.as_deref())?);
        }
        for (kind, progress) in &self.progress {
            let mut progress = progress.clone();
            let wait = progress.wait_for(|progress| match progress {
                Progress::SeenTo(revision) => *revision >= now,
                Progress::Failed(_) => true,
            });
            let reached = time::timeout(within, wait).await;
            let reached = reached.map_err(|_| {
                anyhow!("the watch of {kind:?}s did not reach revision {now} within {within:?}")
            })?;
            if let Progress::Failed(error) = &*reached.context("the history collector ended")? {
                bail!("the history has a hole: {error}");
            }
        }
        Ok(now)
    }

    /// The history recorded so far. Call [`Self::catch_up`] first, otherwise the end may be missing.
    pub fn history(&self) -> History {
        let mut changes = self.changes.lock().clone();
        changes.sort_by_key(|change| change.revision);
        let seen_to = |progress: &watch::Receiver<Progress>| match &*progress.borrow() {
            Progress::SeenTo(revision) => *revision,
            Progress::Failed(_) => 0,
        };
        History {
            cluster: Some(self.cluster.clone()),
            changes,
            baseline: self.baseline,
            complete_to: self.progress.values().map(seen_to).min().unwrap_or(0),
            terms: None,
            one_clock: false,
            clock_set: Vec::new(),
            faults: None,
            deadlines: Vec::new(),
            grants_apart: BTreeSet::new(),
            unanswered: Vec::new(),
            late: Vec::new(),
        }
    }
}

fn revision_of(version: Option<&str>) -> Result<i64> {
    let version = version.context("no resourceVersion")?;
    version.parse().with_context(|| format!("the resourceVersion {version} is no number"))
}

fn change(kind: Kind, namespace: &str, mut object: DynamicObject, deleted: bool) -> Result<Change> {
    let revision = revision_of(object.metadata.resource_version.as_deref())?;
    let fields = object.metadata.managed_fields.take().map(serde_json::to_value).transpose()?;
    let id = ObjectId {
        kind,
        namespace: namespace.to_owned(),
        name: object.metadata.name.clone().context("an object without a name")?,
    };
    let json: Value = serde_json::to_value(&object)?;
    let state = if deleted { None } else { Some(Object::read(kind, &json).with_context(|| id.to_string())?) };
    let raw = json.to_string().into();
    let operator = operator_wrote(fields.as_ref());
    Ok(Change { revision, seen: Moment::now(), seen_at: Timestamp::now(), id, state, operator, raw })
}

struct Follower {
    kind: Kind,
    namespace: String,
    api: Api<DynamicObject>,
    changes: Arc<Mutex<Vec<Change>>>,
    progress: watch::Sender<Progress>,
    seen_to: i64,
}

enum Ended {
    /// The watch is over: continue from where it ended.
    Over,
    /// The missed changes are lost.
    Hole(anyhow::Error),
}

impl Follower {
    async fn run(mut self) {
        let mut away_since: Option<Moment> = None;
        loop {
            let error = match self.watch().await {
                Ok(Ended::Over) => {
                    away_since = None;
                    continue;
                }
                Ok(Ended::Hole(error)) => error,
                Err(error) => {
                    if Moment::now().since(*away_since.get_or_insert_with(Moment::now)) < AWAY {
                        time::sleep(RETRY).await;
                        continue;
                    }
                    error
                }
            };
            self.progress.send_replace(Progress::Failed(format!("{:?}s: {error:#}", self.kind)));
            return;
        }
    }

    async fn watch(&mut self) -> Result<Ended> {
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let mut stream = match self.api.watch(&params, &self.seen_to.to_string()).await {
            Ok(stream) => stream.boxed(),
            Err(kube::Error::Api(status)) if status.code == 410 => {
                return Ok(Ended::Hole(anyhow!("{status}")));
            }
            Err(error) => return Err(error.into()),
        };
        while let Some(event) = stream.next().await {
            let (object, deleted) = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(bookmark) => {
                    self.reach(revision_of(Some(&bookmark.metadata.resource_version))?);
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => {
                    return Ok(Ended::Hole(anyhow!("{status}")));
                }
                WatchEvent::Error(status) => bail!("{status}"),
            };
            match self.record(object, deleted) {
                Ok(revision) => self.reach(revision),
                Err(error) => return Ok(Ended::Hole(error)),
            }
        }
        Ok(Ended::Over)
    }

    fn record(&self, object: DynamicObject, deleted: bool) -> Result<i64> {
        let change = change(self.kind, &self.namespace, object, deleted)?;
        let revision = change.revision;
        ensure!(revision > self.seen_to, "revision {revision} came after {}", self.seen_to);
        self.changes.lock().push(change);
        Ok(revision)
    }

    fn reach(&mut self, revision: i64) {
        self.seen_to = self.seen_to.max(revision);
        self.progress.send_replace(Progress::SeenTo(self.seen_to));
    }
}
