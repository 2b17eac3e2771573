//! All versions of some objects.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use futures::TryStreamExt as _;
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// Collects something of each version of the objects that a watch shows, from now on. The first ones are those that are
/// there.
pub(crate) struct Versions<T> {
    seen: Arc<Mutex<Vec<T>>>,
    watch: JoinHandle<Result<(), watcher::Error>>,
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
            while let Some(object) = stream.try_next().await? {
                all.lock().unwrap().push(take(object));
            }
            Ok(())
        });
        Self { seen, watch }
    }

    /// All versions so far. The watch must not have ended, or it would not show the next ones.
    pub(crate) fn all(&self) -> Vec<T> {
        assert!(!self.watch.is_finished(), "the watch has failed");
        self.seen.lock().unwrap().clone()
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
