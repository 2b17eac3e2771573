//! A group as the controller runs it: the election, the ownership, and the state of its status.

pub(super) mod gist;
mod history;
pub(super) mod report;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    endpoints::{observing::Observing, publishing::Publishing},
    object::record::Record,
    trouble::Trouble,
};
use crate::{
    api::{PodRef, Verdict},
    election::{self, Effect, Event, Phase, Refusal, Ticket, World},
    ownership,
    telemetry::{Step, Trace},
};
use history::History;
use report::Report;

/// How long a change of holder may go on before it is reported. A report on each of its steps would compete with the
/// next step for the API server.
const QUICK_CHANGE: Duration = Duration::from_secs(5);
/// The same while a change waits for a program or a hook. Nothing competes with a report then.
const QUICK_WAIT: Duration = Duration::from_millis(500);
/// The same for a deletion. A report would also change the version of the group, on which its last step depends: while
/// a thousand groups are deleted at once, it would cost each that is reported three more requests.
const QUICK_DELETION: Duration = Duration::from_secs(30);

/// A group as the controller runs it.
#[derive(Debug)]
pub(super) struct Group {
    record: Arc<Record>,
    election: election::Group,
    /// Counts the changes of the election's state.
    version: u64,
    pub(super) ownership: ownership::Group,
    pub(super) history: History,
    /// The last failure of an effect, until one succeeds.
    pub(super) trouble: Option<Trouble>,
    /// The last failure of stamping standbys, which is logged once.
    pub(super) stamp_trouble: Option<Trouble>,
    /// The refusals that an Event reported, by the pod's UID.
    reported_refusals: BTreeMap<String, Refusal>,
    pub(super) report: Report,
    pub(super) publishing: Publishing,
    /// What was seen of the endpoints that Kubernetes writes.
    pub(super) observing: Observing,
    /// When the holder, or whether its term is confirmed, last changed.
    pub(super) held_since: Duration,
    /// The steps of the change of holder, or of the deletion, that is under way, if traces are on.
    pub(super) trace: Option<Box<Trace>>,
}

impl Group {
    pub(super) fn new(record: &Arc<Record>) -> Self {
        let mut group = Self {
            record: record.clone(),
            election: election::Group::new(World::default()),
            version: 0,
            ownership: ownership::Group::default(),
            history: History::default(),
            trouble: None,
            stamp_trouble: None,
            reported_refusals: BTreeMap::new(),
            report: Report::default(),
            publishing: Publishing::default(),
            observing: Observing::default(),
            held_since: Duration::ZERO,
            trace: None,
        };
        group.update(record);
        group
    }

    pub(super) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// The election's state, to be read. It changes only in [`Self::step`].
    pub(super) fn election(&self) -> &election::Group {
        &self.election
    }

    /// How often the election's state has changed.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// A newer version of the object, or the same.
    pub(super) fn update(&mut self, record: &Arc<Record>) {
        if let Some(status) = record.status() {
            self.history.merge(&status.history);
        }
        self.record = record.clone();
    }

    pub(super) fn is_owned(&self) -> bool {
        self.ownership.is_ours()
    }

    /// The UID of the holder: by the lock's row if the election is at work, else by the declaration.
    pub(super) fn holder(&self) -> Option<&str> {
        let holder = if self.election.is_at_work() {
            self.election.holder()
        } else {
            self.record.status().and_then(|status| status.declaration.holder.as_ref())
        };
        holder.map(|pod| pod.uid.as_str())
    }

    /// Moves the election by one event.
    pub(super) fn step(&mut self, event: Event, now: Duration) -> Vec<(Ticket, Effect)> {
        let is_tick = matches!(event, Event::Tick);
        let shown = |election: &election::Group| {
            let refused = election.refused_switchover().map(|(request, _)| request.to_owned());
            (election.phase().clone(), refused)
        };
        let term = |election: &election::Group| (election.holder().cloned(), election.row().confirmed);
        let before = (shown(&self.election), term(&self.election));
        let effects = self.election.step(event, now);
        if term(&self.election) != before.1 {
            self.held_since = now;
        }
        if !is_tick || !effects.is_empty() || shown(&self.election) != before.0 {
            self.version += 1;
        }
        if matches!(self.election.phase(), Phase::Stable) && !self.election.busy() {
            self.trouble = None;
        }
        let waits = self.election.waits_for_program().is_some() || self.election.waits_for_hooks().is_some();
        self.report.stay_quiet(
            match self.election.phase() {
                Phase::Retiring(_) => Some(QUICK_DELETION),
                _ if waits => Some(QUICK_WAIT),
                _ => self.election.is_changing().then_some(QUICK_CHANGE),
            },
            now,
        );
        effects
    }

    /// The pods that cannot get or lose a role, and why, as far as that is news.
    pub(super) fn new_refusals(&mut self) -> Vec<(PodRef, Refusal)> {
        let refused = self.election.refused();
        let refused: Vec<_> = refused.map(|(member, refused)| (&member.pod, &refused.refusal)).collect();
        let known = |uid: &String, refusal: &Refusal| self.reported_refusals.get(uid) == Some(refusal);
        let news = refused.iter().filter(|(pod, refusal)| !known(&pod.uid, refusal));
        let news = news.map(|(pod, refusal)| ((*pod).clone(), (*refusal).clone())).collect();
        self.reported_refusals =
            refused.iter().map(|(pod, refusal)| (pod.uid.clone(), (*refusal).clone())).collect();
        news
    }

    /// A step ended. It belongs to a trace if a change of holder, or a deletion, waited for it.
    pub(super) fn add_to_trace(&mut self, ticket: Ticket, step: Step) {
        let election = &self.election;
        let background =
            election.is_stamping(ticket) || election.is_deleting(ticket) || election.is_telling(ticket);
        let retiring = matches!(election.phase(), Phase::Retiring(_));
        if !background && (election.is_changing() || retiring) {
            self.trace.get_or_insert_default().add(step);
        }
    }

    /// Takes the trace of a change that has ended, as soon as the slices that follow from it are written. Drops the
    /// trace of a change that was given up, or that another replica completes.
    pub(super) fn take_trace(&mut self) -> Option<Box<Trace>> {
        let election = &self.election;
        let has_ended = self.trace.as_ref()?.has_ended();
        let is_over = if has_ended {
            !self.publishing.is_writing() || election.is_changing()
        } else {
            !election.is_at_work() || matches!(election.phase(), Phase::Stable) && !election.busy()
        };
        self.trace.take_if(|_| is_over).filter(|_| has_ended)
    }

    /// Whether pods without evidence are not yet reported as such: this replica has just become the owner, and the
    /// first answers to its probes are on their way.
    pub(super) fn awaits_first_probes(&self, now: Duration) -> bool {
        let unproven = |member: &election::Member| member.verdict == Verdict::Unknown;
        now < self.first_probes_end() && self.election.world().members.iter().any(unproven)
    }

    fn first_probes_end(&self) -> Duration {
        self.ownership.ours_since().unwrap_or_default() + self.record.object.spec.health.interval.0 * 2
    }

    /// When the group has to be looked at next although nothing happens.
    pub(super) fn next_look(&self, now: Duration) -> Option<Duration> {
        let first_probes = Some(self.first_probes_end()).filter(|_| self.awaits_first_probes(now));
        let Report { quiet_until, minor_after, after, .. } = &self.report;
        let report = quiet_until.iter().chain(minor_after).chain([after]).filter(|at| **at > now).copied();
        self.election.wake().into_iter().chain(first_probes).chain(report).min()
    }

    /// Whether something was begun that should not be left half done, or is still to be reported: no other replica can
    /// report a change that this one has just finished.
    pub(super) fn is_unfinished(&self) -> bool {
        let at_rest = matches!(
            self.election.phase(),
            Phase::Stable
                | Phase::Observing
                | Phase::Reading
                | Phase::BackingOff { .. }
                | Phase::Retired
                // The wait for a program may be long, and any replica can go on with it.
                | Phase::Stopping { declaring: None, .. }
                | Phase::Clearing { declaring: None, .. }
        );
        self.report.writing
            || self.report.queued
            || self.publishing.is_writing()
            || (self.is_owned() && !at_rest)
    }
}
