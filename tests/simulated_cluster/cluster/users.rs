//! What users and faults do to the cluster: each method returns whether that has changed something.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Cluster, EVICTED, NAMESPACE, START, Step, workloads::deletion};
use crate::{
    agents::Still,
    api_server::{DeleteOptions, Kind},
    hooks::Told,
    network::Program,
};

/// Text that Go's encoder escapes, and that the API server therefore stores in another form than most clients send.
const ESCAPED: &str = "<&>\u{2028}\u{2029}";

impl Cluster {
    /// The names of the pods that run.
    pub fn pods(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    pub fn groups(&self) -> Vec<String> {
        self.groups.keys().cloned().collect()
    }

    pub fn nodes(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    /// What is wrong with what the pods were told by their hooks: those of the second list if nothing is left to do.
    pub fn hooks(&self, active: &[String]) -> (Vec<String>, Vec<String>) {
        let (mut wrong, mut left) = (Vec::new(), Vec::new());
        let Some(group) = &self.hooked else { return (wrong, left) };
        for (name, pod) in self.pods.iter().filter(|(name, _)| is_of(name, group)) {
            let told =
                self.network.told(pod.address, |told| (told.is_active(), told.contradictions().to_vec()));
            let Some((is_active, contradictions)) = told else { continue };
            if !contradictions.is_empty() {
                wrong.push(format!("{name} was told both roles under the tokens {contradictions:?}"));
            }
            if is_active != active.contains(name) {
                left.push(format!("{name} acts as active: {is_active}; {active:?} are active"));
            }
        }
        (wrong, left)
    }

    /// How many requests to hooks the present pods have got.
    pub fn hook_requests(&self) -> u32 {
        self.pods.values().filter_map(|pod| self.network.told(pod.address, Told::requests)).sum()
    }

    /// The UID of a pod.
    pub fn uid(&self, pod: &str) -> Option<&str> {
        self.pods.get(pod).map(|pod| pod.uid.as_str())
    }

    /// The program in a pod behaves so from now on. If it ends, its kubelet starts it again. Returns whether it has
    /// behaved otherwise.
    pub fn set_program(&mut self, name: &str, program: Program, now: Duration) -> bool {
        let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.program != Program::Ended) else {
            return false;
        };
        let changes = pod.program != program;
        if let Some(supervised) = &mut pod.supervised {
            let still = if program == Program::Hangs { Still::Network } else { Still::Nothing };
            supervised.behave(program == Program::Ended, still, &mut self.agents.ledger, now);
            if program == Program::Ended {
                return true;
            }
        }
        pod.program = program;
        self.network.set(pod.address, program);
        if program == Program::Ended {
            self.agenda.plan(now + START, Step::Restarted(name.to_owned()));
        }
        changes
    }

    /// A user deletes a pod; by force, its object goes at once. Returns whether it was there.
    pub fn delete_pod(&mut self, name: &str, by_force: bool) -> bool {
        self.api.is_running()
            && self.api.store().delete(Kind::Pod, NAMESPACE, name, &deletion(by_force)).is_ok()
    }

    /// The UIDs of the pods on a node.
    pub fn on_node(&self, node: &str) -> Vec<String> {
        self.pods.values().filter(|pod| pod.node == node).map(|pod| pod.uid.clone()).collect()
    }

    /// The UIDs of a group's pods.
    pub fn of_group(&self, group: &str) -> Vec<String> {
        self.pods.iter().filter(|(name, _)| is_of(name, group)).map(|(_, pod)| pod.uid.clone()).collect()
    }

    /// A user asks for a switchover to any pod. The API server stores the text of the request in another form than most
    /// clients write.
    pub fn request_switchover(&mut self, group: &str) -> bool {
        self.created += 1;
        let request = format!("request {} {ESCAPED}", self.created);
        self.change(Kind::LeaderGroup, NAMESPACE, group, |group| {
            group["metadata"]["annotations"]["leadergroup.dev/switchover"] = request.into();
        })
    }

    /// A user pauses a group, or resumes it.
    pub fn pause(&mut self, group: &str, paused: bool) -> bool {
        self.change(Kind::LeaderGroup, NAMESPACE, group, |group| group["spec"]["paused"] = paused.into())
    }

    /// Someone removes the role from a pod.
    pub fn remove_role(&mut self, pod: &str) -> bool {
        self.change(Kind::Pod, NAMESPACE, pod, |pod| {
            if let Some(labels) = pod["metadata"]["labels"].as_object_mut() {
                labels.remove("leadergroup.dev/role");
            }
        })
    }

    /// A node is cordoned, or no longer.
    pub fn cordon(&mut self, node: &str, cordoned: bool) -> bool {
        if let Some(node) = self.nodes.get_mut(node).filter(|_| self.api.is_running()) {
            node.is_cordoned = cordoned;
        }
        self.change(Kind::Node, "", node, |node| node["spec"]["unschedulable"] = cordoned.into())
    }

    /// Returns whether the object has changed. It may be gone, or the API server away.
    pub(super) fn change(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> bool {
        if !self.api.is_running() {
            return false;
        }
        let mut store = self.api.store();
        let before = store.revision();
        store.update(kind, namespace, name, change).is_ok() && store.revision() > before
    }

    /// A node loses its power, or comes back with its pods as they were: a freeze. Returns whether that is new.
    pub fn power(&mut self, node: &str, is_on: bool) -> bool {
        let Some(state) = self.nodes.get_mut(node) else { return false };
        self.network.power(node, is_on);
        std::mem::replace(&mut state.is_on, is_on) != is_on
    }

    /// Whether the kubelet of a node reaches the API server. Returns whether that is new.
    pub fn connect(&mut self, node: &str, is_connected: bool) -> bool {
        let Some(state) = self.nodes.get_mut(node) else { return false };
        std::mem::replace(&mut state.is_connected, is_connected) != is_connected
    }

    /// A user drains a node: it takes no more pods, and those that it has are evicted. Returns whether it had any.
    pub fn drain(&mut self, node: &str) -> bool {
        self.cordon(node, true);
        let pods = self.pods.iter().filter(|(_, pod)| pod.node == node);
        let pods: Vec<String> = pods.map(|(name, _)| name.clone()).collect();
        pods.iter().filter(|pod| self.evict(pod)).count() > 0
    }

    fn evict(&mut self, pod: &str) -> bool {
        let is_marked = self.change(Kind::Pod, NAMESPACE, pod, |pod| {
            let condition = json!({ "type": EVICTED, "status": "True", "reason": "EvictionByEvictionAPI" });
            match pod["status"]["conditions"].as_array_mut() {
                Some(conditions) => conditions.push(condition),
                None => pod["status"]["conditions"] = json!([condition]),
            }
        });
        is_marked && self.delete_pod(pod, false)
    }

    /// Someone writes an annotation of a pod, or removes it.
    pub fn annotate(&self, pod: &str, name: &str, text: Option<String>) -> bool {
        self.change(Kind::Pod, NAMESPACE, pod, |pod| {
            let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() else { return };
            match text {
                Some(text) => drop(annotations.insert(name.to_owned(), text.into())),
                None => drop(annotations.remove(name)),
            }
        })
    }

    /// Someone edits the status of a group.
    pub fn edit_status(&self, group: &str, edit: impl FnOnce(&mut Value)) -> bool {
        self.change(Kind::LeaderGroup, NAMESPACE, group, |group| edit(&mut group["status"]))
    }

    /// A user sets how long the active pod of a group may be silent.
    pub fn set_silence_timeout(&self, group: &str, time: &str) -> bool {
        self.change(Kind::LeaderGroup, NAMESPACE, group, |group| {
            group["spec"]["health"]["silenceTimeout"] = time.into();
        })
    }

    /// A user deletes a group. Returns whether it was there, and was not being deleted.
    pub fn delete_group(&self, group: &str) -> bool {
        let (is_running, mut store) = (self.api.is_running(), self.api.store());
        let found = store.get(Kind::LeaderGroup, NAMESPACE, group).filter(|_| is_running);
        found.is_some_and(|found| !found.is_being_deleted())
            && store.delete(Kind::LeaderGroup, NAMESPACE, group, &DeleteOptions::default()).is_ok()
    }

    /// A user creates a group that selects the pods of another one, under a name of its own, which is returned. There
    /// may be one already.
    pub fn add_second_group(&self, group: &str) -> Option<String> {
        let mut object = self.groups.get(group)?.clone();
        let name = format!("{group}-second");
        object["metadata"]["name"] = name.as_str().into();
        self.api.store().create(Kind::LeaderGroup, NAMESPACE, object).is_ok().then_some(name)
    }
}

/// Whether the pod of this name is one of the group.
fn is_of(name: &str, group: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(of, _)| of == group)
}
