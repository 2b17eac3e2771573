//! Looking at one group: its world goes into its election, and the effects that come out are started.

use std::{sync::Arc, time::Duration};

use super::{Controller, ownership::of_replica};
use crate::{
    api::PodRef,
    election::{self, Effect, Event, Finished, Outcome, Ticket, World},
    operator::{
        executor::{
            effect::{Order, carry_out},
            queue::Urgency,
        },
        group::Group,
        index,
        message::Message,
        object::GroupName,
        status::events::change_kind,
    },
    ownership::{self, Probing},
    telemetry::Traced,
};
use leadergroup_lock::SessionId;

impl Controller {
    /// Shows one group the world, and carries out what its election decides.
    pub(super) fn look(&mut self, name: &GroupName, now: Duration) {
        let Some(world) = self.prepare(name, now) else { return };
        let Some(group) = self.groups.get(name) else { return };
        let event = if *group.election().world() == world { Event::Tick } else { Event::World(world) };
        self.step(name, event, now);
    }

    /// Shows one group the outcome of an effect, with the world that the effect left behind.
    pub(super) fn answer(&mut self, name: &GroupName, ticket: Ticket, outcome: Outcome, now: Duration) {
        if let Some(world) = self.prepare(name, now) {
            self.step(name, Event::Outcome(ticket, outcome, world), now);
        }
    }

    /// The group with the present version of its object, if the index has it.
    pub(super) fn sync(&mut self, name: &GroupName) -> Option<&mut Group> {
        let record = self.index.group(name)?.record();
        let group = self.groups.entry(name.clone()).or_insert_with(|| {
            // As at a heartbeat: a new group does not wait for the next one.
            self.unclaimed.add(&record.key, name);
            Box::new(Group::new(record))
        });
        if !Arc::ptr_eq(group.record(), record) {
            group.update(record);
        }
        Some(group)
    }

    /// Brings a group up to date: its object, what is probed, and its world.
    pub(super) fn prepare(&mut self, name: &GroupName, now: Duration) -> Option<World> {
        let group = self.sync(name)?;
        let (record, holder) = (group.record().clone(), group.holder().map(str::to_owned));
        let group = self.groups.get(name)?;
        let probing = if record.is_deleting() {
            Probing::None
        } else {
            group.ownership.probing(&record.key, self.index.holder_node(name), self.index.sessions())
        };
        for (uid, target) in self.index.targets(name, probing) {
            let Some(target) = target else {
                self.prober.remove(&uid);
                continue;
            };
            if let Some(first) = self.prober.set_target(&uid, &target) {
                self.apply(index::Event::Retargeted(uid, first), now);
            }
        }
        let world = self.index.world(name, holder.as_deref(), now)?;
        Some(World { stopping: self.draining, ..world })
    }

    /// Moves a group's election by one event, starts its effects, and updates its status and timer.
    pub(super) fn step(&mut self, name: &GroupName, event: Event, now: Duration) {
        let session = self.index.sessions().own();
        if self.sync(name).is_none() {
            return;
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        let before = (group.is_owned(), group.holder().map(str::to_owned));
        let effects = group.step(event, now);
        if !group.election().is_at_work() {
            let replica = of_replica(&self.index, self.session_ttl, self.draining);
            group.ownership.step(ownership::Event::Lost, replica, now);
        }
        // Whose evidence is weighed as a holder's, and which pods are probed, depends on this.
        let changed = (before.0, before.1.as_deref()) != (group.is_owned(), group.holder());
        for (ticket, effect) in effects {
            if let Effect::Finished(finished) = effect {
                self.finished(name, &finished);
            } else {
                self.start(name, session, ticket, effect);
            }
        }
        if changed {
            self.index.touch(name);
        }
        let group = self.groups.get(name);
        if let Some(uid) = group.and_then(|group| group.election().awaits_answer_of()) {
            self.prober.probe_now(uid);
        }
        let deadline = self.groups.get(name).and_then(|group| group.next_look(now));
        self.timers.set(name, deadline);
        self.publish(name, now);
        self.report(name, now);
        if let Some(trace) = self.groups.get_mut(name).and_then(|group| group.take_trace()) {
            self.executor.traces().export(*trace);
        }
    }

    /// Starts an effect of a group's election.
    fn start(&mut self, name: &GroupName, session: Option<SessionId>, ticket: Ticket, effect: Effect) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let urgency = urgency(group.election(), ticket, &effect);
        let trace = group.trace.take_if(|_| matches!(effect, Effect::Unfinalize));
        let order = Order { record: group.record().clone(), session, ticket, effect, trace };
        self.executor.start_in(&name.namespace, urgency, |context| async move {
            Message::Done(Box::new(carry_out(&context, order).await))
        });
    }

    /// Records and reports a change of holder that has ended.
    fn finished(&mut self, name: &GroupName, finished: &Finished) {
        let Some(group) = self.groups.get_mut(name) else { return };
        tracing::info!(
            group = %name,
            token = finished.token,
            from = finished.from.as_ref().map(|pod| &pod.name),
            to = finished.to.as_ref().map(|pod| &pod.name),
            reason = %finished.reason,
            took_ms = u64::try_from(finished.took.as_millis()).unwrap_or(u64::MAX),
            "the holder changed"
        );
        if self.executor.traces().are_on() {
            group.trace.get_or_insert_default().end(traced(name, finished));
        }
        group.history.add(finished, (self.wall_clock)());
        self.events.finished(&group.record().object, finished);
    }
}

/// What the trace of a change says of it.
fn traced(name: &GroupName, finished: &Finished) -> Traced {
    let pod = |pod: &Option<PodRef>| pod.as_ref().map(|pod| pod.name.clone());
    Traced {
        name: "change of holder",
        namespace: name.namespace.to_string(),
        group: name.name.to_string(),
        why: Some((change_kind(finished), finished.reason.to_string())),
        token: finished.token,
        from: pod(&finished.from),
        to: pod(&finished.to),
        took: finished.took,
    }
}

/// How soon an effect of this election is started.
fn urgency(election: &election::Group, ticket: Ticket, effect: &Effect) -> Urgency {
    match effect {
        Effect::Grant(_) | Effect::Vacate { .. } | Effect::Confirm { .. } | Effect::Tombstone => {
            Urgency::AtOnce
        }
        // A stamp that fences a term off is a step of a change of holder.
        Effect::Stamp { .. } | Effect::Try { .. } if election.is_stamping(ticket) => Urgency::Stamp,
        Effect::Delete(_) => Urgency::Stamp,
        Effect::Tell { .. } if election.is_telling(ticket) => Urgency::Stamp,
        // A dry run before a planned change is not urgent. Behind a webhook that hangs it takes its full time limit.
        Effect::Try { from: Some(_), .. }
        | Effect::Clear { .. }
        | Effect::Unfinalize
        | Effect::Finished(_) => Urgency::Routine,
        _ if election.fails_repeatedly() => Urgency::Routine,
        Effect::Read if election.has_healthy_active() => Urgency::Routine,
        _ if election.is_past_declaration() => Urgency::Finish,
        _ if election.world().declared.holder.is_some() => Urgency::Failover,
        _ => Urgency::Step,
    }
}
