//! Carrying out what the election decided: declarations, labels, finalizers.
//!
//! This room owns every write to the API server that moves traffic, and the preconditions that make a late write
//! harmless. etcd is the fence: a role is only ever written bound to the resourceVersion of the pod that was read before
//! the term's declaration was made or re-checked, and the declaration itself is a compare-and-set. It decides nothing.

mod error;
mod group;
mod marks;
mod pods;

pub use error::RoutingError;
pub use group::Declared;
pub use marks::{GroupRef, Marks, stamp_of};
pub use pods::{Promoted, Stripped};

use std::time::Duration;

use kube::{Api, Client};

use crate::api::LeaderGroup;
use k8s_openapi::api::core::v1::Pod;

/// Performs the writes. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    client: Client,
    call_timeout: Duration,
}

impl Router {
    /// A router whose every call to the API server ends within `call_timeout`. The client should not retry by itself:
    /// the election knows better what to do next.
    pub fn new(client: Client, call_timeout: Duration) -> Self {
        Self { client, call_timeout }
    }

    fn pods(&self, group: &GroupRef) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &group.namespace)
    }

    fn groups(&self, group: &GroupRef) -> Api<LeaderGroup> {
        Api::namespaced(self.client.clone(), &group.namespace)
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
