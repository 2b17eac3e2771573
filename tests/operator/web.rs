//! A group of three pods, and what was seen of it at each version.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use leadergroup::api::{ROLE_LABEL, STAMP_ANNOTATION, Stamp};
use serde_json::{Value, json};

use crate::{
    apiserver::webhook::Webhook,
    kubelet::report,
    objects::{condition_in, group, groups},
    postgres::eventually,
    versions::Versions,
};

/// The pods of a group, in the order in which the election prefers them.
pub(crate) const OLD: usize = 0;
pub(crate) const NEXT: usize = 1;
pub(crate) const OTHER: usize = 2;

/// A change of a pod's role that a webhook was asked about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) is_dry: bool,
    pub(crate) pod: usize,
    pub(crate) role: String,
}

/// A group whose pods have no probe, and what was seen of it.
pub(crate) struct Web {
    pub(crate) name: String,
    pub(crate) groups: Api<DynamicObject>,
    pods: Api<Pod>,
    /// The number and the role of a pod, and the token of its stamp.
    roles: Versions<(usize, String, Option<i64>)>,
    status: Versions<Value>,
}

impl Web {
    /// Webhooks are asked about some of its pods.
    pub(crate) async fn create(
        client: &Client,
        namespace: &str,
        name: &str,
        node: &str,
        asked: &[usize],
    ) -> Self {
        let (groups, pods) =
            (groups(client.clone(), namespace), Api::<Pod>::namespaced(client.clone(), namespace));
        let of_group = watcher::Config::default().labels(&format!("app={name}"));
        let roles = Versions::watch(pods.clone(), of_group, |pod: Pod| {
            let role = pod.labels().get(ROLE_LABEL).cloned().unwrap_or_default();
            let stamp = pod.annotations().get(STAMP_ANNOTATION);
            let token = stamp.map(|stamp| stamp.parse::<Stamp>().unwrap().token);
            (pod.labels()["number"].parse().unwrap(), role, token)
        });
        let this_group = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let status = Versions::watch(groups.clone(), this_group, |group| group.data["status"].clone());
        let this = Self { name: name.to_owned(), groups, pods, roles, status };
        for number in [OLD, NEXT, OTHER] {
            let is_asked = if asked.contains(&number) { "yes" } else { "no" };
            let labels = json!({ "app": name, "number": number.to_string(), "asked": is_asked });
            let spec = json!({ "nodeName": node, "containers": [{ "name": "main", "image": "none" }] });
            let pod = json!({ "metadata": { "name": this.pod(number), "labels": labels }, "spec": spec });
            let pod = serde_json::from_value(pod).unwrap();
            this.pods.create(&PostParams::default(), &pod).await.unwrap();
            report(&this.pods, &this.pod(number), "True").await;
        }
        let prefer = |number: usize, weight: u32| json!({ "weight": weight, "podLabels": { "number": number.to_string() } });
        let spec = json!({
            "selector": { "matchLabels": { "app": name } },
            "election": { "priorities": [prefer(OLD, 20), prefer(NEXT, 10)] },
        });
        this.groups.create(&PostParams::default(), &group(name, &spec)).await.unwrap();
        this
    }

    pub(crate) fn pod(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// The standbys are stamped in the background. A pod whose stamp is refused later would not be the next one.
    pub(crate) async fn at_rest(&self) {
        eventually(&format!("{} to be at rest", self.name), async || {
            let token = self.status()["token"].as_i64();
            let is = |number: usize, role: &str| {
                self.roles.last(|(pod, ..)| *pod == number) == Some((number, role.to_owned(), token))
            };
            is(OLD, "active") && is(NEXT, "standby") && is(OTHER, "standby") && self.told("Ready").0 == "True"
        })
        .await;
    }

    /// Status, reason and message of a condition.
    pub(crate) fn told(&self, kind: &str) -> (String, String, String) {
        condition_in(&self.status(), kind)
    }

    pub(crate) fn status(&self) -> Value {
        self.status.last(|_| true).unwrap_or_default()
    }

    /// The pods that were active together, one entry for each time that changed.
    pub(crate) fn actives(&self) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        for (number, role, _) in self.roles.all() {
            let mut now = all.last().unwrap().clone();
            now.retain(|other| *other != number);
            now.extend((role == "active").then_some(number));
            if *all.last().unwrap() != now {
                all.push(now);
            }
        }
        all
    }

    /// Waits until these pods were active, one after the other.
    pub(crate) async fn were_active(&self, what: &str, pods: &[usize]) {
        let mut wanted = vec![vec![]];
        for (at, pod) in pods.iter().enumerate() {
            // The former one loses the label first.
            wanted.extend((at > 0).then(Vec::new));
            wanted.push(vec![*pod]);
        }
        eventually(&format!("{what}: the active pods to be {wanted:?}"), async || {
            let actives = self.actives();
            assert!(wanted.starts_with(&actives), "{what}: {actives:?} instead of {wanted:?}");
            actives == wanted
        })
        .await;
    }

    /// The kubelet reports that the active pod is not ready.
    pub(crate) async fn fails(&self) {
        report(&self.pods, &self.pod(OLD), "False").await;
    }

    /// Requests a switchover to a pod, or to any.
    pub(crate) async fn request(&self, to: Option<usize>) {
        let to = to.map(|number| self.pod(number));
        let request = json!({ "leadergroup.dev/switchover": "one", "leadergroup.dev/switchover-to": to });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": request } }));
        self.groups.patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The changes of roles that a webhook was asked about, in their order.
    pub(crate) fn asked(&self, webhook: &Webhook) -> Vec<Asked> {
        let mut all = Vec::new();
        for call in webhook.calls() {
            let [before, role] =
                call.labels.map(|labels| labels.get(ROLE_LABEL).cloned().unwrap_or_default());
            let pod = [OLD, NEXT, OTHER].into_iter().find(|pod| self.pod(*pod) == call.pod);
            all.extend(pod.filter(|_| before != role).map(|pod| Asked { is_dry: call.dry_run, pod, role }));
        }
        all
    }
}
