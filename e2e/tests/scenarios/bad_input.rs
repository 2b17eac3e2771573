//! User errors: a wrong database URL, a wrong password, a read-only database, missing rights. Each is reported in the
//! log and in the group's conditions, nothing crashes, and the operator recovers when the error is corrected.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Secret, rbac::v1::ClusterRole};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use leadergroup_e2e::{
    database::Database,
    moment::Moment,
    scenario::{Active, OPERATOR_NAMESPACE, RELEASE, STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::json;

use crate::trouble::{says, somebody_says, store_reachable};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "bad-input", Workload::default(), async |s| {
        let active = s.elect().await?;
        let client = s.call_from(&active.node).await?;
        let revision = s.revision().await?;
        let database = s.stage.own()?.database();
        let password = s.stage.own()?.database_url();
        let password = password.split([':', '@']).nth(2).context("the URL has no password")?;

        let wrong = "alter role leadergroup password 'another'";
        let right = format!("alter role leadergroup password '{password}'");
        with_broken_database(s, &database, &active, [wrong, &right], "password")
            .await
            .context("wrong password")?;

        let wrong = "alter database leadergroup set default_transaction_read_only = on";
        let right = "set default_transaction_read_only = off; \
                     alter database leadergroup reset default_transaction_read_only";
        with_broken_database(s, &database, &active, [wrong, right], "read-only")
            .await
            .context("read-only")?;

        with_wrong_url(s, &active, password).await.context("wrong URL")?;

        s.no_role_changed(revision).await?;
        without_right_to_label(s).await.context("without the right to patch pods")?;
        s.still_fails_over("all that").await?;
        s.other_promotions = 2..=2;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}

/// Breaks the database, restarts the operator, and checks that its messages contain `word`.
async fn with_broken_database(
    s: &Scenario,
    database: &Database,
    active: &Active,
    [wrong, right]: [&str; 2],
    word: &str,
) -> Result<()> {
    database.sql("leadergroup", &format!("{wrong}; {DISCONNECT}")).await?;
    let story = async {
        store_reachable(s, "False", word).await.context("while it runs")?;
        let replicas = s.stage.operator.replace().await?;
        says(s, &replicas, word).await.context("when it starts")?;
        store_reachable(s, "False", word).await.context("when it starts")?;
        let restarts = s.stage.operator.restarts().await?;
        ensure!(restarts == 0, "the operator crashed {restarts} times");
        ensure!(s.active().await? == *active, "the active pod changed");
        Ok(())
    };
    let told = story.await;
    database.sql("leadergroup", &format!("{right}; {DISCONNECT}")).await?;
    told?;
    store_reachable(s, "True", "").await.context("when it was corrected")?;
    s.stage.operator.ready(STARTED).await?;
    ensure!(s.settled(STARTED).await? == *active, "the active pod changed");
    Ok(())
}

/// Ends the operator's connections, so that the change takes effect at once.
const DISCONNECT: &str =
    "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'leadergroup'";

/// Starts the operator with an invalid URL in the chart's Secret, checks its messages, and corrects the Secret while
/// the operator runs.
async fn with_wrong_url(s: &mut Scenario, active: &Active, password: &str) -> Result<()> {
    let operator = &s.stage.operator;
    let right = s.stage.own()?.database_url_in_cluster();
    let wrong = right.replacen("//", "/", 1);
    let word = "it does not start with postgres://";
    write_url(s, &wrong).await?;
    let story = async {
        let replicas = operator.replace().await?;
        says(s, &replicas, word).await?;
        store_reachable(s, "False", word).await?;
        let (_, _, message) = s.condition(&s.workload.name, "LockStoreReachable").await?;
        ensure!(!message.contains(password), "the group's condition shows the password");
        ensure!(!operator.logs(1000).await?.contains(password), "the log shows the password");
        ensure!(s.active().await? == *active, "the active pod changed");
        Ok(replicas)
    };
    let told = story.await;
    let at = Moment::now();
    write_url(s, &right).await?;
    let replicas = told?;
    // The kubelet checks for changed Secrets about once a minute, and whenever the pod changes.
    let look = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/database": "changed" } } }));
    for replica in &replicas {
        operator.pods().patch(replica, &PatchParams::default(), &look).await?;
    }
    store_reachable(s, "True", "").await.context("when it was corrected")?;
    let healed = Moment::now().since(at);
    let ready = operator.ready(STARTED).await?;
    ensure!(replicas.iter().all(|name| ready.contains_key(name)), "{replicas:?} became {ready:?}");
    let restarts = operator.restarts().await?;
    ensure!(restarts == 0, "the operator was restarted {restarts} times");
    ensure!(s.settled(STARTED).await? == *active, "the active pod changed");
    s.note(format!("a corrected URL is used after {:.1} s", healed.as_secs_f64()));
    Ok(())
}

/// Writes the URL to the Secret that the chart created.
async fn write_url(s: &Scenario, url: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(s.stage.kube.clone(), OPERATOR_NAMESPACE);
    let url = Patch::Merge(json!({ "stringData": { "url": url } }));
    secrets.patch(&format!("{RELEASE}-database"), &PatchParams::default(), &url).await?;
    Ok(())
}

const REMEDY: &str = "give the operator's service account this permission";

/// Removes the right to patch pods, recreates the group, and restores the right.
async fn without_right_to_label(s: &Scenario) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(s.stage.kube.clone());
    let rights = roles.get(RELEASE).await?;
    let mut less = rights.clone();
    for rule in less.rules.iter_mut().flatten() {
        if rule.resources.as_ref().is_some_and(|resources| resources.iter().any(|name| name == "pods")) {
            rule.verbs.retain(|verb| verb != "patch");
        }
    }
    ensure!(less.rules != rights.rules, "the role {RELEASE} has no right to patch pods");
    let name = &s.workload.name;
    s.groups().delete(name, &DeleteParams::default()).await?;
    eventually("the group to be gone", STARTED, async || {
        ensure!(s.groups().get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    let version = roles.replace(RELEASE, &PostParams::default(), &less).await?.metadata.resource_version;
    let story = async {
        s.groups().create(&PostParams::default(), &s.workload.group(name)?).await?;
        eventually("the group to say what is refused", STARTED, async || {
            let (status, reason, message) = s.condition(name, "Ready").await?;
            let told = status == "False"
                && reason == "WriteRefused"
                && message.contains("pods")
                && message.contains(REMEDY);
            ensure!(told, "Ready is {status} ({reason}): {message}");
            Ok(())
        })
        .await?;
        somebody_says(s, &[&format!("{}/{name}", s.namespace), "pods", REMEDY]).await?;
        let restarts = s.stage.operator.restarts().await?;
        ensure!(restarts == 0, "the operator crashed {restarts} times");
        Ok(())
    };
    let told = story.await;
    let mut restored = rights;
    restored.metadata.resource_version = version;
    roles.replace(RELEASE, &PostParams::default(), &restored).await?;
    told?;
    s.settled(STARTED).await?;
    Ok(())
}
