//! The API server is restarted, cleanly and by a kill: no failover happens, and afterwards failover works.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use leadergroup_e2e::{
    client::Calls,
    command::progress,
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::json;

use crate::{foreign_labels::restores_a_label, ownership::owner};

/// Longer than `health.silenceTimeout`.
const AWAY: Duration = Duration::from_secs(8);
/// Kubelets try again with growing pauses. If one comes back so late that Kubernetes takes its node for lost, its pods
/// are out of their Services, and the operator replaces an active one that has not been ready for this long.
const NODE_LOST: Duration = Duration::from_secs(40);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "api-server-restarted", Workload::default(), async |s| {
        let active = s.elect().await?;
        let revision = s.revision().await?;
        let client = s.call_from(&active.node).await?;
        client.reaches(&active.pod).await?;
        let server = s.stage.own()?.api_server();
        server.stop().await?;
        server.start().await?;
        let restarted = s.settled(STARTED).await?;
        ensure!(restarted == active, "the active pod changed: {active:?}, then {restarted:?}");
        server.kill().await?;
        // The silence of the API server must not count as silence of the pod.
        let down = Moment::now();
        let is_long_enough =
            |calls: &Calls| calls.first_and_last().is_some_and(|(_, last)| last >= down.plus(AWAY));
        client.until("calls while the API server is away", STARTED, is_long_enough).await?;
        server.start().await?;
        s.stage.own()?.nodes_ready(STARTED).await?;
        let after = s.settled(STARTED).await?;
        let calls = s.hang_up(client).await?;
        if after == active {
            s.no_role_changed_except_of_lost_nodes(revision).await.context("the API server was restarted")?;
            ensure!(calls.pods() == [active.pod.as_str()], "answered by {:?}", calls.pods());
        } else {
            let unready = s.unready_before_change(&active.pod, revision).await?;
            ensure!(
                unready.is_some_and(|unready| unready >= NODE_LOST),
                "the active pod changed: {active:?}, then {after:?}; it had not been ready for {unready:?}"
            );
            progress(&format!("Kubernetes had reported {} as not ready for {unready:?}", active.pod));
            // The first promotion, and that of the pod that has replaced it.
            s.other_promotions = 2..=2;
        }
        let replaced = after != active;
        let active = after;
        s.stage.operator.ready(STARTED).await?;
        // The first restart took the API server out of its own Service. A kube-proxy that did not see it return before
        // the kill needs some seconds more, in which no replica reaches it and all groups are released.
        owner(s).await?;
        restores_a_label(s, &active).await?;
        // A kubelet whose connection hung may come back only now. Its node was marked as not ready by then, and so were
        // its pods.
        s.stage.own()?.nodes_ready(STARTED).await?;
        s.pods_ready().await?;
        s.settled(STARTED).await?;
        // If Kubernetes was so late that a pod was replaced, its controllers and kube-proxies were late as well.
        let failed_over = if replaced { down } else { Moment::now() };
        let active = s.still_fails_over("the restarts").await?;
        // Kubernetes' controllers may wait for some seconds more before they list again. Only then do the Services
        // follow the label, those of the next scenario included.
        let client = s.call_from(&active.node).await?;
        client.reaches(&active.pod).await?;
        s.rebuilt_service(failed_over);
        s.hang_up(client).await?;
        new_services_get_slices(s).await
    })
    .await
}

/// The watch of Services may return later than that of pods. The next scenario begins with a new Service.
async fn new_services_get_slices(s: &Scenario) -> Result<()> {
    let (kube, namespace) = (s.stage.kube.clone(), s.namespace.as_str());
    let service = serde_json::from_value(json!({
        "metadata": { "name": "later" },
        "spec": { "clusterIP": "None", "selector": { "app": "later" } },
    }))?;
    Api::<Service>::namespaced(kube.clone(), namespace).create(&PostParams::default(), &service).await?;
    let slices: Api<EndpointSlice> = Api::namespaced(kube, namespace);
    let its = ListParams::default().labels("kubernetes.io/service-name=later");
    eventually("the EndpointSlice of a new Service", STARTED, async || {
        ensure!(!slices.list(&its).await?.items.is_empty(), "there is none");
        Ok(())
    })
    .await
}
