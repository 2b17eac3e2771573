//! The user's namespace, the CRD and the chart are deleted in different orders, with or without operator and
//! PostgreSQL: nothing gets stuck. Then an operator starts before the CRD exists. This must be the last scenario,
//! because it leaves no operator.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use leadergroup_e2e::scenario::{
    OPERATOR_NAMESPACE, RELEASE, STARTED, Scenario, Stage, Workload, eventually,
};
use serde_json::json;

const CRD: &str = "leadergroups.leadergroup.dev";
const GONE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Namespace,
    Crd,
    Chart,
}

/// The parts that are running during the deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum With {
    Everything,
    NoDatabase,
    NoOperator,
}

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    use Part::{Chart, Crd, Namespace};
    for (number, (with, order)) in [
        (With::Everything, [Namespace, Crd, Chart]),
        (With::NoDatabase, [Crd, Namespace, Chart]),
        (With::NoOperator, [Namespace, Crd, Chart]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("removal-{number}");
        remove(stage, &name, with, order).await?;
    }
    operator_before_crd(stage).await.context("an operator without the CRD")
}

/// Sets everything up, and deletes it in this order.
pub(crate) async fn remove(stage: &Rc<Stage>, name: &str, with: With, order: [Part; 3]) -> Result<()> {
    try_to_remove(stage, name, with, order).await.with_context(|| format!("{order:?} with {with:?}"))
}

async fn try_to_remove(stage: &Rc<Stage>, name: &str, with: With, order: [Part; 3]) -> Result<()> {
    let values = stage.values.as_ref().context("the operator was installed by others")?;
    stage.operator.install(values).await?;
    let workload = Workload { replicas: 2, ..Workload::default() };
    let s = Scenario::existing(stage, name, &format!("e2e-{name}"), workload);
    stage.create_namespace(&s.namespace).await?;
    s.deployments().create(&PostParams::default(), &s.workload.deployment()?).await?;
    s.elect().await?;
    let database = stage.own()?.database();
    match with {
        With::Everything => {}
        With::NoDatabase => database.stop().await?,
        With::NoOperator => {
            let deployment = format!("deployment/{RELEASE}");
            stage.run_kubectl(&["scale", "-n", OPERATOR_NAMESPACE, &deployment, "--replicas=0"]).await?;
            eventually("the operator's pods to be gone", GONE, async || {
                ensure!(stage.operator.replicas().await?.is_empty(), "some are there");
                Ok(())
            })
            .await?;
        }
    }
    let removed = async {
        for part in order {
            delete(&s, part).await.with_context(|| format!("deleting the {part:?}"))?;
            // Without an operator, the groups are deleted with the chart, and their namespace or CRD after them.
            if with != With::NoOperator {
                gone(&s, part).await?;
            }
        }
        for part in order {
            gone(&s, part).await?;
        }
        Ok(())
    };
    let removed = removed.await;
    if with == With::NoDatabase {
        database.start().await?;
    }
    removed
}

async fn delete(s: &Scenario, part: Part) -> Result<()> {
    match part {
        Part::Chart => s.stage.operator.uninstall().await?,
        Part::Namespace => {
            let namespaces: Api<Namespace> = Api::all(s.stage.kube.clone());
            namespaces.delete(&s.namespace, &DeleteParams::default()).await?;
        }
        Part::Crd => {
            let crds: Api<CustomResourceDefinition> = Api::all(s.stage.kube.clone());
            crds.delete(CRD, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

async fn gone(s: &Scenario, part: Part) -> Result<()> {
    let kube = s.stage.kube.clone();
    eventually(&format!("the {part:?} to be gone"), GONE, async || {
        let left = match part {
            // Helm has already waited for it.
            Part::Chart => None,
            Part::Namespace => {
                let left = Api::<Namespace>::all(kube.clone()).get_opt(&s.namespace).await?;
                left.map(|namespace| format!("{:?}", namespace.status))
            }
            Part::Crd => {
                let left = Api::<CustomResourceDefinition>::all(kube.clone()).get_opt(CRD).await?;
                left.map(|crd| format!("{:?}", crd.status))
            }
        };
        ensure!(left.is_none(), "it is still there: {left:?}");
        Ok(())
    })
    .await
}

/// The operator starts on a cluster without the CRD, reports this, does not crash, and works as soon as the CRD
/// exists.
async fn operator_before_crd(stage: &Rc<Stage>) -> Result<()> {
    let mut values = stage.values.clone().context("the operator was installed by others")?;
    values["crds"] = json!({ "install": false });
    stage.operator.apply(&values, false).await?;
    eventually("the operator to say that the CRD is missing", STARTED, async || {
        let log = stage.operator.logs(200).await?;
        ensure!(log.contains(CRD) && log.contains("CRD"), "it logs: {log}");
        Ok(())
    })
    .await?;
    let crd = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/leadergroups.yaml");
    stage.run_kubectl(&["apply", "--server-side", "-f", crd]).await?;
    let story = async |s: &mut Scenario| {
        s.elect().await?;
        let restarts = s.stage.operator.restarts().await?;
        ensure!(restarts == 0, "the operator crashed {restarts} times");
        Ok(())
    };
    Scenario::play(stage, "operator-before-crd", Workload { replicas: 2, ..Workload::default() }, story)
        .await?;
    stage.operator.uninstall().await
}
