//! The operator writes the Service's endpoints: planned switchovers, a deletion, and the way from a selector to managed
//! endpoints and back, while a client calls. And the admission policy limits who writes which slices.

use std::{io::Write as _, rc::Rc};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{core::v1::Endpoints, discovery::v1::EndpointSlice};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{DELETED, OPERATOR_NAMESPACE, RELEASE, STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::{Value, json};

use crate::foreign_labels::refused;

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "managed-endpoints", Workload { managed: true, ..Workload::default() }, async |s| {
        let mut active = s.elect().await?;
        let node = s.another_node(&active.node)?;
        let client = s.call_from(&node).await?;
        for request in ["one", "two", "three"] {
            client.reaches(&active.pod).await?;
            let at = Moment::now();
            s.request_switchover(&s.workload.name, request, None).await?;
            active = s.failover("requested", &active, at, Some(&client), &["Switchover"]).await?;
            s.settled(STARTED).await?;
        }
        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default()).await?;
        s.failover("deleted", &active, at, Some(&client), &DELETED).await?;
        active = s.settled(STARTED).await?;
        s.hang_up(client).await?;

        // Nobody else writes the operator's slices, and it writes no others.
        let slice = format!("{}-leadergroup-ipv4", s.workload.name);
        let slices: Api<EndpointSlice> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
        let found = slices.list(&ListParams::default()).await?.items;
        let foreign = found.iter().filter_map(|it| it.metadata.name.as_deref()).find(|name| *name != slice);
        let foreign = foreign.context("Kubernetes has no slice for the Service's selector")?;
        let (emptied, stolen) = (json!({ "endpoints": [] }).to_string(), by("leadergroup.dev").to_string());
        let patch = |name, change| ["patch", "endpointslice", name, "--type=merge", "-p", change];
        for change in [patch(&slice, &emptied), patch(foreign, &stolen)] {
            refused(s, &change, "only the LeaderGroup operator may write this EndpointSlice").await?;
        }
        let account = format!("--as=system:serviceaccount:{OPERATOR_NAMESPACE}:{RELEASE}");
        let limit = "may write only EndpointSlices that carry its label";
        for (name, manager) in [(&*slice, "example.com"), (foreign, "leadergroup.dev")] {
            let mut changed = slices.get(name).await?;
            changed.labels_mut().insert(MANAGED_BY.to_owned(), manager.to_owned());
            let mut file = tempfile::NamedTempFile::new()?;
            file.write_all(&serde_json::to_vec(&changed)?)?;
            let target =
                format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/{name}", s.namespace);
            let file = file.path().to_str().context("the file's path is no text")?;
            refused(s, &[&account, "replace", "--raw", &target, "-f", file], limit).await?;
        }
        refused(s, &[&account, "delete", "endpointslice", foreign], limit).await?;
        // The garbage collector may change its owners, and delete it.
        let orphaned = json!({ "metadata": { "ownerReferences": [] } }).to_string();
        let kubectl = |args: &[&str]| {
            let args: Vec<String> =
                ["--namespace", &s.namespace].iter().chain(args).map(|&arg| arg.to_owned()).collect();
            let stage = s.stage.clone();
            async move { stage.run_kubectl(&args.iter().map(String::as_str).collect::<Vec<_>>()).await }
        };
        kubectl(&patch(&slice, &orphaned)).await?;
        kubectl(&["delete", "endpointslice", &slice]).await?;
        eventually("the slice to be written again", STARTED, async || {
            ensure!(slices.get(&slice).await?.endpoints.len() == 1, "it is empty");
            Ok(())
        })
        .await?;

        // The way to a selector and back.
        let client = s.call_from(&node).await?;
        for (endpoints, role) in [("Selector", "active"), ("Managed", "managed")] {
            client.until("answers", STARTED, |calls| calls.answered_by(&active.pod) > 50).await?;
            let edited = Moment::now();
            select(s, role).await?;
            let routing = Patch::Merge(json!({ "spec": { "routing": { "endpoints": endpoints } } }));
            s.groups().patch(&s.workload.name, &PatchParams::default(), &routing).await?;
            eventually("the slice to follow", STARTED, async || {
                let there = slices.get_opt(&slice).await?.is_some();
                ensure!(there == (endpoints == "Managed"), "it is there: {there}");
                Ok(())
            })
            .await?;
            // Between the two edits, the Service selects nothing and its group does not write for it.
            s.rebuilt_service(edited);
            let at = Moment::now();
            s.request_switchover(&s.workload.name, endpoints, None).await?;
            active = s.failover(endpoints, &active, at, Some(&client), &["Switchover"]).await?;
            s.settled(STARTED).await?;
        }
        lose_selector(s, &slices, &slice).await?;
        let back = Moment::now();
        client.until("answers", STARTED, |calls| calls.from(back).answered_by(&active.pod) > 50).await?;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}

/// The Service selects active pods, and then none: Kubernetes leaves its slice, and copies the Endpoints that it has
/// left. The condition names both; without them the operator writes its own slice again.
async fn lose_selector(s: &mut Scenario, slices: &Api<EndpointSlice>, own: &str) -> Result<()> {
    let edited = Moment::now();
    select(s, "active").await?;
    eventually("the operator's slice to go, and one of Kubernetes to come", STARTED, async || {
        ensure!(slices.get_opt(own).await?.is_none(), "it is there");
        ensure!(!left(slices).await?.is_empty(), "Kubernetes has not written its own yet");
        Ok(())
    })
    .await?;
    let endpoints: Api<Endpoints> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
    eventually("Endpoints", STARTED, async || {
        let found = endpoints.get(&s.workload.name).await?;
        ensure!(found.subsets.is_some_and(|subsets| !subsets.is_empty()), "they list nothing");
        Ok(())
    })
    .await?;
    let none = Patch::Merge(json!({ "spec": { "selector": null } }));
    s.services().patch(&s.workload.name, &PatchParams::default(), &none).await?;
    let left = left(slices).await?;
    eventually("the condition to name what is left", STARTED, async || {
        let (status, reason, message) = s.condition(&s.workload.name, "Routed").await?;
        ensure!((&*status, &*reason) == ("False", "ServiceUnusable"), "{status} {reason}: {message}");
        let remedies = [
            format!("delete Endpoints {}", s.workload.name),
            format!("delete EndpointSlice {}", left.join(", ")),
        ];
        for remedy in remedies {
            ensure!(message.contains(&remedy), "no {remedy:?} in {message:?}");
        }
        Ok(())
    })
    .await?;
    endpoints.delete(&s.workload.name, &DeleteParams::default()).await?;
    for name in &left {
        slices.delete(name, &DeleteParams::default()).await?;
    }
    s.settled(STARTED).await?;
    let listed = slices.get(own).await?.endpoints.len();
    ensure!(listed == 1, "the operator's slice lists {listed} pods");
    // The Service has no endpoint between the deletion of the slices and the operator's own.
    s.rebuilt_service(edited);
    Ok(())
}

/// The slices that Kubernetes wrote for a selector, and that list endpoints.
async fn left(slices: &Api<EndpointSlice>) -> Result<Vec<String>> {
    let of_selector = ListParams::default().labels(&format!("{MANAGED_BY}=endpointslice-controller.k8s.io"));
    let found = slices.list(&of_selector).await?.items.into_iter();
    Ok(found.filter(|slice| !slice.endpoints.is_empty()).map(|slice| slice.name_any()).collect())
}

fn by(manager: &str) -> Value {
    json!({ "metadata": { "labels": { MANAGED_BY: manager } } })
}

/// Lets the Service select pods of this role.
async fn select(s: &Scenario, role: &str) -> Result<()> {
    let selector = json!({ "spec": { "selector": { "app": s.workload.name, s.workload.role_label: role } } });
    s.services().patch(&s.workload.name, &PatchParams::default(), &Patch::Merge(selector)).await?;
    Ok(())
}
