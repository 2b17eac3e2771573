//! How many requests to hooks are under way.
//!
//! A hook may take half a minute, and a tenant chooses how long. So these requests have places of their own, some for
//! each namespace: hooks that hang delay the groups of their namespace, and neither the steps of others nor the writes
//! that wait for webhooks.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many may be under way. Each has an open connection.
pub(in crate::operator) const PLACES: usize = 512;
/// How many of these may be of one namespace.
const PLACES_OF_A_NAMESPACE: usize = 16;

/// The places. Clones are the same places.
#[derive(Clone)]
pub(in crate::operator) struct HookPlaces {
    all: Arc<Semaphore>,
    /// The places of the namespaces that have some taken.
    namespaces: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// A taken place. It is free again when this is dropped.
pub(in crate::operator) struct HookPlace {
    _of_all: OwnedSemaphorePermit,
    _of_namespace: OwnedSemaphorePermit,
}

impl HookPlaces {
    pub(in crate::operator) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(PLACES)), namespaces: Arc::default() }
    }

    /// Waits for a place, behind those of the same namespace that came before.
    pub(in crate::operator) async fn take(&self, namespace: &str) -> HookPlace {
        let of_namespace = self.of(namespace).acquire_owned().await;
        let of_all = self.all.clone().acquire_owned().await;
        let open = "nobody closes these semaphores";
        HookPlace { _of_namespace: of_namespace.expect(open), _of_all: of_all.expect(open) }
    }

    fn of(&self, namespace: &str) -> Arc<Semaphore> {
        let mut namespaces = self.namespaces.lock();
        namespaces.retain(|_, places| places.strong_count() > 0);
        if let Some(places) = namespaces.get(namespace).and_then(Weak::upgrade) {
            return places;
        }
        let places = Arc::new(Semaphore::new(PLACES_OF_A_NAMESPACE));
        namespaces.insert(namespace.to_owned(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::join_all};
    use tokio::task::unconstrained;

    use super::*;

    async fn taken(places: &HookPlaces, namespace: &str, count: usize) -> Vec<HookPlace> {
        unconstrained(join_all((0..count).map(|_| places.take(namespace)))).await
    }

    /// Whether there is a place now.
    fn is_free(places: &HookPlaces, namespace: &str) -> bool {
        unconstrained(places.take(namespace)).now_or_never().is_some()
    }

    #[tokio::test]
    async fn hooks_that_hang_in_some_namespaces_leave_places_to_others() {
        let places = HookPlaces::new();
        let mut kept = Vec::new();
        for namespace in ["one", "two", "three"] {
            let own = taken(&places, namespace, PLACES_OF_A_NAMESPACE).now_or_never();
            kept.extend(own.expect("it has places"));
            assert!(!is_free(&places, namespace), "{namespace} has as many as it may");
        }
        let shop = taken(&places, "shop", PLACES_OF_A_NAMESPACE).now_or_never();
        assert_eq!(shop.expect("it has places").len(), PLACES_OF_A_NAMESPACE);
        kept.pop();
        assert!(is_free(&places, "three"), "one is free again");
    }

    #[tokio::test]
    async fn the_number_of_connections_is_bounded() {
        let places = HookPlaces::new();
        let mut kept = Vec::new();
        for namespace in 0..PLACES / PLACES_OF_A_NAMESPACE {
            kept.extend(taken(&places, &namespace.to_string(), PLACES_OF_A_NAMESPACE).await);
        }
        assert_eq!(kept.len(), PLACES);
        assert!(!is_free(&places, "another"));
        drop(kept);
        assert!(is_free(&places, "another"));
        assert_eq!(places.namespaces.lock().len(), 1, "the others are forgotten");
    }
}
