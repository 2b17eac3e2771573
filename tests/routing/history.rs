//! The API server's own history of a namespace from the first revision, with the invariants at each revision.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use leadergroup::{
    api::{Declaration, LeaderGroup, Role},
    routing::{has_its_fencing_token, stamp_of},
};
use serde_json::json;

use crate::{
    apiserver::DEADLINE,
    stage::{KEY, Stage},
};

#[allow(clippy::large_enum_variant, reason = "a test has few of them")]
enum Change {
    Pod { name: String, uid: String, role: Role, token: i64 },
    PodGone(String),
    Declared(Declaration),
}

/// The start of a history.
pub struct Begin(String);

fn revision(version: Option<String>) -> u64 {
    version.unwrap().parse().unwrap()
}

/// All events of one kind, up to the event of the object with the end mark.
async fn events<K>(api: Api<K>, from: &str) -> Vec<WatchEvent<K>>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + kube::Resource,
{
    let watch = api.watch(&WatchParams::default().timeout(60), from).await.unwrap();
    let mut watch = watch.boxed();
    let mut events = Vec::new();
    while let Some(event) = tokio::time::timeout(DEADLINE, watch.try_next()).await.unwrap().unwrap() {
        let marked = matches!(&event, WatchEvent::Modified(object)
            if object.meta().annotations.as_ref().is_some_and(|all| all.contains_key("example.org/end")));
        assert!(!matches!(event, WatchEvent::Error(_)), "{event:?}");
        events.push(event);
        if marked {
            return events;
        }
    }
    panic!("the watch ended before the history did");
}

impl Stage {
    pub async fn begin(&self) -> Begin {
        let pods = self.pods().list(&ListParams::default()).await.unwrap();
        assert!(pods.items.is_empty(), "the history has to begin before the first pod");
        Begin(pods.metadata.resource_version.unwrap())
    }

    /// Checks the history, revision by revision. Returns the tokens under which pods became active.
    pub async fn judge(&self, begin: &Begin) -> Vec<i64> {
        let end = json!({ "metadata": { "annotations": { "example.org/end": "" } } });
        let last = self.pod("last").await;
        self.edit(&last, end["metadata"].clone()).await;
        let (params, end) = (kube::api::PatchParams::default(), kube::api::Patch::Merge(&end));
        self.groups().patch("orders", &params, &end).await.unwrap();
        let mut changes = BTreeMap::new();
        for event in events::<Pod>(self.pods(), &begin.0).await {
            let (WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod)) = &event
            else {
                continue;
            };
            let change = if matches!(event, WatchEvent::Deleted(_)) {
                Change::PodGone(pod.name_any())
            } else {
                let role = self.group.marks.role(pod);
                let (version, annotations) = (pod.resource_version(), pod.annotations());
                assert!(has_its_fencing_token(pod, role, KEY), "{version:?}: {role:?} with {annotations:?}");
                Change::Pod {
                    name: pod.name_any(),
                    uid: pod.uid().unwrap(),
                    role,
                    token: stamp_of(pod).map_or(0, |stamp| stamp.token),
                }
            };
            changes.insert(revision(pod.resource_version()), change);
        }
        for event in events::<LeaderGroup>(self.groups(), &begin.0).await {
            let (WatchEvent::Added(group) | WatchEvent::Modified(group)) = event else { continue };
            let declared = group.status.clone().unwrap_or_default().declaration;
            changes.insert(revision(group.resource_version()), Change::Declared(declared));
        }
        walk(changes)
    }
}

fn walk(changes: BTreeMap<u64, Change>) -> Vec<i64> {
    let mut active: BTreeMap<String, i64> = BTreeMap::new();
    let mut declared = Declaration::default();
    let mut terms = Vec::new();
    for (revision, change) in changes {
        match change {
            Change::Declared(next) => {
                if next != declared {
                    assert!(next.token > declared.token, "{revision}: {declared:?} became {next:?}");
                    declared = next;
                }
            }
            Change::Pod { name, role: Role::Active, token, uid } => {
                if active.insert(name, token) != Some(token) {
                    let holder = declared.holder.as_ref().map(|pod| pod.uid.clone());
                    assert_eq!((declared.token, holder), (token, Some(uid)), "{revision}: not declared");
                    assert!(terms.last() < Some(&token), "{revision}: {token} after {terms:?}");
                    terms.push(token);
                }
            }
            Change::Pod { name, .. } | Change::PodGone(name) => drop(active.remove(&name)),
        }
        assert!(active.len() <= 1, "revision {revision} has the actives {active:?}");
    }
    assert_eq!(active.len(), 1, "there is one active pod at the end");
    terms
}
