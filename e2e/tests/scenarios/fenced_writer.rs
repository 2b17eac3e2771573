//! The example of a fenced writer: the active pod is frozen between the read of its token and its write, is replaced,
//! and resumes. PostgreSQL refuses its write and accepts those of its successor.

use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::{
    Api,
    api::{LogParams, ObjectMeta, PostParams},
};
use leadergroup_e2e::{
    cluster::Cluster,
    database::Database,
    images,
    moment::Moment,
    network::DATABASE_ADDRESS,
    scenario::{Active, STARTED, Scenario, Stage, TOLD, Workload, eventually},
};
use serde::Deserialize as _;

const EXAMPLE: &str = include_str!("../../../examples/more/fenced-writer.yaml");
const TABLE: &str = include_str!("../../../examples/more/fenced-writer.sql");
const NAME: &str = "ledger";
/// The database of the lock.
const LOCK: &str = "leadergroup";
/// The writer's password. Only this test's own machines can reach the database.
const PASSWORD: &str = "ledger";
/// The command that the example runs between the read of its token and its write, and at no other time.
const WORK: &str = "sleep 2";

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let workload =
        Workload { name: NAME.into(), deployment: Some(Box::new(deployment()?)), ..Workload::default() };
    Scenario::play(stage, "fenced-writer", workload, async |s| {
        let database = s.stage.own()?.database();
        make_table(&database).await?;
        make_secret(s).await?;
        let before = s.elect().await?;
        written(&database, &before, 2).await?;

        let at = freeze_between_read_and_write(s.stage.own()?, &before).await?;
        let story = async {
            let after = s.failover("frozen", &before, at, None, &["Silent", "PodNotReady"]).await?;
            written(&database, &after, 1).await?;
            anyhow::Ok(after)
        };
        let after = story.await;
        s.stage.own()?.thaw_pod(&before.uid)?;
        let after = after?;

        eventually("the refusal of the late write", STARTED, async || {
            // The error is on another stream, and may be logged after the line that follows it.
            let log = log(s, &before, 20).await?;
            let last = log.lines().rfind(|line| line.ends_with("written"));
            ensure!(log.contains("LG001") && last == Some("not written"), "the writer says {log:?}");
            Ok(())
        })
        .await?;
        let so_far = count(&database, &after).await?;
        written(&database, &after, so_far + 2).await?;
        let settled = s.settled(STARTED).await?;
        ensure!(settled == after, "the return of the old pod moved the active role to {settled:?}");
        let late = "select count(*) from (select token, max(token) over (order by id) as seen from ledger.entry) as all_
            where token < seen";
        let late = database.sql(LOCK, late).await?;
        ensure!(late.trim() == "0", "{late} entries of an old term follow one of a later term");
        s.note("PostgreSQL refused the late write with LG001");
        Ok(())
    })
    .await
}

/// The Deployment of the example, with the image of this cluster.
fn deployment() -> Result<Deployment> {
    let text = EXAMPLE.replace("postgres:17", images::POSTGRES).replace("busybox:1.37", images::BUSYBOX);
    let first = text.split("\n---\n").next().context("the example is empty")?;
    let object: serde_json::Value = serde_saphyr::from_str(first).context("the example")?;
    Deployment::deserialize(object).context("the example's first object is no Deployment")
}

async fn make_table(database: &Database) -> Result<()> {
    // Of an earlier run on the same cluster.
    let clear = "do $$ begin
        if exists (select from pg_roles where rolname = 'ledger') then
            execute 'drop owned by ledger cascade'; execute 'drop role ledger';
        end if;
    end $$;";
    database.sql(LOCK, clear).await?;
    database.sql(LOCK, &format!("\\set password '''{PASSWORD}'''\n{TABLE}")).await.map(drop)
}

async fn make_secret(s: &Scenario) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
    let url = format!("postgres://{NAME}:{PASSWORD}@{DATABASE_ADDRESS}:5432/{LOCK}");
    let secret = Secret {
        metadata: ObjectMeta { name: Some("ledger-database".to_owned()), ..ObjectMeta::default() },
        string_data: Some([("url".to_owned(), url)].into()),
        ..Secret::default()
    };
    secrets.create(&PostParams::default(), &secret).await.context("the Secret")?;
    Ok(())
}

/// How many entries a pod wrote in its term.
async fn count(database: &Database, writer: &Active) -> Result<u32> {
    let Active { pod, token, .. } = writer;
    let count = format!("select count(*) from ledger.entry where pod = '{pod}' and token = {token}");
    Ok(database.sql(LOCK, &count).await?.trim().parse()?)
}

/// Waits until a pod has written so many entries in its term.
async fn written(database: &Database, writer: &Active, wanted: u32) -> Result<()> {
    eventually("entries of the active pod", TOLD, async || {
        let count = count(database, writer).await?;
        ensure!(count >= wanted, "{} has written {count} entries", writer.pod);
        Ok(())
    })
    .await
}

/// The last lines of the writer's log.
async fn log(s: &Scenario, writer: &Active, lines: i64) -> Result<String> {
    let params =
        LogParams { container: Some("writer".to_owned()), tail_lines: Some(lines), ..LogParams::default() };
    Ok(s.pods().logs(&writer.pod, &params).await?.trim_end().to_owned())
}

/// Freezes the pod while it has read its token and not yet begun to write. The kernel tells where the writer is: its
/// log arrives later.
async fn freeze_between_read_and_write(cluster: &Cluster, writer: &Active) -> Result<Moment> {
    eventually("the writer to be frozen at work", TOLD, async || {
        ensure!(at_work(cluster, writer)?, "it is not at work");
        let at = Moment::from(cluster.freeze_pod(&writer.uid).await?);
        if !at_work(cluster, writer)? {
            cluster.thaw_pod(&writer.uid)?;
            bail!("its work ended before the freeze");
        }
        Ok(at)
    })
    .await
}

/// Whether the writer is between the read of its token and its write.
fn at_work(cluster: &Cluster, writer: &Active) -> Result<bool> {
    Ok(cluster.commands(&writer.uid)?.iter().any(|command| command == WORK))
}
