//! Tests of the writes to the group: declaration, status, finalizer.

use std::time::Duration;

use leadergroup::{
    api::{Boot, Declaration, FINALIZER, FormerRun, LeaderGroupStatus, Run},
    routing::{Declared, Reported, RoutingError},
};
use serde_json::json;

use crate::{
    apiserver::ApiServer,
    stage::{Stage, term},
};

#[tokio::test]
async fn a_declaration_replaces_only_the_one_that_was_read() {
    let stage = Stage::new("declare").await;
    let (a, b) = (stage.pod("a").await, stage.pod("b").await);
    let (nothing, first) = (Declaration::default(), term(1, &a, &[]));
    let declare = async |previous: &Declaration, next: Declaration| {
        stage.router.declare(&stage.group, previous, &next).await.unwrap()
    };
    assert_eq!(declare(&nothing, first.clone()).await, Declared::Done);
    assert_eq!(declare(&nothing, first.clone()).await, Declared::Done, "its answer was lost");
    assert_eq!(declare(&nothing, term(1, &a, &[])).await, Declared::Outdated, "another grant");
    assert_eq!(declare(&nothing, term(7, &b, &[])).await, Declared::Outdated, "a stale previous one");
    assert_eq!(declare(&first, term(1, &b, &[])).await, Declared::Outdated, "no larger token");
    let second = term(2, &b, &[a]);
    assert_eq!(declare(&first, second.clone()).await, Declared::Done);
    assert_eq!(declare(&nothing, first.clone()).await, Declared::Outdated, "late");
    assert_eq!(stage.declared().await, second);
    let status = stage.router.group(&stage.group).await.unwrap().unwrap().status.unwrap();
    assert_eq!(status.token, 2);
}

/// The API server compares the bytes of strings.
#[tokio::test]
async fn a_declaration_is_replaced_whatever_a_user_has_written_into_it() {
    let stage = Stage::new("odd-words").await;
    let a = stage.pod("a").await;
    let mut last = Declaration::default();
    let odd = [
        "R&D <drain>",
        "\u{2028} \u{2029}",
        "\"quoted\" \\ \n \t \u{8} \u{c} \u{1} \u{1f} \u{7f}",
        "é 😀 /~01",
    ];
    for (token, text) in (1..).zip(odd.into_iter().chain(["plain"])) {
        let next = Declaration { switchover: Some(text.to_owned()), ..term(token, &a, &[]) };
        let declared = stage.router.declare(&stage.group, &last, &next).await.unwrap();
        assert_eq!(declared, Declared::Done, "after {:?}", last.switchover);
        last = stage.declared().await;
        assert_eq!(last, next);
    }
}

/// The program of a term is cleared and stopped under its token.
#[tokio::test]
async fn what_is_said_of_a_program_changes_within_its_term() {
    let stage = Stage::new("programs").await;
    let a = stage.pod("a").await;
    let lease = Duration::from_secs(10);
    let run = Run::uncleared(1, Boot::new([7; 32]), lease);
    let former = Some(FormerRun::from(&Run::uncleared(0, Boot::new([6; 32]), lease)));
    let begun = Declaration { run: Some(run.clone()), former, ..term(1, &a, &[]) };
    let cleared = Run { cleared: true, ..run };
    let may_start = Declaration { run: Some(cleared.clone()), former: None, ..begun.clone() };
    let stopped = Declaration { run: Some(Run { stop: true, ..cleared }), ..may_start.clone() };
    let mut last = Declaration::default();
    for next in [begun.clone(), may_start, stopped] {
        let declared = stage.router.declare(&stage.group, &last, &next).await.unwrap();
        assert_eq!(declared, Declared::Done, "after {last:?}");
        last = stage.declared().await;
        assert_eq!(last, next);
    }
    let late = Declaration { run: None, ..begun.clone() };
    assert_eq!(stage.router.declare(&stage.group, &begun, &late).await.unwrap(), Declared::Outdated);
}

fn written(reported: Reported) -> LeaderGroupStatus {
    match reported {
        Reported::Done(found) => found.0.unwrap().status.unwrap(),
        other @ Reported::Outdated(_) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_report_does_not_collide_with_a_declaration() {
    let stage = Stage::new("report").await;
    let a = stage.pod("a").await;
    let before = stage.declared().await;
    stage
        .router
        .report(&stage.group, &json!({ "eligible": 1, "replicas": 3, "eligibleSummary": "1/3" }), None)
        .await
        .unwrap();
    let next = term(1, &a, &[]);
    assert_eq!(stage.router.declare(&stage.group, &before, &next).await.unwrap(), Declared::Done);
    let active = json!({ "pod": "a", "uid": "u", "node": "n", "since": "2026-01-01T00:00:00Z" });
    let reported = stage.router.report(&stage.group, &json!({ "active": active }), None).await.unwrap();
    assert_eq!(written(reported).active.unwrap().pod, "a");
    for _ in 0..2 {
        let patch = json!({ "eligible": 2, "active": null });
        let reported = stage.router.report(&stage.group, &patch, None).await.unwrap();
        assert_eq!(written(reported).active, None);
    }
    // A replica that has not seen the last change, for example because it was stopped.
    let late = json!({ "eligible": 9 });
    let outdated = stage.router.report(&stage.group, &late, Some("1")).await.unwrap();
    assert!(matches!(outdated, Reported::Outdated(Some(_))), "{outdated:?}");
    // What the CRD does not allow is refused, and not outdated.
    let version = stage.router.group(&stage.group).await.unwrap().unwrap().metadata.resource_version;
    let invalid = json!({ "eligible": "many" });
    let refused = stage.router.report(&stage.group, &invalid, version.as_deref()).await.unwrap_err();
    assert!(refused.is_refusal() && refused.code() == Some(422), "{refused}");
    let status = stage.router.group(&stage.group).await.unwrap().unwrap().status.unwrap();
    assert_eq!((status.eligible, status.replicas, status.declaration), (2, 3, next));
}

#[tokio::test]
async fn nothing_is_written_to_a_group_that_came_later() {
    let stage = Stage::new("replaced").await;
    let a = stage.pod("a").await;
    let before = stage.declared().await;
    let replaced = stage.replace_group().await;
    let next = term(1, &a, &[]);
    assert_eq!(stage.router.declare(&stage.group, &before, &next).await.unwrap(), Declared::GroupGone);
    assert!(stage.router.group(&stage.group).await.unwrap().is_none());
    assert!(stage.router.report(&stage.group, &json!({ "eligible": 9 }), None).await.is_err());
    stage.router.set_finalizer(&stage.group, false).await.unwrap();
    assert_eq!(stage.finalizers().await, [FINALIZER], "the new group's own");
    let found = stage.router.group(&replaced).await.unwrap().unwrap().status.unwrap();
    assert_eq!((found.eligible, found.declaration), (0, Declaration::default()));
    let stage = Stage { group: replaced, ..stage };
    stage.remove_group().await;
    assert_eq!(stage.router.declare(&stage.group, &before, &next).await.unwrap(), Declared::GroupGone);
    stage.router.set_finalizer(&stage.group, false).await.unwrap();
}

#[tokio::test]
async fn the_finalizer_comes_and_goes_among_others() {
    let stage = Stage::new("finalizer").await;
    let others = json!({ "metadata": { "finalizers": ["example.org/other", FINALIZER] } });
    let patch = kube::api::Patch::Merge(&others);
    stage.groups().patch("orders", &kube::api::PatchParams::default(), &patch).await.unwrap();
    for (wanted, expected) in [(false, 1), (false, 1), (true, 2), (true, 2)] {
        stage.router.set_finalizer(&stage.group, wanted).await.unwrap();
        let finalizers = stage.finalizers().await;
        assert_eq!(finalizers.len(), expected, "{finalizers:?}");
        assert!(finalizers.contains(&"example.org/other".to_owned()));
    }
    let none = json!({ "metadata": { "finalizers": [] } });
    let patch = kube::api::Patch::Merge(&none);
    stage.groups().patch("orders", &kube::api::PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn a_declaration_with_a_field_of_a_newer_version_is_replaced_and_keeps_it() {
    let server = ApiServer::start(&[]).await;
    let stage = Stage::on(&server, "newer").await;
    let a = stage.pod("a").await;
    stage.declare(1, &a).await;
    server.take_validation_off().await;
    let lease = json!({ "boot": "b1", "seconds": 10 });
    let newer = kube::api::Patch::Merge(json!({ "status": { "declaration": { "lease": lease } } }));
    stage.sighted().patch_status("orders", &kube::api::PatchParams::default(), &newer).await.unwrap();
    let read = stage.declared().await;
    let next = Declaration { unknown: read.unknown.clone(), ..term(2, &a, &[]) };
    assert_eq!(stage.router.declare(&stage.group, &read, &next).await.unwrap(), Declared::Done);
    let stored = serde_json::to_value(stage.declared().await).unwrap();
    assert_eq!((&stored["token"], &stored["lease"]), (&json!(2), &lease));
}

#[tokio::test]
async fn nothing_is_decided_on_a_group_that_cannot_be_read() {
    let server = ApiServer::start(&[]).await;
    let stage = Stage::on(&server, "unreadable").await;
    let a = stage.pod("a").await;
    let first = stage.declare(1, &a).await;
    server.take_validation_off().await;
    let wrong = kube::api::Patch::Merge(json!({ "spec": { "deletionPolicy": "Explode" } }));
    let changed = stage.sighted().patch("orders", &kube::api::PatchParams::default(), &wrong).await.unwrap();
    assert!(changed.0.is_err());
    // Also after the validation is restored: stored objects stay as they are.
    for strict in [false, true] {
        if strict {
            server.put_validation_on().await;
        }
        assert!(matches!(stage.router.group(&stage.group).await, Err(RoutingError::Unreadable { .. })));
        let sighted = stage.router.sight(&stage.group).await.unwrap().unwrap();
        assert_eq!(sighted.declaration(), first);
        let next = term(2, &a, &[]);
        let declared = stage.router.declare(&stage.group, &first, &next).await;
        assert!(matches!(declared, Err(RoutingError::Unreadable { .. })), "{declared:?}");
        // Its status and its finalizers can be written.
        stage.router.report(&stage.group, &json!({ "eligible": 1 }), None).await.unwrap();
        for wanted in [false, true] {
            stage.router.set_finalizer(&stage.group, wanted).await.unwrap();
            assert_eq!(stage.finalizers().await.len(), usize::from(wanted));
        }
        let back = json!([{ "op": "replace", "path": "/status/declaration", "value": first }]);
        let back = kube::api::Patch::Json::<()>(serde_json::from_value(back).unwrap());
        stage.sighted().patch_status("orders", &kube::api::PatchParams::default(), &back).await.unwrap();
    }
}

#[tokio::test]
async fn the_finalizer_is_removed_from_a_group_that_is_not_valid() {
    let server = ApiServer::start(&[]).await;
    server.take_validation_off().await;
    let wrong = [
        (json!({ "deletionPolicy": "Explode" }), true),
        (json!({ "health": 7, "election": { "delay": 7 } }), true),
        (json!({ "health": [] }), true),
        (json!({ "routing": 7 }), true),
        // Immutable fields cannot be corrected.
        (json!({ "routing": { "roleLabel": 7 } }), false),
        (json!({ "routing": { "activeValue": 7 } }), false),
        (json!({ "lock": 7 }), false),
        (json!({ "selector": 7 }), false),
    ];
    let mut stages = Vec::new();
    for (spec, goes) in wrong {
        let stage = Stage::on(&server, "wrong").await;
        let patch = kube::api::Patch::Merge(json!({ "spec": &spec }));
        stage.sighted().patch("orders", &kube::api::PatchParams::default(), &patch).await.unwrap();
        stages.push((spec, goes, stage));
    }
    server.put_validation_on().await;
    for (spec, goes, stage) in stages {
        stage.sighted().delete("orders", &kube::api::DeleteParams::default()).await.unwrap();
        let answer = stage.router.set_finalizer(&stage.group, false).await;
        match answer {
            Ok(()) => assert!(goes, "{spec}"),
            Err(error) => {
                assert!(!goes && error.code() == Some(422), "{spec}: {error}");
                assert!(error.to_string().contains("is immutable"), "{error}");
            }
        }
        assert_eq!(stage.sighted().get_opt("orders").await.unwrap().is_none(), goes, "{spec}");
    }
}
