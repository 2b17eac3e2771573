//! The last changes of holder of a group, for its status.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    api::{HistoryEntry, HumanDuration, PodRef},
    election::Finished,
};

/// The number of changes of holder that the status keeps.
const KEPT: usize = 10;

/// The last changes of holder, the latest first.
#[derive(Debug, Default)]
pub(in crate::operator) struct History(Vec<HistoryEntry>);

impl History {
    pub(in crate::operator) fn entries(&self) -> &[HistoryEntry] {
        &self.0
    }

    /// Takes over what the status says, unless it is older: another replica may have written it.
    pub(in crate::operator) fn merge(&mut self, status: &[HistoryEntry]) {
        // A release has the token of the term that it ends.
        let latest =
            |history: &[HistoryEntry]| history.first().map(|entry| (entry.token, entry.to.is_none()));
        if latest(status) > latest(&self.0) {
            self.0 = status.to_vec();
        }
    }

    /// Adds a change of holder that ended at this time.
    pub(in crate::operator) fn add(&mut self, finished: &Finished, at: Timestamp) {
        let name = |pod: &Option<PodRef>| pod.as_ref().map(|pod| pod.name.clone());
        let entry = HistoryEntry {
            token: finished.token,
            from: name(&finished.from),
            to: name(&finished.to),
            reason: finished.reason.to_string(),
            // Whole seconds and milliseconds: what the API server returns must compare equal to what was written.
            time: Time(Timestamp::from_second(at.as_second()).unwrap_or_default()),
            duration: HumanDuration(Duration::from_millis(
                u64::try_from(finished.took.as_millis()).unwrap_or(u64::MAX),
            )),
        };
        self.0.insert(0, entry);
        self.0.truncate(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_history_that_another_replica_wrote_is_kept_with_its_releases_and_an_old_one_is_not() {
        let change = |token: i64, to: Option<&str>| -> HistoryEntry {
            let change = json!({ "token": token, "to": to, "reason": "PodDeleted",
                "time": "2026-01-01T00:00:00Z", "duration": "1s" });
            serde_json::from_value(change).expect("an entry")
        };
        let promoted = || change(5, Some("web-0"));
        let released = || change(5, None);
        let mut history = History::default();
        history.merge(&[promoted()]);
        let mut told = |status: Vec<HistoryEntry>| {
            history.merge(&status);
            history.entries().iter().map(|entry| (entry.token, entry.to.is_none())).collect::<Vec<_>>()
        };
        let whole = vec![(5, true), (5, false)];
        assert_eq!(told(vec![released(), promoted()]), whole);
        assert_eq!(told(vec![promoted()]), whole, "the watch is behind");
        assert_eq!(told(vec![]), whole, "somebody emptied it");
        assert_eq!(told(vec![change(6, Some("web-1")), released(), promoted()]).len(), 3);
    }
}
