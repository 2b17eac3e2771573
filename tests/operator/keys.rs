//! Lock keys that a group may not take: the default keys of others, and those of other namespaces.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, PostParams},
};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{cluster, condition, group, groups},
    postgres::{self, Database, eventually},
    replica::Operator,
    sessions::later,
};

fn spec(app: &str, key: &str) -> Value {
    json!({ "selector": { "matchLabels": { "app": app } }, "lock": { "key": key } })
}

async fn create(groups: &Api<DynamicObject>, name: &str, spec: &Value) {
    groups.create(&PostParams::default(), &group(name, spec)).await.unwrap();
}

/// Waits until the group is accepted, or not, for this reason. Returns the message.
async fn reported(groups: &Api<DynamicObject>, name: &str, reason: &str) -> String {
    let accepted = async || condition(groups, name, "Accepted").await;
    eventually(reason, async || accepted().await.1 == reason).await;
    accepted().await.2
}

/// Waits until the replica has asked for groups without an owner once more.
async fn asked_again(database: &Database) {
    // A refused claim is repeated after five heartbeats.
    later(database, 7).await;
}

#[tokio::test]
async fn the_default_key_of_another_group_cannot_be_taken_before_that_group_exists_nor_after_its_deletion() {
    let server = ApiServer::start(&[]).await;
    let client = server.client().await;
    let (team, shop) = (server.namespace("team").await, server.namespace("shop").await);
    let (thieves, owners) = (groups(client.clone(), &team), groups(client.clone(), &shop));
    let key = format!("{}/{shop}/web", cluster(client).await);
    let thief = spec("none", &key);
    let refused = thieves.create(&PostParams::default(), &group("thief", &thief)).await.unwrap_err();
    assert!(refused.to_string().contains("key must not begin with a UID and a slash"), "{refused}");
    // It was stored before the API server refused it.
    server.take_validation_off().await;
    create(&thieves, "thief", &thief).await;
    server.put_validation_on().await;

    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(&server, &format!("{team},{shop}"), &database.url());
    let message = reported(&thieves, "thief", "KeyNotAllowed").await;
    assert!(message.contains("spec.lock.key begins with a UID") && message.contains("create"), "{message}");
    // No replica owns it, and an alert says that it waits for a user.
    let labels = format!("namespace=\"{team}\",name=\"thief\",type=\"Stalled\",status=\"true\"");
    let stalled = format!("leadergroup_group_condition{{{labels}}} 1");
    let shown = async || operator.get("/metrics").lines().any(|line| line == stalled);
    eventually("the group to be shown as stalled", shown).await;
    let rows =
        async |what: &str| database.number(&format!("select count(*) from leadergroup.lock {what}")).await;
    assert_eq!(rows("").await, 0);
    let live = format!("where key = '{key}' and group_id like '%/{shop}/web/%' and not tombstone");
    for time in ["first", "second"] {
        create(&owners, "web", &json!({ "selector": { "matchLabels": { "app": "none" } } })).await;
        eventually("the group to have its key", async || rows(&live).await == 1).await;
        assert_eq!(rows("").await, 1, "the {time} time");
        owners.delete("web", &DeleteParams::default()).await.unwrap();
        eventually("the group to be gone", async || owners.get_opt("web").await.unwrap().is_none()).await;
        asked_again(&database).await;
        assert_eq!(
            rows(&format!("where group_id like '%/{shop}/web/%' and tombstone")).await,
            1,
            "the {time} time"
        );
        assert_eq!(condition(&thieves, "thief", "Accepted").await.1, "KeyNotAllowed");
    }
    thieves.delete("thief", &DeleteParams::default()).await.unwrap();
    eventually("the thief to be gone", async || thieves.get_opt("thief").await.unwrap().is_none()).await;
    assert_eq!(rows(&format!("where group_id like '%/{shop}/web/%'")).await, 1, "it left nothing behind");
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn keys_can_be_confined_to_namespaces_and_groups_that_have_their_keys_keep_them() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (team, shop) = (server.namespace("team").await, server.namespace("shop").await);
    let (tenants, owners) = (groups(client.clone(), &team), groups(client.clone(), &shop));
    let pods: Api<Pod> = Api::namespaced(client.clone(), &shop);
    keep_lease(client, "node-of-keys").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-keys").await;
    }
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let start = |confined: &str| {
        let variables =
            [("LEADERGROUP_DATABASE_URL", url.as_str()), ("LEADERGROUP_NAMESPACED_KEYS", confined)];
        Operator::start_with(server, &format!("{team},{shop}"), &variables)
    };
    let mut operator = start("false");
    create(&owners, "web", &spec("web", "orders")).await;
    eventually("a holder", async || condition(&owners, "web", "Ready").await.0 == "True").await;
    assert!(operator.end().await.0.success(), "{}", operator.log());

    let mut operator = start("true");
    let holder = active(&pods).await.remove(0);
    report(&pods, &holder, "False").await;
    eventually("another holder", async || matches!(&active(&pods).await[..], [other] if *other != holder))
        .await;

    for (name, key) in [("other", "invoices".to_owned()), ("of-shop", format!("{shop}/web"))] {
        create(&tenants, name, &spec("none", &key)).await;
        let message = reported(&tenants, name, "KeyNotAllowed").await;
        assert!(message.contains(&format!("must begin with {team}/")), "{message}");
        assert_eq!(condition(&tenants, name, "Stalled").await.0, "True");
    }
    create(&tenants, "own", &spec("none", &format!("{team}/invoices"))).await;
    reported(&tenants, "own", "AsExpected").await;
    let tenants_rows =
        "select count(*) from leadergroup.lock where group_id like '%/own/%' or key <> 'orders'";
    assert_eq!(database.number(tenants_rows).await, 1, "only the one with the right key");
    let shown = tenants.get("other").await.unwrap();
    assert!(shown.finalizers().is_empty(), "nothing has to be done when it is deleted");
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
