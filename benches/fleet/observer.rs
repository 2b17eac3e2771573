//! Watches pods and groups through the API server: records each change of the active pod with its time, and every
//! revision at which a group has two active pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ListParams, ObjectMeta, PartialObjectMeta, WatchEvent, WatchParams},
};
use leadergroup::api::{ACTIVE_VALUE, LeaderGroup, ROLE_LABEL};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::workload::{GROUP_LABEL, NAMESPACE, group_number};

const PAUSE: Duration = Duration::from_millis(20);

/// A pod that became active.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) group: usize,
    pub(crate) pod: String,
    pub(crate) at: Instant,
}

/// The state of the watches, shared with the tasks that follow them.
#[derive(Clone)]
pub(crate) struct Observer(Arc<Mutex<Seen>>);

struct Seen {
    /// The active pods of each group: never more than one.
    active: BTreeMap<usize, BTreeSet<String>>,
    /// In the order of the watch.
    changes: Vec<Change>,
    /// When the watch first showed a pod with a deletion timestamp.
    deleting: HashMap<String, Instant>,
    groups: BTreeSet<String>,
    last_event: Instant,
    violations: Vec<String>,
    /// How often the watch of pods began with a list.
    relists: usize,
}

impl Observer {
    pub(crate) fn start(client: &Client) -> Self {
        let observer = Self(Arc::new(Mutex::new(Seen {
            active: BTreeMap::new(),
            changes: Vec::new(),
            deleting: HashMap::new(),
            groups: BTreeSet::new(),
            last_event: Instant::now(),
            violations: Vec::new(),
            relists: 0,
        })));
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        tokio::spawn(follow(pods, observer.clone(), Seen::pod, Seen::all_pods));
        let groups: Api<LeaderGroup> = Api::namespaced(client.clone(), NAMESPACE);
        tokio::spawn(follow(groups, observer.clone(), Seen::group, Seen::all_groups));
        observer
    }

    /// The active pod of each group that has one.
    pub(crate) fn holders(&self) -> BTreeMap<usize, String> {
        let seen = self.locked();
        let first = |pods: &BTreeSet<String>| pods.first().cloned();
        seen.active.iter().filter_map(|(group, pods)| Some((*group, first(pods)?))).collect()
    }

    /// The number of changes recorded so far, for [`Self::since`].
    pub(crate) fn mark(&self) -> usize {
        self.locked().changes.len()
    }

    /// All changes after the mark.
    pub(crate) fn since(&self, mark: usize) -> Vec<Change> {
        self.locked().changes[mark..].to_vec()
    }

    /// When the watch first showed the pod with a deletion timestamp.
    pub(crate) fn deleted_at(&self, pod: &str) -> Option<Instant> {
        self.locked().deleting.get(pod).copied()
    }

    /// How many groups there are.
    pub(crate) fn groups(&self) -> usize {
        self.locked().groups.len()
    }

    /// When a pod or a group changed last.
    pub(crate) fn last_event(&self) -> Instant {
        self.locked().last_event
    }

    /// How often the watch of pods had to start again with a list.
    pub(crate) fn relists(&self) -> usize {
        self.locked().relists.saturating_sub(1)
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.locked().violations.clone()
    }

    /// The first change of each of these groups after the mark; waits until there is one of every group.
    pub(crate) async fn changes_of(
        &self,
        groups: &BTreeSet<usize>,
        mark: usize,
        limit: Duration,
    ) -> Result<BTreeMap<usize, Change>> {
        let deadline = Instant::now() + limit;
        loop {
            let mut first = BTreeMap::new();
            for change in self.since(mark) {
                if groups.contains(&change.group) {
                    first.entry(change.group).or_insert(change);
                }
            }
            if first.len() == groups.len() {
                return Ok(first);
            }
            let missing: Vec<_> = groups.iter().filter(|group| !first.contains_key(group)).collect();
            ensure!(
                Instant::now() < deadline,
                "{} of {} groups have no new active pod after {limit:?}, such as group {}",
                missing.len(),
                groups.len(),
                missing[0]
            );
            sleep(PAUSE).await;
        }
    }

    /// Waits until the check is true.
    pub(crate) async fn wait(
        &self,
        what: &str,
        limit: Duration,
        check: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !check(self) {
            ensure!(Instant::now() < deadline, "not within {limit:?}: {what}");
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Waits until nothing has changed for this time, and returns the time of the last change.
    pub(crate) async fn quiet(&self, time: Duration, limit: Duration) -> Result<Instant> {
        let begin = Instant::now();
        let still = |seen: &Self| seen.last_event().max(begin).elapsed() >= time;
        self.wait(&format!("pods and groups stay as they are for {time:?}"), limit, still).await?;
        Ok(self.last_event())
    }

    fn locked(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Applies a list. A pod that was active before and still is counts as unchanged.
    fn all_pods(&mut self, pods: &[ObjectMeta]) {
        self.relists += 1;
        let names: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.name.as_deref()).collect();
        for active in self.active.values_mut() {
            active.retain(|name| names.contains(name.as_str()));
        }
        // Pods that are not active come first, because a list does not show the order of changes.
        let (active, others): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| is_active(pod));
        for pod in others.into_iter().chain(active) {
            self.pod(pod, false);
        }
    }

    fn all_groups(&mut self, groups: &[ObjectMeta]) {
        self.groups.clear();
        for group in groups {
            self.group(group, false);
        }
    }

    fn pod(&mut self, pod: &ObjectMeta, gone: bool) {
        self.last_event = Instant::now();
        let labels = pod.labels.as_ref();
        let label = |name: &str| labels.and_then(|labels| labels.get(name)).map(String::as_str);
        let (Some(group), Some(name)) = (label(GROUP_LABEL).and_then(group_number), &pod.name) else {
            return;
        };
        if pod.deletion_timestamp.is_some() {
            self.deleting.entry(name.clone()).or_insert(self.last_event);
        }
        let active = self.active.entry(group).or_default();
        if gone || !is_active(pod) {
            active.remove(name);
        } else if active.insert(name.clone()) {
            if active.len() > 1 {
                self.violations.push(format!(
                    "group {group} has {} active pods at revision {}: {active:?}",
                    active.len(),
                    pod.resource_version.as_deref().unwrap_or_default()
                ));
            }
            self.changes.push(Change { group, pod: name.clone(), at: self.last_event });
        }
    }

    fn group(&mut self, group: &ObjectMeta, gone: bool) {
        self.last_event = Instant::now();
        let Some(name) = &group.name else { return };
        if gone {
            self.groups.remove(name);
        } else {
            self.groups.insert(name.clone());
        }
    }
}

fn label<'a>(object: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    object.labels.as_ref()?.get(name).map(String::as_str)
}

fn is_active(pod: &ObjectMeta) -> bool {
    label(pod, ROLE_LABEL) == Some(ACTIVE_VALUE)
}

/// Watches objects for ever, and lists them again when the watch cannot be resumed.
async fn follow<K>(
    api: Api<K>,
    observer: Observer,
    changed: fn(&mut Seen, &ObjectMeta, bool),
    listed: fn(&mut Seen, &[ObjectMeta]),
) where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut version = None;
    loop {
        let begun = match version.take() {
            Some(version) => Ok(version),
            None => list(&api, &observer, listed).await,
        };
        let Ok(mut at) = begun else {
            // The API server is away.
            sleep(PAUSE * 5).await;
            continue;
        };
        // After a broken connection the watch is resumed from the last event.
        if watch(&api, &observer, changed, &mut at).await.is_ok() {
            version = Some(at);
        } else {
            sleep(PAUSE).await;
        }
    }
}

async fn list<K>(api: &Api<K>, observer: &Observer, listed: fn(&mut Seen, &[ObjectMeta])) -> Result<String>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let list = api.list_metadata(&ListParams::default()).await?;
    let version = list.metadata.resource_version.context("a list without a version")?;
    let all: Vec<ObjectMeta> = list.items.into_iter().map(|object| object.metadata).collect();
    listed(&mut observer.locked(), &all);
    Ok(version)
}

/// Follows one watch to its end. Fails if it cannot be resumed.
async fn watch<K>(
    api: &Api<K>,
    observer: &Observer,
    changed: fn(&mut Seen, &ObjectMeta, bool),
    at: &mut String,
) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let events = match api.watch_metadata(&WatchParams::default(), at).await {
        Ok(events) => events.boxed(),
        Err(kube::Error::Api(status)) if status.code == 410 => return Err(kube::Error::Api(status).into()),
        Err(_) => {
            sleep(PAUSE * 5).await;
            return Ok(());
        }
    };
    pin_mut!(events);
    while let Ok(Some(event)) = events.try_next().await {
        let (object, gone): (PartialObjectMeta<K>, bool) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                *at = bookmark.metadata.resource_version;
                continue;
            }
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        *at = object.resource_version().context("an object without a version")?;
        changed(&mut observer.locked(), &object.metadata, gone);
    }
    Ok(())
}
