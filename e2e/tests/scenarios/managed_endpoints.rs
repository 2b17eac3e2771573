//! The operator writes the Service's endpoints: planned switchovers, a deletion, and the way from a selector to managed
//! endpoints and back, while a client calls. And the admission policy limits who writes which slices.

use std::rc::Rc;

use anyhow::{Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{OPERATOR_NAMESPACE, RELEASE, STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::{Value, json};

use crate::foreign_labels::refused;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "managed-endpoints", Workload { managed: true, ..Workload::default() }, async |s| {
        let mut active = s.elect().await?;
        let node = s.another_node(&active.node)?;
        let client = s.call_from(&node).await?;
        for request in ["one", "two", "three"] {
            client
                .until("answers of the active", STARTED, |calls| calls.answered_by(&active.pod) > 50)
                .await?;
            let at = Moment::now();
            s.request_switchover(&s.workload.name, request, None).await?;
            active = s.failover("requested", &active, at, Some(&client), &["Switchover"]).await?;
            s.settled(STARTED).await?;
        }
        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default()).await?;
        s.failover("deleted", &active, at, Some(&client), &["PodDeleted"]).await?;
        active = s.settled(STARTED).await?;
        s.hang_up(client).await?;

        // Nobody else writes the operator's slices, and it writes no others.
        let slice = format!("{}-leadergroup-ipv4", s.workload.name);
        let (emptied, stolen) = (json!({ "endpoints": [] }).to_string(), by("leadergroup.dev").to_string());
        let (released, taken) =
            (by("example.com").to_string(), "may write only EndpointSlices that carry its label");
        let account = format!("--as=system:serviceaccount:{OPERATOR_NAMESPACE}:{RELEASE}");
        let others = "only the LeaderGroup operator may write this EndpointSlice";
        refused(s, &["patch", "endpointslice", &slice, "--type=merge", "-p", &emptied], others).await?;
        let slices: Api<EndpointSlice> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
        let found = slices.list(&ListParams::default()).await?;
        let foreign =
            found.items.iter().filter_map(|it| it.metadata.name.as_deref()).find(|name| *name != slice);
        let foreign =
            foreign.ok_or_else(|| anyhow::anyhow!("Kubernetes has no slice for the Service's selector"))?;
        let patch = |name, change| ["patch", "endpointslice", name, "--type=merge", "-p", change];
        refused(s, &patch(foreign, &stolen), others).await?;
        for change in
            [&patch(foreign, &stolen)[..], &patch(&slice, &released), &["delete", "endpointslice", foreign]]
        {
            refused(s, &[&[account.as_str()], change].concat(), taken).await?;
        }
        s.stage.run_kubectl(&["--namespace", &s.namespace, "delete", "endpointslice", &slice]).await?;
        eventually("the slice to be written again", STARTED, async || {
            ensure!(slices.get(&slice).await?.endpoints.len() == 1, "it is empty");
            Ok(())
        })
        .await?;

        // The way to a selector and back.
        let client = s.call_from(&node).await?;
        for (endpoints, role) in [("Selector", "active"), ("Managed", "managed")] {
            client.until("answers", STARTED, |calls| calls.answered_by(&active.pod) > 50).await?;
            select(s, role).await?;
            let routing = Patch::Merge(json!({ "spec": { "routing": { "endpoints": endpoints } } }));
            s.groups().patch(&s.workload.name, &PatchParams::default(), &routing).await?;
            eventually("the slice to follow", STARTED, async || {
                let there = slices.get_opt(&slice).await?.is_some();
                ensure!(there == (endpoints == "Managed"), "it is there: {there}");
                Ok(())
            })
            .await?;
            let at = Moment::now();
            s.request_switchover(&s.workload.name, endpoints, None).await?;
            active = s.failover(endpoints, &active, at, Some(&client), &["Switchover"]).await?;
            s.settled(STARTED).await?;
        }
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}

fn by(manager: &str) -> Value {
    json!({ "metadata": { "labels": { "endpointslice.kubernetes.io/managed-by": manager } } })
}

/// Lets the Service select pods of this role.
async fn select(s: &Scenario, role: &str) -> Result<()> {
    let selector = json!({ "spec": { "selector": { "app": s.workload.name, s.workload.role_label: role } } });
    s.services().patch(&s.workload.name, &PatchParams::default(), &Patch::Merge(selector)).await?;
    Ok(())
}
