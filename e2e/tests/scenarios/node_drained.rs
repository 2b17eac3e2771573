//! The active pod's node is drained while a client calls: the pod hands over before it is evicted.

use std::{rc::Rc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, api::PostParams};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{Active, STARTED, Scenario, Stage, Workload, eventually},
};

/// `kubectl drain` starts, and reads the node, before it cordons it, which is the evidence.
const DRAINED: Duration = Duration::from_secs(6);

/// The budget that the documentation recommends, for the example's pods.
const EXAMPLE: &str = include_str!("../../../examples/more/drain.yaml");

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "node-drained", Workload::default(), async |s| {
        let before = s.elect().await?;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
        let budget: PodDisruptionBudget =
            serde_saphyr::from_str(&EXAMPLE.replace("hello", &s.workload.name)).context(EXAMPLE)?;
        let budget = budgets.create(&PostParams::default(), &budget).await?;
        let name = budget.metadata.name.context("a budget without a name")?;
        eventually("the budget to count the active pod", STARTED, async || {
            let status = budgets.get(&name).await?.status.unwrap_or_default();
            ensure!((status.expected_pods, status.disruptions_allowed) == (1, 0), "{status:?}");
            Ok(())
        })
        .await?;
        let drained = drain(s, &before).await;
        // Other scenarios need the node, whatever happened.
        s.cordon(&before.node, false).await?;
        let after = drained?;
        let settled = s.settled(STARTED).await?;
        ensure!(settled == after, "{} followed {}", settled.pod, after.pod);
        Ok(())
    })
    .await
}

/// Drains the node of the active pod, and returns the next active pod once the former one is evicted.
async fn drain(s: &mut Scenario, before: &Active) -> Result<Active> {
    let client = s.call_from(&s.another_node(&before.node)?).await?;
    client.reaches(&before.pod).await?;
    let stage = s.stage.clone();
    let selector = format!("--pod-selector=app={}", s.workload.name);
    let at = Moment::now();
    let drain = async {
        stage.run_kubectl(&["drain", &before.node, &selector, "--ignore-daemonsets", "--timeout=60s"]).await
    };
    let handed_over = s.failover_within("drain", before, at, Some(&client), &["NodeCordoned"], Some(DRAINED));
    let (drained, after) = tokio::join!(drain, handed_over);
    let (drained, after) = (drained?, after?);
    ensure!(drained.contains("evicted"), "{drained}");
    ensure!(after.node != before.node, "{} is on the same node", after.pod);
    ensure!(s.pods().get_opt(&before.pod).await?.is_none(), "{} is still there", before.pod);
    s.hang_up(client).await?;
    Ok(after)
}
