//! What there is to disturb, and whether all groups are well again.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::ListParams};
use leadergroup_e2e::{
    random_faults::{Replica, Target, Targets},
    scenario::{Active, STARTED, Scenario, eventually, is_ready},
};

use super::REPLICAS;
use crate::ownership::node_of;

/// The bound for all groups together, on a machine of two cores that also starts nodes again.
const SERVED_WITHIN: Duration = Duration::from_mins(1);

/// The active pod of a group, as its status names it.
pub(super) async fn active(s: &Scenario, group: &str) -> Result<Active> {
    let status = s.groups().get(group).await?.status.unwrap_or_default();
    let active = status.active.with_context(|| format!("{group} names no active pod"))?;
    let node = active.node.with_context(|| format!("{group} names no node"))?;
    Ok(Active { pod: active.pod, uid: active.uid, node, token: status.token })
}

/// All pods, and the replicas that work. A pod that does not work yet may be active before a fault of its node is over.
pub(super) async fn targets(s: &Scenario) -> Result<Targets> {
    let works = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.metadata.deletion_timestamp.is_none() && phase == Some("Running") && is_ready(pod)
    };
    let id = |pod: &Pod| Some((pod.metadata.uid.clone()?, pod.metadata.name.clone()?));
    let role = s.workload.role_label;
    let active = |pod: &Pod| {
        pod.metadata.labels.as_ref().and_then(|all| all.get(role)).is_some_and(|role| role == "active")
    };
    let replica = |pod: &Pod| {
        let (uid, name) = id(pod)?;
        Some(Replica { uid, name, node: node_of(pod)? })
    };
    let pods = s.pods().list(&ListParams::default()).await?.items;
    let pods = pods.iter().filter_map(|pod| {
        let (uid, name) = id(pod)?;
        let group = pod.metadata.labels.as_ref()?.get("app")?.clone();
        Some(Target { uid, name, node: node_of(pod)?, group, active: active(pod), works: works(&pod) })
    });
    Ok(Targets {
        nodes: s.stage.own()?.nodes().iter().map(|node| node.name.clone()).collect(),
        pods: pods.collect(),
        replicas: s.stage.operator.replicas().await?.iter().filter(works).filter_map(replica).collect(),
    })
}

/// The first program of a group with agents waits until one of an earlier group of its name is certainly over.
const FIRST_SERVED_WITHIN: Duration = Duration::from_mins(2);

/// Waits until every group has its first active pod.
pub(super) async fn first_served(s: &Scenario, groups: u64) -> Result<()> {
    served_within(s, groups, FIRST_SERVED_WITHIN).await.context("before any fault")
}

/// Waits until every group is Ready with one active pod, which its status names.
pub(super) async fn served(s: &Scenario, groups: u64) -> Result<()> {
    served_within(s, groups, SERVED_WITHIN).await
}

async fn served_within(s: &Scenario, groups: u64, within: Duration) -> Result<()> {
    eventually("every group to be served", within, async || {
        let mut actives: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let labelled = ListParams::default().labels(&format!("{}=active", s.workload.role_label));
        for pod in s.pods().list(&labelled).await?.items {
            let app = pod.metadata.labels.and_then(|mut all| all.remove("app")).unwrap_or_default();
            actives.entry(app).or_default().extend(pod.metadata.uid);
        }
        let all = s.groups().list(&ListParams::default()).await?.items;
        ensure!(all.len() == usize::try_from(groups)?, "there are {} groups", all.len());
        for group in all {
            let name = group.metadata.name.unwrap_or_default();
            let status = group.status.unwrap_or_default();
            let ready =
                status.conditions.iter().find(|one| one.type_ == "Ready").context("no condition Ready")?;
            ensure!(ready.status == "True", "{name} is not Ready ({}): {}", ready.reason, ready.message);
            let named: Vec<String> = status.active.into_iter().map(|active| active.uid).collect();
            ensure!(
                actives.get(&name) == Some(&named),
                "{name} names {named:?}; labelled: {:?}",
                actives.get(&name)
            );
        }
        Ok(())
    })
    .await
}

/// Waits until every group has all its pods, all of them are Ready, and Kubernetes is about to evict none: a node that
/// was away keeps its taint for a moment.
pub(super) async fn whole(s: &Scenario, groups: u64) -> Result<()> {
    let wanted = usize::try_from(groups)? * usize::try_from(REPLICAS)?;
    eventually("all pods of all groups to be Ready", STARTED, async || {
        for node in Api::<Node>::all(s.stage.kube.clone()).list(&ListParams::default()).await? {
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            let evicts = taints.iter().any(|taint| taint.effect == "NoExecute");
            ensure!(!evicts, "{:?} has the taints {taints:?}", node.metadata.name);
        }
        let mut pods = s.pods().list(&ListParams::default()).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        let unready: Vec<_> =
            pods.iter().filter(|pod| !is_ready(pod)).map(|pod| &pod.metadata.name).collect();
        ensure!(
            unready.is_empty() && pods.len() == wanted,
            "{} of {wanted} pods, not Ready: {unready:?}",
            pods.len()
        );
        Ok(())
    })
    .await
}
