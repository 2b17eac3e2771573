//! An API server within the test: what the operator asks of a real one, with virtual time, and with faults that the
//! harness decides. It stands behind [`kube::Client`].
//!
//! It implements these requests, and answers any other with an error that names it (HTTP 501, and
//! [`ApiServer::unsupported`]):
//!
//! | request | of the operator |
//! |---|---|
//! | get | the namespace `kube-system`, pods, groups, slices, the controllers of pods |
//! | list, in pages, by labels and by name, metadata alone | all that is watched, and what a write depends on |
//! | watch after a revision, with bookmarks and a time limit | groups, pods, Services, slices, Nodes and their Leases |
//! | JSON Patch of a group and of its status | declarations, reports, finalizers |
//! | merge patch with UID and version, also as a dry run | the roles of pods |
//! | create, update, delete with preconditions | slices |
//! | create | Events |
//!
//! The harness may use the same requests for all kinds. Its kubelets and controllers read and write [`Store`]
//! directly.
//!
//! All delays are tokio's, and nothing depends on the order of a hash map, on the wall clock or on chance. Where the
//! real server behaves in one of several ways, such as the moment of a bookmark, this one always behaves in the same.

mod admission;
mod deletion;
mod failure;
mod faults;
mod history;
mod kinds;
mod metadata;
mod names;
mod object;
mod patch;
mod reads;
mod request;
mod rules;
mod schema;
mod selector;
mod serve;
mod store;
mod watches;
mod writes;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::{Notify, watch};

pub use admission::{Hook, Review, Verdict};
pub use deletion::DeleteOptions;
pub use faults::{Connection, Dropped, Fate, Fates, Outcome, Refusal, RequestInfo, Verb, WatchInfo};
pub use kinds::Kind;
pub use names::Sequence;
pub use object::{Key, Object};
pub use patch::as_go_writes;
pub use store::{Change, Clock, Store};

/// The server. Clones are the same server.
#[derive(Clone)]
pub struct ApiServer(Arc<Shared>);

struct Shared {
    store: Mutex<Store>,
    hooks: Mutex<Vec<Hook>>,
    fates: Mutex<Box<dyn Fates>>,
    watches: Mutex<BTreeMap<u64, (WatchInfo, watch::Sender<Connection>)>>,
    running: AtomicBool,
    /// It stops. Requests under way end in their order.
    stopping: Notify,
    requests: AtomicU64,
    unsupported: Mutex<Vec<String>>,
}

impl ApiServer {
    /// A server with the namespaces that each cluster has. UIDs and generated names follow from the seed.
    pub fn new(clock: Clock, seed: u64) -> Self {
        let mut store = Store::new(clock, seed);
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let namespace =
                json!({ "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } } });
            store.create(Kind::Namespace, "", namespace).expect("its name is valid and new");
        }
        store.forget_histories();
        Self(Arc::new(Shared {
            store: Mutex::new(store),
            hooks: Mutex::new(Vec::new()),
            fates: Mutex::new(Box::new(|_: &RequestInfo| Fate::default())),
            watches: Mutex::new(BTreeMap::new()),
            running: AtomicBool::new(true),
            stopping: Notify::new(),
            requests: AtomicU64::new(0),
            unsupported: Mutex::new(Vec::new()),
        }))
    }

    /// A client of this name. It belongs to the runtime that it is made in.
    pub fn client(&self, name: &str) -> Client {
        let (shared, name): (Arc<Shared>, Arc<str>) = (self.0.clone(), name.into());
        let service = tower::service_fn(move |request| serve::serve(shared.clone(), name.clone(), request));
        Client::new(service, "default")
    }

    /// The objects, for the harness. No request is carried out while this is held.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock()
    }

    /// Decides what becomes of each request from now on.
    pub fn set_fates(&self, fates: impl Fates + 'static) {
        *self.0.fates.lock() = Box::new(fates);
    }

    /// The webhooks and policies that are asked about each write.
    pub fn hooks(&self) -> MutexGuard<'_, Vec<Hook>> {
        self.0.hooks.lock()
    }

    /// The watches under way, in the order of their requests.
    pub fn watches(&self) -> Vec<WatchInfo> {
        self.0.watches.lock().values().map(|(watch, _)| watch.clone()).collect()
    }

    /// Sets the state of the connections of these watches.
    pub fn set_connections(&self, state: Connection, mut of: impl FnMut(&WatchInfo) -> bool) {
        for (watch, connection) in self.0.watches.lock().values() {
            if of(watch) {
                connection.send_replace(state);
            }
        }
    }

    /// Nothing arrives on these watches from now on, or it arrives again. Those that have ended stay so.
    pub fn set_silent(&self, is_silent: bool, mut of: impl FnMut(&WatchInfo) -> bool) {
        let change = [Connection::Open, Connection::Silent];
        let [from, to] = if is_silent { change } else { [change[1], change[0]] };
        for (watch, connection) in self.0.watches.lock().values() {
            if of(watch) {
                connection.send_if_modified(|now| {
                    let changes = *now == from;
                    if changes {
                        *now = to;
                    }
                    changes
                });
            }
        }
    }

    /// Ends the server's process: in an orderly way, which ends all watches, or so that all connections break. Requests
    /// under way are not answered; what they have not stored yet they do not store. New ones find no connection.
    /// Returns whether it ran.
    pub fn stop(&self, is_orderly: bool) -> bool {
        let ran = self.0.running.swap(false, Ordering::Relaxed);
        self.0.stopping.notify_waiters();
        let state = if is_orderly { Connection::Ended } else { Connection::Broken };
        self.set_connections(state, |_| true);
        ran
    }

    pub fn is_running(&self) -> bool {
        self.0.running.load(Ordering::Relaxed)
    }

    /// Starts it again. Its watch cache knows no earlier changes.
    pub fn start(&self) {
        self.store().forget_histories();
        self.0.running.store(true, Ordering::Relaxed);
    }

    /// Requests that it does not implement. There should be none.
    pub fn unsupported(&self) -> Vec<String> {
        self.0.unsupported.lock().clone()
    }

    /// The same, and forgets them: a test has asked for it.
    pub fn take_unsupported(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.unsupported.lock())
    }
}
