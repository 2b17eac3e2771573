//! Tests of reading the pods' owners.

use k8s_openapi::{api::apps::v1::ReplicaSet, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, api::PostParams};
use leadergroup::routing::RoleLabelUse;
use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn an_owner_that_sets_the_role_label_or_selects_by_it_is_found() {
    let stage = Stage::new("owners").await;
    let api = Api::<ReplicaSet>::namespaced(stage.client.clone(), &stage.namespace);
    let plain = json!({ "app": "orders" });
    let with_role = json!({ "app": "orders", "leadergroup.dev/role": "standby" });
    let by_expression =
        json!({ "matchExpressions": [{ "key": "leadergroup.dev/role", "operator": "Exists" }] });
    let found = |workload: &str, selects| Some(RoleLabelUse { workload: workload.into(), selects });
    for (name, selector, labels, deployment, wanted) in [
        ("plain", json!({ "matchLabels": plain }), &plain, None, None),
        (
            "template",
            json!({ "matchLabels": plain }),
            &with_role,
            Some("web"),
            found("Deployment web", false),
        ),
        (
            "by-value",
            json!({ "matchLabels": with_role }),
            &with_role,
            None,
            found("ReplicaSet by-value", true),
        ),
        ("by-expression", by_expression, &with_role, Some("web"), found("Deployment web", true)),
    ] {
        let above = deployment.map(|name| {
            json!([{ "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": name, "controller": true }])
        });
        let owner = json!({
            "metadata": { "name": name, "ownerReferences": above },
            "spec": {
                "replicas": 0,
                "selector": selector,
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "containers": [{ "name": "main", "image": "none" }] },
                },
            },
        });
        api.create(&PostParams::default(), &serde_json::from_value(owner).unwrap()).await.unwrap();
        let owner =
            OwnerReference { kind: "ReplicaSet".into(), name: name.into(), ..OwnerReference::default() };
        assert_eq!(stage.router.role_label_use(&stage.group, &owner).await.unwrap(), wanted, "{name}");
    }
    for (kind, name) in [("ReplicaSet", "gone"), ("Unheard", "plain")] {
        let owner = OwnerReference { kind: kind.into(), name: name.into(), ..OwnerReference::default() };
        assert_eq!(stage.router.role_label_use(&stage.group, &owner).await.unwrap(), None, "{kind} {name}");
    }
}
