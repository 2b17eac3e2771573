//! When the status of a group is computed, and when it is written.

use std::time::Duration;

use super::Controller;
use crate::{
    election::Phase,
    operator::{
        assignment::falls_to,
        conditions::View,
        executor::Urgency,
        message::Message,
        object::GroupName,
        ownership::Ownership,
        report::Inputs,
        status::{news, patch, status},
        trouble::Trouble,
    },
};

impl Controller {
    /// Writes the group's status if it should read otherwise and this replica is the one to write it.
    pub(super) fn report(&mut self, name: &GroupName, now: Duration) {
        let (Some(seen), Some(group)) = (self.index.group(name), self.groups.get_mut(name)) else { return };
        let record = group.record().clone();
        let never_seen = record.status().is_none_or(|status| status.observed_generation < 0);
        let hindrance = self.index.hindrance(&name.namespace, never_seen, now);
        let (ownership, lock) = (group.ownership(), self.index.lock());
        let responsible = match ownership {
            Ownership::Ours => true,
            Ownership::Foreign(_) => {
                lock.own().is_some() && falls_to(&record.key, lock.living().iter()) == lock.own()
            }
            // The group has no owner, and the user should still see why nothing happens. It is reported once, so that a
            // replica which alone cannot reach the database does not overwrite the owner's report again and again.
            _ => hindrance.is_some() && !group.report.hindrance_reported,
        };
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
            ownership,
            trouble: group.trouble.clone(),
            hindrance,
            older_groups: seen.older_groups().into_iter().map(str::to_owned).collect(),
            owner: seen.owner_that_selects_by_role().map(str::to_owned),
            settles: group.settles(now),
        };
        if group.report.rendered.as_ref() == Some(&inputs) {
            return;
        }
        let wanted = status(View { seen, group }, inputs.hindrance.as_ref(), inputs.settles);
        group.report.hindrance_reported = inputs.hindrance.is_some();
        group.report.rendered = Some(inputs);
        let Some(patch) = patch(record.status(), &wanted) else { return };
        if let Some(news) = news(record.status(), &wanted) {
            tracing::warn!(group = %name, reason = news.reason, problem = news.message, "the group is not ready");
        }
        group.report.writing = true;
        self.executor.start(Urgency::Background, |context| async move {
            let object = context.router.report(&record.reference, &patch).await;
            let object = object.map(Box::new).map_err(|error| Trouble::from(&error));
            Message::Reported { group: record.name.clone(), uid: record.uid.clone(), object }
        });
    }
}
