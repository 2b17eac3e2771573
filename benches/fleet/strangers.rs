//! Groups of another tenant, whose pods hang.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use leadergroup::api::{ACTIVE_VALUE, LeaderGroup, ROLE_LABEL};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    bench::Bench,
    network::address,
    workload::{GROUP_LABEL, NODES, NewPod, PODS},
};

const NAMESPACE: &str = "strangers";
/// No pod of the fleet has such a number.
const FIRST: usize = 60_000;
/// The settings of their groups, one after the other: the longest silenceTimeout with the most probes, with some, and
/// with the longest timeout.
const SETTINGS: [(&str, &str, &str); 3] = [("1h", "100ms", "400ms"), ("1h", "1s", "4s"), ("1h", "15m", "1h")];

/// The groups of another tenant.
pub(crate) struct Strangers {
    groups: Api<LeaderGroup>,
    pods: Api<Pod>,
    number: usize,
}

impl Strangers {
    /// Creates so many pods and their groups, and waits until each group has an active pod.
    pub(crate) async fn start(bench: &Bench, number: usize) -> Result<Self> {
        let client = &bench.client;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        let strangers = Self {
            groups: Api::namespaced(client.clone(), NAMESPACE),
            pods: Api::namespaced(client.clone(), NAMESPACE),
            number,
        };
        let create = async |pod: usize| {
            let group = format!("stranger-{}", pod / PODS);
            let name = format!("stranger-{pod}");
            let pod = NewPod { name, group, node: pod % NODES, address: address(FIRST + pod), probed: true };
            pod.create(&strangers.pods).await
        };
        stream::iter((0..number).map(create)).buffer_unordered(16).try_collect::<Vec<()>>().await?;
        for group in 0..number / PODS {
            let name = format!("stranger-{group}");
            let (silence_timeout, interval, timeout) = SETTINGS[group % SETTINGS.len()];
            let object = serde_json::from_value(json!({
                "apiVersion": "leadergroup.dev/v1alpha1",
                "kind": "LeaderGroup",
                "metadata": { "name": name },
                "spec": {
                    "selector": { "matchLabels": { GROUP_LABEL: name } },
                    "health": { "silenceTimeout": silence_timeout, "interval": interval, "timeout": timeout },
                },
            }))?;
            strangers.groups.create(&PostParams::default(), &object).await?;
        }
        let begin = Instant::now();
        let active = ListParams::default().labels(&format!("{ROLE_LABEL}={ACTIVE_VALUE}"));
        while strangers.pods.list_metadata(&active).await?.items.len() < number / PODS {
            ensure!(begin.elapsed() < bench.plan.limit(), "not all of the other groups have an active pod");
            sleep(Duration::from_millis(200)).await;
        }
        Ok(strangers)
    }

    /// The addresses of all their pods.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.number).map(|pod| address(FIRST + pod))
    }

    /// Removes the groups, then the pods.
    pub(crate) async fn remove(self, bench: &Bench) -> Result<()> {
        let (now, all) = (DeleteParams::default().grace_period(0), ListParams::default());
        self.groups.delete_collection(&DeleteParams::default(), &all).await?;
        let begin = Instant::now();
        while !self.groups.list_metadata(&all).await?.items.is_empty() {
            ensure!(begin.elapsed() < bench.plan.limit(), "the other groups are not gone");
            sleep(Duration::from_millis(200)).await;
        }
        self.pods.delete_collection(&now, &all).await?;
        Ok(())
    }
}
