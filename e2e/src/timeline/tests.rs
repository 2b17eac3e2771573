//! A small history and its timeline.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::client::{Call, Calls};
use crate::history::{Change, History, Kind, Object, ObjectId};

fn at(second: u64) -> Moment {
    Moment::default().plus(Duration::from_secs(second))
}

#[derive(Default)]
struct Story(History);

impl Story {
    fn tell(&mut self, second: u64, kind: Kind, name: &str, json: Option<&Value>) {
        let state = json.map(|json| Object::read(kind, json).expect("a readable object"));
        let id = ObjectId { kind, namespace: "ns".into(), name: name.into() };
        let revision = i64::try_from(self.0.changes.len()).expect("a few") + 1;
        let raw = json.map(Value::to_string).unwrap_or_default().into();
        self.0.changes.push(Change {
            revision,
            seen: at(second),
            seen_at: Timestamp::UNIX_EPOCH,
            id,
            state,
            operator: None,
            raw,
        });
    }

    fn group(&mut self, second: u64, history: &Value) {
        let group = json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup",
            "metadata": { "name": "web", "uid": "g", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "selector": { "matchLabels": { "app": "web" } } },
            "status": { "token": 0, "declaration": { "token": 0 }, "history": history },
        });
        self.tell(second, Kind::LeaderGroup, "web", Some(&group));
    }

    fn pod(&mut self, second: u64, name: &str, role: &str, token: i64, ready: &str) {
        let pod = json!({
            "metadata": {
                "name": name, "uid": format!("{name}-uid"),
                "labels": { "app": "web", "leadergroup.dev/role": role },
                "annotations": { "leadergroup.dev/stamp": format!("g/{token}") },
            },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        self.tell(second, Kind::Pod, name, Some(&pod));
    }
}

/// `a` is active, becomes unready and loses the label; two seconds later `b` gets it.
fn failover() -> History {
    let mut story = Story::default();
    story.group(1, &json!([]));
    story.pod(2, "a", "active", 1, "True");
    story.pod(3, "b", "standby", 1, "True");
    story.pod(10, "a", "active", 1, "False");
    story.pod(11, "a", "standby", 2, "False");
    story.pod(13, "b", "active", 2, "True");
    let entry = json!({ "token": 2, "to": "b", "reason": "PodNotReady",
        "time": "2026-01-01T00:00:00Z", "duration": "2s" });
    story.group(14, &json!([entry]));
    story.0
}

fn call(second: u64, answer: Result<&str, &str>) -> Call {
    Call::through_any(at(second), at(second), answer.map(str::to_owned).map_err(str::to_owned))
}

#[test]
fn a_failover_is_read_from_the_history() {
    let run = Timeline::of(&failover(), (at(0), at(20)), Vec::new(), &BTreeMap::new());
    let [group] = run.groups.as_slice() else { panic!("{:?}", run.groups) };
    let span = |from, until, pod, token| Span {
        from: at(from),
        until: at(until),
        pods: vec![pod],
        token: Some(token),
    };
    assert_eq!(group.active, [span(2, 11, 0, 1), span(13, 20, 1, 2)]);
    assert_eq!(group.evidence, [Mark { at: at(10), pod: 0, what: "not ready".into() }]);
    let change = group.changes.last().expect("a change");
    assert_eq!((change.from, change.to, change.token), (Some(0), 1, 2));
    assert_eq!(change.reason.as_deref(), Some("PodNotReady"));
    assert_eq!(change.without_active, Duration::from_secs(2));
}

#[test]
fn two_active_pods_are_one_span_of_both() {
    let mut story = Story(failover());
    story.pod(15, "a", "active", 1, "True");
    let run = Timeline::of(&story.0, (at(0), at(20)), Vec::new(), &BTreeMap::new());
    assert_eq!(run.groups[0].active.last().map(|span| span.pods.as_slice()), Some([0, 1].as_slice()));
}

#[test]
fn answers_of_one_pod_are_one_span_and_lost_calls_another() {
    let lost = [call(4, Err("timeout")), call(4, Err("timeout"))];
    let calls = [call(2, Ok("a")), call(2, Ok("a")), call(3, Ok("a"))]
        .into_iter()
        .chain(lost)
        .chain([call(5, Ok("b"))]);
    let calls = BTreeMap::from([("web".to_owned(), vec![Calls::new(calls.collect())])]);
    let run = Timeline::of(&failover(), (at(0), at(20)), Vec::new(), &calls);
    let spans: Vec<_> = run.groups[0].answered[0].iter().map(|span| (span.from, span.pods.clone())).collect();
    // Two answers a second apart are not close.
    assert_eq!(spans, [(at(2), vec![0]), (at(3), vec![0]), (at(4), vec![]), (at(5), vec![1])]);
}

#[test]
fn the_page_names_faults_changes_and_what_was_found() {
    let fault = Injected {
        kind: "pod frozen".into(),
        target: "a".into(),
        pods: vec!["a-uid".into()],
        from: at(9),
        until: at(12),
    };
    let mut run = Timeline::of(&failover(), (at(0), at(20)), vec![fault], &BTreeMap::new());
    run.title = "a run <of> a minute".into();
    let step = Step {
        name: "simulation".into(),
        passed: true,
        took: Duration::from_mins(1),
        says: "8 seeds".into(),
    };
    let good = page(&run, std::slice::from_ref(&step));
    for text in
        ["a run &lt;of&gt; a minute", "passed", "1 pod frozen", "1 PodNotReady", "8 seeds", "a: not ready"]
    {
        assert!(good.contains(text), "{text} is missing in {good}");
    }
    assert!(!good.contains("failed"));
    let bad = page(&run, &[Step { passed: false, ..step }]);
    assert!(bad.contains("failed"));
    run.found.push("I1 one active".into());
    assert!(page(&run, &[]).contains("failed"));
}
