//! One replica of the operator is killed, then both, then they are replaced by an upgrade: no failover, and afterwards
//! failover works, even while the replicas end.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{DELETED, OPERATOR_NAMESPACE, RELEASE, STARTED, Scenario, Stage, Workload, eventually},
};

use crate::ownership::owner;

/// No replica is there to act until the new ones have started and own the group.
const RESTARTED: Duration = Duration::from_secs(30);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "operator-killed", Workload::default(), async |s| {
        let active = s.elect().await?;
        let stage = Rc::clone(&s.stage);
        let cluster = stage.own()?;
        let operator = s.stage.operator.clone();
        let revision = s.revision().await?;
        let client = s.call_from(&active.node).await?;
        client.reaches(&active.pod).await?;

        let replicas = operator.ready(STARTED).await?;
        let (session, name) = owner(s).await?;
        let uid = replicas
            .get(&name)
            .with_context(|| format!("{name} owns the group, and is not one of {replicas:?}"))?;
        cluster.kill_pod(uid)?;
        let adopted = eventually("another session to own the group", STARTED, async || {
            let (other, name) = owner(s).await?;
            ensure!(other != session, "{name} still owns the group");
            Ok(name)
        });
        s.note(format!("{name} was killed, {} owns the group", adopted.await?));
        operator.ready(STARTED).await?;
        s.no_role_changed(revision).await.context("one replica was killed")?;

        let (session, _) = owner(s).await?;
        for uid in operator.ready(STARTED).await?.values() {
            cluster.kill_pod(uid)?;
        }
        eventually("a new session to own the group", STARTED, async || {
            ensure!(owner(s).await?.0 != session, "no new owner yet");
            Ok(())
        })
        .await?;
        operator.ready(STARTED).await?;
        s.no_role_changed(revision).await.context("both replicas were killed")?;

        let before = operator.ready(STARTED).await?;
        let deployment = format!("deployment/{RELEASE}");
        s.stage.run_kubectl(&["rollout", "restart", "-n", OPERATOR_NAMESPACE, &deployment]).await?;
        eventually("all replicas to be replaced", STARTED, async || {
            let now = operator.ready(STARTED).await?;
            ensure!(now.keys().all(|name| !before.contains_key(name)), "{before:?} became {now:?}");
            Ok(())
        })
        .await?;
        s.no_role_changed(revision).await.context("the replicas were replaced")?;

        ensure!(s.settled(STARTED).await? == active, "the active pod changed");
        let calls = s.hang_up(client).await?;
        ensure!(calls.pods() == [active.pod.as_str()], "answered by {:?}", calls.pods());
        s.still_fails_over("the kills").await?;

        // Both replicas are told to end while they carry a change through: whoever finishes it tells of it.
        let before = s.settled(STARTED).await?;
        let at = Moment::now();
        s.pods().delete(&before.pod, &DeleteParams::default()).await?;
        for name in operator.ready(STARTED).await?.keys() {
            operator.pods().delete(name, &DeleteParams::default()).await?;
        }
        let fault = "deleted while the operator ends";
        s.failover_within(fault, &before, at, None, &DELETED, Some(RESTARTED)).await?;
        operator.ready(STARTED).await?;
        s.settled(STARTED).await?;
        Ok(())
    })
    .await
}
