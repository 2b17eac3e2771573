//! The objects at the present revision, as etcd has them, and a journal of all changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    deletion::{DeleteOptions, Deletion, deletion, is_over, timestamp},
    failure::Failure,
    history::History,
    kinds::Kind,
    names::Sequence,
    object::{Key, Object},
    rules::{self, Part},
};

/// What a list returns for one key after the other.
pub type Objects = BTreeMap<Key, Arc<Object>>;

/// A committed change.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    /// By the clock of the objects' timestamps.
    pub at: Timestamp,
    pub instant: Instant,
    /// The object before; `None` if it was created.
    pub old: Option<Arc<Object>>,
    /// The object after; `None` if it was removed.
    pub new: Option<Arc<Object>>,
    /// The client that made it.
    pub by: Arc<str>,
}

impl Change {
    /// The object after it, or the one that was removed.
    pub fn object(&self) -> &Object {
        self.new.as_ref().or(self.old.as_ref()).expect("a change is of an object")
    }
}

/// The time of the simulated cluster: tokio's clock, from this time on.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub start: Timestamp,
    pub since: Instant,
}

impl Clock {
    /// A clock that shows this time now.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, since: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        let passed = self.since.elapsed();
        self.start + jiff::SignedDuration::try_from(passed).expect("no test lasts for centuries")
    }
}

/// Objects, their histories, and the journal.
pub struct Store {
    revision: u64,
    tables: BTreeMap<Kind, Table>,
    clock: Clock,
    pub(super) sequence: Sequence,
    journal: Vec<Change>,
}

struct Table {
    objects: Objects,
    history: History,
}

/// The name of the harness in the journal.
const HARNESS: &str = "harness";

impl Store {
    pub(super) fn new(clock: Clock, seed: u64) -> Self {
        let table = || Table { objects: Objects::new(), history: History::new(clock.since) };
        Self {
            revision: 1,
            tables: Kind::ALL.into_iter().map(|kind| (kind, table())).collect(),
            clock,
            sequence: Sequence::new(seed),
            journal: Vec::new(),
        }
    }

    fn table(&self, kind: Kind) -> &Table {
        self.tables.get(&kind).expect("there is a table for each kind")
    }

    fn table_mut(&mut self, kind: Kind) -> &mut Table {
        self.tables.get_mut(&kind).expect("there is a table for each kind")
    }

    pub(super) fn history(&self, kind: Kind) -> &History {
        &self.table(kind).history
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.table(kind).objects.get(&Key::new(namespace, name))
    }

    /// All objects of a kind, by their names.
    pub fn objects(&self, kind: Kind) -> &Objects {
        &self.table(kind).objects
    }

    /// The objects as they were at an earlier revision; `None` if that is no longer known.
    pub fn objects_at(&self, kind: Kind, revision: u64) -> Option<Objects> {
        let mut objects = self.objects(kind).clone();
        for event in self.history(kind).undo(revision)? {
            match &event.old {
                Some(old) => drop(objects.insert(old.key.clone(), old.clone())),
                None => drop(event.new.as_ref().and_then(|new| objects.remove(&new.key))),
            }
        }
        Some(objects)
    }

    /// The revision that the watch cache of a kind has reached.
    pub fn visible_revision(&self, kind: Kind) -> u64 {
        self.history(kind).visible_revision(self.revision, Instant::now())
    }

    /// From now on the watches of a kind show changes after this time.
    pub fn set_lag(&mut self, kind: Kind, lag: Duration) {
        self.table_mut(kind).history.set_lag(lag);
    }

    /// Whether the watches of a kind show no changes until this is taken back.
    pub fn hold(&mut self, kind: Kind, held: bool) {
        self.table_mut(kind).history.hold(held);
    }

    /// Watches cannot begin before the present revision any more. Those that have begun go on.
    pub fn compact(&mut self) {
        let (revision, now) = (self.revision, Instant::now());
        self.tables.values_mut().for_each(|table| table.history.compact(revision, now));
    }

    /// What a restarted server knows: the objects, and no changes before the present revision.
    pub(super) fn forget_histories(&mut self) {
        let (revision, now) = (self.revision, Instant::now());
        self.tables.values_mut().for_each(|table| table.history.forget(revision, now));
    }

    /// The changes since it was last taken.
    pub fn take_journal(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.journal)
    }

    pub fn journal(&self) -> &[Change] {
        &self.journal
    }

    /// The changes after a revision.
    pub fn since(&self, revision: u64) -> impl Iterator<Item = &Change> {
        let first = self.journal.partition_point(|change| change.revision <= revision);
        self.journal[first..].iter()
    }

    /// Creates an object as a controller or a kubelet does, past webhooks and faults.
    pub fn create(&mut self, kind: Kind, namespace: &str, value: Value) -> Result<Arc<Object>, Failure> {
        let value = self.prepare_create(kind, namespace, value)?;
        self.insert(kind, value, HARNESS)
    }

    /// Changes any part of an object, the status included.
    pub fn update(
        &mut self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Object>, Failure> {
        let old = self.get(kind, namespace, name).ok_or_else(|| Failure::not_found(kind, name))?.clone();
        let mut value = old.value().clone();
        change(&mut value);
        let value = rules::update(&old, Part::Whole, value)?;
        Ok(self.replace(&old, value, HARNESS))
    }

    /// Deletes an object as a client does: with finalizers or a grace period it is only marked.
    pub fn delete(
        &mut self,
        kind: Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Failure> {
        let old = self.get(kind, namespace, name).ok_or_else(|| Failure::not_found(kind, name))?.clone();
        let effect = deletion(&old, options, self.now())?;
        self.carry_out(&old, effect, HARNESS);
        Ok(())
    }

    /// What is to be stored of a new object.
    pub(super) fn prepare_create(
        &mut self,
        kind: Kind,
        namespace: &str,
        value: Value,
    ) -> Result<Value, Failure> {
        if kind.traits().namespaced {
            let name = value["metadata"]["name"].as_str().unwrap_or_default();
            match self.get(Kind::Namespace, "", namespace) {
                None => return Err(Failure::not_found(Kind::Namespace, namespace)),
                Some(found) if found.is_being_deleted() => {
                    let problem = format!(
                        "unable to create new content in namespace {namespace} because it is being terminated"
                    );
                    return Err(Failure::forbidden(kind, name, &problem));
                }
                Some(_) => {}
            }
        }
        let now = timestamp(self.now());
        rules::create(kind, namespace, value, &now, &mut self.sequence)
    }

    /// Stores a new object.
    pub(super) fn insert(&mut self, kind: Kind, mut value: Value, by: &str) -> Result<Arc<Object>, Failure> {
        self.check_unused(kind, &value)?;
        let lacks_defaults = kind == Kind::LeaderGroup;
        if lacks_defaults {
            super::schema::complete(&mut value);
        }
        let mut object = Object::new(kind, value, self.revision + 1);
        object.lacks_defaults = lacks_defaults;
        Ok(self.commit(None, Arc::new(object), by))
    }

    /// Whether there is no object of this name yet.
    pub(super) fn check_unused(&self, kind: Kind, value: &Value) -> Result<(), Failure> {
        let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default();
        match self.get(kind, text("namespace"), text("name")) {
            None => Ok(()),
            Some(found) => Err(Failure::already_exists(kind, text("name"), found.is_being_deleted())),
        }
    }

    /// Stores another content of an object. Removes the object if that ends its deletion. The answer is the object as
    /// the client gets it.
    pub(super) fn replace(&mut self, old: &Arc<Object>, value: Value, by: &str) -> Arc<Object> {
        if is_over(old, &value) {
            self.remove(old, by);
            return Arc::new(Object::new(old.kind, value, old.revision));
        }
        // A write that changes nothing creates no revision.
        if value == *old.value() && !old.lacks_defaults {
            return old.clone();
        }
        self.commit(Some(old), Arc::new(Object::new(old.kind, value, self.revision + 1)), by)
    }

    /// Carries a deletion out. The answer is the object as the client gets it.
    pub(super) fn carry_out(&mut self, old: &Arc<Object>, effect: Deletion, by: &str) -> Arc<Object> {
        let marked = match effect {
            Deletion::Unchanged => return old.clone(),
            Deletion::Removed => return self.remove(old, by),
            Deletion::Marked(value) => return self.replace(old, value, by),
            Deletion::MarkedAndRemoved(value) => {
                self.commit(Some(old), Arc::new(Object::new(old.kind, value, self.revision + 1)), by)
            }
        };
        self.remove(&marked, by)
    }

    fn commit(&mut self, old: Option<&Arc<Object>>, new: Arc<Object>, by: &str) -> Arc<Object> {
        self.table_mut(new.kind).objects.insert(new.key.clone(), new.clone());
        self.record(old.cloned(), Some(new.clone()), by);
        new
    }

    fn remove(&mut self, old: &Arc<Object>, by: &str) -> Arc<Object> {
        self.table_mut(old.kind).objects.remove(&old.key);
        self.record(Some(old.clone()), None, by);
        Arc::new(Object::new(old.kind, old.value().clone(), self.revision))
    }

    fn record(&mut self, old: Option<Arc<Object>>, new: Option<Arc<Object>>, by: &str) {
        self.revision += 1;
        let (revision, instant) = (self.revision, Instant::now());
        let change =
            Change { revision, at: self.now(), instant, old: old.clone(), new: new.clone(), by: by.into() };
        self.table_mut(change.object().kind).history.push(revision, old, new, instant);
        self.journal.push(change);
    }
}
