//! Tests of reading the pods' owners.

use k8s_openapi::{api::apps::v1::ReplicaSet, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn an_owner_that_selects_by_the_role_label_is_detected() {
    let stage = Stage::new("owners").await;
    let api = Api::<ReplicaSet>::namespaced(stage.client.clone(), &stage.namespace);
    let plain = json!({ "app": "orders" });
    let with_role = json!({ "app": "orders", "leadergroup.dev/role": "standby" });
    for (name, selector, wanted) in [
        ("plain", json!({ "matchLabels": plain }), false),
        ("by-value", json!({ "matchLabels": with_role }), true),
        (
            "by-expression",
            json!({ "matchExpressions": [{ "key": "leadergroup.dev/role", "operator": "Exists" }] }),
            true,
        ),
    ] {
        let owner = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": 0,
                "selector": selector,
                "template": {
                    "metadata": { "labels": with_role },
                    "spec": { "containers": [{ "name": "main", "image": "none" }] },
                },
            },
        });
        api.create(&PostParams::default(), &serde_json::from_value(owner).unwrap()).await.unwrap();
        let owner =
            OwnerReference { kind: "ReplicaSet".into(), name: name.into(), ..OwnerReference::default() };
        assert_eq!(stage.router.selects_by_role(&stage.group, &owner).await.unwrap(), wanted, "{name}");
    }
    for (kind, name) in [("ReplicaSet", "gone"), ("Unheard", "plain")] {
        let owner = OwnerReference { kind: kind.into(), name: name.into(), ..OwnerReference::default() };
        assert!(!stage.router.selects_by_role(&stage.group, &owner).await.unwrap(), "{kind} {name}");
    }
}
