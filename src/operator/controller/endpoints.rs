//! When the `EndpointSlices` of a group are written.

use std::time::Duration;

use super::Controller;
use crate::{
    api::{Endpoints, Reason, Role},
    operator::{
        endpoints::{
            Decider, Route, Seen, publish,
            publishing::{EndpointsProblem, EndpointsReport},
        },
        executor::queue::Urgency,
        message::Message,
        object::GroupName,
    },
    routing::SliceChange,
    telemetry::Step,
};

impl Controller {
    /// Writes the slices of the group's Services that differ from what they should be.
    pub(super) fn publish(&mut self, name: &GroupName, now: Duration) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let record = group.record().clone();
        let managed = record.object.spec.routing.endpoints == Endpoints::Managed;
        let (services, slices) = self.index.services(name);
        let others = self.index.others(&services);
        let seen = Seen { services, slices, others };
        if !managed && seen.is_empty() {
            group.publishing.report = EndpointsReport::default();
            return;
        }
        let watch_problem = self.index.endpoints_problem(&name.namespace, now).map(|problem| {
            let message = format!("the operator cannot watch Services and EndpointSlices: {problem}");
            EndpointsProblem::new(Reason::WatchFailed, message)
        });
        let switched_off = (!self.executor.manages_endpoints()).then(|| {
            let message =
                "the operator was not set up to write endpoints; set managedEndpoints.enabled=true in its chart";
            EndpointsProblem::new(Reason::EndpointsNotManaged, message)
        });
        if switched_off.is_some() || !self.index.shows_endpoints(&name.namespace) {
            let problem = switched_off.or(watch_problem).filter(|_| managed);
            group.publishing.report = EndpointsReport { services: Vec::new(), problem };
            return;
        }
        let decider = Decider::of(&group.ownership.owner(), self.index.sessions());
        let Some(mut route) = Route::of(group.election(), decider) else {
            // What was seen before another replica decided says nothing about a later change.
            group.publishing.may_bridge(false, now);
            return;
        };
        let election = group.election();
        let is_active = |uid: &str| election.member(uid).is_some_and(|member| member.role == Role::Active);
        let inactive = seen.lists_other_than(is_active);
        let bridged = group.publishing.may_bridge(inactive, now);
        if route == Route::AsBefore && !bridged {
            route = Route::WhileActive;
        }
        let mut plan = seen.plan(&record, (&route, decider), |uid| self.index.pod(&name.namespace, uid));
        if decider == Decider::This && group.election().is_changing() && bridged {
            // One update, when the next holder is active: kube-proxy is late with the second one.
            plan.changes.retain(SliceChange::reroutes);
        }
        let due = group.publishing.due(plan.changes, now);
        // A slice that still routes to the former pod comes first.
        let problem = group.publishing.problem().or(plan.report.problem).or(watch_problem);
        group.publishing.report = EndpointsReport { problem, ..plan.report };
        self.timers.at_latest(name, group.publishing.next(now));
        for (change, attempts) in due {
            let urgent = change.reroutes() && attempts < 3;
            let urgency = if urgent { Urgency::Finish } else { Urgency::Routine };
            let record = record.clone();
            self.executor.start_in(&name.namespace, urgency, move |context| async move {
                let timer = context.traces.begin("endpoints");
                let result = publish(&context.router, &record, &change).await;
                let problem = result.as_ref().err().map(|problem| problem.message.clone());
                let step = timer.map(|timer| timer.end(problem));
                let (group, uid, slice) = (record.name.clone(), record.uid.clone(), change.name());
                Message::Published { group, uid, slice, result, step }
            });
        }
    }

    /// The write of a slice ended. The watch shows what became of it.
    pub(super) fn published(
        &mut self,
        name: &GroupName,
        uid: &str,
        slice: &str,
        result: Result<(), EndpointsProblem>,
        step: Option<Step>,
    ) {
        if !self.is_current(name, uid) {
            return;
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        if let (Some(trace), Some(step)) = (&mut group.trace, step) {
            trace.add(step);
        }
        if let Some(EndpointsProblem { message, .. }) = group.publishing.ended(slice, result) {
            tracing::warn!(group = %name, slice, problem = message, "could not write the endpoints; trying again");
        }
        self.index.touch(name);
    }
}
