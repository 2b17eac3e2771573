//! All versions of some objects.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{task::JoinHandle, time::sleep};

use crate::postgres::DEADLINE;

/// The pause before a watch that failed is started again.
const AGAIN: Duration = Duration::from_millis(100);

/// Collects something of each version of the objects that a watch shows, from now on. The first ones are those that are
/// there.
pub(crate) struct Versions<T> {
    seen: Arc<Mutex<Vec<T>>>,
    watch: JoinHandle<()>,
}

impl<T: Clone + Send + 'static> Versions<T> {
    pub(crate) fn watch<K>(
        objects: Api<K>,
        config: watcher::Config,
        take: impl Fn(K) -> T + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = seen.clone();
        let watch = tokio::spawn(async move {
            let stream = watcher(objects, config).applied_objects();
            let mut stream = std::pin::pin!(stream);
            // The next poll starts the watch anew.
            let mut failing: Option<Instant> = None;
            while let Some(shown) = stream.next().await {
                match shown {
                    Ok(object) => {
                        all.lock().unwrap().push(take(object));
                        failing = None;
                    }
                    Err(error) => {
                        let since = *failing.get_or_insert_with(Instant::now);
                        assert!(since.elapsed() < DEADLINE, "the watch fails: {error}");
                        sleep(AGAIN).await;
                    }
                }
            }
        });
        Self { seen, watch }
    }

    /// All versions so far. The watch must not have ended, or it would not show the next ones.
    pub(crate) fn all(&self) -> Vec<T> {
        assert!(!self.watch.is_finished(), "the watch has failed");
        self.seen.lock().unwrap().clone()
    }

    /// The last one of these versions so far.
    pub(crate) fn last(&self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        assert!(!self.watch.is_finished(), "the watch has failed");
        self.seen.lock().unwrap().iter().rfind(|seen| is_wanted(seen)).cloned()
    }

    pub(crate) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

impl<T> Drop for Versions<T> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}
