//! Random requests on a few objects: those of the operator, with preconditions that hold or not, and those of the
//! harness.

use serde_json::{Value, json};

use crate::api_server::{Kind, Sequence};

/// A request. UIDs and versions are those that a server has given, and so differ between two servers.
#[derive(Clone, Debug)]
pub struct Operation {
    pub kind: Kind,
    pub name: &'static str,
    pub call: Call,
    pub dry_run: bool,
}

#[derive(Clone, Debug)]
pub enum Call {
    Get,
    List {
        selector: &'static str,
        metadata: bool,
        limit: Option<usize>,
    },
    Create {
        labels: Value,
        finalizers: Value,
        scheduled: bool,
    },
    /// The fields of the patch, and of the metadata.
    Merge {
        metadata: Value,
        rest: Value,
        uid: Id,
        version: Version,
        status: bool,
    },
    /// Go's encoder escapes more characters than others do.
    Json {
        steps: Vec<Step>,
        status: bool,
        as_go: bool,
    },
    Replace {
        change: Value,
        uid: Id,
        version: Version,
    },
    Delete {
        grace: Option<i64>,
        uid: Id,
        version: Version,
    },
}

/// A step of a JSON Patch.
#[derive(Clone, Debug)]
pub enum Step {
    TestUid(Id),
    TestVersion(Version),
    Plain(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    None,
    Right,
    /// That of the object that had the name first.
    First,
    Wrong,
}

/// A version of the object with this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    None,
    /// The last one that an answer showed.
    Last,
    /// The one before it.
    Former,
    First,
    Zero,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn one_of<T: Clone>(sequence: &mut Sequence, values: &[T]) -> T {
    values[sequence.below(values.len())].clone()
}

impl Operation {
    pub fn random(sequence: &mut Sequence) -> Self {
        let kind = one_of(
            sequence,
            &[Kind::Pod, Kind::Pod, Kind::LeaderGroup, Kind::LeaderGroup, Kind::EndpointSlice],
        );
        let name = one_of(sequence, &NAMES);
        let call = match (sequence.below(14), kind) {
            (0, _) => Call::Get,
            (1, _) => list(sequence),
            (2..=4, _) => create(sequence),
            (5, _) => delete(sequence),
            (6, _) | (9, Kind::EndpointSlice) => replace(sequence),
            (7 | 8, Kind::LeaderGroup) => merge_group(sequence),
            (_, Kind::LeaderGroup) => json_patch(sequence),
            (7 | 8, Kind::Pod) => merge_status(sequence),
            _ => merge_object(sequence),
        };
        Self { kind, name, call, dry_run: sequence.below(6) == 0 }
    }
}

fn id(sequence: &mut Sequence) -> Id {
    one_of(sequence, &[Id::None, Id::None, Id::Right, Id::Right, Id::First, Id::Wrong])
}

fn version(sequence: &mut Sequence) -> Version {
    use Version as V;
    one_of(sequence, &[V::None, V::None, V::Last, V::Last, V::Last, V::Former, V::First, V::Zero])
}

fn list(sequence: &mut Sequence) -> Call {
    let selectors = [
        "",
        "role",
        "role=active",
        "role!=active",
        "!role",
        "app in (x,y),role",
        "app notin (x)",
        "-bad",
        "app=b d",
    ];
    Call::List {
        selector: one_of(sequence, &selectors),
        metadata: sequence.below(2) == 0,
        limit: one_of(sequence, &[None, None, Some(1), Some(2)]),
    }
}

fn create(sequence: &mut Sequence) -> Call {
    Call::Create {
        labels: one_of(
            sequence,
            &[json!({ "app": "x" }), json!({ "app": "y", "role": "active" }), json!({})],
        ),
        finalizers: finalizers(sequence),
        scheduled: sequence.below(2) == 0,
    }
}

fn finalizers(sequence: &mut Sequence) -> Value {
    let values = [
        json!([]),
        json!([]),
        json!(["leadergroup.dev/finalizer"]),
        json!(["example.com/a", "leadergroup.dev/finalizer"]),
    ];
    one_of(sequence, &values)
}

fn metadata(sequence: &mut Sequence) -> Value {
    let changes = [
        json!({}),
        json!({ "labels": { "role": "active" } }),
        json!({ "labels": { "role": "standby" }, "annotations": { "leadergroup.dev/stamp": "g/1" } }),
        json!({ "labels": { "role": null }, "annotations": { "leadergroup.dev/stamp": null } }),
        json!({ "labels": null }),
        json!({ "labels": {}, "annotations": {} }),
        json!({ "labels": { "role": "not valid" } }),
        json!({ "labels": { "not valid": "x" } }),
        json!({ "annotations": { "bad key!": "x" } }),
        json!({ "finalizers": null }),
        json!({ "finalizers": ["leadergroup.dev/finalizer"] }),
        json!({ "finalizers": ["example.com/new"] }),
        json!({ "generation": 7, "creationTimestamp": null, "deletionTimestamp": null }),
        json!({ "name": "other" }),
        json!({ "namespace": "other" }),
    ];
    one_of(sequence, &changes)
}

/// A merge patch of the metadata and one of these. The order of the choices belongs to what a seed means.
fn merge(sequence: &mut Sequence, rests: &[Value], status: bool) -> Call {
    Call::Merge {
        metadata: metadata(sequence),
        rest: one_of(sequence, rests),
        uid: id(sequence),
        version: version(sequence),
        status,
    }
}

fn merge_object(sequence: &mut Sequence) -> Call {
    let rests = [
        json!({}),
        json!({}),
        json!({}),
        json!({ "spec": { "activeDeadlineSeconds": 70 } }),
        json!({ "spec": { "hostname": "x" } }),
        json!({ "status": { "phase": "Failed" } }),
    ];
    merge(sequence, &rests, false)
}

fn merge_status(sequence: &mut Sequence) -> Call {
    let rests = [
        json!({ "status": { "phase": "Running", "podIPs": [{ "ip": "198.18.0.7" }], "podIP": "198.18.0.7" } }),
        json!({ "status": { "phase": "Succeeded" }, "spec": { "hostname": "x" } }),
        json!({ "status": { "conditions": [{
            "type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] } }),
    ];
    merge(sequence, &rests, true)
}

fn merge_group(sequence: &mut Sequence) -> Call {
    let specs = [
        json!({}),
        json!({ "spec": { "paused": true } }),
        json!({ "spec": { "paused": null, "election": null } }),
        json!({ "spec": { "deletionPolicy": "Explode" } }),
        json!({ "spec": { "health": { "failureThreshold": "x" } } }),
        json!({ "spec": null }),
    ];
    let statuses = [
        json!({ "status": { "eligibleSummary": "1/1", "other": 1 }, "more": {} }),
        json!({ "status": { "declaration": { "token": -1 } } }),
        json!({ "status": { "token": 3, "ready": null } }),
        json!({ "status": null }),
        json!({ "status": {}, "spec": { "paused": true } }),
    ];
    // The real server loses the managed fields if the spec is invalid, even where it ignores the spec.
    let status = sequence.below(2) == 0;
    if status { merge(sequence, &statuses, true) } else { merge(sequence, &specs, false) }
}

fn json_patch(sequence: &mut Sequence) -> Call {
    let (mut steps, status) = (Vec::new(), sequence.below(3) > 0);
    if sequence.below(3) > 0 {
        steps.push(Step::TestUid(one_of(sequence, &[Id::Right, Id::Right, Id::Right, Id::First, Id::Wrong])));
    }
    if sequence.below(3) == 0 {
        steps.push(Step::TestVersion(one_of(sequence, &[Version::Last, Version::Last, Version::Former])));
    }
    for _ in 0..=sequence.below(3) {
        let step = |(op, path, value): (&str, &str, Value)| json!({ "op": op, "path": path, "value": value });
        let grant = json!({ "token": 1, "grant": "g", "strip": [{ "name": "a", "uid": "u" }] });
        let text = json!({ "token": 2, "grant": "\"<&>\u{2028}\u{2029}\u{8}\u{c}\u{1f}\u{7f}/\u{e9}\\" });
        let pool = [
            ("test", "/status/declaration", json!({ "token": 0 })),
            ("test", "/status/declaration", grant.clone()),
            ("replace", "/status/declaration", grant),
            ("replace", "/status/declaration", json!({ "token": 2 })),
            ("replace", "/status/declaration", text.clone()),
            ("test", "/status/declaration", text),
            ("add", "/status/token", json!(1)),
            // See `merge_group`.
            ("add", "/status/token", if status { json!("text") } else { json!(4) }),
            ("add", "/status/eligibleSummary", json!("1/1")),
            ("add", "/status/eligibleSummary", json!(null)),
            ("add", "/status/active", json!(null)),
            (
                "add",
                "/status/active",
                json!({ "pod": "a", "node": "n", "uid": "u", "since": "2026-01-01T00:00:00Z" }),
            ),
            ("remove", "/status/active", json!(null)),
            ("test", "/status/nothing", json!(null)),
            ("add", "/status/nothing", json!(1)),
            (
                "add",
                "/status/history/-",
                json!({ "at": "2026-01-01T00:00:00Z", "duration": "1s", "reason": "x", "token": 1 }),
            ),
            ("add", "/status/history/0", json!({ "reason": "x" })),
            ("remove", "/status/history/0", json!(null)),
            ("add", "/metadata/finalizers", json!([])),
            ("add", "/metadata/finalizers", json!(["leadergroup.dev/finalizer"])),
            ("add", "/metadata/labels", json!({ "role": "active" })),
            ("add", "/metadata/annotations/example.com~1a", json!("x")),
            ("add", "/spec/paused", json!(true)),
            ("replace", "/spec/nonsense", json!(1)),
            ("remove", "/spec/none/deeper", json!(1)),
            ("remove", "/spec/selector", json!(1)),
        ];
        steps.push(Step::Plain(step(one_of(sequence, &pool))));
    }
    Call::Json { steps, status, as_go: sequence.below(2) == 0 }
}

fn replace(sequence: &mut Sequence) -> Call {
    let changes = [
        json!({}),
        json!({ "endpoints": [{ "addresses": ["198.18.0.8"], "conditions": { "ready": true } }] }),
        json!({ "metadata": { "labels": { "role": "active" } } }),
        json!({ "metadata": { "labels": null, "annotations": { "a": "b" } } }),
    ];
    Call::Replace { change: one_of(sequence, &changes), uid: id(sequence), version: version(sequence) }
}

fn delete(sequence: &mut Sequence) -> Call {
    let version =
        one_of(sequence, &[Version::None, Version::None, Version::None, Version::Last, Version::Former]);
    Call::Delete {
        grace: one_of(sequence, &[None, None, Some(0), Some(5), Some(60)]),
        uid: id(sequence),
        version,
    }
}
