//! Carries out the decisions of the election: declarations, labels, finalizers. Writes the endpoints of Services that
//! follow from them.
//!
//! This module owns every write to the API server that moves traffic, and the preconditions that make late writes
//! harmless. etcd is the fence: the active label is written only on condition of a resourceVersion of the pod that
//! was read before the term's declaration was made or re-checked, and the declaration itself is a compare-and-set.
//! This module makes no decisions.

mod deletion;
mod endpoints;
mod error;
mod group;
mod marks;
mod observed;
mod others;
mod owners;
mod pods;
mod shared_list;
mod slice;

pub use endpoints::{Basis, Published, SliceChange};
pub use error::RoutingError;
pub(crate) use error::words;
pub use group::{Declared, Reported};
pub use marks::{GroupRef, Marks, has_its_fencing_token, stamp_of};
pub use observed::{misrouted, selector_of, selects_another, without_endpoints};
pub use others::{Occupants, OtherSlice, SERVICE_NAME_LABEL, other_slices};
pub use owners::RoleLabelUse;
pub use pods::{Promoted, Stamped, Stripped, Trial};
pub use slice::{families, is_as_wanted, is_managed, routed_to, slice, slice_name};

use std::{fmt::Debug, pin::pin, sync::Arc, time::Duration};

use kube::{Api, Client, Resource, api::PatchParams, core::Status};
use serde::de::DeserializeOwned;

use crate::api::{FIELD_MANAGER, Sighting};
use k8s_openapi::api::core::v1::Pod;
use shared_list::SharedLists;
use tokio::time::timeout;

/// After this time without an answer a write no longer keeps others waiting.
const GIVE_WAY: Duration = Duration::from_secs(1);
/// How long the API server lets a write wait at most (`requestTimeoutUpperBound`).
const SERVER_PATIENCE: Duration = Duration::from_secs(34);
/// How long a write may wait for webhooks: until the API server has ended it by itself. A connection must not be given
/// up before that.
pub(crate) const PATIENCE: Duration = SERVER_PATIENCE.saturating_add(Duration::from_secs(1));

/// Performs the reads and writes. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    client: Client,
    /// For calls that no change of holder waits for.
    background: Client,
    call_timeout: Duration,
    on_write: Option<OnWrite>,
    on_late: Option<OnLate>,
    lists: SharedLists,
}

/// Called after every write with its kind and its error, if any.
pub type OnWrite = Arc<dyn Fn(&'static str, Option<&RoutingError>) + Send + Sync>;

/// Called when a write has not been answered for a second. Returns what to hold until it is answered; none if there is
/// no time for that, and the write gets no more than the usual time limit.
pub type OnLate = Arc<dyn Fn() -> Option<Box<dyn Send>> + Send + Sync>;

impl Router {
    /// A router that limits each call to the API server to `call_timeout`. The client should not retry by itself,
    /// because the election decides what to do after a failure.
    pub fn new(client: Client, call_timeout: Duration) -> Self {
        Self {
            background: client.clone(),
            client,
            call_timeout,
            on_write: None,
            on_late: None,
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

    /// Sets a function to call after every write. The kind is `active`, `standby`, `clear` or `delete` for a pod,
    /// `declaration`, `status` or `finalizer` for a group, and `endpoints` for an EndpointSlice.
    #[must_use]
    pub fn observed(mut self, on_write: OnWrite) -> Self {
        self.on_write = Some(on_write);
        self
    }

    /// The same, with a function that is asked whether to wait longer for the answer to a write.
    #[must_use]
    pub fn patient(mut self, on_late: OnLate) -> Self {
        self.on_late = Some(on_late);
        self
    }

    fn pods(&self, group: &GroupRef) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &group.namespace)
    }

    fn groups(&self, group: &GroupRef) -> Api<Sighting> {
        Api::namespaced(self.client.clone(), &group.namespace)
    }

    /// A quorum read. None if the API server reports that the object does not exist.
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

    /// Like [`Self::call`], for a call that writes.
    async fn send<T>(
        &self,
        kind: &'static str,
        what: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RoutingError> {
        let answer = self.wait(what, PATIENCE, call).await;
        if let Some(on_write) = &self.on_write {
            on_write(kind, answer.as_ref().err());
        }
        answer
    }

    /// A dry run. It waits for webhooks as a write does, and no longer than any other call, because nothing is lost if
    /// it ends early.
    async fn try_out<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RoutingError> {
        // Two dry runs at once would make the futures of their callers large.
        Box::pin(self.wait(what, self.call_timeout, call)).await
    }

    /// A call that may wait for webhooks. After a moment it leaves its place to others, and may wait for `patience`.
    ///
    /// A write waits for its answer for as long as the API server may wait for webhooks. Ending the request early would
    /// cancel the write, so no write would succeed behind a webhook that hangs, although the API server would store it
    /// once the webhook's time is up, or say that it was not stored. It may take so long because every write is bound
    /// to what was read: to a version, or to the previous declaration. A late one finds another.
    async fn wait<T>(
        &self,
        what: &'static str,
        patience: Duration,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RoutingError> {
        let Some(on_late) = &self.on_late else { return self.call(what, call).await };
        let mut call = pin!(call);
        let soon = GIVE_WAY.min(self.call_timeout);
        let (answer, after) = if let Ok(answer) = timeout(soon, &mut call).await {
            (Ok(answer), soon)
        } else {
            let late = on_late();
            let after = if late.is_some() { patience.max(self.call_timeout) } else { self.call_timeout };
            (timeout(after.saturating_sub(soon), call).await, after)
        };
        match answer {
            Ok(answer) => answer.map_err(|source| RoutingError::from_api(what, source)),
            Err(_) => Err(RoutingError::Timeout { what, after }),
        }
    }

    /// Limits the time of one call, and adds its purpose to the error.
    async fn call<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RoutingError> {
        match timeout(self.call_timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(RoutingError::from_api(what, source)),
            Err(_) => Err(RoutingError::Timeout { what, after: self.call_timeout }),
        }
    }
}

/// The parameters of every patch.
pub(crate) fn as_manager() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Whether the API server reports that this very object does not exist. Other 404 answers are possible: from a proxy
/// on the way, or from the API server itself while it does not serve the kind, for example while the CRD is being
/// installed.
fn is_absence<K: Resource<DynamicType = ()>>(status: &Status, name: &str) -> bool {
    let details = status.details.as_ref();
    let this = |details: &kube::core::response::StatusDetails| {
        details.name == name && details.kind == K::plural(&()) && details.group == K::group(&())
    };
    status.code == 404 && status.reason == "NotFound" && details.is_some_and(this)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn a_dry_run_leaves_its_place_and_ends_at_the_time_limit_of_a_call() {
        let service = tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let (limit, left) = (Duration::from_millis(20), Arc::new(AtomicUsize::new(0)));
        let count = left.clone();
        let router = Router::new(Client::new(service, "shop"), limit).patient(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Some(Box::new(()))
        }));
        let answer = router.try_out("try", pending::<Result<(), kube::Error>>()).await;
        assert!(matches!(answer, Err(RoutingError::Timeout { after, .. }) if after == limit));
        assert_eq!(left.load(Ordering::Relaxed), 1);
    }
}
