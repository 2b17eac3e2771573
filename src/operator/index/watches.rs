//! Events that say whether the watches work.

use std::time::Duration;

use super::{
    Index, Notice, Request, Requests,
    watch_health::{Scope, Watched},
};

/// For this long after a watch failed, what it reports may be of the time before. It is tried again every second.
const LATE_AFTER_FAILED_WATCH: Duration = Duration::from_secs(5);

impl Index {
    /// A watch has shown its first list.
    pub(super) fn synced(&mut self, watched: Watched, scope: Scope, requests: &mut Requests) {
        let had_failed = self.watches.listed(watched, scope);
        if had_failed {
            requests.push(Request::OutageOver);
        }
        // An outage of the database is reported once it is known how many pods a group has.
        if had_failed || self.lock.outage().is_some() {
            self.touch_all();
        }
        requests.extend([Request::WatchesChanged, Request::Heartbeat]);
    }

    pub(super) fn watch_failed(
        &mut self,
        watched: Watched,
        scope: &Scope,
        problem: &str,
        now: Duration,
        requests: &mut Requests,
    ) {
        if watched == Watched::NodeLeases {
            self.leases.interrupted();
            self.assess_nodes(None, now);
        }
        if self.watches.failed(watched, scope.clone(), problem, now) {
            requests.push(Request::Log(Notice::WatchFailed(watched, scope.clone(), problem.to_owned())));
        }
        requests.push(Request::WatchesChanged);
        if watched == Watched::Pods {
            self.news_late_until(now + LATE_AFTER_FAILED_WATCH, scope.as_ref());
        }
        if matches!(watched, Watched::Services | Watched::EndpointSlices | Watched::OtherSlices) {
            self.touch_with_services(scope);
        }
        let blind = self.groups.keys().filter(|name| self.watches.blindness(&name.namespace).is_some());
        self.dirty.extend(blind.cloned());
    }

    /// The API server answers: watches that have not failed for some time count as working again.
    pub(super) fn forgive_watches(&mut self, now: Duration, requests: &mut Requests) {
        if self.watches.forgive(now) {
            requests.push(Request::Log(Notice::WatchesWork));
            self.touch_all();
        }
        requests.push(Request::WatchesChanged);
    }
}
