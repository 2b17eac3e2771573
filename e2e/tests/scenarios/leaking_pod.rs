//! The active pod leaks memory until the kernel kills it at its limit; then the next one does, and so on.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ContainerStatus;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{CRASHED, STARTED, Scenario, Stage, Workload, eventually},
};

async fn container(s: &Scenario, pod: &str) -> Result<ContainerStatus> {
    let status = s.pods().get(pod).await?.status.context("no status")?;
    status.container_statuses.unwrap_or_default().pop().context("no container")
}

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "leaking-pod", Workload::default(), async |s| {
        let mut active = s.elect().await?;
        let node = s.another_node(&active.node)?;
        let client = s.call_from(&node).await?;
        for round in 1..=3 {
            client.reaches(&active.pod).await?;
            // A pod that becomes active again was already killed before.
            let leaking = container(s, &active.pod).await?.container_id;
            // On a busy machine it may hang at its limit for longer than `health.silenceTimeout` before the kernel
            // kills it.
            let evidence = [&CRASHED[..], &["Silent"]].concat();
            s.fails_for([active.uid.clone()], &evidence);
            s.order(&active.pod, "leak").await?;
            let killed = eventually("the kernel to kill the leaking pod", STARTED, async || {
                let container = container(s, &active.pod).await?;
                let states = [container.state, container.last_state].into_iter().flatten();
                let mut ends = states.filter_map(|state| state.terminated);
                ends.find(|end| end.container_id == leaking).context("it lives")
            })
            .await?;
            ensure!(killed.exit_code == 137, "it ended with {} ({:?})", killed.exit_code, killed.reason);
            let ended = killed.finished_at.context("no time of its end")?.0;
            let ago = std::time::Duration::try_from(jiff::Timestamp::now().duration_since(ended))
                .unwrap_or_default();
            let at = Moment::from(
                std::time::Instant::now().checked_sub(ago).context("before the machine's start")?,
            );
            s.failover(&format!("leak {round}"), &active, at, Some(&client), &evidence).await?;
            active = s.settled(STARTED).await?;
        }
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
