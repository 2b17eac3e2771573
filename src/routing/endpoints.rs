//! The `EndpointSlices` that the operator writes for the Services of a group with `routing.endpoints: Managed`.
//!
//! A Service that selects the role label changes its endpoint in two updates: the strip takes the old one away, and the
//! promotion adds the new one. kube-proxy applies the first and puts the second off by its `minSyncPeriod`, a second by
//! default. Here one update replaces the old endpoint with the new one.
//!
//! A slice carries the stamp of the term that it was written for, and each write is bound to a version of the slice
//! that was seen. So a write of an earlier term that arrives late is refused. Each Service has one slice for each
//! address family, whose name is derived from the Service's, so that it has at most one endpoint in each family at
//! every revision.

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Resource as _, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};

use super::{
    GroupRef, Router, RoutingError,
    others::{MANAGED_BY_LABEL, Occupants, OtherSlice, other_slices},
    slice::{address, is_as_wanted, routed_to},
    stamp_of,
};
use crate::api::{FIELD_MANAGER, GROUP_LABEL, PodRef, PodSelector, Role, SLICE_MANAGER};

/// The kind of these writes, for the metrics.
const KIND: &str = "endpoints";

/// One slice to create, replace or delete.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceChange {
    /// The Service of the slice.
    pub service: String,
    /// The slice as it was seen, if there is one.
    pub seen: Option<EndpointSlice>,
    /// The slice as it should be, if there should be one.
    pub wanted: Option<EndpointSlice>,
    /// What this was decided on.
    pub basis: Basis,
}

/// What the watches show of a group and a Service. A slice is deleted only if it is still so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The generation of the group.
    pub generation: Option<i64>,
    /// The version of the Service, if there is one of this name that names the group.
    pub service: Option<String>,
}

impl SliceChange {
    /// The name of the slice.
    pub fn name(&self) -> String {
        self.wanted.as_ref().or(self.seen.as_ref()).map(ResourceExt::name_any).unwrap_or_default()
    }

    /// Whether another pod is routed to afterwards.
    pub fn reroutes(&self) -> bool {
        let pod = |slice: &Option<EndpointSlice>| slice.as_ref().and_then(routed_to).map(|pod| pod.uid);
        let wanted = pod(&self.wanted);
        wanted.is_some() && wanted != pod(&self.seen)
    }

    /// The pod that comes into a slice that has the stamp of this term already. The slice may have listed it before,
    /// and the pod may have lost its role since: if only the watch of the pods is late, neither stamp nor version tell.
    fn puts_back(&self) -> Option<PodRef> {
        let (seen, wanted) = (self.seen.as_ref()?, self.wanted.as_ref()?);
        let is_of_its_term = stamp_of(seen).is_some() && stamp_of(seen) == stamp_of(wanted);
        routed_to(wanted).filter(|_| is_of_its_term && self.reroutes())
    }
}

/// What became of a change of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was made, now or by another replica.
    Done,
    /// What it was decided on is out of date. The watches will show what is true now.
    Outdated,
    /// Slices that others write list endpoints of the Service. A second list would route to two pods.
    Occupied(Occupants),
}

impl Router {
    fn slices(&self, group: &GroupRef) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), &group.namespace)
    }

    /// Makes one change of a slice. It is bound to the version that was seen. If that is out of date, the slice is
    /// read and checked for anything that forbids the change.
    pub async fn publish(
        &self,
        group: &GroupRef,
        selector: &PodSelector,
        change: &SliceChange,
    ) -> Result<Published, RoutingError> {
        let api = self.slices(group);
        let Some(wanted) = &change.wanted else {
            let Some(seen) = &change.seen else { return Ok(Published::Done) };
            if self.basis(group, &change.service).await?.as_ref() != Some(&change.basis) {
                return Ok(Published::Outdated);
            }
            return self.delete(&api, seen).await;
        };
        if let Some(removed) =
            change.seen.as_ref().and_then(routed_to).filter(|_| wanted.endpoints.is_empty())
            && !self.has_lost_its_role(group, selector, &removed, &wanted.address_type).await?
        {
            return Ok(Published::Outdated);
        }
        if let Some(added) = change.puts_back()
            && !self.has_its_role(group, selector, &added, wanted).await?
        {
            return Ok(Published::Outdated);
        }
        let mut known = change.seen.clone();
        for _ in 0..2 {
            let found = if let Some(seen) = known.take() {
                seen
            } else {
                match self.create(group, &change.service, wanted).await? {
                    Created::Slice(found) if is_as_wanted(&found, wanted) => return Ok(Published::Done),
                    Created::Slice(found) => *found,
                    Created::Occupied(others) => return Ok(Published::Occupied(others)),
                    Created::Gone => return Ok(Published::Outdated),
                }
            };
            let listed = routed_to(&found);
            // That another pod has lost its role says nothing about the one that is listed by now.
            let is_taken_out_unseen = wanted.endpoints.is_empty()
                && listed.is_some()
                && listed != change.seen.as_ref().and_then(routed_to);
            if is_taken_out_unseen || !self.may_replace(group, change.seen.as_ref(), &found, wanted).await? {
                return Ok(Published::Outdated);
            }
            if self.replace(&api, &found, wanted).await? {
                return Ok(Published::Done);
            }
            // Another version. It is read as one that exists already.
        }
        Ok(Published::Outdated)
    }

    /// Whether a pod that is to be taken out of a slice is gone, has ended, has no address of this family, has left the
    /// group, or is no longer labelled active: by a quorum read, because a watch may be late.
    async fn has_lost_its_role(
        &self,
        group: &GroupRef,
        selector: &PodSelector,
        pod: &PodRef,
        family: &str,
    ) -> Result<bool, RoutingError> {
        let Some(found) = self.pod(group, pod).await? else { return Ok(true) };
        let is_active = group.marks.role(&found) == Role::Active && selector.matches(found.labels());
        Ok(!is_active || address(&found, family).is_none())
    }

    /// Whether a pod that is to be put into a slice is active, by a quorum read, because a watch may be late.
    async fn has_its_role(
        &self,
        group: &GroupRef,
        selector: &PodSelector,
        pod: &PodRef,
        wanted: &EndpointSlice,
    ) -> Result<bool, RoutingError> {
        let Some(found) = self.pod(group, pod).await? else { return Ok(false) };
        let is_of_this_term = stamp_of(&found) == stamp_of(wanted) && selector.matches(found.labels());
        Ok(is_of_this_term && group.marks.role(&found) == Role::Active)
    }

    /// The present basis of a decision about the slices of a Service, by quorum reads; `None` if the group is gone.
    async fn basis(&self, group: &GroupRef, service: &str) -> Result<Option<Basis>, RoutingError> {
        let Some(found) = self.sight(group).await? else { return Ok(None) };
        let api: Api<Service> = Api::namespaced(self.client.clone(), &group.namespace);
        let params = ListParams::default()
            .labels(&format!("{GROUP_LABEL}={}", group.name))
            .fields(&format!("metadata.name={service}"));
        let services =
            self.call("look for the Service of an EndpointSlice", api.list_metadata(&params)).await?;
        let service = services.items.first().and_then(ResourceExt::resource_version);
        Ok(Some(Basis { generation: found.meta().generation, service }))
    }

    /// Creates a slice without endpoints, so that a request that arrives late adds none. If there is one of its name,
    /// reads it: another replica created it, or somebody took away the label by which it is watched.
    async fn create(
        &self,
        group: &GroupRef,
        service: &str,
        wanted: &EndpointSlice,
    ) -> Result<Created, RoutingError> {
        let (api, name) = (self.slices(group), wanted.name_any());
        if let Some(found) = self.get("read an EndpointSlice", &api, &name).await? {
            return Ok(Created::Slice(Box::new(found)));
        }
        let others = self.others(&group.namespace, service).await?;
        if !others.is_empty() {
            return Ok(Created::Occupied(others));
        }
        let empty = EndpointSlice { endpoints: Vec::new(), ..wanted.clone() };
        match self.send(KIND, "create an EndpointSlice", api.create(&as_writer(), &empty)).await {
            Ok(created) => Ok(Created::Slice(Box::new(created))),
            // It was created just now, or its namespace is being deleted.
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(Created::Gone),
            Err(error) => Err(error),
        }
    }

    /// Whether a slice may be replaced. A version that the decision was not based on, a stamp of a later term and one
    /// of another group need a quorum read of the group: it must still exist, and no later term may be declared. The
    /// stamp of a later term is replaced only if this one is declared: somebody may have removed the later declaration.
    async fn may_replace(
        &self,
        group: &GroupRef,
        seen: Option<&EndpointSlice>,
        found: &EndpointSlice,
        wanted: &EndpointSlice,
    ) -> Result<bool, RoutingError> {
        let token = stamp_of(wanted).map_or(0, |stamp| stamp.token);
        let is_known = seen.is_some_and(|seen| seen.resource_version() == found.resource_version());
        let of_group = stamp_of(found).filter(|stamp| stamp.group == group.uid);
        let is_later = of_group.as_ref().is_some_and(|stamp| stamp.token > token);
        if is_known && of_group.is_some() && !is_later {
            return Ok(true);
        }
        // Another group has taken the slice over since it was seen.
        let is_foreign = |slice| stamp_of(slice).is_some_and(|stamp| stamp.group != group.uid);
        if seen.is_some_and(|seen| !is_foreign(seen)) && is_foreign(found) {
            return Ok(false);
        }
        let Some(object) = self.group(group).await? else { return Ok(false) };
        let declared = object.status.map_or(0, |status| status.declaration.token);
        let is_present = if is_later { declared == token } else { declared <= token };
        Ok(object.metadata.deletion_timestamp.is_none() && is_present)
    }

    /// Replaces a slice, if it still has this version.
    async fn replace(
        &self,
        api: &Api<EndpointSlice>,
        found: &EndpointSlice,
        wanted: &EndpointSlice,
    ) -> Result<bool, RoutingError> {
        // For the API server an empty or zero version means "unconditional", which must never happen here.
        let version = found.resource_version().filter(|version| !version.is_empty() && version != "0");
        let Some(version) = version else { return Ok(false) };
        let mut wanted = wanted.clone();
        wanted.metadata.resource_version = Some(version);
        let (name, params) = (wanted.name_any(), as_writer());
        match self.send(KIND, "write an EndpointSlice", api.replace(&name, &params, &wanted)).await {
            Ok(_) => Ok(true),
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a slice, if it still has this version.
    async fn delete(
        &self,
        api: &Api<EndpointSlice>,
        seen: &impl ResourceExt,
    ) -> Result<Published, RoutingError> {
        let preconditions = Preconditions { resource_version: seen.resource_version(), uid: seen.uid() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = seen.name_any();
        match self.send(KIND, "delete an EndpointSlice", api.delete(&name, &params)).await {
            Ok(_) => Ok(Published::Done),
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(Published::Outdated),
            Err(error) => Err(error),
        }
    }

    /// The other slices of a Service that list endpoints. Kubernetes leaves them behind when a Service loses its
    /// selector, and empties them when the selector matches no pod any more.
    async fn others(&self, namespace: &str, service: &str) -> Result<Occupants, RoutingError> {
        let api: Api<OtherSlice> = Api::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().labels(&other_slices(Some(service)));
        let found = self.call("list the EndpointSlices of a Service", api.list(&params)).await?;
        let mut others = Occupants::default();
        for slice in found.items.iter().filter(|slice| slice.serves().is_some()) {
            others.add(slice.name_any(), slice.is_copy());
        }
        Ok(others)
    }

    /// Deletes the slices that the operator wrote for a group, but not those that it wrote for a later group of the
    /// same name.
    pub async fn withdraw(&self, group: &GroupRef) -> Result<(), RoutingError> {
        let this = self.in_background();
        let (api, what) = (this.slices(group), "list the EndpointSlices of a LeaderGroup");
        let params = ListParams::default()
            .labels(&format!("{GROUP_LABEL}={},{MANAGED_BY_LABEL}={SLICE_MANAGER}", group.name));
        for _ in 0..3 {
            let found = this.call(what, api.list_metadata(&params)).await?;
            let is_ours = |slice: &&_| stamp_of(*slice).is_none_or(|stamp| stamp.group == group.uid);
            let mut all = true;
            for slice in found.items.iter().filter(is_ours) {
                all &= this.delete(&api, slice).await? == Published::Done;
            }
            if all {
                return Ok(());
            }
        }
        Err(RoutingError::Contended { what: "delete the EndpointSlices of a LeaderGroup" })
    }
}

/// The slice to write to.
enum Created {
    Slice(Box<EndpointSlice>),
    /// Others of the Service list endpoints.
    Occupied(Occupants),
    /// There is none, or it is not known which.
    Gone,
}

fn as_writer() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
