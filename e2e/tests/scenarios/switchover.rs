//! Requested switchovers while a client calls: to any pod, and to a chosen one.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup::api::SwitchoverResult;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload, eventually},
};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "switchover", Workload::default(), async |s| {
        let first = s.elect().await?;
        let mut active = first.clone();
        let node = s.another_node(&active.node)?;
        let client = s.call_from(&node).await?;
        for (request, to) in [("one", None), ("two", Some(first.pod.as_str())), ("three", None)] {
            client.reaches(&active.pod).await?;
            let at = Moment::now();
            s.request_switchover(&s.workload.name, request, to).await?;
            let after = s.failover("requested", &active, at, Some(&client), &["Switchover"]).await?;
            ensure!(to.is_none_or(|to| to == after.pod), "{} is active, not {to:?}", after.pod);
            eventually("the result", STARTED, async || {
                let last = s.group().await?.status.unwrap_or_default().switchover;
                ensure!(
                    last.as_ref().is_some_and(|last| {
                        last.request == request && last.result == SwitchoverResult::Done
                    }),
                    "the status says {last:?}"
                );
                Ok(())
            })
            .await?;
            active = s.settled(STARTED).await?;
            ensure!(active == after, "{} followed", active.pod);
        }
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
