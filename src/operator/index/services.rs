//! Services and `EndpointSlices` that appear, change and go away.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::runtime::watcher;

use super::{
    Index, Requests,
    attached::SliceOfOthers,
    watch_health::{Scope, Watched},
};
use crate::{operator::object::GroupName, routing::OtherSlice};

impl Index {
    pub(super) fn service_event(
        &mut self,
        scope: &Scope,
        event: watcher::Event<Service>,
        requests: &mut Requests,
    ) {
        let (concerned, complete) = self.services.apply(scope, event);
        self.endpoints_seen(Watched::Services, scope, (concerned, complete), requests);
    }

    pub(super) fn slice_event(
        &mut self,
        scope: &Scope,
        event: watcher::Event<EndpointSlice>,
        requests: &mut Requests,
    ) {
        let (concerned, complete) = self.slices.apply(scope, event);
        self.endpoints_seen(Watched::EndpointSlices, scope, (concerned, complete), requests);
    }

    /// A slice that somebody else writes. It concerns the group that its Service names, if there is one.
    pub(super) fn other_slice_event(
        &mut self,
        scope: &Scope,
        event: watcher::Event<OtherSlice>,
        requests: &mut Requests,
    ) {
        use watcher::Event as E;
        let kept = |slice: OtherSlice| SliceOfOthers::new(&slice);
        let kept = match event {
            E::Apply(slice) => kept(slice).map(E::Apply),
            E::Delete(slice) => kept(slice).map(E::Delete),
            E::InitApply(slice) => kept(slice).map(E::InitApply),
            E::Init => Some(E::Init),
            E::InitDone => Some(E::InitDone),
        };
        let Some(event) = kept else { return };
        let (services, complete) = self.others.apply(scope, event);
        let concerned = services.iter().filter_map(|service| self.services.owner(service).cloned()).collect();
        self.endpoints_seen(Watched::OtherSlices, scope, (concerned, complete), requests);
    }

    fn endpoints_seen(
        &mut self,
        watched: Watched,
        scope: &Scope,
        (concerned, complete): (BTreeSet<GroupName>, bool),
        requests: &mut Requests,
    ) {
        self.dirty.extend(concerned);
        if complete {
            self.synced(watched, scope.clone(), requests);
            // What was waited for may be there now.
            self.touch_with_services(scope);
        }
    }
}
