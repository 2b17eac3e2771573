//! Tests of the CRD on a real API server: what it refuses and with which messages, what it accepts, which defaults it
//! sets, and how a new group looks to tools that wait for it. And whether it accepts the examples.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

mod apiserver;
mod manifests;

use std::collections::BTreeSet;

use apiserver::ApiServer;
use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Error, Resource as _,
    api::{ApiResource, DynamicObject, Patch, PatchParams, TypeMeta},
    core::Status,
};
use leadergroup::api::{ConditionType, LeaderGroup, LeaderGroupStatus, Reason};
use manifests::Manifest;
use serde_json::{Value, json};

/// The API groups of other projects in the examples. This API server does not have them, so their objects are only
/// read.
const OTHERS: [&str; 7] = [
    "autoscaling.k8s.io",
    "gateway.networking.k8s.io",
    "helm.toolkit.fluxcd.io",
    "kustomize.toolkit.fluxcd.io",
    "policy.linkerd.io",
    "security.istio.io",
    "source.toolkit.fluxcd.io",
];

/// The validation level of `kubectl apply`.
const STRICT: &str = "fieldValidation=Strict";

struct Groups {
    client: Client,
    url: String,
}

impl Groups {
    async fn new(name: &str) -> Self {
        let server = ApiServer::shared().await;
        let namespace = server.namespace(name).await;
        let url = format!("/apis/leadergroup.dev/v1alpha1/namespaces/{namespace}/leadergroups");
        Self { client: server.client().await, url }
    }

    async fn create(&self, manifest: &Value) -> Result<Value, Error> {
        let request =
            Request::post(format!("{}?{STRICT}", self.url)).header("Content-Type", "application/json");
        self.client
            .request(request.body(serde_json::to_vec(manifest).expect("it is JSON")).expect("it is whole"))
            .await
    }

    async fn replace(&self, manifest: &Value, version: &Value) -> Result<Value, Error> {
        let mut manifest = manifest.clone();
        manifest["metadata"]["resourceVersion"] = version.clone();
        let name = manifest["metadata"]["name"].as_str().expect("it has a name");
        let request =
            Request::put(format!("{}/{name}?{STRICT}", self.url)).header("Content-Type", "application/json");
        self.client
            .request(request.body(serde_json::to_vec(&manifest).expect("it is JSON")).expect("it is whole"))
            .await
    }

    async fn get(&self, name: &str) -> Value {
        let request = Request::get(format!("{}/{name}", self.url)).body(Vec::new()).expect("it is whole");
        self.client.request(request).await.expect("the group is there")
    }

    /// Applies the documents one after the other, and returns the result of the last one.
    async fn apply(&self, manifest: &Manifest) -> Result<Value, Error> {
        let (last, before) = manifest.documents.split_last().expect("there is a document");
        let mut version = None;
        for document in before {
            let stored = match &version {
                None => self.create(document).await,
                Some(version) => self.replace(document, version).await,
            };
            let stored =
                stored.unwrap_or_else(|error| panic!("{}: before the last document: {error}", manifest.name));
            version = Some(stored["metadata"]["resourceVersion"].clone());
        }
        match &version {
            None => self.create(last).await,
            Some(version) => self.replace(last, version).await,
        }
    }
}

/// The errors in a refusal, each with its field, without the server's remark that it skipped other rules.
fn complaints(status: &Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes = causes.filter(|cause| !cause.message.contains("some validation rules were not checked"));
    let causes: Vec<String> = causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    if causes.is_empty() { vec![status.message.clone()] } else { causes }
}

#[tokio::test]
async fn each_invalid_manifest_is_refused_with_one_message_that_says_what_to_write() {
    let groups = Groups::new("invalid").await;
    let manifests = manifests::all("invalid");
    assert!(manifests.len() >= 40, "only {} manifests were found", manifests.len());
    let mut wrong = Vec::new();
    for manifest in &manifests {
        let complaints = match groups.apply(manifest).await {
            Err(Error::Api(status)) if status.code == 422 || status.code == 400 => complaints(&status),
            Err(error) => vec![format!("not refused but failed: {error}")],
            Ok(_) => vec!["accepted".to_owned()],
        };
        // The server's message has the invalid value between the field and the text.
        let (field, words) = manifest.says.split_once(": ").expect("field: words");
        let intended = |complaint: &String| {
            complaint.ends_with(&manifest.says)
                || (complaint.starts_with(&format!("{field}: ")) && complaint.ends_with(words))
        };
        if complaints.len() != 1 || !complaints.iter().all(intended) {
            wrong.push(format!(
                "{}\n  should be: {}\n  is: {}",
                manifest.name,
                manifest.says,
                complaints.join("\n      ")
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), manifests.len(), wrong.join("\n"));
}

#[tokio::test]
async fn each_valid_manifest_is_accepted_and_can_be_carried_out() {
    let groups = Groups::new("valid").await;
    let manifests = manifests::all("valid");
    assert!(manifests.len() >= 10, "only {} manifests were found", manifests.len());
    for manifest in &manifests {
        let stored = groups
            .apply(manifest)
            .await
            .unwrap_or_else(|error| panic!("{}: {}: {error}", manifest.name, manifest.says));
        let group: LeaderGroup =
            serde_json::from_value(stored).unwrap_or_else(|e| panic!("{}: {e}", manifest.name));
        group.spec.validate().unwrap_or_else(|error| panic!("{}: {error}", manifest.name));
    }
}

#[tokio::test]
async fn each_object_of_the_examples_is_accepted() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (server.client().await, server.namespace("examples").await);
    let objects = manifests::examples();
    assert!(objects.len() >= 40, "only {} objects were found", objects.len());
    let (mut wrong, mut others) = (Vec::new(), BTreeSet::new());
    for (file, mut object) in objects {
        let types: TypeMeta = serde_json::from_value(object.clone()).unwrap();
        let group = types.api_version.split('/').next().unwrap();
        if OTHERS.contains(&group) {
            others.insert(group.to_owned());
            continue;
        }
        object["metadata"].as_object_mut().unwrap().remove("namespace");
        let resource = ApiResource::from_gvk(&(&types).try_into().unwrap());
        let path = DynamicObject::url_path(&resource, Some(&namespace));
        let request =
            Request::post(format!("{path}?dryRun=All&{STRICT}")).header("Content-Type", "application/json");
        let request = request.body(serde_json::to_vec(&object).unwrap()).unwrap();
        if let Err(error) = client.request::<Value>(request).await {
            wrong.push(format!("{file}: {} {}: {error}", types.kind, object["metadata"]["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        others,
        OTHERS.iter().map(|&group| group.to_owned()).collect(),
        "the API groups of other projects"
    );
}

#[tokio::test]
async fn the_stored_object_shows_every_default() {
    let groups = Groups::new("defaults").await;
    let stored = groups.create(&minimal("defaults")).await.unwrap();
    assert_eq!(
        stored["spec"],
        json!({
            "selector": { "matchLabels": { "app": "orders" } },
            "lock": {},
            "health": {
                "interval": "1s", "silenceTimeout": "5s", "failureThreshold": 2,
                "holdConnection": "WhenKeptAlive",
            },
            "election": {
                "delay": "0s",
                "onCordon": "Handover", "onRollout": "Handover", "onDemote": "Keep",
                "failback": "Never", "failbackDelay": "1m",
            },
            "routing": {
                "roleLabel": "leadergroup.dev/role", "activeValue": "active", "standbyValue": "standby",
                "endpoints": "Selector"
            },
            "deletionPolicy": "RemoveLabels",
            "paused": false
        })
    );
    let mut with_probe = minimal("with-probe");
    with_probe["spec"]["health"] = json!({ "probe": { "httpGet": { "port": 80 } } });
    let stored = groups.create(&with_probe).await.unwrap();
    assert_eq!(stored["spec"]["health"]["probe"]["httpGet"], json!({ "port": 80, "scheme": "HTTP" }));
    assert_eq!(stored["spec"]["health"]["failureThreshold"], 2);
    let mut with_hook = minimal("with-hook");
    with_hook["spec"]["hooks"] = json!({ "promote": { "path": "/promote", "port": "http" } });
    let stored = groups.create(&with_hook).await.unwrap();
    let promote = json!({ "path": "/promote", "port": "http", "timeout": "5s", "onFailure": "Continue" });
    assert_eq!(stored["spec"]["hooks"], json!({ "promote": promote }));
}

#[tokio::test]
async fn a_null_is_replaced_by_the_default_and_not_stored() {
    let groups = Groups::new("nulls").await;
    let mut manifest = minimal("nulls");
    manifest["spec"]["lock"] = json!({ "key": null });
    manifest["spec"]["health"] = json!({ "interval": null, "probe": null });
    manifest["spec"]["routing"] = Value::Null;
    let stored = groups.create(&manifest).await.unwrap();
    assert_eq!(stored["spec"]["lock"], json!({}));
    let health = json!({
        "interval": "1s", "silenceTimeout": "5s", "failureThreshold": 2, "holdConnection": "WhenKeptAlive",
    });
    assert_eq!(stored["spec"]["health"], health);
    assert_eq!(stored["spec"]["routing"]["roleLabel"], "leadergroup.dev/role");
}

/// For kstatus, an object without a status, or with the condition Ready=True, is settled.
#[tokio::test]
async fn a_new_group_does_not_look_settled() {
    let groups = Groups::new("new").await;
    groups.create(&minimal("new")).await.unwrap();
    let group: LeaderGroup = serde_json::from_value(groups.get("new").await).unwrap();
    let status = group.status.expect("a new group has a status");
    assert_eq!(status, LeaderGroupStatus::default(), "the operator and the API server mean the same by it");
    assert_eq!(status.observed_generation, -1);
    assert_ne!(Some(status.observed_generation), group.metadata.generation);
    let ready = status
        .conditions
        .iter()
        .find(|c| c.type_ == ConditionType::Ready.to_string())
        .expect("Ready is there");
    assert_eq!((ready.status.as_str(), &ready.reason), ("Unknown", &Reason::Pending.to_string()));
    assert_eq!(status.declaration.token, 0);
}

#[tokio::test]
async fn a_declaration_can_be_compared_and_set_from_the_first_moment_on() {
    let groups = Groups::new("declaration").await;
    groups.create(&minimal("cas")).await.unwrap();
    let namespace = groups.url.split('/').nth(5).expect("the namespace is in the URL");
    let api: Api<LeaderGroup> = Api::namespaced(groups.client.clone(), namespace);
    let patch = |from: i64, to: i64| {
        serde_json::from_value(json!([
            { "op": "test", "path": "/status/declaration", "value": { "token": from } },
            { "op": "replace", "path": "/status/declaration", "value": { "token": to } }
        ]))
        .expect("it is a patch")
    };
    let set = |from, to| {
        let api = &api;
        async move { api.patch_status("cas", &PatchParams::default(), &Patch::Json::<()>(patch(from, to))).await }
    };
    let declared = set(0, 1).await.unwrap().status.expect("a status was written");
    assert_eq!(declared.declaration.token, 1);
    assert_eq!(declared.observed_generation, -1, "nothing else changed");
    match set(0, 2).await {
        Err(Error::Api(status)) => assert_eq!(status.code, 422, "{status:?}"),
        other => panic!("a declaration that is out of date was written: {other:?}"),
    }
}

#[tokio::test]
async fn the_status_is_written_by_itself_and_the_spec_without_it() {
    let groups = Groups::new("subresource").await;
    let mut manifest = minimal("subresource");
    manifest["status"] = json!({ "token": 7 });
    groups.create(&manifest).await.unwrap();
    assert_eq!(groups.get("subresource").await["status"]["token"], 0, "a user cannot set the status");
}

#[tokio::test]
async fn a_list_shows_the_columns_that_people_need() {
    let groups = Groups::new("columns").await;
    groups.create(&minimal("columns")).await.unwrap();
    let request = Request::get(&groups.url)
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .expect("it is whole");
    let table: Value = groups.client.request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let names = |priority: i64| -> Vec<&str> {
        let shown = columns.iter().filter(|column| column["priority"] == priority);
        shown.filter_map(|column| column["name"].as_str()).collect()
    };
    assert_eq!(names(0), ["Name", "Active", "Node", "Token", "Eligible", "Status", "Since", "Age"]);
    assert_eq!(names(1), ["Endpoints", "Switchover", "Key"], "with `-o wide`");
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(
        cells[..7],
        [json!("columns"), Value::Null, Value::Null, json!(0), json!("0/0"), json!("Pending"), Value::Null]
    );
    assert_eq!(cells[8..], [json!("Selector"), Value::Null, Value::Null]);
}

/// Otherwise the API server merges the labels that two owners apply, and the group selects by all of them.
#[tokio::test]
async fn a_selector_has_one_owner_and_is_replaced_as_a_whole() {
    let groups = Groups::new("owners").await;
    let apply = async |owner: &str, labels: Value| {
        let mut manifest = minimal("owned");
        manifest["spec"]["selector"] = json!({ "matchLabels": labels });
        let url = format!("{}/owned?fieldManager={owner}&{STRICT}", groups.url);
        let request = Request::patch(url).header("Content-Type", "application/apply-patch+yaml");
        groups.client.request::<Value>(request.body(serde_json::to_vec(&manifest).unwrap()).unwrap()).await
    };
    apply("one", json!({ "app": "orders" })).await.unwrap();
    match apply("two", json!({ "tier": "front" })).await {
        Err(Error::Api(status)) => {
            assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"), "{status:?}");
            assert!(status.message.contains(".spec.selector"), "{status:?}");
        }
        other => panic!("two owners set parts of one selector: {other:?}"),
    }
}

#[tokio::test]
async fn the_crd_is_accepted_without_a_warning_and_found_by_its_short_name() {
    let server = ApiServer::shared().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(server.client().await);
    let definition = definitions.get("leadergroups.leadergroup.dev").await.unwrap();
    let status = definition.status.expect("it has a status");
    let names = status.accepted_names.expect("its names were accepted");
    assert_eq!(names.short_names, Some(vec!["lg".to_owned()]));
    assert_eq!(names.categories, None, "`kubectl get all` lists what `kubectl delete all` deletes");
    for condition in status.conditions.unwrap_or_default() {
        let good = match condition.type_.as_str() {
            "NonStructuralSchema" => "False",
            _ => "True",
        };
        assert_eq!(condition.status, good, "{}: {:?}", condition.type_, condition.message);
    }
    let request =
        Request::put("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/leadergroups.leadergroup.dev");
    let mut body: Value =
        serde_json::to_value(definitions.get("leadergroups.leadergroup.dev").await.unwrap()).unwrap();
    body["apiVersion"] = json!("apiextensions.k8s.io/v1");
    body["kind"] = json!("CustomResourceDefinition");
    let request =
        request.header("Content-Type", "application/json").body(serde_json::to_vec(&body).unwrap().into());
    let answer = server.client().await.send(request.expect("it is whole")).await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    assert_eq!(answer.headers().get("warning"), None);
}

fn minimal(name: &str) -> Value {
    json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": { "name": name },
        "spec": { "selector": { "matchLabels": { "app": "orders" } } }
    })
}
