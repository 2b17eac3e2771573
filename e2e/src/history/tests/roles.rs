//! Tests of the changes of role labels.

use leadergroup::api::RoutingSpec;
use serde_json::json;

use super::super::*;
use super::{Tape, failed_over};

#[test]
fn role_changes_are_told_apart_from_other_edits() {
    let mut tape = failed_over();
    let quiet = tape.history.complete_to;
    tape.pod("b", Some("active"), Some("g/2"));
    let routing = RoutingSpec::default();
    assert_eq!(role_changes(&tape.history, &routing, quiet), []);
    tape.pod("b", Some("standby"), Some("g/2"));
    tape.push(Kind::Pod, "a", None);
    let changes = role_changes(&tape.history, &routing, quiet);
    let told: Vec<_> = changes.iter().map(|c| (c.pod.as_str(), c.from.as_deref(), c.to.as_deref())).collect();
    assert_eq!(told, [("b", Some("active"), Some("standby")), ("a", Some("standby"), None)]);
}

#[test]
fn the_end_of_a_pod_that_was_being_deleted_before_is_no_change_of_its_role() {
    let mut tape = failed_over();
    let deleting = json!({ "metadata": {
        "name": "a", "uid": "a", "deletionTimestamp": "2026-01-01T00:00:00Z",
        "labels": { "app": "web", "leadergroup.dev/role": "standby" },
    } });
    let before = tape.history.complete_to;
    let deleted = tape.push(Kind::Pod, "a", Some(&deleting));
    tape.push(Kind::Pod, "a", None);
    let routing = RoutingSpec::default();
    assert_eq!(role_changes(&tape.history, &routing, deleted), []);
    assert_eq!(role_changes(&tape.history, &routing, before).len(), 1, "it was deleted afterwards");
}

/// A pod in one revision: a ready standby, unless it is said otherwise.
struct Pod {
    name: &'static str,
    role: Option<&'static str>,
    ready: &'static str,
    /// The reason of its condition `DisruptionTarget`.
    disrupted: Option<&'static str>,
    deleting: bool,
}

/// Why Kubernetes deletes a pod whose node is lost.
const TAINT: Option<&str> = Some("DeletionByTaintManager");

impl Pod {
    fn new(name: &'static str) -> Self {
        Self { name, role: Some("standby"), ready: "True", disrupted: None, deleting: false }
    }

    fn push(&self, tape: &mut Tape) -> i64 {
        let mut conditions = vec![json!({ "type": "Ready", "status": self.ready })];
        if let Some(reason) = self.disrupted {
            conditions.push(json!({ "type": "DisruptionTarget", "status": "True", "reason": reason }));
        }
        let json = json!({
            "metadata": {
                "name": self.name, "uid": self.name,
                "deletionTimestamp": self.deleting.then_some("2026-01-01T00:00:00Z"),
                "labels": { "app": "web", "leadergroup.dev/role": self.role },
            },
            "status": { "conditions": conditions },
        });
        tape.push(Kind::Pod, self.name, Some(&json))
    }
}

/// The changes that are left, except of pods on lost nodes: pod, value before, value after.
fn left(tape: &Tape, after: i64) -> Vec<(String, Option<String>, Option<String>)> {
    let changes = role_changes_except_of_lost_nodes(&tape.history, &RoutingSpec::default(), after);
    changes.into_iter().map(|change| (change.pod, change.from, change.to)).collect()
}

fn changed(pod: &str, from: Option<&str>, to: Option<&str>) -> (String, Option<String>, Option<String>) {
    (pod.to_owned(), from.map(str::to_owned), to.map(str::to_owned))
}

const STANDBY: Option<&str> = Some("standby");

/// A standby goes through these states and is replaced while it is deleted. Returns the revision before, too.
fn replaced(states: &[Pod]) -> (Tape, i64) {
    replaced_after(&Pod::new("a"), states)
}

fn replaced_after(first: &Pod, states: &[Pod]) -> (Tape, i64) {
    let mut tape = failed_over();
    let before = first.push(&mut tape);
    for state in states {
        state.push(&mut tape);
    }
    Pod::new("new").push(&mut tape);
    tape.push(Kind::Pod, "a", None);
    (tape, before)
}

/// Its kubelet is not heard, and 5 s later it is deleted.
fn lost() -> [Pod; 3] {
    let unready = || Pod { ready: "False", ..Pod::new("a") };
    [unready(), Pod { disrupted: TAINT, ..unready() }, Pod { disrupted: TAINT, deleting: true, ..unready() }]
}

#[test]
fn a_standby_that_kubernetes_replaces_because_its_node_is_lost_changes_no_role() {
    let (mut tape, before) = replaced(&lost());
    assert_eq!(role_changes(&tape.history, &RoutingSpec::default(), before).len(), 2);
    assert_eq!(left(&tape, before), []);
    // No lost pod is left that this one could replace.
    Pod::new("another").push(&mut tape);
    let another = || changed("another", None, STANDBY);
    assert_eq!(left(&tape, before), [another()]);
    tape.pod("b", STANDBY, Some("g/2"));
    assert_eq!(left(&tape, before), [another(), changed("b", Some("active"), STANDBY)]);
}

#[test]
fn a_lost_standby_may_be_there_when_its_replacement_is() {
    let mut tape = failed_over();
    let before = Pod::new("a").push(&mut tape);
    for state in lost() {
        state.push(&mut tape);
    }
    Pod { role: None, ready: "False", ..Pod::new("new") }.push(&mut tape);
    Pod::new("new").push(&mut tape);
    assert_eq!(left(&tape, before), []);
}

#[test]
fn a_lost_standby_may_be_ready_again_when_it_is_deleted() {
    let [unready, ..] = lost();
    let mark = Pod { disrupted: TAINT, ..Pod::new("a") };
    let (tape, before) = replaced(&[unready, Pod::new("a"), mark]);
    assert_eq!(left(&tape, before), [], "its kubelet came back before the taint was removed");
}

#[test]
fn a_standby_that_is_deleted_for_another_reason_changes_its_role() {
    let replacement = [changed("new", None, STANDBY), changed("a", STANDBY, None)];
    let unready = || Pod { ready: "False", ..Pod::new("a") };
    let deleting = || Pod { deleting: true, ..Pod::new("a") };
    for (states, why) in [
        (vec![deleting()], "ready"),
        (vec![unready(), Pod { ready: "False", ..deleting() }], "not ready"),
        (vec![unready(), Pod::new("a"), deleting()], "ready again"),
        (vec![Pod { disrupted: Some("EvictionByEvictionAPI"), ..unready() }, deleting()], "drained"),
        (vec![deleting(), Pod { disrupted: TAINT, ..deleting() }], "its node was lost afterwards"),
        (vec![Pod { disrupted: TAINT, ..unready() }, Pod::new("a"), deleting()], "not evicted after all"),
    ] {
        let (tape, before) = replaced(&states);
        assert_eq!(left(&tape, before), replacement, "{why}");
    }
}

#[test]
fn a_label_that_is_removed_from_a_lost_standby_is_a_change_of_its_role() {
    let [unready, mark, deleting] = lost();
    let replacement = changed("new", None, STANDBY);
    let removed = changed("a", STANDBY, None);
    let (tape, before) = replaced(&[
        Pod { role: None, ..unready },
        Pod { role: None, ..mark },
        Pod { role: None, ..deleting },
    ]);
    assert_eq!(left(&tape, before), [removed.clone(), replacement.clone()]);
    // It is removed while the pod is being deleted.
    let [unready, mark, deleting] = lost();
    let without = Pod { role: None, ..lost()[2] };
    let (tape, before) = replaced(&[unready, mark, deleting, without]);
    assert_eq!(left(&tape, before), [removed, replacement]);
}

#[test]
fn the_replacement_of_an_active_pod_whose_node_is_lost_is_a_change_of_roles() {
    let active = Some("active");
    let holder = Pod { role: active, ..Pod::new("a") };
    let replacement = || changed("new", None, STANDBY);
    let (tape, before) = replaced_after(&holder, &lost().map(|state| Pod { role: active, ..state }));
    assert_eq!(left(&tape, before), [replacement(), changed("a", active, None)]);
    // It is demoted first.
    let (tape, before) = replaced_after(&holder, &lost());
    let expected = [changed("a", active, STANDBY), replacement(), changed("a", STANDBY, None)];
    assert_eq!(left(&tape, before), expected);
}
