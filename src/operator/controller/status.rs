//! When the status of a group is computed, and when it is written.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::Controller;
use crate::{
    api::{ConditionType, LeaderGroupStatus},
    election::Phase,
    operator::{
        executor::queue::Urgency,
        group::{Group, gist::Gist, report::Inputs},
        index::{Index, outage::Hindrance},
        message::Message,
        object::{GroupName, record::Record},
        status::{
            causes::Causes, conditions::View, events::Events, is_minor, news, patch, refused_switchover,
            status, warnings,
        },
        trouble::Trouble,
    },
    ownership::{Owner, owner},
};

impl Controller {
    /// Writes the group's status if it should read otherwise and this replica is the one to write it.
    pub(super) fn report(&mut self, name: &GroupName, now: Duration) {
        let (Some(seen), Some(group)) = (self.index.group(name), self.groups.get_mut(name)) else { return };
        let record = group.record().clone();
        let never_seen = record.status().is_none_or(|status| status.observed_generation < 0);
        let hindrance = self.index.hindrance(&name.namespace, never_seen, now);
        let responsible = is_responsible(&self.index, group, hindrance.as_ref(), never_seen, now);
        let quiet = group.report.quiet_until.is_some_and(|until| now < until);
        let waits = quiet || group.report.writing || now < group.report.after;
        if !responsible || waits || seen.is_undecodable() {
            return;
        }
        if matches!(group.election().phase(), Phase::Reading) && !never_seen && group.trouble.is_none() {
            return;
        }
        let inputs = Inputs {
            record: record.clone(),
            election: group.version(),
            owner: group.ownership.owner(),
            trouble: group.trouble.clone(),
            hindrance,
            contested: seen.contested(),
            role_label_use: seen.role_label_use().cloned(),
            coverage: seen.coverage(),
            endpoints: group.publishing.report.clone(),
            awaits_first_probes: group.awaits_first_probes(now),
        };
        if group.report.rendered.as_ref() == Some(&inputs) {
            return;
        }
        if !self.executor.has_room(Urgency::Report) {
            if !std::mem::replace(&mut group.report.queued, true) {
                self.unreported.push_back(name.clone());
            }
            return;
        }
        let (hindrance, awaits) = (inputs.hindrance.as_ref(), inputs.awaits_first_probes);
        let wanted = status(View { seen, group }, hindrance, awaits, (self.wall_clock)());
        group.report.minor_after = None;
        group.report.conditions = shown(&wanted.conditions);
        let patch = patch(record.status(), &wanted);
        // While two databases act as primary, another replica reports something else for as long as this one does.
        let repeats = || group.report.written == Some(Gist::of(&wanted));
        let minor = patch.is_some() && (repeats() || is_minor(record.status(), &wanted));
        if minor && !group.report.allows_minor(now) {
            return self.timers.at_latest(name, group.report.minor_after);
        }
        group.report.spoken = !group.is_owned();
        group.report.rendered = Some(inputs);
        let Some(patch) = patch else { return };
        let told = group.report.told.replace(Box::new(wanted.clone()));
        announce(&self.events, &mut self.causes, &record, told.as_deref().or(record.status()), &wanted, now);
        group.report.writing = true;
        self.executor.start_in(&name.namespace, Urgency::Report, move |context| async move {
            // Nothing is written over what this replica has not seen: it may have been stopped, and be no longer the
            // owner.
            let version = record.object.metadata.resource_version.as_deref();
            let object = context.router.report(&record.reference, &patch, version).await;
            let reported = object.map(Box::new).map_err(|error| Trouble::from(&error));
            Message::Reported { group: record.name.clone(), uid: record.uid.clone(), reported }
        });
    }

    /// Writes statuses that waited for their turn, as long as there is room for them.
    pub(super) fn report_waiting(&mut self, now: Duration) {
        while self.executor.has_room(Urgency::Report) {
            let Some(name) = self.unreported.pop_front() else { return };
            if let Some(group) = self.groups.get_mut(&name) {
                group.report.queued = false;
            }
            self.report(&name, now);
        }
    }
}

/// The operator's own conditions, for the metrics. Others may write conditions, too.
fn shown(conditions: &[Condition]) -> Vec<(&'static str, bool)> {
    let of = |kind: &ConditionType| {
        let found = conditions.iter().find(|condition| condition.type_ == kind.name());
        found.map(|condition| (kind.name(), condition.status == "True"))
    };
    ConditionType::ALL.iter().filter_map(of).collect()
}

/// Tells once what a user should know of, where it is noticed without a look at the status.
fn announce(
    events: &Events,
    causes: &mut Causes,
    record: &Record,
    old: Option<&LeaderGroupStatus>,
    wanted: &LeaderGroupStatus,
    now: Duration,
) {
    let group = &record.name;
    if let Some(news) = news(old, wanted)
        && causes.is_new_reason(&news.reason, &news.message, now)
    {
        tracing::warn!(%group, reason = news.reason, problem = news.message, "the group is not ready");
    }
    if let Some(refused) = refused_switchover(old, wanted) {
        events.switchover_refused(&record.object, &refused.message);
    }
    for warning in warnings(old, wanted) {
        events.warned(&record.object, warning);
    }
}

/// Whether this replica is the one to write the group's status. If the group has no owner, or may not have its
/// key, the user should still see why nothing happens.
fn is_responsible(
    index: &Index,
    group: &Group,
    hindrance: Option<&Hindrance>,
    never_seen: bool,
    now: Duration,
) -> bool {
    let (record, sessions) = (group.record(), index.sessions());
    match (group.ownership.owner(), hindrance) {
        (Owner::This, _) => true,
        _ if group.report.spoken => false,
        (Owner::Foreign(_) | Owner::Refused(_), _) => {
            let own = sessions.own();
            own.is_some() && owner(&record.key, None, sessions.living().iter()) == own
        }
        // Other replicas may see what this one does not. It speaks for the groups that it owned last, and for those on
        // which nobody has reported. One that never reached the database speaks for all: perhaps none does. The report
        // says how many pods there are, so they must have been listed.
        (_, Some(Hindrance::Lock(_))) => {
            let speaks = never_seen || group.ownership.was_ours() || !sessions.has_beaten();
            speaks && index.allows_claim(&record.name, now)
        }
        (_, Some(Hindrance::Pods(_))) => never_seen,
        (_, None) => false,
    }
}
