//! What a client of the Service may see, judged by the pods' history: no answer of a pod that is no longer active, no
//! refusal while a pod is active and well, and answers of each active pod at all times.
//!
//! A single call that times out is not judged, because on a busy machine it says nothing.

use std::{collections::BTreeMap, time::Duration};

use leadergroup::api::RoutingSpec;

use crate::{
    client::{Call, Calls},
    history::{Fault, History, Kind, Object},
    moment::Moment,
};

/// From the label to the Service's rules on every node. kube-proxy waits for up to a second between two updates (its
/// default `minSyncPeriod`), and the controller of the slices, kube-proxy and the kernel need their time, too.
pub(super) const ROUTED: Duration = Duration::from_secs(3);
/// The same while other scenarios run on the cluster, because kube-proxy then waits for the CPU for seconds.
pub(super) const ROUTED_ON_A_BUSY_MACHINE: Duration = Duration::from_secs(10);
/// How much later than its effects a change may reach the collector.
const SEEN: Duration = Duration::from_secs(1);
/// The longest time without an answer of a pod that is active and well. Calls may time out on a busy machine, but not
/// all of them for so long.
const SILENT: Duration = Duration::from_secs(10);
/// The fewest calls in such a time. A client that made fewer was itself held up.
const IN_VAIN: usize = 5;
/// What a client says if the Service has no endpoint, or the pod's port is closed.
const REFUSED: &str = "connection refused";

/// A time during which something held for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    pod: String,
    uid: String,
    from: Moment,
    until: Moment,
}

/// The times during which the Service's pods carried the active label, and those during which they were well, too.
#[derive(Debug)]
pub(super) struct Service {
    active: Vec<Span>,
    serving: Vec<Span>,
    /// How long the rules may take to follow the label.
    routed: Duration,
}

impl Service {
    /// The pods with this label `app`, of a history that ends now. A pod does not serve during its faults. The rules
    /// may take `routed` to follow the label.
    pub(super) fn read(
        history: &History,
        app: &str,
        routing: &RoutingSpec,
        routed: Duration,
        now: Moment,
    ) -> Self {
        let mut service = Self { active: Vec::new(), serving: Vec::new(), routed };
        let mut open: BTreeMap<(&str, bool), Span> = BTreeMap::new();
        for change in history.changes.iter().filter(|change| change.id.kind == Kind::Pod) {
            let pod = match &change.state {
                Some(Object::Pod(pod)) => Some(pod),
                _ => None,
            };
            for serves in [false, true] {
                let holds = pod
                    .filter(|pod| pod.is_active(routing))
                    .filter(|pod| pod.labels.get("app").is_some_and(|label| label == app))
                    .filter(|pod| !serves || !(pod.deleting || pod.ended || pod.unready || pod.down));
                let key = (change.id.name.as_str(), serves);
                let uid = holds.map(|pod| pod.uid.as_str());
                if let Some(span) = open.get(&key).filter(|span| uid != Some(span.uid.as_str())) {
                    let span = Span { until: change.seen, ..span.clone() };
                    open.remove(&key);
                    service.end(span, serves);
                }
                if let Some(uid) = uid {
                    open.entry(key).or_insert_with(|| Span {
                        pod: change.id.name.clone(),
                        uid: uid.to_owned(),
                        from: change.seen,
                        until: now,
                    });
                }
            }
        }
        for ((_, serves), span) in open {
            service.end(span, serves);
        }
        for fault in history.faults.iter().flatten() {
            service.interrupt(fault);
        }
        service
    }

    fn end(&mut self, span: Span, serves: bool) {
        if serves { self.serving.push(span) } else { self.active.push(span) }
    }

    fn interrupt(&mut self, fault: &Fault) {
        let parts = self.serving.drain(..).flat_map(|span| {
            let concerns = span.uid == fault.uid;
            let end = fault.until.unwrap_or(span.until);
            if !concerns || fault.from >= span.until || end <= span.from {
                return vec![span];
            }
            let before = Span { until: fault.from, ..span.clone() };
            let after = Span { from: end, ..span };
            vec![before, after]
        });
        self.serving = parts.filter(|span| span.from < span.until).collect();
    }

    /// A time during which the scenario changed the Service itself.
    pub(super) fn rebuilt(&mut self, from: Moment, until: Moment) {
        for uid in self.serving.iter().map(|span| span.uid.clone()).collect::<Vec<_>>() {
            self.interrupt(&Fault { uid, reasons: Vec::new(), from, until: Some(until) });
        }
    }

    /// What is wrong with a client's calls, one text for each kind and pod.
    pub(super) fn wrong(&self, calls: &Calls) -> Vec<String> {
        let routed = self.routed;
        let mut found = BTreeMap::new();
        // A pod that ends while it answers may leave an answer without its name.
        for (at, end, pod) in calls.answers().filter(|(_, _, pod)| !pod.is_empty()) {
            let mut spans = self.active.iter().filter(|span| span.pod == pod);
            if !spans.any(|span| span.from <= end.plus(SEEN) && at <= span.until.plus(routed)) {
                *found.entry(format!("{pod}, which was not active for {routed:?}, answered")).or_insert(0) +=
                    1;
            }
        }
        for (at, end) in calls.failed(REFUSED) {
            let settled = |span: &&Span| span.from.plus(routed) <= at && end.plus(SEEN) <= span.until;
            if let Some(span) = self.serving.iter().find(settled) {
                *found
                    .entry(format!("while {} was active and well, it was refused", span.pod))
                    .or_insert(0) += 1;
            }
        }
        let mut texts: Vec<String> =
            found.into_iter().map(|(text, count)| format!("{text} {count} times")).collect();
        texts.extend(
            self.unheard(calls).map(|pod| format!("{pod} was active for {routed:?}, and never answered")),
        );
        texts.extend(
            self.silent(calls)
                .map(|pod| format!("{pod} was active and well, and gave no answer for over {SILENT:?}")),
        );
        texts
    }

    /// The pods that gave the client no answer for too long while they served.
    fn silent(&self, calls: &Calls) -> impl Iterator<Item = &str> {
        let first_and_last = calls.first_and_last();
        let is_silent = move |span: &&Span| {
            let Some((first, last)) = first_and_last else { return false };
            let (from, until) = (first.max(span.from.plus(self.routed)), last.min(span.until));
            let of_pod = calls.answers().filter(|(_, _, pod)| *pod == span.pod);
            let times = of_pod.map(|(at, ..)| at).filter(|at| from < *at && *at < until);
            let marks: Vec<Moment> = [from].into_iter().chain(times).chain([until]).collect();
            marks.windows(2).any(|pair| {
                let failed = |call: &&Call| pair[0] < call.at && call.end < pair[1] && call.answer.is_err();
                pair[0].plus(SILENT) < pair[1] && calls.all().iter().filter(failed).count() >= IN_VAIN
            })
        };
        self.serving.iter().filter(is_silent).map(|span| span.pod.as_str())
    }

    /// The pods that had served for longer than the rules need, all while the client called, without an answer.
    fn unheard(&self, calls: &Calls) -> impl Iterator<Item = &str> {
        let first_and_last = calls.first_and_last();
        let whole = self.serving.iter().filter(move |span| {
            let due = span.from.plus(self.routed);
            due.plus(SEEN) <= span.until
                && first_and_last.is_some_and(|(first, last)| first <= span.from && due <= last)
        });
        let is_unheard = |span: &&Span| {
            let (from, due) = (span.from, span.from.plus(self.routed));
            let heard =
                |(at, _, pod): (Moment, Moment, &str)| pod == span.pod && from <= at.plus(SEEN) && at <= due;
            !calls.answers().any(heard)
        };
        whole.filter(is_unheard).map(|span| span.pod.as_str())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::history::{Change, ObjectId};

    fn second(second: u64) -> Moment {
        Moment::default().plus(Duration::from_secs(second))
    }

    /// Pods whose labels change at these seconds. `None`: the pod is gone.
    fn history(changes: &[(u64, &str, Option<&str>)]) -> History {
        let change = |(at, pod, role): &(u64, &str, Option<&str>)| {
            let app = if pod.starts_with("other") { "other" } else { "web" };
            let labels = |role: &&str| json!({ "app": app, "leadergroup.dev/role": role });
            let json = |role: &&str| json!({ "metadata": { "uid": pod, "labels": labels(role) } });
            let state = role.as_ref().map(|role| Object::read(Kind::Pod, &json(role)).expect("a pod"));
            let id = ObjectId { kind: Kind::Pod, namespace: "ns".into(), name: (*pod).to_owned() };
            let (seen, revision) = (second(*at), i64::try_from(*at).expect("small"));
            Change {
                revision,
                seen,
                seen_at: Timestamp::UNIX_EPOCH,
                id,
                state,
                operator: None,
                raw: "".into(),
            }
        };
        History { changes: changes.iter().map(change).collect(), ..History::default() }
    }

    /// A call in each of these seconds with this answer.
    fn calls(parts: &[(std::ops::Range<u64>, Result<&str, &str>)]) -> Calls {
        let call = |at, answer: Result<&str, &str>| {
            let (at, answer) = (second(at), answer.map(str::to_owned).map_err(str::to_owned));
            Call::through_any(at, at.plus(Duration::from_millis(5)), answer)
        };
        Calls::new(parts.iter().flat_map(|(at, answer)| at.clone().map(|at| call(at, *answer))).collect())
    }

    const CHANGE: [(u64, &str, Option<&str>); 4] = [
        (10, "a", Some("active")),
        (10, "b", Some("standby")),
        (30, "a", Some("standby")),
        (31, "b", Some("active")),
    ];

    fn wrong(history: &History, parts: &[(std::ops::Range<u64>, Result<&str, &str>)]) -> Vec<String> {
        Service::read(history, "web", &RoutingSpec::default(), ROUTED, second(100)).wrong(&calls(parts))
    }

    const REFUSAL: Result<&str, &str> = Err(REFUSED);

    #[test]
    fn pods_of_other_groups_are_not_expected_to_answer() {
        let history = history(&[(10, "a", Some("active")), (10, "other-a", Some("active")), (30, "a", None)]);
        let seen = [(0..10, REFUSAL), (10..30, Ok("a")), (30..60, REFUSAL)];
        assert_eq!(wrong(&history, &seen), [""; 0]);
        assert_eq!(wrong(&history, &[(10..29, Ok("a")), (29..30, Ok("other-a"))]).len(), 1, "nor may they");
    }

    #[test]
    fn a_service_that_follows_the_label_is_right() {
        let history = history(&CHANGE);
        let seen = [(0..10, REFUSAL), (10..32, Ok("a")), (32..34, REFUSAL), (34..60, Ok("b"))];
        assert_eq!(wrong(&history, &seen), [""; 0]);
        let seen = [(11..29, Ok("a")), (29..30, Ok("")), (30..34, REFUSAL), (34..60, Ok("b"))];
        assert_eq!(wrong(&history, &seen), [""; 0], "the pod ends while it answers");
        let seen = [(11..32, Ok("a")), (32..40, Ok("b")), (40..45, Err("timeout")), (45..60, Ok("b"))];
        assert_eq!(wrong(&history, &seen), [""; 0], "a busy machine");
    }

    #[test]
    fn an_answer_of_a_pod_that_was_superseded() {
        let history = history(&CHANGE);
        let seen = [(11..34, Ok("a")), (34..60, Ok("b")), (60..62, Ok("a"))];
        assert_eq!(wrong(&history, &seen), ["a, which was not active for 3s, answered 2 times"]);
        assert_eq!(wrong(&history, &[(0..2, Ok("c"))]), ["c, which was not active for 3s, answered 2 times"]);
    }

    #[test]
    fn a_refusal_while_a_pod_serves() {
        let mut history = history(&CHANGE);
        let seen = [(11..20, Ok("a")), (20..22, REFUSAL), (22..31, Ok("a")), (32..60, Ok("b"))];
        assert_eq!(wrong(&history, &seen), ["while a was active and well, it was refused 2 times"]);
        let fault = |from, until| Fault { uid: "a".into(), reasons: vec![], from: second(from), until };
        history.faults = Some(vec![fault(19, None)]);
        assert_eq!(wrong(&history, &seen), [""; 0], "during its fault");
        history.faults = Some(vec![fault(12, Some(second(13)))]);
        assert_eq!(wrong(&history, &seen).len(), 1, "long after its fault");
        history.faults = None;
        let mut service = Service::read(&history, "web", &RoutingSpec::default(), ROUTED, second(100));
        service.rebuilt(second(19), second(20));
        assert_eq!(service.wrong(&calls(&seen)), [""; 0], "the scenario rebuilt the Service");
    }

    #[test]
    fn a_pod_that_is_active_and_never_answers() {
        let history = history(&CHANGE);
        let seen = [(5..11, REFUSAL), (11..32, Ok("a")), (32..60, Err("timeout"))];
        let silent = "b was active and well, and gave no answer for over 10s";
        assert_eq!(wrong(&history, &seen), ["b was active for 3s, and never answered", silent]);
        assert_eq!(wrong(&history, &seen[..2]), [""; 0], "the client ended before");
    }

    #[test]
    fn a_pod_that_serves_and_stops_answering() {
        let history = history(&CHANGE);
        let seen =
            |end| [(11..32, Ok("a")), (32..40, Ok("b")), (40..end, Err("timeout")), (end..60, Ok("b"))];
        assert_eq!(wrong(&history, &seen(49)), [""; 0], "a busy machine");
        assert_eq!(wrong(&history, &seen(50)), ["b was active and well, and gave no answer for over 10s"]);
        let [_, answers, _, again] = seen(52);
        assert_eq!(wrong(&history, &[answers, again]), [""; 0], "no calls");
    }
}
