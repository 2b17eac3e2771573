//! The state of the writes of a group's `EndpointSlices`, and what is reported of them.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::{api::Reason, election::growing, routing::SliceChange};

/// Why the endpoints of a group's Services are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct EndpointsProblem {
    pub(in crate::operator) reason: Reason,
    pub(in crate::operator) message: String,
}

impl EndpointsProblem {
    pub(in crate::operator) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What the status says of a group's Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::operator) struct EndpointsReport {
    /// The Services whose endpoints are managed.
    pub(in crate::operator) services: Vec<String>,
    pub(in crate::operator) problem: Option<EndpointsProblem>,
}

/// How soon the first attempt of a write is repeated if the watch has not shown what became of it. Each further one
/// doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The same for a write that lets traffic go to another pod.
const LONGEST_PAUSE_TO_REROUTE: Duration = Duration::from_secs(5);
/// For how long the slices list a pod that has lost the active label while its successor is not active yet: longer than
/// a change of holder takes, and than kube-proxy puts the second of two updates off.
const BRIDGE: Duration = Duration::from_secs(2);
/// After so many attempts without an error and without effect, this is reported.
const MANY: u32 = 4;

/// The attempts to write one slice as it should be.
#[derive(Debug, Default)]
struct Attempt {
    writing: bool,
    /// The slice was not as it should be when it was last compared.
    outstanding: bool,
    wanted: Option<EndpointSlice>,
    count: u32,
    /// When the next one may begin.
    after: Duration,
    failed: Option<EndpointsProblem>,
}

/// The state of the writes of a group's slices.
#[derive(Debug, Default)]
pub(in crate::operator) struct Publishing {
    attempts: BTreeMap<String, Attempt>,
    /// Since when the slices list a pod that is not labelled active.
    inactive_since: Option<Duration>,
    pub(in crate::operator) report: EndpointsReport,
}

impl Publishing {
    /// Whether a write is under way.
    pub(in crate::operator) fn is_writing(&self) -> bool {
        self.attempts.values().any(|attempt| attempt.writing)
    }

    /// Whether the slices may stay as they are for the sake of a change of holder. `inactive`: they list a pod that is
    /// not labelled active.
    pub(in crate::operator) fn may_bridge(&mut self, inactive: bool, now: Duration) -> bool {
        let since = inactive.then(|| self.inactive_since.unwrap_or(now));
        self.inactive_since = since;
        since.is_none_or(|since| now < since + BRIDGE)
    }

    /// Of these changes, those to be made now, each with the number of earlier attempts. A slice that others change
    /// back again and again is written after growing pauses.
    pub(in crate::operator) fn due(
        &mut self,
        changes: Vec<SliceChange>,
        now: Duration,
    ) -> Vec<(SliceChange, u32)> {
        self.attempts.retain(|name, attempt| {
            attempt.outstanding = changes.iter().any(|change| change.name() == *name);
            attempt.writing || attempt.outstanding || now < attempt.after + LONGEST_PAUSE
        });
        let mut due = Vec::new();
        for change in changes {
            let attempt = self.attempts.entry(change.name()).or_default();
            if attempt.writing {
                continue;
            }
            if attempt.count > 0 && attempt.wanted == change.wanted {
                if now < attempt.after {
                    continue;
                }
            } else {
                let wanted = change.wanted.clone();
                *attempt = Attempt { wanted, outstanding: true, ..Attempt::default() };
            }
            attempt.writing = true;
            let longest = if change.reroutes() { LONGEST_PAUSE_TO_REROUTE } else { LONGEST_PAUSE };
            due.push((change, attempt.count));
            attempt.count += 1;
            attempt.after = now + growing(FIRST_PAUSE, longest, attempt.count);
        }
        due
    }

    /// When the slices have to be compared again although nothing happens.
    pub(in crate::operator) fn next(&self, now: Duration) -> Option<Duration> {
        let waiting = self.attempts.values().filter(|attempt| attempt.outstanding && !attempt.writing);
        let bridged = self.inactive_since.map(|since| since + BRIDGE);
        waiting.map(|attempt| attempt.after).chain(bridged).filter(|at| now < *at).min()
    }

    /// The write of a slice ended. Returns what to log: a problem that is new.
    pub(in crate::operator) fn ended(
        &mut self,
        slice: &str,
        result: Result<(), EndpointsProblem>,
    ) -> Option<&EndpointsProblem> {
        let attempt = self.attempts.get_mut(slice)?;
        attempt.writing = false;
        let before = std::mem::replace(&mut attempt.failed, result.err());
        attempt.failed.as_ref().filter(|now| before.as_ref() != Some(*now))
    }

    /// Why slices are not as they should be.
    pub(in crate::operator) fn problem(&self) -> Option<EndpointsProblem> {
        let outstanding = || self.attempts.iter().filter(|(_, attempt)| attempt.outstanding);
        let mut all_failed = outstanding().filter_map(|(_, attempt)| attempt.failed.clone());
        let failed = all_failed.next().map(|first| match all_failed.count() {
            0 => first,
            more => EndpointsProblem::new(first.reason, format!("{} (and {more} more)", first.message)),
        });
        let in_vain = || outstanding().find(|(_, attempt)| attempt.count >= MANY);
        failed.or_else(|| {
            let (slice, _) = in_vain()?;
            let message = format!(
                "the EndpointSlice {slice} is written again and again: somebody else changes it, or its watch is late"
            );
            Some(EndpointsProblem::new(Reason::Changing, message))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::Basis;

    fn change(token: i64) -> SliceChange {
        let mut wanted = EndpointSlice::default();
        wanted.metadata.name = Some("front".to_owned());
        wanted.metadata.annotations = Some([("token".to_owned(), token.to_string())].into());
        SliceChange { service: "front".to_owned(), seen: None, wanted: Some(wanted), basis: Basis::default() }
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(10_000 + millis)
    }

    #[test]
    fn a_write_without_effect_is_repeated_after_growing_pauses_and_another_one_at_once() {
        let mut publishing = Publishing::default();
        let mut due = |token, millis| {
            let due = publishing.due(vec![change(token)], at(millis)).len();
            publishing.ended("front", Ok(()));
            due
        };
        let tried = |times: &[u64], due: &mut dyn FnMut(u64) -> usize| -> Vec<usize> {
            times.iter().map(|at| due(*at)).collect()
        };
        let mut first = |at| due(1, at);
        assert_eq!(tried(&[0, 199, 200, 599, 600, 1_399, 1_400], &mut first), [1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(publishing.problem().map(|problem| problem.reason), Some(Reason::Changing));
        assert_eq!(
            (publishing.due(Vec::new(), at(1_400)).len(), publishing.problem()),
            (0, None),
            "it is as it should be"
        );
        assert_eq!(publishing.next(at(1_400)), None);
        assert_eq!(publishing.due(vec![change(2)], at(1_401)).len(), 1);
        assert!(publishing.is_writing() && publishing.problem().is_none());
        assert_eq!(publishing.due(vec![change(3)], at(1_402)).len(), 0, "one at a time");
        publishing.ended("front", Ok(()));
        assert_eq!(publishing.next(at(1_402)), Some(at(1_601)));
        // It had effect, and somebody undoes it.
        assert_eq!(publishing.due(Vec::new(), at(1_500)).len(), 0);
        assert_eq!(publishing.due(vec![change(2)], at(1_550)).len(), 0);
        assert_eq!(publishing.due(vec![change(2)], at(1_601)).len(), 1);
        publishing.ended("front", Ok(()));
        assert_eq!(publishing.due(Vec::new(), at(100_000)).len(), 0);
        assert!(publishing.attempts.is_empty(), "nothing is kept for ever");
    }

    #[test]
    fn a_write_that_moves_traffic_is_tried_again_within_seconds_and_another_one_within_a_minute() {
        let routing = |token: i64| {
            let mut change = change(token);
            let endpoint = serde_json::json!({ "addresses": ["198.18.0.1"],
                "targetRef": { "kind": "Pod", "name": "p1", "uid": "p1" } });
            let wanted = change.wanted.as_mut().expect("it has one");
            wanted.endpoints = vec![serde_json::from_value(endpoint).expect("an endpoint")];
            change
        };
        for (change, longest) in [(routing(1), 5), (change(1), 60)] {
            let (mut publishing, mut now) = (Publishing::default(), at(0));
            let mut pauses = Vec::new();
            for _ in 0..12 {
                assert_eq!(publishing.due(vec![change.clone()], now).len(), 1);
                let refused = EndpointsProblem::new(Reason::WriteRefused, "no");
                publishing.ended("front", Err(refused));
                let next = publishing.next(now).expect("it is tried again");
                pauses.push(next.saturating_sub(now));
                now = next;
            }
            assert_eq!(pauses.last(), Some(&Duration::from_secs(longest)));
        }
    }

    #[test]
    fn a_pod_without_the_label_is_bridged_for_a_while_each_time() {
        let mut publishing = Publishing::default();
        let mut bridges = |inactive, millis| {
            let bridges = publishing.may_bridge(inactive, at(millis));
            (bridges, publishing.next(at(millis)))
        };
        assert_eq!(bridges(false, 0), (true, None));
        assert_eq!(bridges(true, 100), (true, Some(at(2_100))));
        assert_eq!(bridges(true, 2_099), (true, Some(at(2_100))));
        assert_eq!(bridges(true, 2_100), (false, None));
        assert_eq!(bridges(false, 3_000), (true, None));
        assert_eq!(bridges(true, 9_000), (true, Some(at(11_000))));
    }

    #[test]
    fn a_problem_is_reported_until_the_slice_is_as_it_should_be_and_logged_once() {
        let mut publishing = Publishing::default();
        let refused = || Err(EndpointsProblem::new(Reason::WriteRefused, "no"));
        for (millis, is_new) in [(0, true), (200, false)] {
            assert_eq!(publishing.due(vec![change(1)], at(millis)).len(), 1);
            assert_eq!(publishing.ended("front", refused()).is_some(), is_new);
        }
        assert_eq!(publishing.problem().map(|problem| problem.reason), Some(Reason::WriteRefused));
        publishing.due(Vec::new(), at(300));
        assert_eq!(publishing.problem(), None);
    }
}
