//! `EndpointSlices` of Services that the operator does not write. Traffic follows all slices of a Service, no
//! matter what writes them.
//!
//! `Endpoints` (`core/v1`) need no look of their own: kube-proxy does not read them. Kubernetes copies them into
//! slices, which are seen here, unless their Service has a selector, they have the label
//! `endpointslice.kubernetes.io/skip-mirror: "true"`, or they are an old kind of leader election.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope, api::discovery::v1::EndpointSlice, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, ResourceExt as _};
use serde::{Deserialize, de::IgnoredAny};

use crate::api::SLICE_MANAGER;

/// The label of a slice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The label of a slice that names the program that writes it.
pub(super) const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";

/// The writer of the slices that are copies of `Endpoints`.
const MIRRORER: &str = "endpointslicemirroring-controller.k8s.io";

/// The label selector of these slices: those of one Service, or of all.
pub fn other_slices(service: Option<&str>) -> String {
    let service = service.map_or_else(String::new, |service| format!("={service}"));
    format!("{SERVICE_NAME_LABEL}{service},{MANAGED_BY_LABEL}!={SLICE_MANAGER}")
}

/// Slices of one Service that list endpoints, and that the operator did not write, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupants {
    /// Copies of the `Endpoints` with the name of the Service. Kubernetes writes them again if they are deleted.
    pub copies: Vec<String>,
    /// The others.
    pub slices: Vec<String>,
}

impl Occupants {
    /// Adds a slice.
    pub fn add(&mut self, name: String, is_copy: bool) {
        if is_copy { &mut self.copies } else { &mut self.slices }.push(name);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.slices.is_empty()
    }
}

/// A slice that the operator does not write. Its endpoints are counted when it is decoded, and not kept: a Service may
/// have thousands.
#[derive(Clone, Debug, Deserialize)]
pub struct OtherSlice {
    metadata: ObjectMeta,
    endpoints: Option<Vec<IgnoredAny>>,
}

impl OtherSlice {
    /// The Service of the slice, if it lists endpoints.
    pub fn serves(&self) -> Option<&str> {
        self.endpoints.as_ref().filter(|endpoints| !endpoints.is_empty())?;
        self.labels().get(SERVICE_NAME_LABEL).map(String::as_str)
    }

    /// Whether it is a copy of the `Endpoints` with the name of its Service.
    pub fn is_copy(&self) -> bool {
        self.labels().get(MANAGED_BY_LABEL).is_some_and(|by| by == MIRRORER)
    }
}

impl Resource for OtherSlice {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        EndpointSlice::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        EndpointSlice::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        EndpointSlice::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        EndpointSlice::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
