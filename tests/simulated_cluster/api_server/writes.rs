//! Writes: what to store is computed from the present object, the hooks are asked, and it is stored if the object is
//! still the same. Otherwise it begins again, as the real server does.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    Shared,
    admission::{Answers, Review},
    deletion::{DeleteOptions, Deletion, deletion},
    failure::Failure,
    faults::RequestInfo,
    object::Object,
    patch::Patch,
    rules::{self, Part},
    store::Store,
};

/// A new content of an object, from the present one.
pub(super) enum Change {
    Update(Value),
    Patch(Patch),
}

/// Stores a new object.
pub(super) async fn create(shared: &Shared, info: &RequestInfo, value: Value) -> Result<Bytes, Failure> {
    let value = shared.store.lock().prepare_create(info.kind, &info.namespace, value)?;
    ask(shared, info, Some(&value)).await?;
    let mut store = shared.store.lock();
    if info.dry_run {
        store.check_unused(info.kind, &value)?;
        return Ok(value.to_string().into());
    }
    store.insert(info.kind, value, &info.client).map(|object| object.text())
}

/// Stores another content of an object.
pub(super) async fn change(shared: &Shared, info: &RequestInfo, change: Change) -> Result<Bytes, Failure> {
    loop {
        let old = present(&shared.store.lock(), info)?;
        let value = changed(info, &old, &change)?;
        ask(shared, info, Some(&value)).await?;
        if info.dry_run {
            return Ok(value.to_string().into());
        }
        let mut store = shared.store.lock();
        if is_present(&store, &old) {
            return Ok(store.replace(&old, value, &info.client).text());
        }
    }
}

fn changed(info: &RequestInfo, old: &Object, change: &Change) -> Result<Value, Failure> {
    let part = if info.is_status { Part::Status } else { Part::Main };
    match change {
        Change::Update(value) => {
            let uid = value["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty() && *uid != old.uid());
            if let Some(uid) = uid {
                let problem = format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    old.uid()
                );
                return Err(Failure::conflict(info.kind, &info.name, &problem));
            }
            rules::update(old, part, value.clone())
        }
        Change::Patch(patch) => rules::update(old, part, patch.apply(old.value())?),
    }
}

/// Deletes an object, or marks it as being deleted.
pub(super) async fn delete(
    shared: &Shared,
    info: &RequestInfo,
    options: &DeleteOptions,
) -> Result<Bytes, Failure> {
    loop {
        let (old, now) = {
            let store = shared.store.lock();
            (present(&store, info)?, store.now())
        };
        let effect = deletion(&old, options, now)?;
        ask(shared, info, None).await?;
        let is_gone = matches!(effect, Deletion::Removed | Deletion::MarkedAndRemoved(_));
        if info.dry_run {
            let shown = match effect {
                Deletion::Marked(value) | Deletion::MarkedAndRemoved(value) => value.to_string().into(),
                Deletion::Unchanged | Deletion::Removed => old.text(),
            };
            return Ok(answer(&old, is_gone, shown));
        }
        let mut store = shared.store.lock();
        if is_present(&store, &old) {
            let left = store.carry_out(&old, effect, &info.client);
            return Ok(answer(&old, is_gone, left.text()));
        }
    }
}

/// The object, or a status that it is gone.
fn answer(old: &Object, is_gone: bool, shown: Bytes) -> Bytes {
    let traits = old.kind.traits();
    if !is_gone || traits.returns_deleted {
        return shown;
    }
    let mut details = json!({ "name": old.key.name, "kind": traits.plural, "uid": old.uid() });
    if !traits.group.is_empty() {
        details["group"] = traits.group.into();
    }
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
    status.to_string().into()
}

fn present(store: &Store, info: &RequestInfo) -> Result<Arc<Object>, Failure> {
    let found = store.get(info.kind, &info.namespace, &info.name);
    found.cloned().ok_or_else(|| Failure::not_found(info.kind, &info.name))
}

fn is_present(store: &Store, old: &Arc<Object>) -> bool {
    let found = store.get(old.kind, &old.key.namespace, &old.key.name);
    found.is_some_and(|found| Arc::ptr_eq(found, old))
}

async fn ask(shared: &Shared, info: &RequestInfo, new: Option<&Value>) -> Result<(), Failure> {
    let review = Review { request: info, verb: info.verb, new };
    let answers = Answers::ask(&mut shared.hooks.lock(), &review);
    answers.wait().await
}
