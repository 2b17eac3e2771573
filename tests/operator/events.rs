//! What is written of the operator's doings outside the status: Events, and the manager of fields.

use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::{FIELD_MANAGER, ROLE_LABEL};
use serde_json::json;

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

#[tokio::test]
async fn each_change_of_holder_is_an_event_of_its_own_and_foreign_labels_are_one() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("events").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let events = Api::<Event>::namespaced(client.clone(), &namespace);
    let kubelet = keep_lease(client, "node-of-events").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-events").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    let ready = async || condition(&groups, "web", "Ready").await.0 == "True";
    eventually("the first holder", async || ready().await && active(&pods).await.len() == 1).await;

    // The same failure of the same pods again and again.
    let mut tokens = Vec::new();
    for _ in 0..4 {
        let holder = active(&pods).await.remove(0);
        let other = if holder == "web-0" { "web-1" } else { "web-0" };
        report(&pods, &holder, "False").await;
        eventually("the other holder", async || active(&pods).await == [other] && ready().await).await;
        report(&pods, &holder, "True").await;
        let status = groups.get("web").await.unwrap().data["status"].clone();
        tokens.push((status["token"].as_i64().unwrap(), other.to_owned()));
        eventually("both to be fit", async || {
            groups.get("web").await.unwrap().data["status"]["eligible"] == 2
        })
        .await;
    }
    let of = async |reason: &str| -> Vec<Event> {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
    };
    eventually("the Events", async || of("PodNotReady").await.len() == tokens.len()).await;
    let told = of("PodNotReady").await;
    for (token, pod) in &tokens {
        let start = format!("{pod} is active with token {token}, after ");
        let of_change: Vec<_> =
            told.iter().filter(|event| event.note.as_ref().unwrap().starts_with(&start)).collect();
        assert_eq!(of_change.len(), 1, "{start}: {told:#?}");
        assert_eq!(of_change[0].related.as_ref().unwrap().name.as_ref(), Some(pod));
        assert_eq!(of_change[0].regarding.as_ref().unwrap().kind.as_deref(), Some("LeaderGroup"));
    }
    // The pods have Events of their own: the first holder and each change, and each pod that lost the role.
    eventually("the Events on the pods", async || {
        (of("Promoted").await.len(), of("Demoted").await.len()) == (tokens.len() + 1, tokens.len())
    })
    .await;
    let last = tokens.last().unwrap();
    let note = format!("active for the LeaderGroup web with token {} (PodNotReady)", last.0);
    let on_pod =
        of("Promoted").await.into_iter().find(|event| event.note.as_ref() == Some(&note)).expect(&note);
    let (regarding, related) = (on_pod.regarding.unwrap(), on_pod.related.unwrap());
    assert_eq!((regarding.kind.as_deref(), regarding.name), (Some("Pod"), Some(last.1.clone())));
    assert_eq!((related.kind.as_deref(), related.name.as_deref()), (Some("LeaderGroup"), Some("web")));

    // Somebody sets the label on the standby, more than once.
    let holder = active(&pods).await;
    let standby = if holder == ["web-0"] { "web-1" } else { "web-0" };
    let label = Patch::Merge(json!({ "metadata": { "labels": { ROLE_LABEL: "active" } } }));
    for _ in 0..3 {
        pods.patch(standby, &PatchParams::default(), &label).await.unwrap();
        eventually("it to be put right", async || active(&pods).await == holder).await;
    }
    eventually("the Event", async || of("ForeignLabel").await.len() == 1).await;
    let note = of("ForeignLabel").await.remove(0).note.unwrap();
    assert!(note.contains(standby) && note.contains("another client"), "{note}");

    let managers = |fields: Option<Vec<_>>| -> Vec<String> {
        let fields: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry> =
            fields.unwrap_or_default();
        fields.into_iter().filter_map(|entry| entry.manager).collect()
    };
    for fields in [
        pods.get(&holder[0]).await.unwrap().metadata.managed_fields,
        groups.get("web").await.unwrap().metadata.managed_fields,
        of("ForeignLabel").await.remove(0).managed_fields().to_vec().into(),
    ] {
        let managers = managers(fields);
        assert!(managers.iter().any(|name| name == FIELD_MANAGER), "{managers:?}");
    }
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn the_label_of_a_last_pod_that_ends_is_no_foreign_one() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("last-label").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let events = Api::<Event>::namespaced(client.clone(), &namespace);
    let kubelet = keep_lease(client, "node-of-last-label").await;
    run_pod(&pods, "web-0", "node-of-last-label").await;
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    eventually("the first holder", async || active(&pods).await == ["web-0"]).await;

    pods.delete("web-0", &DeleteParams::default().grace_period(30)).await.unwrap();
    eventually("the label to go while the pod ends", async || active(&pods).await.is_empty()).await;
    run_pod(&pods, "web-1", "node-of-last-label").await;
    // Events are written in their order.
    let about = async |reason: &str, pod: &str| {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let notes = all.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        notes.filter_map(|event| event.note).filter(|note| note.contains(pod)).count()
    };
    eventually("the next holder's Event", async || about("FirstHolder", "web-1").await == 1).await;
    assert_eq!(about("ForeignLabel", "web-0").await, 0);
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
