//! When the `EndpointSlices` of a group are written, and what is reported of those that Kubernetes writes.

use std::{sync::Arc, time::Duration};

use super::Controller;
use crate::{
    api::{Endpoints, Reason, Role},
    health::{PodFacts, Readiness},
    operator::{
        endpoints::{
            Decider, Route, Seen,
            observing::{ActivePod, Observing},
            publish,
            publishing::{EndpointsProblem, EndpointsReport},
        },
        executor::queue::Urgency,
        group::Group,
        index::Index,
        message::Message,
        object::{GroupName, record::Record},
    },
    routing::{SliceChange, is_managed},
    telemetry::Step,
};

impl Controller {
    /// Writes the slices of the group's Services that differ from what they should be, or looks at those that
    /// Kubernetes writes.
    pub(super) fn publish(&mut self, name: &GroupName, now: Duration) {
        let Some(record) = self.groups.get(name).map(|group| group.record().clone()) else { return };
        let managed = record.object.spec.routing.endpoints == Endpoints::Managed;
        if !managed && !self.observe(name, now) {
            return;
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        if managed {
            group.observing = Observing::default();
        }
        let (services, slices) = self.index.services(name);
        let others = self.index.others(&services);
        let seen = Seen { services, slices, others };
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
            if managed {
                let problem = switched_off.or(watch_problem);
                group.publishing.report = EndpointsReport { problem, ..EndpointsReport::default() };
            }
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
        if managed {
            group.publishing.report = EndpointsReport { problem, ..plan.report };
        } else if problem.is_some() {
            // A slice that the operator has written before is still there.
            group.publishing.report.problem = problem;
        }
        self.timers.at_latest(name, group.publishing.next(now));
        self.start_writes(&record, due);
    }

    /// Reports on the group's Services whose endpoints Kubernetes writes. Returns whether there are also slices that
    /// the operator has written before.
    fn observe(&mut self, name: &GroupName, now: Duration) -> bool {
        let Some(group) = self.groups.get_mut(name) else { return false };
        let (services, slices) = self.index.services(name);
        let seen = Seen { services, slices, others: Vec::new() };
        let observes = self.executor.observes_services();
        let report = observes.then(|| observed(&self.index, group, &seen, now));
        group.publishing.report = report.unwrap_or_default();
        self.timers.at_latest(name, group.observing.next(now));
        self.executor.manages_endpoints() && seen.slices.iter().any(|slice| is_managed(slice))
    }

    /// Starts these writes, each with the number of earlier attempts.
    fn start_writes(&mut self, record: &Arc<Record>, due: Vec<(SliceChange, u32)>) {
        for (change, attempts) in due {
            let urgent = change.reroutes() && attempts < 3;
            let urgency = if urgent { Urgency::Finish } else { Urgency::Routine };
            let namespace = &record.name.namespace;
            let record = record.clone();
            self.executor.start_in(namespace, urgency, move |context| async move {
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

/// What is to be reported of the Services of a group whose endpoints Kubernetes writes.
fn observed(index: &Index, group: &mut Group, seen: &Seen<'_>, now: Duration) -> EndpointsReport {
    let record = group.record().clone();
    let reported = record.service_problem();
    let outage = index.services_outage(&record.name.namespace);
    let is_listed = index.shows_endpoints(&record.name.namespace);
    if outage.is_some() || !is_listed {
        // Without the right to watch them, what was reported once does not stay for ever.
        let goes_on = is_listed || outage.is_none_or(|outage| !outage.lasts(now));
        let said = reported.filter(|_| goes_on);
        return group.observing.blind(said.map(|(reason, message)| EndpointsProblem::new(reason, message)));
    }
    let holder = group.holder().and_then(|uid| group.election().member(uid));
    let labelled = holder.filter(|member| member.role == Role::Active);
    let active = labelled.map(|member| {
        let facts = index.group(&record.name).and_then(|seen| seen.pod(&member.pod.uid));
        let serves = |it: &PodFacts| it.readiness == Readiness::Ready && !it.deleting && !it.finished();
        (member.pod.clone(), facts.is_some_and(serves))
    });
    let active = active.as_ref().map(|(pod, ready)| ActivePod { pod, ready: *ready });
    let was_misrouted = reported.is_some_and(|(reason, _)| reason == Reason::ServiceMisrouted);
    group.observing.report(seen, &record.reference.marks, active, was_misrouted, now)
}
