//! Reads: single objects, and lists in pages.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    Shared,
    failure::Failure,
    faults::RequestInfo,
    kinds::Kind,
    object::Object,
    request::{Continue, Freshness, List, View},
    store::{Objects, Store},
};

/// How long a list waits for the watch cache. After that it is read from the store.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn get(
    shared: &Shared,
    info: &RequestInfo,
    view: View,
    freshness: Freshness,
) -> Result<Bytes, Failure> {
    let store = shared.store.lock();
    let missing = || Failure::not_found(info.kind, &info.name);
    let object = match freshness {
        Freshness::Quorum => store.get(info.kind, &info.namespace, &info.name).cloned(),
        Freshness::Cache => {
            let key = super::object::Key::new(&info.namespace, &info.name);
            let visible = store.visible_revision(info.kind);
            store.objects_at(info.kind, visible).ok_or_else(missing)?.remove(&key)
        }
    };
    object.map(|object| shown(&object, view)).ok_or_else(missing)
}

pub(super) fn shown(object: &Object, view: View) -> Bytes {
    match view {
        View::Whole => object.text(),
        View::Metadata => object.metadata_text(),
    }
}

pub(super) async fn list(shared: &Shared, info: &RequestInfo, list: &List) -> Result<Bytes, Failure> {
    let kind = info.kind;
    if let Some(from) = &list.from {
        let store = shared.store.lock();
        let objects = store.objects_at(kind, from.revision).ok_or_else(|| {
            Failure::expired(
                "The provided continue parameter is too old to display a consistent list result. You must start a new \
                 list without the continue parameter.",
            )
        })?;
        return Ok(page(info, list, &objects, from.revision));
    }
    if list.freshness == Freshness::Quorum {
        catch_up(shared, kind).await;
    }
    let store = shared.store.lock();
    let visible = store.visible_revision(kind);
    let is_late = visible < store.revision();
    match store.objects_at(kind, visible).filter(|_| is_late && list.freshness == Freshness::Cache) {
        Some(objects) => Ok(page(info, list, &objects, visible)),
        None => Ok(page(info, list, store.objects(kind), store.revision())),
    }
}

/// Waits until the watch cache shows what the store has now, or for so long that the store is asked.
async fn catch_up(shared: &Shared, kind: Kind) {
    let limit = Instant::now() + PATIENCE;
    let (wanted, changes) = {
        let store = shared.store.lock();
        (store.revision(), store.history(kind).changes())
    };
    while Instant::now() < limit {
        let notified = changes.notified();
        let until = {
            let store: &Store = &shared.store.lock();
            if store.visible_revision(kind) >= wanted {
                return;
            }
            store.history(kind).reaches(wanted).map_or(limit, |at| at.min(limit))
        };
        tokio::select! {
            biased;
            () = notified => {}
            () = sleep_until(until) => {}
        }
    }
}

/// The objects of a list, or of one page of it.
fn page(info: &RequestInfo, list: &List, objects: &Objects, revision: u64) -> Bytes {
    let after = |object: &Object| {
        list.from.as_ref().is_none_or(|from| {
            (object.key.namespace.as_str(), object.key.name.as_str()) > (&from.namespace, &from.name)
        })
    };
    let is_in_scope = |object: &Object| info.namespace.is_empty() || object.key.namespace == info.namespace;
    let mut rest = objects.values().filter(|object| is_in_scope(object) && after(object));
    let matching = rest.by_ref().filter(|object| list.selector.matches(object));
    let items: Vec<&Arc<Object>> = matching.take(list.limit.unwrap_or(usize::MAX)).collect();
    // The real server does not look whether any of the rest matches.
    let left = rest.count();
    let mut metadata = json!({ "resourceVersion": revision.to_string() });
    if left > 0
        && let Some(last) = items.last()
    {
        let (namespace, name) = (last.key.namespace.clone(), last.key.name.clone());
        metadata["continue"] = Continue { revision, namespace, name }.token().into();
        if list.selector.is_empty() {
            metadata["remainingItemCount"] = left.into();
        }
    }
    joined(info.kind, list.view, &metadata, &items)
}

fn joined(kind: Kind, view: View, metadata: &Value, items: &[&Arc<Object>]) -> Bytes {
    let (list, version) = match view {
        View::Whole => (format!("{}List", kind.traits().name), kind.api_version()),
        View::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
    };
    if items.is_empty() && view == View::Metadata {
        // So the real server says it.
        let list = json!({ "kind": list, "apiVersion": version, "metadata": metadata, "items": null });
        return list.to_string().into();
    }
    let head =
        format!("{{\"kind\":\"{list}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[");
    let mut text = head.into_bytes();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(&shown(item, view));
    }
    text.extend_from_slice(b"]}");
    text.into()
}
