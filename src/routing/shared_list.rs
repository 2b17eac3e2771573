//! The pods of a namespace that carry a role label, listed once for all groups that are deleted at the same time.
//!
//! Each deletion needs a list that begins after its own start. One that begins while others wait serves all of them, so
//! that the deletion of a thousand groups does not list the namespace a thousand times.

use std::{collections::HashMap, future::Future, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::PartialObjectMeta};
use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use super::{RoutingError, stamp_of};
use crate::api::{PodAt, PodRef};

/// A pod with a stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamped {
    pub(super) at: PodAt,
    /// The UID of the group that stamped it.
    pub(super) group: String,
}

/// A pod without its spec and status, which no deletion needs: they would be most of the list.
pub(super) type PodMeta = PartialObjectMeta<Pod>;

/// What is listed: a namespace and a label.
type Scope = (String, String);

/// The last list, and when it began.
type Last = Option<(Instant, Arc<Vec<Stamped>>)>;

/// Lists under way. Clones share them.
#[derive(Clone, Default)]
pub(super) struct SharedLists(Arc<Mutex<HashMap<Scope, Arc<AsyncMutex<Last>>>>>);

impl SharedLists {
    /// The stamped pods of a list that began after this call did. `list` makes one.
    pub(super) async fn stamped(
        &self,
        namespace: &str,
        label: &str,
        list: impl Future<Output = Result<Vec<PodMeta>, RoutingError>>,
    ) -> Result<Arc<Vec<Stamped>>, RoutingError> {
        let asked = Instant::now();
        let turn = self.turn((namespace.to_owned(), label.to_owned()));
        let mut previous = turn.last.lock().await;
        if let Some((began, stamped)) = &*previous
            && *began >= asked
        {
            return Ok(stamped.clone());
        }
        let began = Instant::now();
        let stamped = Arc::new(list.await?.iter().filter_map(stamped).collect::<Vec<_>>());
        *previous = Some((began, stamped.clone()));
        Ok(stamped)
    }

    fn turn(&self, scope: Scope) -> Turn<'_> {
        let last = self.0.lock().entry(scope.clone()).or_default().clone();
        Turn { lists: self, scope, last }
    }
}

fn stamped(pod: &PodMeta) -> Option<Stamped> {
    let group = stamp_of(pod)?.group;
    let named = PodRef { name: pod.metadata.name.clone()?, uid: pod.uid()? };
    Some(Stamped { at: PodAt { pod: named, version: pod.resource_version() }, group })
}

/// A caller's place in the queue of its scope. The last one to leave removes the scope.
struct Turn<'a> {
    lists: &'a SharedLists,
    scope: Scope,
    last: Arc<AsyncMutex<Last>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lists = self.lists.0.lock();
        // One in the map, one here. Others can be added only under the map's lock.
        if Arc::strong_count(&self.last) == 2 {
            lists.remove(&self.scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use serde_json::json;
    use tokio::sync::Notify;

    use super::*;

    fn pods() -> Vec<PodMeta> {
        let pod = json!({ "metadata": {
            "name": "web-0", "uid": "p0", "resourceVersion": "7", "annotations": { "leadergroup.dev/stamp": "g1/7" }
        } });
        vec![serde_json::from_value(pod).expect("a pod"), PodMeta::default()]
    }

    #[tokio::test]
    async fn callers_that_wait_share_the_next_list_and_never_one_that_began_before_them() {
        let (lists, count, go) = (SharedLists::default(), AtomicUsize::new(0), Notify::new());
        let list = || async {
            count.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            go.notify_one();
            Ok(pods())
        };
        let first = lists.stamped("shop", "role", list());
        let others = async {
            let all = join_all((0..50).map(|_| lists.stamped("shop", "role", list())));
            let release = async { go.notify_one() };
            futures::future::join(all, release).await.0
        };
        let (first, others) = futures::future::join(first, others).await;
        let pod = PodRef { name: "web-0".into(), uid: "p0".into() };
        let expected = Stamped { at: PodAt { pod, version: Some("7".into()) }, group: "g1".into() };
        for answer in others.into_iter().chain([first]) {
            assert_eq!(*answer.expect("a list"), std::slice::from_ref(&expected));
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(lists.0.lock().is_empty(), "nothing is kept");
    }

    #[tokio::test]
    async fn a_failure_is_its_callers_alone() {
        let lists = SharedLists::default();
        let failure = async { Err(RoutingError::Contended { what: "list" }) };
        assert!(lists.stamped("shop", "role", failure).await.is_err());
        assert!(lists.stamped("shop", "role", async { Ok(pods()) }).await.is_ok());
    }
}
