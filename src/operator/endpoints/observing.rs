//! Services whose endpoints Kubernetes writes: what is reported of those that carry the label of a group.
//!
//! This is only looked at and reported. Nothing is written because of it, and no election depends on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube::ResourceExt as _;

use super::{
    Seen,
    publishing::{EndpointsProblem, EndpointsReport},
};
use crate::{
    api::{PodRef, Reason},
    operator::index::watch_health::READ_TIMEOUT,
    routing::{Marks, misrouted, selects_another},
};

/// For so long the endpoints of a Service may differ from the active pod before that is reported. Kubernetes writes
/// them within seconds of a change. A watch of the slices whose connection is dead is replaced within this time.
const GRACE: Duration = READ_TIMEOUT.saturating_add(CATCH_UP);
/// For so long a watch that works again may show what was so before.
const CATCH_UP: Duration = Duration::from_secs(5);

/// The active pod of a group, as its Services are compared with it.
#[derive(Clone, Copy, Debug)]
pub(in crate::operator) struct ActivePod<'a> {
    pub(in crate::operator) pod: &'a PodRef,
    /// Whether Kubernetes makes it an endpoint.
    pub(in crate::operator) ready: bool,
}

/// What was seen of the endpoints that Kubernetes writes.
#[derive(Debug, Default)]
pub(in crate::operator) struct Observing {
    /// The UID of the active pod with which they were compared last; none before the first time.
    compared_with: Option<String>,
    /// When each Service that does not route to that pod alone is to be reported, by its name.
    due: BTreeMap<String, Duration>,
    /// The Services that are reported, until they are right.
    overdue: BTreeSet<String>,
    /// What was reported last; none before the first time.
    last: Option<EndpointsReport>,
    /// Since then a watch has failed.
    blind: bool,
}

impl Observing {
    /// What to report of these Services. `reported`: the status says that one of them is not routed to the active pod,
    /// as another replica has found before this one started.
    pub(in crate::operator) fn report(
        &mut self,
        seen: &Seen<'_>,
        marks: &Marks,
        active: Option<ActivePod<'_>>,
        reported: bool,
        now: Duration,
    ) -> EndpointsReport {
        let (mut problems, mut wrong) = (Vec::new(), BTreeMap::new());
        for service in &seen.services {
            if let Some(problem) = selects_another(service, marks) {
                problems.push(EndpointsProblem::new(Reason::ServiceUnusable, problem));
            } else if let Some(ActivePod { pod, ready }) = active
                && let Some(problem) = misrouted(service, &seen.slices, pod, ready)
            {
                wrong.insert(service.name_any(), problem);
            }
        }
        let active = active.map(|active| active.pod.uid.as_str());
        self.compare(active, wrong.keys().map(String::as_str).collect(), reported, now);
        let late = wrong.into_iter().filter(|(service, _)| self.overdue.contains(service));
        problems.extend(late.map(|(_, problem)| EndpointsProblem::new(Reason::ServiceMisrouted, problem)));
        let more = problems.len().saturating_sub(1);
        let problem = problems.into_iter().next().map(|first| match more {
            0 => first,
            more => EndpointsProblem::new(first.reason, format!("{} (and {more} more)", first.message)),
        });
        let report = EndpointsReport { problem, ..EndpointsReport::default() };
        self.last = Some(report.clone());
        report
    }

    /// What to report while the Services or their endpoints cannot be seen: what was reported last, or what the status
    /// `said` before. Until they are seen again nothing more becomes overdue.
    pub(in crate::operator) fn blind(&mut self, said: Option<EndpointsProblem>) -> EndpointsReport {
        self.blind = true;
        self.last.clone().unwrap_or_else(|| EndpointsReport { problem: said, ..EndpointsReport::default() })
    }

    /// Finds out for which of these Services, which do not route to the active pod alone, that has lasted too long.
    fn compare(&mut self, active: Option<&str>, wrong: BTreeSet<&str>, reported: bool, now: Duration) {
        let goes_on = reported && self.compared_with.is_none();
        if active.is_none() || self.compared_with.as_deref() != active {
            // Their endpoints are to follow. Those that have not done so before are not given this time.
            self.due.clear();
        }
        if std::mem::take(&mut self.blind) {
            self.due.values_mut().for_each(|at| *at = (*at).max(now + CATCH_UP));
        }
        let Some(active) = active else { return };
        self.compared_with = Some(active.to_owned());
        self.due.retain(|service, _| wrong.contains(service.as_str()));
        self.overdue.retain(|service| wrong.contains(service.as_str()));
        for service in wrong {
            let at = if goes_on { now } else { now + GRACE };
            if !self.overdue.contains(service) && *self.due.entry(service.to_owned()).or_insert(at) <= now {
                self.due.remove(service);
                self.overdue.insert(service.to_owned());
            }
        }
    }

    /// When the Services have to be looked at again although nothing happens.
    pub(in crate::operator) fn next(&self, now: Duration) -> Option<Duration> {
        self.due.values().filter(|at| now < **at).min().copied()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
    use serde_json::json;

    use super::*;
    use crate::api::RoutingSpec;

    fn service(name: &str, role: &str) -> Service {
        let service =
            json!({ "metadata": { "name": name }, "spec": { "selector": { "leadergroup.dev/role": role } } });
        serde_json::from_value(service).expect("a Service")
    }

    fn slice(service: &str, pods: &[&str]) -> EndpointSlice {
        let endpoints =
            pods.iter().map(|pod| json!({ "addresses": [], "targetRef": { "name": pod, "uid": pod } }));
        let slice = json!({ "metadata": { "labels": { "kubernetes.io/service-name": service } },
            "addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>() });
        serde_json::from_value(slice).expect("a slice")
    }

    /// Looks at the Services `front` and `back`, which route to these pods.
    struct Stage {
        observing: Observing,
        services: [Service; 2],
    }

    impl Stage {
        fn new() -> Self {
            let services = [service("back", "active"), service("front", "active")];
            Self { observing: Observing::default(), services }
        }

        /// The reason and the first words of the message, and for how long nothing has to be looked at.
        fn look(
            &mut self,
            active: Option<(&str, bool)>,
            (front, back): (&[&str], &[&str]),
            second: u64,
        ) -> (Option<(Reason, String)>, Option<u64>) {
            self.look_after(false, active, (front, back), second)
        }

        fn look_after(
            &mut self,
            reported: bool,
            active: Option<(&str, bool)>,
            (front, back): (&[&str], &[&str]),
            second: u64,
        ) -> (Option<(Reason, String)>, Option<u64>) {
            let (slices, now) = ([slice("front", front), slice("back", back)], Duration::from_secs(second));
            let seen = Seen {
                services: self.services.iter().collect(),
                slices: slices.iter().collect(),
                others: Vec::new(),
            };
            let pod = active.map(|(name, _)| PodRef { name: name.to_owned(), uid: name.to_owned() });
            let active = active.zip(pod.as_ref()).map(|((_, ready), pod)| ActivePod { pod, ready });
            let marks = Marks::from(&RoutingSpec::default());
            let report = self.observing.report(&seen, &marks, active, reported, now);
            assert!(report.services.is_empty());
            (shown(report), self.observing.next(now).map(|at| at.as_secs() - second))
        }

        /// The same while a watch fails.
        fn cannot_look(&mut self, said: Option<EndpointsProblem>) -> Option<(Reason, String)> {
            shown(self.observing.blind(said))
        }
    }

    fn shown(report: EndpointsReport) -> Option<(Reason, String)> {
        report.problem.map(|it| {
            let (first, rest) = it.message.split_once(", and").expect("two parts");
            let more = rest.find(" (and").map_or("", |at| &rest[at..]);
            (it.reason, format!("{first}{more}"))
        })
    }

    fn misrouted(words: &str) -> (Reason, String) {
        (Reason::ServiceMisrouted, words.to_owned())
    }

    #[test]
    fn endpoints_that_stay_wrong_are_reported_after_a_while_and_until_they_are_right() {
        let mut stage = Stage::new();
        let one = Some(("p1", true));
        assert_eq!(stage.look(one, (&["p1"], &["p1"]), 100), (None, None));
        assert_eq!(stage.look(one, (&[], &["p1"]), 101), (None, Some(35)));
        // Another of them is wrong for a moment.
        assert_eq!(stage.look(one, (&[], &["p2"]), 130), (None, Some(6)));
        assert_eq!(stage.look(one, (&[], &["p1"]), 135), (None, Some(1)));
        assert_eq!(
            stage.look(one, (&[], &["p1"]), 136),
            (Some(misrouted("Service front routes to no pod")), None)
        );
        // What it routes to changes, and is wrong still.
        let other = misrouted("Service front routes to p3");
        assert_eq!(stage.look(one, (&["p3"], &["p2"]), 137), (Some(other), Some(35)));
        let both = misrouted("Service back routes to p2 (and 1 more)");
        assert_eq!(stage.look(one, (&["p3"], &["p2"]), 172), (Some(both), None));
        assert_eq!(stage.look(one, (&["p1"], &["p1"]), 173), (None, None));
        assert_eq!(stage.look(one, (&[], &["p1"]), 174), (None, Some(35)), "the period starts again");
    }

    #[test]
    fn a_change_of_the_active_pod_begins_a_new_time() {
        let mut stage = Stage::new();
        let (one, two) = (Some(("p1", true)), Some(("p2", true)));
        let at_one: (&[&str], &[&str]) = (&["p1"], &["p1"]);
        assert_eq!(stage.look(one, (&[], &["p1"]), 100), (None, Some(35)));
        assert_eq!(stage.look(two, at_one, 134), (None, Some(35)));
        assert_eq!(stage.look(two, at_one, 168), (None, Some(1)));
        // Without an active pod nothing is compared.
        assert_eq!(stage.look(None, at_one, 169), (None, None));
        assert_eq!(stage.look(two, at_one, 170), (None, Some(35)));
        // One that is not ready is no endpoint.
        assert_eq!(stage.look(Some(("p2", false)), (&[], &[]), 171), (None, None));
    }

    #[test]
    fn a_service_that_was_reported_stays_so_when_the_active_pod_changes() {
        let mut stage = Stage::new();
        let (one, two, three) = (Some(("p1", true)), Some(("p2", true)), Some(("p3", true)));
        // The front always routes to p3.
        assert_eq!(stage.look(one, (&["p3"], &["p1"]), 100), (None, Some(35)));
        let wrong = Some(misrouted("Service front routes to p3"));
        assert_eq!(stage.look(one, (&["p3"], &["p1"]), 135), (wrong.clone(), None));
        assert_eq!(stage.look(None, (&["p3"], &[]), 136), (None, None), "nothing to compare it with");
        // The other one follows.
        assert_eq!(stage.look(two, (&["p3"], &["p1"]), 137), (wrong.clone(), Some(35)));
        assert_eq!(stage.look(two, (&["p3"], &["p2"]), 138), (wrong, None));
        assert_eq!(stage.look(three, (&["p3"], &["p3"]), 139), (None, None));
        assert_eq!(stage.look(one, (&["p3"], &["p1"]), 140), (None, Some(35)), "it was right in between");
    }

    #[test]
    fn while_a_watch_fails_the_report_stays_as_it_is() {
        let mut stage = Stage::new();
        let (one, said) = (Some(("p1", true)), EndpointsProblem::new(Reason::ServiceMisrouted, "x, and y"));
        assert_eq!(stage.cannot_look(None), None);
        assert_eq!(stage.cannot_look(Some(said.clone())), Some(misrouted("x")), "nothing else is known");
        assert_eq!(stage.look(one, (&[], &["p1"]), 100), (None, Some(35)));
        assert_eq!(stage.look(one, (&[], &["p1"]), 110), (None, Some(25)));
        // Nothing becomes overdue; after that the watch may be late.
        assert_eq!(stage.cannot_look(Some(said.clone())), None);
        assert_eq!(stage.look(one, (&[], &["p1"]), 134), (None, Some(5)));
        assert_eq!(stage.cannot_look(None), None);
        assert_eq!(stage.look(one, (&[], &["p1"]), 140), (None, Some(5)));
        let wrong = misrouted("Service front routes to no pod");
        assert_eq!(stage.look(one, (&[], &["p1"]), 145), (Some(wrong.clone()), None));
        assert_eq!(stage.cannot_look(None), Some(wrong.clone()));
        assert_eq!(stage.look(one, (&[], &["p1"]), 146), (Some(wrong), None));
        assert_eq!(stage.look(one, (&["p1"], &["p1"]), 147), (None, None));
        assert_eq!(stage.cannot_look(Some(said)), None, "the status is older");
    }

    #[test]
    fn a_replica_that_starts_goes_on_with_what_was_reported() {
        let one = Some(("p1", true));
        let mut stage = Stage::new();
        let first = misrouted("Service front routes to no pod");
        assert_eq!(stage.look_after(true, one, (&[], &["p1"]), 100), (Some(first), None));
        // Its own comparisons count from now on.
        assert_eq!(stage.look_after(true, one, (&["p1"], &["p1"]), 101), (None, None));
        assert_eq!(stage.look_after(true, one, (&[], &["p1"]), 102), (None, Some(35)));
    }

    #[test]
    fn a_selector_without_the_active_role_is_reported_at_once_and_first() {
        let mut stage = Stage::new();
        stage.services[1] = service("front", "standby");
        let problem = {
            let slices = [slice("back", &["p2"])];
            let seen = Seen {
                services: stage.services.iter().collect(),
                slices: slices.iter().collect(),
                others: Vec::new(),
            };
            let marks = Marks::from(&RoutingSpec::default());
            let pod = PodRef { name: "p1".into(), uid: "p1".into() };
            let active = Some(ActivePod { pod: &pod, ready: true });
            let report = stage.observing.report(&seen, &marks, active, true, Duration::from_secs(100));
            report.problem.expect("a problem")
        };
        assert_eq!(problem.reason, Reason::ServiceUnusable);
        assert!(
            problem.message.contains("front selects") && problem.message.ends_with("(and 1 more)"),
            "{problem:?}"
        );
    }
}
