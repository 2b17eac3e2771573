//! The chart's shares of the API server: which requests get the operator's, and which the agents'.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use crate::{
    apiserver::ApiServer,
    chart::{create, rendered},
    postgres::eventually,
};

#[tokio::test]
async fn agents_have_a_share_of_their_own_and_the_operator_keeps_its_own() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let stored = create(&client, rendered("flowcontrol", "flows", "serviceAccount.name=operator")).await;
    let schemas = stored.iter().filter(|it| it.types.as_ref().unwrap().kind == "FlowSchema");
    let names: BTreeMap<_, _> = schemas.map(|schema| (schema.uid().unwrap(), schema.name_any())).collect();
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
    // The API server takes new FlowSchemas into account after a moment.
    eventually("the FlowSchemas are in force", async || {
        share(pod, &one).await == "flows-agents" && share(operator, &one).await == "flows"
    })
    .await;
    let watch = format!("{groups}?watch=true&fieldSelector=metadata.name%3Dweb&timeoutSeconds=1");
    assert_eq!(share(pod, &watch).await, "flows-agents");
    assert_eq!(share(operator, &watch).await, "flows");
    // Not what agents ask.
    for path in [groups, "/api/v1/namespaces/default/pods/web"] {
        assert_eq!(share(pod, path).await, "", "{path}");
    }
    assert_eq!(share("user", &one).await, "");
}
