//! The release with the PostgreSQL that the chart brings, for the scenarios about upgrades. The history checker needs
//! the terms that this database records.

use std::{collections::BTreeMap, rc::Rc};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use leadergroup_e2e::{
    history::Term,
    scenario::{OPERATOR_NAMESPACE, Operator, RELEASE, STARTED, Stage, eventually, is_ready},
};
use serde_json::{Value, json};

/// The pod of the database.
pub(crate) const DATABASE: &str = "leadergroup-postgresql-0";

/// Values for the chart with its own PostgreSQL. The images are those of this cluster, whatever the chart's version is.
pub(crate) fn values() -> Value {
    json!({
        "image": { "tag": env!("CARGO_PKG_VERSION") },
        "postgresql": { "mode": "Bundled", "image": { "tag": "15" } },
        // The rights stay as they are: Helm does not change a role that somebody else has written.
        "managedEndpoints": { "enabled": true },
        "podDeletion": { "enabled": true },
    })
}

/// Changes the release to its own PostgreSQL, lets a scenario play, and changes it back.
pub(crate) async fn with(stage: &Rc<Stage>, story: impl Future<Output = Result<()>>) -> Result<()> {
    stage.operator.install(&values()).await.context("installing the chart with its own PostgreSQL")?;
    let mut told = story.await;
    if told.is_ok() {
        // The end of a group's pods may have begun one more term.
        told = record_terms(stage).await;
    }
    usual_again(stage).await?;
    told
}

/// Changes the release back to the usual database.
pub(crate) async fn usual_again(stage: &Stage) -> Result<()> {
    let usual = stage.values.as_ref().context("the operator was installed by others")?;
    stage.operator.install(usual).await.context("changing the release back")
}

/// The database's pod and how often it was restarted. It is ready.
pub(crate) async fn database(operator: &Operator) -> Result<(String, i32)> {
    eventually("the bundled PostgreSQL to be ready", STARTED, async || {
        let pod = operator.pods().get(DATABASE).await?;
        ensure!(is_ready(&pod) && pod.metadata.deletion_timestamp.is_none(), "it is not ready");
        let restarts = restarts(&pod);
        Ok((pod.metadata.uid.context("a pod without a UID")?, restarts))
    })
    .await
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).sum()
}

/// Waits until none of these replicas is left, and all are ready.
pub(crate) async fn replaced(operator: &Operator, before: &BTreeMap<String, String>) -> Result<()> {
    let now = operator.ready(STARTED).await?;
    ensure!(now.keys().all(|name| !before.contains_key(name)), "{before:?} became {now:?}");
    Ok(())
}

/// Reads the terms that the bundled database recorded, and adds them to the history.
pub(crate) async fn record_terms(stage: &Stage) -> Result<()> {
    record_terms_of(stage, &[DATABASE], RELEASE).await
}

/// The same for any database in a pod: which pod and container, and the user.
pub(crate) async fn record_terms_of(stage: &Stage, pod: &[&str], user: &str) -> Result<()> {
    let query = "select key, token, grant_id, holder_uid, (extract(epoch from granted_at) * 1000000)::bigint
        from leadergroup.terms";
    let psql = ["--", "psql", "--no-psqlrc", "-qAt", "-U", user, "-d", RELEASE, "-c", query];
    let exec = ["exec", "--namespace", OPERATOR_NAMESPACE];
    let rows = stage.run_kubectl(&[&exec[..], pod, &psql].concat()).await?;
    let terms = rows.lines().map(|row| term(row).with_context(|| format!("the row {row:?}")));
    let recorder = stage.recorder.as_ref().context("nothing records")?;
    recorder.add_terms(terms.collect::<Result<_>>()?);
    Ok(())
}

fn term(row: &str) -> Result<Term> {
    let columns: Vec<&str> = row.split('|').collect();
    let [key, token, grant, owner, micros] = columns[..] else { anyhow::bail!("not five columns") };
    Ok(Term {
        key: key.to_owned(),
        token: token.parse()?,
        grant: grant.to_owned(),
        owner: owner.to_owned(),
        granted_at: Timestamp::from_microsecond(micros.parse()?)?,
    })
}
