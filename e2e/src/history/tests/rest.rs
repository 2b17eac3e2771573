//! I5 to I8: each kind of violation is found.

use super::*;

impl Tape {
    /// A pod with more than its labels: `extra` is merged into its JSON.
    fn pod_in(&mut self, name: &str, role: &str, stamp: &str, extra: &Value) -> i64 {
        let mut json = json!({
            "metadata": {
                "name": name, "uid": name, "labels": { "app": "web", "leadergroup.dev/role": role },
                "annotations": { "leadergroup.dev/stamp": stamp },
            },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        if let Some(token) = stamp.strip_prefix("g/").filter(|_| role == "active") {
            json["metadata"]["annotations"]["leadergroup.dev/fencing-token"] =
                format!("{KEY}/{token}").into();
        }
        for (key, value) in extra.as_object().expect("an object") {
            let place = json.get_mut(key).and_then(Value::as_object_mut).expect("metadata or status");
            for (key, value) in value.as_object().expect("an object").clone() {
                match place.get_mut(&key).filter(|_| key == "labels").and_then(Value::as_object_mut) {
                    Some(labels) => labels.extend(value.as_object().expect("labels").clone()),
                    None => drop(place.insert(key, value)),
                }
            }
        }
        self.push(Kind::Pod, name, Some(&json))
    }

    /// The group as it is after a change of holder, with the reason in its history.
    fn explained(&mut self, token: i64, holder: &str, reason: &str) -> i64 {
        let entry = json!({ "token": token, "to": holder, "reason": reason, "at": at(2).to_string(), "duration": "100ms" });
        self.with_history(token, holder, &json!([entry]))
    }

    fn with_history(&mut self, token: i64, holder: &str, history: &Value) -> i64 {
        let json = json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup",
            "metadata": { "name": "web", "namespace": "ns", "uid": "g", "creationTimestamp": at(1).to_string() },
            "spec": { "selector": { "matchLabels": { "app": "web" } } },
            "status": {
                "observedGeneration": 1, "token": token,
                "declaration": { "token": token, "holder": { "name": holder, "uid": holder } },
                "history": history,
            },
        });
        self.push(Kind::LeaderGroup, "web", Some(&json))
    }
}

/// Faults of these pods that last for the whole history.
fn lasting(uids: &[&str]) -> Vec<Fault> {
    let lasting = |uid: &&str| Fault { uid: (*uid).to_owned(), from: Moment::default(), until: None };
    uids.iter().map(lasting).collect()
}

/// `a` is active with token 1 and well, `what` happens to it, and `b` takes over for this reason.
fn replaced(what: Option<&Value>, reason: &str, faults: Option<&[&str]>) -> Tape {
    let mut tape = first();
    tape.history.faults = faults.map(lasting);
    tape.pod_in("a", "active", "g/1", &json!({}));
    if let Some(what) = what {
        tape.pod_in("a", "active", "g/1", what);
    }
    tape.slice("web-1", "IPv4", &[]);
    tape.grant(2, "b");
    tape.group(2, Some("b"));
    tape.pod_in("a", "standby", "g/2", what.unwrap_or(&json!({})));
    tape.pod_in("b", "active", "g/2", &json!({}));
    tape.pod_in("c", "standby", "g/2", &json!({}));
    tape.explained(2, "b", reason);
    tape
}

fn deleted() -> Value {
    json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })
}

fn not_ready() -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })
}

fn crashed() -> Value {
    json!({ "status": { "containerStatuses": [{ "restartCount": 0, "state": { "terminated": { "exitCode": 3 } } }] } })
}

#[test]
fn i5_evidence_that_fits_the_reason_passes() {
    let none: &[&str] = &[];
    let finished = json!({ "status": { "phase": "Failed" } });
    let restarted = json!({ "status": { "containerStatuses": [{ "restartCount": 1 }] } });
    let left = json!({ "metadata": { "labels": { "app": "other" } } });
    for (what, reason) in [
        (deleted(), "PodDeleted"),
        (left, "PodDeleted"),
        (not_ready(), "PodNotReady"),
        (crashed(), "ContainerTerminated"),
        (restarted, "ContainerRestarted"),
        (finished, "PodFinished"),
        (crashed(), "ProbeRefused"),
        (not_ready(), "Resumed"),
    ] {
        let tape = replaced(Some(&what), reason, Some(none));
        assert_eq!(tape.violated(), [], "{what} {reason}");
    }
    assert_eq!(replaced(None, "Silent", Some(&["a"])).violated(), [], "the test has caused it");
    assert_eq!(replaced(None, "Silent", None).violated(), [], "nobody knows what the test has caused");
}

#[test]
fn i5_a_change_without_evidence() {
    let none: &[&str] = &[];
    for reason in ["Silent", "ProbeRefused", "PodDeleted", "PodNotReady", "ContainerTerminated", "Resumed"] {
        assert_eq!(replaced(None, reason, Some(none)).violated(), [Invariant::Evidence], "{reason}");
    }
    assert_eq!(replaced(None, "Silent", Some(&["b"])).violated(), [Invariant::Evidence], "of another pod");
}

#[test]
fn i5_the_reason_of_a_release_is_not_that_of_the_change_before() {
    let mut tape = replaced(None, "Silent", Some(&["a"]));
    // b is deleted without a successor. Its term ends, and the token stays.
    let entry = |reason: &str, to: Option<&str>| {
        let mut entry = json!({ "token": 2, "reason": reason, "at": at(2).to_string(), "duration": "100ms" });
        if let Some(to) = to {
            entry["to"] = to.into();
        }
        entry
    };
    tape.with_history(2, "b", &json!([entry("PodDeleted", None), entry("Silent", Some("b"))]));
    assert_eq!(tape.violated(), []);
}

#[test]
fn i5_a_reason_that_does_not_fit() {
    let faults: &[&str] = &["a"];
    for (what, reason) in [
        (not_ready(), "PodDeleted"),
        (deleted(), "ContainerTerminated"),
        (crashed(), "PodNotReady"),
        (not_ready(), "PodFinished"),
    ] {
        let tape = replaced(Some(&what), reason, Some(faults));
        assert_eq!(tape.violated(), [Invariant::Evidence], "{what} {reason}");
    }
}

#[test]
fn i5_evidence_of_an_earlier_term_is_over() {
    let mut tape = first();
    tape.history.faults = Some(Vec::new());
    tape.pod_in("a", "active", "g/1", &not_ready());
    // It recovers, and keeps the role under another token.
    tape.grant(2, "a");
    tape.group(2, Some("a"));
    tape.pod_in("a", "active", "g/2", &json!({}));
    tape.slice("web-1", "IPv4", &[]);
    tape.grant(3, "b");
    tape.group(3, Some("b"));
    tape.pod_in("a", "standby", "g/3", &json!({}));
    tape.pod_in("b", "active", "g/3", &json!({}));
    tape.explained(3, "b", "PodNotReady");
    assert_eq!(tape.violated(), [Invariant::Evidence]);
}

/// `a` is active and well again after `what` happened to it, and `b` takes over this many seconds later. A restart is
/// over at once, if the pod is Ready in the same revision.
fn replaced_later(what: &[Value], seconds: i64, reason: &str, faults: Vec<Fault>) -> Vec<Invariant> {
    let mut tape = first();
    tape.history.faults = Some(faults);
    tape.pod_in("a", "active", "g/1", &json!({}));
    for what in what {
        tape.pod_in("a", "active", "g/1", what);
    }
    tape.slice("web-1", "IPv4", &[]);
    tape.history.complete_to += seconds;
    tape.grant(2, "b");
    tape.group(2, Some("b"));
    tape.pod_in("a", "standby", "g/2", &json!({}));
    tape.pod_in("b", "active", "g/2", &json!({}));
    tape.explained(2, "b", reason);
    tape.violated()
}

#[test]
fn i5_a_fault_that_was_undone_long_ago() {
    let moment = |seconds| Moment::default().plus(Duration::from_secs(seconds));
    let undone =
        |from, until| vec![Fault { uid: "a".into(), from: moment(from), until: Some(moment(until)) }];
    for reason in ["Silent", "ProbeRefused", "Resumed"] {
        assert_eq!(replaced_later(&[], 5, reason, undone(1, 10)), [], "{reason}: right after it");
        assert_eq!(replaced_later(&[], 600, reason, undone(1, 610)), [], "{reason}: while it lasts");
        let late = [Invariant::Evidence];
        assert_eq!(replaced_later(&[], 600, reason, undone(1, 10)), late, "{reason}: long after it");
        assert_eq!(replaced_later(&[], 5, reason, undone(600, 610)), late, "{reason}: before it");
    }
}

#[test]
fn i5_evidence_that_is_over() {
    let restarted = json!({ "status": { "containerStatuses": [{ "restartCount": 1 }] } });
    for (what, reason) in [
        (vec![not_ready(), json!({})], "PodNotReady"),
        (vec![crashed(), json!({})], "ContainerTerminated"),
        (vec![crashed(), restarted.clone()], "ContainerTerminated"),
        (vec![restarted], "ContainerRestarted"),
        (vec![not_ready(), json!({})], "Silent"),
    ] {
        assert_eq!(replaced_later(&what, 5, reason, Vec::new()), [], "{reason}: a little late");
        let late = [Invariant::Evidence];
        assert_eq!(replaced_later(&what, 600, reason, Vec::new()), late, "{reason}: it has recovered");
        assert_eq!(replaced_later(&what, 600, reason, lasting(&["a"])), [], "{reason}: during a fault");
    }
    for (what, reason) in [(not_ready(), "PodNotReady"), (crashed(), "ContainerTerminated")] {
        assert_eq!(replaced_later(&[what], 600, reason, Vec::new()), [], "{reason}: it lasts");
    }
}

#[test]
fn the_time_from_the_evidence_to_the_label_is_reported() {
    let tape = replaced(Some(&deleted()), "PodDeleted", None);
    let times: Vec<_> = check(&tape.history).promotions.iter().map(|one| one.evidence_ms).collect();
    // A revision of these histories takes a second.
    assert_eq!(times, [None, Some(4_000)]);
    let tape = replaced(None, "Silent", None);
    assert_eq!(check(&tape.history).promotions[1].evidence_ms, None);
}

fn at_rest(tape: &Tape) -> Vec<Invariant> {
    let mut found: Vec<Invariant> = not_at_rest(&tape.history).iter().map(|one| one.invariant).collect();
    found.dedup();
    found
}

#[test]
fn i6_and_i7_a_group_at_rest() {
    let settled = || replaced(Some(&not_ready()), "PodNotReady", None);
    assert_eq!(at_rest(&settled()), []);
    for (role, stamp) in [("standby", "g/1"), ("active", "g/2"), ("", "g/2"), ("standby", "x/2")] {
        let mut tape = settled();
        tape.pod_in("c", role, stamp, &json!({}));
        assert_eq!(at_rest(&tape), [Invariant::Liveness], "{role:?} {stamp}");
    }
    let mut tape = settled();
    tape.pod_in("b", "standby", "g/2", &json!({}));
    assert_eq!(at_rest(&tape), [Invariant::Liveness], "nobody is active");
    let mut tape = settled();
    tape.pod_in("b", "active", "g/2", &deleted());
    assert_eq!(at_rest(&tape), [Invariant::Release], "the holder is being deleted");
    tape.push(Kind::Pod, "b", None);
    assert_eq!(at_rest(&tape), [Invariant::Release], "the holder is gone");
    for pod in ["a", "c"] {
        tape.push(Kind::Pod, pod, None);
    }
    assert_eq!(at_rest(&tape), [], "without a pod there is no successor");
}

#[test]
fn i6_the_slices_that_the_operator_writes_list_the_holder_at_rest() {
    let settled = || replaced(Some(&not_ready()), "PodNotReady", None);
    for (pods, wrong) in [
        (&[&["b"][..], &["b"]][..], false),
        (&[&["b"], &["a"]], true),
        (&[&[], &["b"]], false),
        (&[&[], &[]], true),
    ] {
        let mut tape = settled();
        for (family, pods) in ["IPv4", "IPv6"].into_iter().zip(pods) {
            tape.managed_slice_of(family, 2, pods);
        }
        let expected: &[Invariant] = if wrong { &[Invariant::Liveness] } else { &[] };
        assert_eq!(at_rest(&tape), expected, "{pods:?}");
    }
}

#[test]
fn i8_what_only_the_operator_writes_is_told_from_the_rest() {
    let mut tape = replaced(Some(&not_ready()), "PodNotReady", None);
    let quiet = tape.history.complete_to;
    tape.pod_in("c", "standby", "g/2", &not_ready());
    tape.pod("d", None, None);
    tape.slice("web-1", "IPv4", &[("b", ready())]);
    assert_eq!(operator_writes(&tape.history, quiet), [""; 0], "the kubelet, a new pod, a slice");
    let stamped = tape.pod("d", Some("standby"), Some("g/2"));
    let status = tape.explained(2, "b", "PodNotReady");
    let told =
        [format!("Pod ns/d at revision {stamped}"), format!("LeaderGroup ns/web at revision {status}")];
    assert_eq!(operator_writes(&tape.history, quiet), told);
}
