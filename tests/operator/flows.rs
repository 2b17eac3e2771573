//! The chart's shares of the API server: which requests get the operator's, and which the agents'.

use std::{collections::BTreeMap, time::Instant};

use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};

use crate::{
    apiserver::{ApiServer, DEADLINE},
    chart::rendered,
};

#[tokio::test]
async fn agents_have_a_share_of_their_own_and_the_operator_keeps_its_own() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let mut names = BTreeMap::new();
    for object in rendered("flowcontrol", "flows", "serviceAccount.name=operator") {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let resource = GroupVersionKind::gvk("flowcontrol.apiserver.k8s.io", "v1", &kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&resource));
        let stored = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
        let stored = stored.unwrap();
        if kind == "FlowSchema" {
            names.insert(stored.uid().unwrap(), stored.name_any());
        }
    }
    let groups = "/apis/leadergroup.dev/v1alpha1/namespaces/default/leadergroups";
    let share = async |user: &str, path: &str| {
        let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
        let answer = server.client_as(user).await.send(request).await.unwrap();
        let schema =
            answer.headers().get("x-kubernetes-pf-flowschema-uid").unwrap().to_str().unwrap().to_owned();
        names.get(&schema).cloned().unwrap_or_default()
    };
    let (pod, operator) =
        ("system:serviceaccount:default:default", "system:serviceaccount:operators:operator");
    let one = format!("{groups}/web");
    let start = Instant::now();
    // The API server takes new FlowSchemas into account after a moment.
    while share(pod, &one).await != "flows-agents" || share(operator, &one).await != "flows" {
        assert!(start.elapsed() < DEADLINE, "the FlowSchemas are not in force within {DEADLINE:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let watch = format!("{groups}?watch=true&fieldSelector=metadata.name%3Dweb&timeoutSeconds=1");
    assert_eq!(share(pod, &watch).await, "flows-agents");
    assert_eq!(share(operator, &watch).await, "flows");
    // Not what agents ask.
    for path in [groups, "/api/v1/namespaces/default/pods/web"] {
        assert_eq!(share(pod, path).await, "", "{path}");
    }
    assert_eq!(share("user", &one).await, "");
}
