//! Tests of the calls of effects: their order, and what comes of the answers.

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::{
    api::{Declaration, STAMP_ANNOTATION},
    operator::{executor::fake_api::FakeApi, object::GroupName},
};
use cases::{Answered, Asked, CASES, TOKEN, VERSION, web_0};

#[path = "../../../../tests/simulation/calls.rs"]
#[allow(unreachable_pub, reason = "the simulation has it, too")]
mod cases;

const POD: &str = "/api/v1/namespaces/shop/pods/web-0";
const GROUP: &str = "/apis/leadergroup.dev/v1alpha1/namespaces/shop/leadergroups/web";

fn group() -> Value {
    json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": { "namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "5" },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
    })
}

/// A ready pod with this UID and this label `app`.
fn pod(uid: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": "web-0", "uid": uid, "resourceVersion": "7", "labels": { "app": app },
        },
        "spec": { "containers": [{ "name": "main" }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// Carries an effect out for a replica without a session, which has no row.
async fn carry(api: &FakeApi, effect: Effect) -> Done {
    let object = serde_json::from_value(group()).expect("a group");
    let name = GroupName { namespace: "shop".into(), name: "web".into() };
    let record = Arc::new(Record::first(object, name, "c1").expect("it has a name"));
    Box::pin(carry_out(&api.context, Order { record, session: None, ticket: 1, effect, trace: None })).await
}

/// Otherwise a version could pass as checked that is newer than the declaration and the row that were read: a promotion
/// bound to it would not fail after the next declaration (I4).
#[tokio::test]
async fn a_recheck_reads_the_pod_before_what_could_forbid_writing_to_it() {
    let api = FakeApi::with(vec![(POD, pod("p1", "web")), (GROUP, group())]);
    let done = carry(&api, Effect::Recheck(web_0())).await;
    assert_eq!(api.asked(), [format!("GET {POD}"), format!("GET {GROUP}")]);
    assert!(
        matches!(done.outcome, Outcome::Rejected(Rejection::NotOwner)),
        "then it reads the row: {done:?}"
    );
}

#[tokio::test]
async fn a_holder_that_left_the_selector_or_is_another_pod_cannot_stay() {
    for (found, against) in [
        (Some(pod("p1", "web")), None),
        (Some(pod("p1", "other")), Some(Reason::PodDeleted)),
        (Some(pod("p2", "web")), Some(Reason::PodDeleted)),
        (None, Some(Reason::PodDeleted)),
    ] {
        let api = FakeApi::with(found.clone().map(|pod| (POD, pod)).into_iter().collect());
        let done = carry(&api, Effect::Verify(web_0())).await;
        let Outcome::Verified(reason) = done.outcome else { panic!("{done:?}") };
        assert_eq!(reason, against, "{found:?}");
    }
    let api = FakeApi::with(vec![(POD, json!(500))]);
    let done = carry(&api, Effect::Verify(web_0())).await;
    assert!(matches!(done.outcome, Outcome::Failed) && done.trouble.is_some(), "nothing is known: {done:?}");
}

#[tokio::test]
async fn a_replica_without_a_session_changes_no_lock() {
    let api = FakeApi::with(Vec::new());
    let holder = web_0();
    let request =
        GrantRequest { expected: 5, floor: 5, holder, id: Uuid::nil(), reason: Reason::FirstHolder };
    for effect in
        [Effect::Grant(request), Effect::Vacate { token: 5 }, Effect::Confirm { token: 5 }, Effect::Tombstone]
    {
        let done = carry(&api, effect).await;
        assert!(matches!(done.outcome, Outcome::Rejected(Rejection::NotOwner)), "{done:?}");
    }
    assert_eq!(api.asked(), [""; 0]);
}

/// What becomes of a failure in words.
fn outcome(failure: &Failure) -> &'static str {
    match failure {
        Failure::Rejected(Rejection::NotOwner) => "not the owner",
        Failure::Rejected(_) => "outdated",
        Failure::Uncleared(_) | Failure::Refused(..) => "refused",
        Failure::Unknown(_) => "unknown",
        Failure::Trouble(_) => "failed",
    }
}

#[test]
fn only_a_call_that_cannot_have_taken_effect_counts_as_failed() {
    let text = String::new;
    for (error, what) in [
        (LockError::Timeout { statement: "grant", after: Duration::from_secs(1) }, "unknown"),
        (LockError::Interrupted { statement: "grant", detail: text() }, "unknown"),
        (LockError::SessionDead, "not the owner"),
        (LockError::ReadOnly, "failed"),
        (LockError::Unreachable { endpoint: text(), detail: text() }, "failed"),
    ] {
        let said = error.to_string();
        assert_eq!(outcome(&error.into()), what, "{said}");
    }
}

#[test]
fn a_replica_stops_working_for_a_row_that_is_no_longer_its_own_or_that_it_does_not_understand() {
    use leadergroup_lock::Refusal as R;
    let session = Some(SessionId::new());
    for (refusal, what) in [
        (R::TokenChanged, "outdated"),
        (R::Busy, "failed"),
        (R::Unclaimed { session }, "not the owner"),
        (R::SessionDead, "not the owner"),
        (R::Tombstone, "not the owner"),
        (R::Foreign { group: "c2/shop/web/u1".to_owned() }, "not the owner"),
        (R::ProtocolNewer { protocol: 99 }, "not the owner"),
        (R::Missing, "not the owner"),
    ] {
        let said = format!("{refusal:?}");
        assert_eq!(outcome(&refusal.into()), what, "{said}");
    }
}

#[tokio::test]
async fn what_a_read_says_against_a_pod_is_what_the_watch_says() {
    for (path, value, reason) in [
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), Some(Reason::PodDeleted)),
        ("/status/phase", json!("Failed"), Some(Reason::PodFinished)),
        ("/status/conditions/0/status", json!("False"), Some(Reason::PodNotReady)),
        ("/metadata/labels/more", json!("x"), None),
    ] {
        let mut pod = pod("p1", "web");
        let (parent, key) = path.rsplit_once('/').expect("a path");
        pod.pointer_mut(parent).expect("it has this")[key] = value;
        let done = carry(&FakeApi::with(vec![(POD, pod)]), Effect::Verify(web_0())).await;
        let Outcome::Verified(against) = done.outcome else { panic!("{done:?}") };
        assert_eq!(against, reason, "{path}");
    }
}

/// The answer of the API server; a number is the code of an error.
fn answer(asked: Asked, answered: Answered) -> Option<Value> {
    let marked = |version: u64, role: Option<&str>, stamp: Option<i64>| {
        let mut pod = pod("p1", "web");
        let metadata = &mut pod["metadata"];
        metadata["resourceVersion"] = json!(version.to_string());
        if let Some(role) = role {
            metadata["labels"]["leadergroup.dev/role"] = json!(role);
        }
        if let Some(token) = stamp {
            metadata["annotations"] = json!({ STAMP_ANNOTATION: format!("u1/{token}") });
        }
        pod
    };
    let declared = |token| {
        let mut group = group();
        group["status"] = json!({ "declaration": { "token": token } });
        group
    };
    match answered {
        Answered::Gone => None,
        Answered::Pod { version } => Some(marked(version, None, None)),
        Answered::Active => Some(marked(VERSION + 1, Some("active"), None)),
        Answered::Stamped { later } => {
            Some(marked(VERSION + 1, Some("standby"), Some(TOKEN + i64::from(later))))
        }
        Answered::Group { token } => Some(declared(token)),
        Answered::Done if asked == Asked::Declare => Some(declared(TOKEN)),
        Answered::Done => Some(marked(VERSION + 2, Some("standby"), Some(TOKEN))),
        Answered::Conflict => Some(json!(409)),
        Answered::Invalid => Some(json!(422)),
        Answered::Refused => Some(json!(403)),
    }
}

fn request(asked: Asked) -> String {
    match asked {
        Asked::ReadPod => format!("GET {POD}"),
        Asked::WritePod => format!("PATCH {POD}"),
        Asked::ReadGroup => format!("GET {GROUP}"),
        Asked::Declare => format!("PATCH {GROUP}/status"),
    }
}

/// The simulation's model of the executor goes through the same cases.
#[tokio::test]
async fn the_executor_makes_the_calls_of_its_model() {
    for (doing, exchanges, expected) in CASES {
        let context = format!("{doing:?} {exchanges:?}");
        let answers = exchanges.iter().map(|(asked, answered)| answer(*asked, *answered)).collect();
        let api = FakeApi::in_turn(answers);
        let done = carry(&api, doing.effect()).await;
        let requests: Vec<_> = exchanges.iter().map(|(asked, _)| request(*asked)).collect();
        assert_eq!(api.asked(), requests, "{context}");
        let outcome = format!("{:?}", done.outcome);
        assert!(outcome.starts_with(expected), "{context}: {outcome}, not {expected}");
    }
}
