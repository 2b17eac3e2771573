//! What somebody else has written where only the operator should: the marks of pods, and the declarations of groups.
//!
//! The checker judges what the operator does. So it is shown what was there before the edit, until something else is
//! written in its place: a correction, or another term. When nothing is left to do, no edit of a pod may be left. The
//! owner of a group passes over a declaration that is older than its own, as a watch that lags shows one, until the
//! next change of holder or owner.

use std::collections::{BTreeMap, BTreeSet};

use leadergroup::api::{FENCING_ANNOTATION, ROLE_LABEL, STAMP_ANNOTATION};
use serde_json::Value;

use crate::{
    api_server::{Change, Kind, Object, Store},
    cluster::NAMESPACE,
};

/// An edit of a field of an object.
#[derive(Clone, Debug)]
pub struct Edited {
    /// The kind of the fault.
    pub kind: &'static str,
    object: (Kind, String),
    field: &'static str,
    written: Value,
}

/// The edits of a run, by their revisions.
#[derive(Default)]
pub struct Edits(BTreeSet<u64>);

/// A field, and what was there before it was edited.
struct Former {
    edited: Value,
    former: Value,
}

/// What the checker is not shown at some revision, by object and field.
pub struct Veil<'a> {
    edits: &'a Edits,
    hidden: BTreeMap<(Kind, String, &'static str), Former>,
}

const DECLARATION: &str = "declaration";
/// The token that the status reports: that of the declaration.
const TOKEN: &str = "token";

/// The fields that only the operator should write.
fn fields(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Pod => &[STAMP_ANNOTATION, FENCING_ANNOTATION],
        Kind::LeaderGroup => &[DECLARATION, TOKEN],
        _ => &[],
    }
}

/// The objects in which the fields of a kind are.
const fn parents(kind: Kind) -> &'static [&'static str] {
    if matches!(kind, Kind::Pod) { &["metadata", "annotations"] } else { &["status"] }
}

fn read(object: &Object, field: &str) -> Value {
    let parent = parents(object.kind).iter().fold(object.value(), |value, name| &value[*name]);
    // A report writes the declaration of no term where there is none.
    let is_empty = field == DECLARATION && parent[field]["token"].as_i64().unwrap_or(0) == 0;
    if is_empty { Value::Null } else { parent[field].clone() }
}

fn write(kind: Kind, object: &mut Value, field: &str, value: Value) {
    let mut parent = object;
    for name in parents(kind) {
        parent = &mut parent[*name];
    }
    parent[field] = value;
}

/// Whether the operator has written the marks of a pod. It writes all of them at once, so they may be what was edited:
/// the next token, say.
fn rewrites_marks(change: &Change) -> bool {
    let (Some(new), Some(old)) = (&change.new, &change.old) else { return false };
    let by_operator = new.kind == Kind::Pod && change.by.contains('/');
    let role = |pod: &Object| pod.labels().and_then(|labels| labels.get(ROLE_LABEL)).cloned();
    let differs = |field: &&str| read(new, field) != read(old, field);
    by_operator && (role(new) != role(old) || fields(Kind::Pod).iter().any(differs))
}

impl Edited {
    /// The last change of an object was an edit of this field.
    pub fn of(store: &Store, kind: &'static str, object: (Kind, String), field: &'static str) -> Self {
        let written = store.get(object.0, NAMESPACE, &object.1).map(|found| read(found, field));
        Self { kind, object, field, written: written.unwrap_or_default() }
    }

    /// Whether something else is there now.
    pub fn is_corrected(&self, store: &Store) -> bool {
        let found = store.get(self.object.0, NAMESPACE, &self.object.1);
        found.is_some_and(|found| read(found, self.field) != self.written)
    }
}

impl Edits {
    /// The change at this revision was an edit.
    pub fn add(&mut self, revision: u64) {
        self.0.insert(revision);
    }

    /// Nothing is hidden yet.
    pub fn veil(&self) -> Veil<'_> {
        Veil { edits: self, hidden: BTreeMap::new() }
    }
}

impl Veil<'_> {
    /// The object after the next change, as the checker is shown it, if that is not how it is.
    pub fn next(&mut self, change: &Change) -> Option<Value> {
        let object = change.object();
        let (kind, name) = (object.kind, &object.key.name);
        if rewrites_marks(change) {
            self.hidden.retain(|(of, named, _), _| (*of, named) != (kind, name));
        }
        let mut shown = None;
        for field in fields(kind) {
            let key = (kind, name.clone(), *field);
            let (Some(new), Some(old)) = (&change.new, &change.old) else {
                self.hidden.remove(&key);
                continue;
            };
            let (now, before) = (read(new, field), read(old, field));
            let reports_edited =
                *field == TOKEN && self.hidden.contains_key(&(kind, name.clone(), DECLARATION));
            if self.edits.0.contains(&change.revision) && (now != before || reports_edited) {
                let former = self.hidden.remove(&key).map_or(before, |hidden| hidden.former);
                self.hidden.insert(key.clone(), Former { edited: now.clone(), former });
            }
            match self.hidden.get(&key) {
                Some(hidden) if hidden.edited == now || reports_edited => {
                    let shown = shown.get_or_insert_with(|| new.value().clone());
                    write(kind, shown, field, hidden.former.clone());
                }
                Some(_) => drop(self.hidden.remove(&key)),
                None => {}
            }
        }
        shown
    }

    /// The edits of pods that nobody has corrected.
    pub fn left(&self) -> Vec<String> {
        let left = self.hidden.iter().filter(|((kind, ..), it)| *kind == Kind::Pod && it.edited != it.former);
        left.map(|((kind, name, field), hidden)| {
            format!("{kind:?} {name}: {field} is still {}", hidden.edited)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    /// Changes of one object, one after the other.
    struct Tape<'a> {
        veil: Veil<'a>,
        kind: Kind,
        last: Option<Arc<Object>>,
        revision: u64,
    }

    impl Tape<'_> {
        /// What the checker is shown.
        fn write(&mut self, by: &str, mut value: Value) -> Value {
            value["metadata"]["name"] = "a".into();
            self.revision += 1;
            let new = Arc::new(Object::new(self.kind, value.clone(), self.revision));
            let change = Change {
                revision: self.revision,
                at: jiff::Timestamp::UNIX_EPOCH,
                instant: Instant::now(),
                old: self.last.replace(new.clone()),
                new: Some(new),
                by: by.into(),
            };
            self.veil.next(&change).unwrap_or(value)
        }
    }

    fn edits(revisions: &[u64]) -> Edits {
        Edits(revisions.iter().copied().collect())
    }

    fn pod(stamp: &str, fencing: &str, phase: &str) -> Value {
        let annotations = json!({ STAMP_ANNOTATION: stamp, FENCING_ANNOTATION: fencing });
        json!({ "metadata": { "annotations": annotations }, "status": { "phase": phase } })
    }

    #[test]
    fn an_edited_mark_is_hidden_until_the_operator_writes_the_marks() {
        let edits = edits(&[2]);
        let mut tape = Tape { veil: edits.veil(), kind: Kind::Pod, last: None, revision: 0 };
        let stamp = |shown: Value| shown["metadata"]["annotations"][STAMP_ANNOTATION].clone();
        assert_eq!(stamp(tape.write("replica-1/changes", pod("g/1", "k/1", ""))), "g/1");
        assert_eq!(stamp(tape.write("harness", pod("g/2", "k/1", ""))), "g/1");
        assert_eq!(stamp(tape.write("harness", pod("g/2", "k/1", "Running"))), "g/1");
        assert_eq!(tape.veil.left().len(), 1);
        // The next term has the very token of the edit.
        assert_eq!(stamp(tape.write("replica-1/changes", pod("g/2", "k/2", "Running"))), "g/2");
        assert_eq!(tape.veil.left(), [""; 0]);
        assert_eq!(
            stamp(tape.write("harness", pod("g/3", "k/2", "Running"))),
            "g/3",
            "that is no known edit"
        );
    }

    #[test]
    fn a_declaration_that_was_removed_is_hidden_until_the_next_one() {
        let edits = edits(&[2]);
        let mut tape = Tape { veil: edits.veil(), kind: Kind::LeaderGroup, last: None, revision: 0 };
        let group = |token: i64| json!({ "status": { "declaration": { "token": token }, "token": token } });
        let tokens = |shown: Value| {
            [&shown["status"]["declaration"]["token"], &shown["status"]["token"]].map(Value::as_i64)
        };
        assert_eq!(tokens(tape.write("replica-1/changes", group(7))), [Some(7); 2]);
        assert_eq!(tokens(tape.write("harness", json!({ "status": null }))), [Some(7); 2]);
        assert_eq!(tokens(tape.write("replica-1/background", group(0))), [Some(7); 2], "a report of none");
        assert_eq!(tokens(tape.write("replica-1/changes", group(8))), [Some(8); 2]);
    }
}
