//! The pods of a group with agents: their containers start, end and are started again, and their kubelets report that.

use std::{collections::BTreeMap, time::Duration};

use leadergroup_e2e::random::Random;
use serde_json::{Value, json};

use super::{Cluster, END, NAMESPACE, START, Step};
use crate::{
    agents::{Access, Agent, Around, Clock, Ledger, Still},
    api_server::{ApiServer, Kind},
    network::Program,
    simulation::millis,
};

/// The port of the agents.
const PORT: u16 = 9470;
/// How long after SIGTERM a container is killed when its pod is deleted.
const GRACE: Duration = Duration::from_secs(10);
/// How long a kubelet takes to notice that a container has ended.
const NOTICED: usize = 500;
/// The leases that users choose, in seconds.
const LEASES: [u64; 3] = [2, 3, 4];

/// What the agents of all pods have in common.
pub(super) struct Agents {
    pub(super) ledger: Ledger,
    access: Access,
    /// The clocks of the nodes.
    clocks: BTreeMap<String, Clock>,
    /// The groups whose pods have agents.
    groups: Vec<String>,
    /// The shortest lease that a group was created with.
    lease: Option<Duration>,
    random: Random,
    /// How many starts of agents there were.
    started: u64,
    seed: u64,
}

/// What there is of a pod with an agent.
pub(super) struct Supervised {
    pub(super) agent: Option<Agent>,
    group: String,
    /// The container is to end and not to be started again. It is killed at this time.
    leaves: Option<Duration>,
    /// The message of the last container that has ended.
    message: Option<String>,
}

/// How a kubelet reports the ends of a container.
pub(super) struct Ends {
    has_ended: bool,
    message: Option<String>,
}

impl Agents {
    pub(super) fn new(api: &ApiServer, nodes: &[&str], seed: u64) -> Self {
        let mut random = Random::new(seed ^ 6);
        let clocks = nodes.iter().map(|node| ((*node).to_owned(), Clock::any(&mut random))).collect();
        let (ledger, access) = (Ledger::default(), Access::new(api));
        Self { ledger, access, clocks, groups: Vec::new(), lease: None, random, started: 0, seed }
    }

    /// Gives a group agents.
    pub(super) fn supervise(&mut self, group: &str, object: &mut Value) {
        self.groups.push(group.to_owned());
        let lease = LEASES[self.random.below(LEASES.len())];
        let shortest = self.lease.iter().copied().chain([Duration::from_secs(lease)]).min();
        self.lease = shortest;
        object["spec"]["agent"] = json!({ "leaseDuration": format!("{lease}s"), "stopTimeout": "5s" });
        if let Some(health) = object["spec"]["health"].as_object_mut() {
            health.remove("probe");
        }
    }

    /// Gives a new pod of this group an agent, if the group has them.
    pub(super) fn pod_of(&self, group: &str, pod: &mut Value) -> Option<Supervised> {
        if !self.groups.iter().any(|supervised| supervised == group) {
            return None;
        }
        pod["spec"]["containers"][0]["readinessProbe"] =
            json!({ "httpGet": { "path": "/ready", "port": PORT }, "timeoutSeconds": 1 });
        Some(Supervised { agent: None, group: group.to_owned(), leaves: None, message: None })
    }
}

impl Supervised {
    pub(super) fn is_ready(&self, now: Duration) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.is_ready(now))
    }

    /// The kubelet ends the container for good. Returns whether it does not run anyway, and this is new.
    pub(super) fn leave(&mut self, now: Duration) -> bool {
        if self.leaves.is_some() {
            return false;
        }
        self.leaves = Some(now + GRACE);
        if let Some(agent) = &mut self.agent {
            agent.leave(now);
        }
        self.agent.is_none()
    }

    /// The container is killed, or some of its processes stand still.
    pub(super) fn behave(&mut self, is_killed: bool, still: Still, ledger: &mut Ledger, now: Duration) {
        let Some(agent) = &mut self.agent else { return };
        if is_killed {
            agent.kill(now);
        } else {
            agent.stand_still(still, ledger, now);
        }
    }

    pub(super) fn ends(&self, has_ended: bool) -> Ends {
        Ends { has_ended, message: self.message.clone() }
    }
}

impl Ends {
    pub(super) fn show(self, container: &mut Value) {
        let Some(message) = self.message else { return };
        let ended = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message } });
        if self.has_ended {
            container["state"] = ended;
        } else {
            container["lastState"] = ended;
        }
    }
}

impl Cluster {
    /// Which programs ran when.
    pub fn ledger(&self) -> &Ledger {
        &self.agents.ledger
    }

    /// The groups whose pods have agents.
    pub fn supervised_groups(&self) -> &[String] {
        &self.agents.groups
    }

    /// The shortest lease of a group's agents, if no user has changed it.
    pub fn shortest_lease(&self) -> Option<Duration> {
        self.agents.lease
    }

    /// A kubelet starts the container of a pod.
    pub(super) fn start_agent(&mut self, name: &str, now: Duration) {
        let Some(pod) = self.pods.get_mut(name) else { return };
        let Some(supervised) = pod.supervised.as_mut().filter(|it| it.leaves.is_none()) else { return };
        let agents = &mut self.agents;
        agents.started += 1;
        let seed = agents.seed ^ (agents.started << 20);
        let clock = agents.clocks[&pod.node];
        let agent = Agent::new(name, &supervised.group, clock, &agents.access, seed);
        tracing::info!(pod = name, boot = %agent.boot(), "an agent starts");
        supervised.agent = Some(agent);
        pod.restarts += u64::from(supervised.message.is_some());
        pod.program = Program::Serves;
        // What the former one has said is not said any more.
        self.say(name, now);
        if let Some(pod) = self.pods.get(name) {
            self.network.set(pod.address, Program::Serves);
        }
    }

    /// Whether the kubelet still has to end the container of a pod whose object is gone.
    pub(super) fn ends_by_itself(&mut self, name: &str, now: Duration) -> bool {
        let supervised = self.pods.get_mut(name).and_then(|pod| pod.supervised.as_mut());
        supervised.is_some_and(|supervised| {
            supervised.leave(now);
            supervised.agent.is_some()
        })
    }

    fn say(&mut self, name: &str, now: Duration) {
        let Some(pod) = self.pods.get_mut(name) else { return };
        let agent = pod.supervised.as_mut().and_then(|supervised| supervised.agent.as_mut());
        if let Some(words) = agent.and_then(|agent| agent.says(now)) {
            self.network.say(pod.address, words);
        }
    }

    /// The agents do what is due.
    pub(super) fn turn_agents(&mut self, now: Duration) {
        let is_running = self.api.is_running();
        let mut ended = Vec::new();
        for (name, pod) in &mut self.pods {
            let Some(supervised) = &mut pod.supervised else { continue };
            let Some(agent) = &mut supervised.agent else { continue };
            if supervised.leaves.is_some_and(|at| now >= at) {
                agent.kill(now);
            }
            let node = self.nodes.get(&pod.node);
            let reaches = is_running && node.is_some_and(|node| node.is_on && node.is_connected);
            let ledger = &mut self.agents.ledger;
            if let Some(end) = agent.turn(&mut Around { ledger, reaches, now }) {
                tracing::info!(pod = name, "a container has ended");
                (supervised.agent, supervised.message) = (None, Some(end.message));
                ended.push(name.clone());
            } else if let Some(words) = agent.says(now) {
                self.network.say(pod.address, words);
            }
        }
        for name in ended {
            self.container_ended(&name, now);
        }
    }

    fn container_ended(&mut self, name: &str, now: Duration) {
        let Some(pod) = self.pods.get_mut(name) else { return };
        let leaves = pod.supervised.as_ref().is_some_and(|supervised| supervised.leaves.is_some());
        pod.program = Program::Ended;
        self.network.set(pod.address, Program::Ended);
        let reported = now + millis(&mut self.agents.random, NOTICED);
        self.agenda.plan(reported, Step::Reported(name.to_owned()));
        let next = if leaves { Step::Ended(name.to_owned()) } else { Step::Restarted(name.to_owned()) };
        self.agenda.plan(if leaves { reported + END } else { now + START }, next);
    }

    /// Whether the kubelet of a pod with an agent can remove the object of the pod.
    pub(super) fn notices_end(&self, name: &str) -> bool {
        let Some(pod) = self.pods.get(name).filter(|pod| pod.supervised.is_some()) else { return true };
        self.nodes.get(&pod.node).is_some_and(|node| node.is_on && node.is_connected)
    }

    /// What stands still of the agent in a pod from now on. Returns whether that is new.
    pub fn stand_still(&mut self, name: &str, still: Still, now: Duration) -> bool {
        let pod = self.pods.get_mut(name).filter(|pod| pod.program == Program::Serves);
        let Some((pod, ledger)) = pod.zip(Some(&mut self.agents.ledger)) else { return false };
        let Some(agent) = pod.supervised.as_mut().and_then(|it| it.agent.as_mut()) else { return false };
        agent.stand_still(still, ledger, now);
        pod.program = Program::Hangs;
        self.network.set(pod.address, Program::Hangs);
        true
    }

    fn agent(&mut self, pod: &str) -> Option<&mut Agent> {
        self.pods.get_mut(pod)?.supervised.as_mut()?.agent.as_mut()
    }

    /// The program of a pod ends by itself. Returns whether there is one that does not end anyway.
    pub fn end_program(&mut self, pod: &str, now: Duration) -> bool {
        self.agent(pod).is_some_and(|agent| agent.end_program(now))
    }

    /// The program of a pod ignores SIGTERM from now on.
    pub fn ignore_sigterm(&mut self, pod: &str) {
        if let Some(agent) = self.agent(pod) {
            agent.ignore_sigterm();
        }
    }

    pub fn node_of(&self, pod: &str) -> Option<String> {
        self.pods.get(pod).map(|pod| pod.node.clone())
    }

    /// A user sets the lease of a group's agents, or turns them off. Returns whether that changes something.
    pub fn set_agents(&self, group: &str, lease: Option<&str>) -> bool {
        self.change(Kind::LeaderGroup, NAMESPACE, group, |group| {
            match (lease, group["spec"].as_object_mut()) {
                (Some(lease), _) => group["spec"]["agent"]["leaseDuration"] = lease.into(),
                (None, Some(spec)) => drop(spec.remove("agent")),
                (None, None) => {}
            }
        })
    }

    /// A user sets the agents of a group as they were at first.
    pub fn set_agents_back(&self, group: &str) -> bool {
        let agent = self.groups.get(group).map(|group| group["spec"]["agent"].clone()).unwrap_or_default();
        self.change(Kind::LeaderGroup, NAMESPACE, group, |group| group["spec"]["agent"] = agent)
    }

    /// The pods of groups with agents, and whether a program runs in each.
    pub fn supervised_pods(&self) -> Vec<(String, bool)> {
        let pods = self.pods.iter().filter_map(|(name, pod)| Some((name, pod.supervised.as_ref()?)));
        let runs = |supervised: &Supervised| supervised.agent.as_ref().is_some_and(Agent::works);
        pods.map(|(name, supervised)| (name.clone(), runs(supervised))).collect()
    }
}
