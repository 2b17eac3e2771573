//! Carrying out what the election decided: declarations, labels, finalizers.
//!
//! This room owns every write to the API server that moves traffic, and the preconditions that make a late write
//! harmless. etcd is the fence: a role is only ever written bound to the resourceVersion of the pod that was read before
//! the term's declaration was made or re-checked, and the declaration itself is a compare-and-set. It decides nothing.

mod error;
mod group;
mod marks;
mod owners;
mod pods;
mod shared_list;

pub use error::RoutingError;
pub use group::Declared;
pub use marks::{GroupRef, Marks, stamp_of};
pub use pods::{Promoted, Stripped};

use std::{fmt::Debug, sync::Arc, time::Duration};

use kube::{Api, Client, Resource, core::Status};
use serde::de::DeserializeOwned;

use crate::api::Sighting;
use k8s_openapi::api::core::v1::Pod;
use shared_list::SharedLists;

/// Performs the writes. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    client: Client,
    /// For calls that no change of holder waits for.
    background: Client,
    call_timeout: Duration,
    on_write: Option<OnWrite>,
    lists: SharedLists,
}

/// Told of every write that was sent: what kind it was, and the error that it ended with.
pub type OnWrite = Arc<dyn Fn(&'static str, Option<&RoutingError>) + Send + Sync>;

impl Router {
    /// A router whose every call to the API server ends within `call_timeout`. The client should not retry by itself:
    /// the election knows better what to do next.
    pub fn new(client: Client, call_timeout: Duration) -> Self {
        Self {
            background: client.clone(),
            client,
            call_timeout,
            on_write: None,
            lists: SharedLists::default(),
        }
    }

    /// The same, with a client of its own for calls that no change of holder waits for.
    #[must_use]
    pub fn background(mut self, client: Client) -> Self {
        self.background = client;
        self
    }

    /// For such a call.
    fn in_background(&self) -> Self {
        Self { client: self.background.clone(), ..self.clone() }
    }

    /// The same, with somebody who is told of every write: `active`, `standby` or `clear` of a pod, or `declaration`,
    /// `status` or `finalizer` of a group.
    #[must_use]
    pub fn observed(mut self, on_write: OnWrite) -> Self {
        self.on_write = Some(on_write);
        self
    }

    fn pods(&self, group: &GroupRef) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &group.namespace)
    }

    fn groups(&self, group: &GroupRef) -> Api<Sighting> {
        Api::namespaced(self.client.clone(), &group.namespace)
    }

    /// A quorum read: none when the API server says that there is no such object.
    async fn get<K>(&self, what: &'static str, api: &Api<K>, name: &str) -> Result<Option<K>, RoutingError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let read = async {
            match api.get(name).await {
                Err(kube::Error::Api(status)) if is_absence::<K>(&status, name) => Ok(None),
                answer => answer.map(Some),
            }
        };
        self.call(what, read).await
    }

    /// As [`Self::call`], for a call that writes.
    async fn send<T>(
        &self,
        kind: &'static str,
        what: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RoutingError> {
        let answer = self.call(what, call).await;
        if let Some(on_write) = &self.on_write {
            on_write(kind, answer.as_ref().err());
        }
        answer
    }

    /// Bounds one call, and says what it was for when it fails.
    async fn call<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RoutingError> {
        match tokio::time::timeout(self.call_timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(RoutingError::from_api(what, source)),
            Err(_) => Err(RoutingError::Timeout { what, after: self.call_timeout }),
        }
    }
}

/// Whether this is the API server's word that this very object is not there. Any server on the way may answer 404, and so
/// does the API server itself where it does not serve the kind, such as while a definition is being put in place.
fn is_absence<K: Resource<DynamicType = ()>>(status: &Status, name: &str) -> bool {
    let details = status.details.as_ref();
    let this = |details: &kube::core::response::StatusDetails| {
        details.name == name && details.kind == K::plural(&()) && details.group == K::group(&())
    };
    status.code == 404 && status.reason == "NotFound" && details.is_some_and(this)
}
