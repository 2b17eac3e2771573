//! `doctor`: a world in which all is well, and one in which much is wrong.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Service},
};
use kube::api::{DeleteParams, Patch, PatchParams};
use leadergroup::api::LeaderGroup;
use serde_json::{Value, json};

use crate::world::World;

#[tokio::test]
async fn the_doctor_finds_nothing_wrong_in_a_good_world_and_names_each_remedy_in_a_bad_one() {
    let world = World::new("plugin-doctor").await;
    world.web().await;
    world
        .create::<Deployment>(json!({
            "metadata": {
                "name": "leadergroup",
                "labels": {
                    "app.kubernetes.io/part-of": "leadergroup", "app.kubernetes.io/component": "operator",
                    "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
                },
            },
            "spec": {
                "replicas": 2, "selector": { "matchLabels": { "app": "operator" } },
                "template": {
                    "metadata": { "labels": { "app": "operator" } },
                    "spec": { "containers": [{ "name": "operator", "image": "none" }] },
                },
            },
        }))
        .await;
    let deployments = world.api::<Deployment>();
    let running = Patch::Merge(json!({ "status": { "replicas": 2, "readyReplicas": 2 } }));
    deployments.patch_status("leadergroup", &PatchParams::default(), &running).await.unwrap();
    let text = world.text(&["doctor", "web"]).await;
    for words in ["has 2 ready replicas", "all that the commands need", "Nothing is wrong."] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }

    let text = world.text(&["explain", "web"]).await;
    let exec = format!("-n {} exec deployment/leadergroup -- leadergroup explain", world.namespace);
    assert!(text.contains(&exec), "the operator that was found explains it: {text}");

    // A template that sets the label, a Service that forgot it, and an operator that does not run.
    let down = Patch::Merge(json!({ "status": { "readyReplicas": null } }));
    deployments.patch_status("leadergroup", &PatchParams::default(), &down).await.unwrap();
    let selector = json!({ "spec": { "selector": { "leadergroup.dev/role": null } } });
    world.api::<Service>().patch("web", &PatchParams::default(), &Patch::Merge(selector)).await.unwrap();
    world
        .create::<Deployment>(json!({
            "metadata": { "name": "web" },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web", "leadergroup.dev/role": "standby" } },
                    "spec": { "containers": [{
                        "name": "main", "image": "none",
                        "readinessProbe": { "httpGet": { "port": "web", "path": "/" } },
                    }] },
                },
            },
        }))
        .await;
    let (status, text, errors) = world.run(&["doctor", "web"]).await;
    assert_eq!(status, 1, "{text}{errors}");
    for words in [
        "has no ready replica: nothing fails over",
        "kubectl -n ",
        "Service web selects all pods of the group, and none selects the active one",
        "add leadergroup.dev/role: active to the selector",
        "the pod template of Deployment web sets leadergroup.dev/role",
        "asks for the port web, which no container of Deployment web has",
        "4 things are wrong.",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
    let (status, text, _) = world.run(&["doctor", "web", "-o", "json"]).await;
    let findings: Vec<Value> = serde_json::from_str(&text).unwrap();
    let wrong = findings.iter().filter(|finding| finding["level"] == "wrong").count();
    assert_eq!((status, wrong), (1, 4), "{text}");
    deployments.delete("leadergroup", &DeleteParams::default()).await.unwrap();

    // The operator is uninstalled, and the active pod is deleted: the status stays as it was.
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.api::<Pod>().delete("web-0", &at_once).await.unwrap();
    let (status, text, errors) = world.run(&["doctor", "web"]).await;
    assert_eq!(status, 1, "{text}{errors}");
    for words in [
        "WRONG no Deployment of the operator's chart was found",
        "-> install the chart",
        "WRONG its active pod web-0 does not exist any more",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
    for args in [&["status"][..], &["status", "web"], &["explain", "web"]] {
        let text = world.text(args).await;
        assert!(text.contains("NOT READY"), "{args:?}: {text}");
        assert!(text.contains("its active pod web-0 does not exist any more"), "{args:?}: {text}");
        assert!(!text.contains("takes over;"), "{args:?}: {text}");
    }

    // Nobody removes the finalizer of a group that is deleted.
    let kept = Patch::Merge(json!({ "metadata": { "finalizers": ["leadergroup.dev/routing"] } }));
    let groups = world.api::<LeaderGroup>();
    groups.patch("web", &PatchParams::default(), &kept).await.unwrap();
    groups.delete("web", &DeleteParams::default()).await.unwrap();
    let (status, text, _) = world.run(&["doctor", "web"]).await;
    assert_eq!(status, 1, "{text}");
    let by_hand = format!("kubectl -n {} patch leadergroup web --type merge", world.namespace);
    assert!(
        text.contains("no operator runs that removes its finalizer") && text.contains(&by_hand),
        "{text}"
    );
}
