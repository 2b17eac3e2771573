//! `election.onDemote: Delete`: once the next pod is active, the former one is deleted. So its open connections end,
//! also if its node was lost and comes back.

use std::{net::Ipv4Addr, rc::Rc};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{Active, STARTED, Scenario, Stage, TOLD, Workload, eventually},
};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let workload = Workload { deletes_demoted: true, ..Workload::default() };
    Scenario::play(stage, "demoted-deleted", workload, async |s| {
        let first = s.elect().await?;
        let pods = s.pods_ready().await?;
        let mut standbys = pods.iter().filter(|pod| pod.metadata.uid.as_deref() != Some(&first.uid));
        let (caller, next) = (standbys.next().context("a caller")?, standbys.next().context("a next pod")?);
        let next = next.metadata.name.clone().context("a name")?;
        let address = s.service_address().await?;
        // Ends with the connection.
        let script =
            format!("mkfifo /tmp/o; sleep 600 >/tmp/o 2>&1 & nc {address} 80 </tmp/o; kill $!; echo ended");
        let name = caller.metadata.name.as_deref().context("a name")?;
        let call = ["exec", "-n", &s.namespace, name, "--", "/bin/sh", "-c", &script];
        let (connected, change) = tokio::join!(s.stage.run_kubectl(&call), async {
            is_connected(s, &first, caller).await?;
            let at = Moment::now();
            s.request_switchover(&s.workload.name, "one", Some(&next)).await?;
            anyhow::Ok(at)
        });
        ensure!(connected?.contains("ended"), "the connection is still open");
        let second = s.failover("requested", &first, change?, None, &["Switchover"]).await?;
        is_gone(s, &first).await?;
        ensure!(s.settled(STARTED).await? == second, "another pod followed");

        let at = Moment::from(s.stage.own()?.power_off(&second.node).await?);
        let third = s.failover("power-off", &second, at, None, &["Silent"]).await?;
        eventually("the deletion of a pod on a lost node", TOLD, async || {
            let pod = s
                .pods()
                .get_opt(&second.pod)
                .await?
                .filter(|pod| pod.metadata.uid == Some(second.uid.clone()));
            let is_deleting = pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
            ensure!(is_deleting, "{} is not being deleted", second.pod);
            Ok(())
        })
        .await?;
        s.stage.own()?.power_on(&second.node).await?;
        is_gone(s, &second).await?;
        ensure!(s.settled(STARTED).await? == third, "another pod followed");
        s.stage.own()?.heal(STARTED).await?;
        s.stage.operator.ready(STARTED).await?;
        Ok(())
    })
    .await
}

/// Waits until the caller has a connection to the active pod through the Service.
async fn is_connected(s: &Scenario, active: &Active, caller: &Pod) -> Result<()> {
    let ip = caller.status.as_ref().and_then(|status| status.pod_ip.clone()).context("no address")?;
    // As the kernel writes it: in the order of the machine's bytes.
    let remote = format!("{:08X}:", u32::from_le_bytes(ip.parse::<Ipv4Addr>()?.octets()));
    let args = ["exec", "-n", &s.namespace, &active.pod, "--", "cat", "/proc/net/tcp", "/proc/net/tcp6"];
    eventually("the connection", TOLD, async || {
        let sockets = s.stage.run_kubectl(&args).await?;
        let is_open = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(2).is_some_and(|peer| peer.contains(&remote)) && fields.get(3) == Some(&"01")
        };
        ensure!(sockets.lines().any(is_open), "{ip} has no connection to {}", active.pod);
        Ok(())
    })
    .await
}

/// Waits until this pod is gone, not only another one of its name.
async fn is_gone(s: &Scenario, former: &Active) -> Result<()> {
    eventually("the end of the pod that was active", STARTED, async || {
        let left = s.members().await?.into_iter().any(|pod| pod.metadata.uid.as_deref() == Some(&former.uid));
        ensure!(!left, "{} is still there", former.pod);
        Ok(())
    })
    .await
}
