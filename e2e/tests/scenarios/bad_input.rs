//! What a user may get wrong: the database's password, a database that takes no writes, rights that are missing. Each
//! is told in the log and in the group's conditions, nothing crashes, and it heals by itself when it is put right.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use leadergroup_e2e::{
    database::Database,
    scenario::{Active, RELEASE, STARTED, Scenario, Stage, Workload, eventually},
};

use crate::trouble::{says, store_reachable};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "bad-input", Workload::default(), async |s| {
        let active = s.elect().await?;
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

        s.no_role_changed(revision).await?;
        without_right_to_label(s).await.context("without the right to patch pods")?;
        s.still_fails_over("all that").await?;
        s.other_promotions = 2..=2;
        Ok(())
    })
    .await
}

/// Breaks the database, starts the operator anew, and looks for `word` in what it says.
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
    store_reachable(s, "True", "").await.context("when it was put right")?;
    s.stage.operator.ready(STARTED).await?;
    ensure!(s.settled(STARTED).await? == *active, "the active pod changed");
    Ok(())
}

/// Ends the operator's connections, so that what was changed counts at once.
const DISCONNECT: &str =
    "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'leadergroup'";

/// Takes the right to patch pods away, has a group made anew, and gives the right back.
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
            let told = status == "False" && reason == "WriteRefused" && message.contains("pods");
            ensure!(told, "Ready is {status} ({reason}): {message}");
            Ok(())
        })
        .await
    };
    let told = story.await;
    let mut restored = rights;
    restored.metadata.resource_version = version;
    roles.replace(RELEASE, &PostParams::default(), &restored).await?;
    told?;
    s.settled(STARTED).await?;
    Ok(())
}
