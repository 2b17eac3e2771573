//! An object at one revision.

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::kinds::Kind;

/// An object as it was at one revision. It never changes, so that watches, lists and the journal share it.
#[derive(Debug)]
pub struct Object {
    pub kind: Kind,
    pub key: Key,
    pub revision: u64,
    value: Value,
    /// The real server stores what clients send and adds defaults whenever it reads. Until the first update the two
    /// differ, and so even an update that changes nothing is written.
    pub lacks_defaults: bool,
    text: OnceLock<Bytes>,
}

/// Namespace and name. The namespace of objects without one is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl Object {
    /// The object with this content, written at this revision.
    pub fn new(kind: Kind, mut value: Value, revision: u64) -> Self {
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = Key { namespace: text("namespace"), name: text("name") };
        Self { kind, key, revision, value, lacks_defaults: false, text: OnceLock::new() }
    }

    pub fn value(&self) -> &Value {
        &self.value
    }

    pub fn metadata(&self) -> &Value {
        &self.value["metadata"]
    }

    pub fn uid(&self) -> &str {
        self.metadata()["uid"].as_str().unwrap_or_default()
    }

    pub fn labels(&self) -> Option<&Map<String, Value>> {
        self.metadata()["labels"].as_object()
    }

    pub fn is_being_deleted(&self) -> bool {
        !self.metadata()["deletionTimestamp"].is_null()
    }

    /// As JSON. Made once, however many watches send it.
    pub fn text(&self) -> Bytes {
        self.text.get_or_init(|| self.value.to_string().into()).clone()
    }

    /// As JSON, with the metadata alone.
    pub fn metadata_text(&self) -> Bytes {
        partial(self.metadata()).to_string().into()
    }
}

fn partial(metadata: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
}
