//! When the `EndpointSlices` of a group are written.

use std::time::Duration;

use super::Controller;
use crate::{
    api::{Endpoints, Reason},
    operator::{
        endpoints::{Route, Seen, publish},
        message::Message,
        object::GroupName,
        publishing::{EndpointsProblem, EndpointsReport},
        queue::Urgency,
    },
};

/// The pause before slices are written again although nothing was seen of the last writes.
const PUBLISH_PAUSE: Duration = Duration::from_secs(1);

impl Controller {
    /// Writes the slices of the group's Services that differ from what they should be.
    pub(super) fn publish(&mut self, name: &GroupName, now: Duration) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let record = group.record().clone();
        let managed = record.object.spec.routing.endpoints == Endpoints::Managed;
        let (services, slices) = self.index.services(name);
        let seen = Seen { services, slices };
        if !managed && seen.is_empty() {
            group.publishing.report = EndpointsReport::default();
            return;
        }
        let blind = match self.index.shows_endpoints(&name.namespace) {
            _ if !self.executor.manages_endpoints() => Some(EndpointsProblem::new(
                Reason::EndpointsNotManaged,
                "the operator was not set up to write endpoints; set managedEndpoints.enabled=true in its chart",
            )),
            Ok(true) => None,
            // They are being listed.
            Ok(false) => return,
            Err(problem) => Some(EndpointsProblem::new(
                Reason::WatchFailed,
                format!("the operator cannot watch Services and EndpointSlices: {problem}"),
            )),
        };
        if blind.is_some() {
            group.publishing.report =
                EndpointsReport { services: Vec::new(), problem: blind.filter(|_| managed) };
            return;
        }
        let Some(route) = Route::of(group, self.index.lock().living()) else { return };
        let plan = seen.plan(&record, &route, |uid| self.index.pod(&name.namespace, uid));
        let publishing = &mut group.publishing;
        if plan.changes.is_empty() {
            publishing.failed = None;
        }
        publishing.report = plan.report;
        if let Some(failed) = &publishing.failed {
            publishing.report.problem.get_or_insert(failed.clone());
        }
        let versions = seen.versions();
        if plan.changes.is_empty() || publishing.writing {
            return;
        }
        if publishing.seen == versions && now < publishing.after {
            let after = publishing.after;
            return self.timers.at_latest(name, Some(after));
        }
        (publishing.writing, publishing.seen, publishing.after) = (true, versions, now + PUBLISH_PAUSE);
        // Until it is done, clients are routed to the former active pod.
        let urgency = if publishing.failed.is_some() { Urgency::Routine } else { Urgency::Finish };
        self.executor.start(urgency, move |context| async move {
            let result = publish(&context.router, &record, &plan.changes).await;
            Message::Published { group: record.name.clone(), uid: record.uid.clone(), result }
        });
    }

    /// Writes of a group's slices ended. The watch shows what became of them.
    pub(super) fn published(&mut self, name: &GroupName, uid: &str, result: Result<(), EndpointsProblem>) {
        if !self.is_current(name, uid) {
            return;
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        group.publishing.writing = false;
        let failed = result.err();
        if let Some(problem) =
            failed.as_ref().filter(|problem| group.publishing.failed.as_ref() != Some(problem))
        {
            tracing::warn!(group = %name, problem = problem.message, "could not write the endpoints; trying again");
        }
        group.publishing.failed = failed;
        self.index.touch(name);
    }
}
