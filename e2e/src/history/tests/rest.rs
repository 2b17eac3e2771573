//! I5 to I8: each kind of violation is found.

use leadergroup::api::Endpoints;

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
        let entry = json!({ "token": token, "to": holder, "reason": reason, "time": at(2).to_string(), "duration": "100ms" });
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

fn moment(seconds: u64) -> Moment {
    Moment::default().plus(Duration::from_secs(seconds))
}

fn fault(uid: &str, reasons: &[&str], from: u64, until: Option<u64>) -> Fault {
    let reasons = reasons.iter().map(|&reason| reason.to_owned()).collect();
    Fault { uid: uid.to_owned(), reasons, from: moment(from), until: until.map(moment) }
}

const PROBED: &[&str] = &["Silent", "ProbeRefused"];

/// Faults that probes find, of these pods, for the whole history.
fn lasting(uids: &[&str]) -> Vec<Fault> {
    uids.iter().map(|uid| fault(uid, PROBED, 0, None)).collect()
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
    let marked = json!({ "metadata": { "labels": { "tier": "front" } } });
    for reason in ["PodDeleted", "Silent"] {
        let tape = replaced(Some(&marked), reason, Some(none));
        assert_eq!(
            tape.violated(),
            [Invariant::Evidence],
            "a label that the group does not select by: {reason}"
        );
    }
}

#[test]
fn i5_the_reason_of_a_release_is_not_that_of_the_change_before() {
    let mut tape = replaced(None, "Silent", Some(&["a"]));
    // b is deleted without a successor. Its term ends, and the token stays.
    let entry = |reason: &str, to: Option<&str>| {
        let mut entry =
            json!({ "token": 2, "reason": reason, "time": at(2).to_string(), "duration": "100ms" });
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

/// The change was begun during the fault, and declared long after it.
#[test]
fn i5_a_pod_that_the_operator_stripped_in_time_has_lost_the_lock_then() {
    for (operator, violated) in [(Some("it"), vec![]), (None, vec![Invariant::Evidence])] {
        let mut tape = first();
        tape.pod_in("a", "active", "g/1", &json!({}));
        let until = u64::try_from(tape.history.complete_to).expect("it grows") + 2;
        tape.history.faults = Some(vec![fault("a", PROBED, 1, Some(until))]);
        tape.pod_in("a", "standby", "g/1", &json!({}));
        tape.history.changes.last_mut().expect("it was added").operator = operator.map(str::to_owned);
        tape.slice("web-1", "IPv4", &[]);
        tape.history.complete_to += 600;
        tape.grant(2, "b");
        tape.group(2, Some("b"));
        tape.pod_in("b", "active", "g/2", &json!({}));
        tape.explained(2, "b", "Resumed");
        assert_eq!(tape.violated(), violated, "{operator:?}");
    }
}

/// The declaration was sent during the fault, and the test let it take effect long after it.
#[test]
fn i5_a_declaration_that_the_test_delayed_was_made_when_it_was_sent() {
    let violated = |group: &str, after: u64| {
        let mut tape = first();
        let until = u64::try_from(tape.history.complete_to).expect("it grows");
        tape.history.faults = Some(vec![fault("a", PROBED, 1, Some(until))]);
        tape.history.complete_to += 600;
        tape.grant(2, "b");
        tape.group(2, Some("b"));
        let seen = tape.history.changes.last().expect("it was added").seen;
        tape.pod_in("a", "standby", "g/2", &json!({}));
        tape.slice("web-1", "IPv4", &[]);
        tape.pod_in("b", "active", "g/2", &json!({}));
        tape.explained(2, "b", "Silent");
        let object = ObjectId { kind: Kind::LeaderGroup, namespace: "ns".into(), name: group.into() };
        let sent = Moment::default().plus(Duration::from_secs(until + after));
        tape.history.late = vec![LateWrite { object, sent, until: seen }];
        tape.violated()
    };
    let late = [Invariant::Evidence];
    assert_eq!(violated("web", 1), []);
    assert_eq!(violated("web", 300), late, "it was sent long after the fault");
    assert_eq!(violated("another", 1), late, "it is another group's");
}

#[test]
fn i5_a_fault_that_was_undone_long_ago() {
    let undone = |from, until| vec![fault("a", PROBED, from, Some(until))];
    for reason in ["Silent", "ProbeRefused", "Resumed"] {
        assert_eq!(replaced_later(&[], 5, reason, undone(1, 14)), [], "{reason}: right after it");
        assert_eq!(replaced_later(&[], 600, reason, undone(1, 610)), [], "{reason}: while it lasts");
        let late = [Invariant::Evidence];
        assert_eq!(replaced_later(&[], 600, reason, undone(1, 10)), late, "{reason}: long after it");
        assert_eq!(replaced_later(&[], 5, reason, undone(600, 610)), late, "{reason}: before it");
    }
}

#[test]
fn i5_a_fault_explains_only_its_own_reasons() {
    let silence: &[&str] = &["Silent", "PodNotReady"];
    for (reasons, reason, explained) in [
        (silence, "Silent", true),
        (silence, "Switchover", false),
        (silence, "ProbeRefused", false),
        (silence, "Resumed", true),
        (&["Switchover"], "Switchover", true),
        (&["Switchover"], "Rollout", false),
        (&["Switchover"], "Silent", false),
        (&[], "Silent", false),
    ] {
        let found = replaced_later(&[], 5, reason, vec![fault("a", reasons, 1, None)]);
        let expected: &[Invariant] = if explained { &[] } else { &[Invariant::Evidence] };
        assert_eq!(found, expected, "{reasons:?} {reason}");
    }
}

#[test]
fn i5_how_long_a_fault_counts_after_its_end_depends_on_its_kind() {
    // The change is declared at 25 s.
    let ended = |reason, until| replaced_later(&[], 10, reason, vec![fault("a", &[reason], 1, Some(until))]);
    let late = [Invariant::Evidence];
    // A silence may become complete in 5 s more. A change takes up to 2 s.
    assert_eq!((ended("Silent", 18), ended("Silent", 17)), (vec![], late.to_vec()));
    for reason in ["ProbeRefused", "Switchover", "NodeCordoned"] {
        assert_eq!((ended(reason, 23), ended(reason, 22)), (vec![], late.to_vec()), "{reason}");
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

/// What is wrong if `a` had to follow this deadline, which began with its fault.
fn missed(tape: &mut Tape, from: u64, within: u64, from_evidence: u64) -> Vec<String> {
    let (within, from_evidence) = (Duration::from_secs(within), Duration::from_secs(from_evidence));
    tape.history.deadlines = vec![Deadline { uid: "a".into(), from: moment(from), within, from_evidence }];
    let found = check(&tape.history).violations;
    assert!(found.iter().all(|one| one.invariant == Invariant::Liveness), "{found:?}");
    found.into_iter().map(|one| one.text).collect()
}

#[test]
fn i6_a_failed_pod_is_replaced_before_its_deadline() {
    // A revision of these histories takes a second.
    let silent = || replaced(None, "Silent", Some(&["a"]));
    let labelled = check(&silent().history).promotions[1].seen.since(Moment::default()).as_secs();
    assert_eq!(missed(&mut silent(), labelled - 5, 5, 2), [""; 0]);
    let late = missed(&mut silent(), labelled - 5, 4, 2);
    assert_eq!(late, ["b followed 5s after the fault, not within 4s"]);
    let labelled = labelled + 1;
    let deleted = || replaced(Some(&deleted()), "PodDeleted", Some(&["a"]));
    assert_eq!(missed(&mut deleted(), labelled - 5, 5, 4), [""; 0]);
    let late = missed(&mut deleted(), labelled - 5, 5, 3);
    assert_eq!(late, ["b followed 4s after the evidence, not within 3s"]);
    // Nobody follows.
    let late = missed(&mut first(), 20, 100, 100);
    assert_eq!(late, ["it failed at 20.000, and none replaced it"]);
    // The pod keeps its role under a larger token, which is no replacement.
    let mut kept = first();
    kept.change_holder(2, None, "a");
    assert_eq!(missed(&mut kept, 15, 100, 100).len(), 1);
}

#[test]
fn i6_only_a_pod_that_holds_the_role_when_its_fault_begins_must_be_replaced() {
    let of_holders = |tape: &Tape, uid: &str, from: Moment| {
        let deadline = Deadline::usual(uid, from, "Silent", Duration::from_secs(5), Duration::ZERO);
        Deadline::of_holders(vec![deadline], &check(&tape.history).promotions)
    };
    let silent = replaced(None, "Silent", Some(&["a"]));
    let labelled = check(&silent.history).promotions[1].seen;
    let before = labelled.minus(Duration::from_secs(1));
    assert_eq!(of_holders(&silent, "a", before).len(), 1);
    assert_eq!(of_holders(&silent, "a", labelled), [], "it was replaced before");
    assert_eq!(of_holders(&silent, "b", before), [], "it became active later");
    assert_eq!(of_holders(&silent, "b", labelled).len(), 1, "nobody follows, which the deadline finds");
    // The evidence is 4 s older than the label.
    let reported = replaced(Some(&deleted()), "PodDeleted", Some(&["a"]));
    let labelled = check(&reported.history).promotions[1].seen;
    let from_evidence =
        |age| of_holders(&reported, "a", labelled.minus(Duration::from_secs(age)))[0].from_evidence;
    assert_eq!(from_evidence(4), ACTS);
    assert_eq!(from_evidence(3), Duration::MAX, "it is older than the fault");
}

#[test]
fn i6_the_deadline_of_each_reason() {
    let (silence, refused) = (Duration::from_secs(5), Duration::from_secs(2));
    let within = |reason| Deadline::usual("a", moment(1), reason, silence, refused).within.as_secs();
    let reasons =
        ["PodDeleted", "Switchover", "ProbeRefused", "Silent", "ContainerTerminated", "PodNotReady"];
    assert_eq!(reasons.map(within), [3, 3, 4, 7, 7, 7]);
    let usual = Deadline::usual("a", moment(1), "Silent", silence, refused);
    assert_eq!(usual.from_evidence.as_secs(), 2);
    let busy = usual.on_a_busy_machine();
    assert_eq!((busy.within.as_secs(), busy.from_evidence.as_secs()), (9, 4));
    let of_old_evidence = Deadline { from_evidence: Duration::MAX, ..busy }.on_a_busy_machine();
    assert_eq!(of_old_evidence.from_evidence, Duration::MAX);
}

impl Tape {
    /// The group's condition Ready in its last revision.
    fn is_ready(&mut self, status: &str, reason: &str) {
        let mut groups = self.history.changes.iter_mut().rev().filter_map(|change| match &mut change.state {
            Some(Object::Group(group)) => Some(group),
            _ => None,
        });
        groups.next().expect("a group").ready = Some((status.into(), reason.into()));
    }
}

fn at_rest(tape: &Tape) -> Vec<Invariant> {
    ends(tape, &[])
}

fn ends(tape: &Tape, not_ready: &[(&str, &str)]) -> Vec<Invariant> {
    let found = not_at_rest(&tape.history, not_ready);
    let mut found: Vec<Invariant> = found.iter().map(|one| one.invariant).collect();
    found.dedup();
    found
}

#[test]
fn i6_and_i7_a_group_at_rest() {
    let settled = || {
        let mut tape = replaced(Some(&not_ready()), "PodNotReady", None);
        tape.is_ready("True", "Active");
        tape
    };
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
        tape.is_ready("True", "Active");
        assert_eq!(at_rest(&tape), expected, "{pods:?}");
    }
}

#[test]
fn i6_a_service_that_leaves_its_endpoints_to_the_operator_has_a_slice_at_rest() {
    let settled = |endpoints| {
        let mut tape = replaced(Some(&not_ready()), "PodNotReady", None);
        tape.managed_service();
        tape.history.changes.retain(|change| change.id.kind != Kind::EndpointSlice);
        tape.is_ready("True", "Active");
        for change in &mut tape.history.changes {
            if let Some(Object::Group(group)) = &mut change.state {
                group.routing.endpoints = endpoints;
            }
        }
        tape
    };
    assert_eq!(at_rest(&settled(Endpoints::Managed)), [Invariant::Liveness]);
    assert_eq!(at_rest(&settled(Endpoints::Selector)), [], "the operator writes none for the group");
    let mut tape = settled(Endpoints::Managed);
    tape.managed_slice(2, &["b"]);
    assert_eq!(at_rest(&tape), []);
    let mut tape = settled(Endpoints::Managed);
    tape.service(&json!({ "app": "web" }));
    assert_eq!(at_rest(&tape), [], "Kubernetes writes its endpoints");
}

#[test]
fn i6_a_group_that_is_not_ready_is_one_of_those_that_are_expected_not_to_be() {
    let liveness = [Invariant::Liveness];
    let mut tape = replaced(Some(&not_ready()), "PodNotReady", None);
    assert_eq!(at_rest(&tape), liveness, "it says nothing");
    tape.is_ready("False", "NoEligiblePod");
    assert_eq!(at_rest(&tape), liveness);
    assert_eq!(ends(&tape, &[("web", "NoEligiblePod")]), []);
    assert_eq!(ends(&tape, &[("web", "NoPods")]), liveness, "for another reason");
    tape.is_ready("True", "Active");
    assert_eq!(ends(&tape, &[("web", "NoEligiblePod")]), liveness, "it is Ready");
    assert_eq!(ends(&tape, &[("other", "NoPods")]), liveness, "there is no such group");
    tape.push(Kind::LeaderGroup, "web", None);
    assert_eq!(at_rest(&tape), liveness, "there is no group");
}

impl Tape {
    /// A revision of an object of this kind, that this manager wrote at this second.
    fn written(&mut self, kind: Kind, name: &str, manager: &str, second: i64) -> i64 {
        let entry = |manager: &str, second| json!({ "manager": manager, "time": at(second).to_string() });
        let json = json!({ "metadata": {
            "name": name, "uid": name, "creationTimestamp": at(1).to_string(),
            "managedFields": [entry("kubelet", second), entry(manager, second)],
            "labels": { "endpointslice.kubernetes.io/managed-by": "leadergroup.dev" },
        }, "spec": { "selector": {} } });
        self.push(kind, name, Some(&json))
    }
}

#[test]
fn i8_every_write_of_the_operator_is_seen_and_told_from_the_rest() {
    for kind in Kind::ALL {
        let mut tape = Tape::new();
        tape.written(kind, "one", "leadergroup", 1);
        let quiet = tape.history.complete_to;
        assert_eq!(operator_writes(&tape.history, quiet), [""; 0], "{kind:?}: before");
        tape.written(kind, "other", "kubelet", 2);
        tape.written(kind, "other", "kubelet", 3);
        // The operator's entry stays as it is when others write.
        tape.history.complete_to += 1;
        let mut change = tape.history.changes[0].clone();
        change.revision = tape.history.complete_to;
        tape.history.changes.push(change);
        assert_eq!(operator_writes(&tape.history, quiet), [""; 0], "{kind:?}: of others");
        let again = tape.written(kind, "one", "leadergroup", 4);
        let created = tape.written(kind, "new", "leadergroup", 5);
        let told = [
            format!("{kind:?} ns/one at revision {again}"),
            format!("{kind:?} ns/new at revision {created}"),
        ];
        assert_eq!(operator_writes(&tape.history, quiet), told);
    }
}

#[test]
fn i8_a_group_that_is_written_in_a_loop_is_told_once() {
    let violated = |every: Duration| {
        let mut tape = Tape::new();
        for count in 0..200 {
            tape.group(0, None);
            let last = tape.history.changes.last_mut().expect("the group");
            last.seen = Moment::default().plus(every * count);
        }
        let found = check(&tape.history).violations;
        found.into_iter().map(|it| it.invariant).filter(|it| *it == Invariant::Quiet).count()
    };
    assert_eq!(violated(Duration::from_millis(130)), 0, "within ten seconds, not in all");
    assert_eq!(violated(Duration::from_millis(120)), 1);
}

#[test]
fn i8_a_slice_that_the_operator_deletes_is_a_write() {
    let mut tape = Tape::new();
    tape.written(Kind::EndpointSlice, "own", "leadergroup", 1);
    tape.written(Kind::Pod, "pod", "leadergroup", 1);
    let quiet = tape.history.complete_to;
    tape.push(Kind::Pod, "pod", None);
    assert_eq!(operator_writes(&tape.history, quiet), [""; 0], "pods are deleted by others");
    tape.push(Kind::EndpointSlice, "own", None);
    assert_eq!(operator_writes(&tape.history, quiet).len(), 1);
}

/// Each revision is seen a second after the one before.
#[test]
fn a_pod_was_not_ready_since_the_last_time_that_it_was() {
    let routing = leadergroup::api::RoutingSpec::default();
    let unready = |states: &[bool], role| {
        let mut tape = Tape::new();
        tape.pod_in("a", "active", "g/1", &json!({}));
        let before = tape.history.complete_to;
        for ready in states {
            let status = if *ready { json!({}) } else { not_ready() };
            tape.pod_in("a", "active", "g/1", &status);
            tape.pod_in("b", "standby", "g/1", &json!({}));
        }
        tape.pod_in("a", role, "g/2", &json!({}));
        unready_before_change(&tape.history, &routing, "a", before).map(|time| time.as_secs())
    };
    assert_eq!(unready(&[true, false, false], "standby"), Some(4));
    assert_eq!(unready(&[false, true, false], "standby"), Some(2));
    assert_eq!(unready(&[false, true], "standby"), None, "it was ready");
    assert_eq!(unready(&[false], "active"), None, "it has kept its role");
}
