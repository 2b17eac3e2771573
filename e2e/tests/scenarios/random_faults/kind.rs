//! The kinds of faults, what each concerns, and which two may happen at the same time.

use std::collections::BTreeSet;

use super::Random;

macro_rules! kinds {
    ($($kind:ident: $concerns:ident),+ $(,)?) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Kind {
            $($kind),+
        }

        impl Kind {
            /// All of them.
            pub(super) const ALL: &[Self] = &[$(Self::$kind),+];

            /// What it concerns.
            pub(super) fn concerns(self) -> Concerns {
                match self {
                    $(Self::$kind => Concerns::$concerns),+
                }
            }
        }
    };
}

/// What a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concerns {
    Node,
    TwoNodes,
    Pod,
    Database,
    ApiServer,
    Replica,
    /// All replicas, one after the other.
    Operator,
    Group,
}

kinds! {
    NodePowerOff: Node,
    NodeCutOff: Node,
    NodeFrozen: Node,
    NodeFromApiServer: Node,
    NodeToApiServer: Node,
    ApiServerToNode: Node,
    NodeFromDatabase: Node,
    NodeToDatabase: Node,
    DatabaseToNode: Node,
    NodeFromNode: TwoNodes,
    NodeToNode: TwoNodes,
    NodeCordoned: Node,
    ProxyPaused: Node,
    PodFrozen: Pod,
    PodPaused: Pod,
    PodKilled: Pod,
    PodDeleted: Pod,
    PodDeletedByForce: Pod,
    DatabaseStopped: Database,
    DatabaseKilled: Database,
    DatabasePaused: Database,
    DatabaseRestarted: Database,
    DatabaseFailedOver: Database,
    DatabaseClockStepped: Database,
    ApiServerStopped: ApiServer,
    ApiServerKilled: ApiServer,
    ApiServerPaused: ApiServer,
    EtcdKilled: ApiServer,
    ReplicaKilled: Replica,
    ReplicaPaused: Replica,
    ReplicaDeleted: Replica,
    OperatorUpgraded: Operator,
    SwitchoverRequested: Group,
}

impl Kind {
    /// Whether it is a request to the API server.
    fn is_request(self) -> bool {
        use Kind as K;
        matches!(
            self,
            K::NodeCordoned
                | K::PodDeleted
                | K::PodDeletedByForce
                | K::ReplicaDeleted
                | K::OperatorUpgraded
                | K::SwitchoverRequested
        )
    }

    /// The reasons for which a pod may be replaced because of it, as far as the API server does not show them.
    pub(super) fn reasons(self) -> &'static [&'static str] {
        match (self, self.concerns()) {
            (Self::NodeCordoned, _) => &["NodeCordoned"],
            (Self::PodFrozen | Self::PodPaused, _) => &["Silent"],
            (_, Concerns::Group) => &["Switchover"],
            _ => &["Silent", "ProbeRefused"],
        }
    }

    /// Whether a fault of this kind can take place while `first` lasts.
    fn is_possible_during(self, first: Self) -> bool {
        let is_of_a_server = matches!(first.concerns(), Concerns::Database | Concerns::ApiServer);
        let is_of_the_operator =
            |kind: Self| matches!(kind.concerns(), Concerns::Replica | Concerns::Operator);
        // A server that is down cannot be paused, and a request needs the API server.
        let blocked = (is_of_a_server && self.concerns() == first.concerns())
            || (self.is_request() && first.concerns() == Concerns::ApiServer)
            || (is_of_the_operator(self) && is_of_the_operator(first));
        self != first && !blocked
    }
}

/// What there is to disturb, as listed before the faults: afterwards the API server may be away.
pub(super) struct Targets {
    pub(super) nodes: Vec<String>,
    /// The groups' pods.
    pub(super) pods: Vec<Target>,
    pub(super) replicas: Vec<Replica>,
}

/// A pod of a group.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) group: String,
    pub(super) active: bool,
}

/// A replica of the operator.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) node: String,
}

/// A fault that can take place.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// The nodes that it disturbs.
    pub(super) nodes: Vec<String>,
    pub(super) pod: Option<Target>,
    pub(super) replica: Option<Replica>,
}

impl Targets {
    /// Chooses a fault of one of these kinds, and what it concerns. Nothing that `during` disturbs is chosen: it would
    /// make no difference to cut off a frozen node, and a pod on a node without power cannot be killed.
    pub(super) fn choose(&self, kinds: &[Kind], random: &mut Random, during: Option<&Plan>) -> Option<Plan> {
        let busy: BTreeSet<&String> = during.iter().flat_map(|plan| &plan.nodes).collect();
        let free = |node: &String| !busy.contains(node);
        let mut kinds: Vec<Kind> = kinds.to_vec();
        kinds.retain(|kind| during.is_none_or(|first| kind.is_possible_during(first.kind)));
        while !kinds.is_empty() {
            let kind = kinds.swap_remove(random.below(kinds.len()));
            let mut plan = Plan { kind, nodes: Vec::new(), pod: None, replica: None };
            let mut nodes: Vec<String> = self.nodes.iter().filter(|node| free(node)).cloned().collect();
            let mut take = |random: &mut Random| {
                (!nodes.is_empty()).then(|| nodes.swap_remove(random.below(nodes.len())))
            };
            match kind.concerns() {
                Concerns::Node => plan.nodes.extend(take(random)),
                Concerns::TwoNodes => plan.nodes.extend(take(random).into_iter().chain(take(random))),
                Concerns::Pod | Concerns::Group => plan.pod = self.pod(random, during, free),
                Concerns::Replica => {
                    let replicas: Vec<_> = self.replicas.iter().filter(|one| free(&one.node)).collect();
                    plan.replica = random.pick(&replicas).map(|replica| (*replica).clone());
                }
                Concerns::Database | Concerns::ApiServer | Concerns::Operator => {}
            }
            let found = match kind.concerns() {
                Concerns::Node => plan.nodes.len() == 1,
                Concerns::TwoNodes => plan.nodes.len() == 2,
                Concerns::Pod | Concerns::Group => plan.pod.is_some(),
                Concerns::Replica => plan.replica.is_some(),
                Concerns::Database | Concerns::ApiServer | Concerns::Operator => true,
            };
            if found {
                return Some(plan);
            }
        }
        None
    }

    /// Mostly an active pod, on a node that runs, and not the one that is disturbed already.
    fn pod(
        &self,
        random: &mut Random,
        during: Option<&Plan>,
        free: impl Fn(&String) -> bool,
    ) -> Option<Target> {
        let taken = during.and_then(|plan| plan.pod.as_ref()).map(|pod| &pod.uid);
        let pods: Vec<Target> =
            self.pods.iter().filter(|pod| free(&pod.node) && Some(&pod.uid) != taken).cloned().collect();
        let actives: Vec<Target> = pods.iter().filter(|pod| pod.active).cloned().collect();
        let among = if random.below(4) > 0 && !actives.is_empty() { actives } else { pods };
        random.pick(&among)
    }
}

impl Plan {
    /// The UIDs of the pods that it makes fail, or that may be replaced because of it.
    pub(super) fn failing(&self, targets: &Targets) -> Vec<String> {
        let those = |concerned: &dyn Fn(&Target) -> bool| -> Vec<String> {
            targets.pods.iter().filter(|pod| concerned(pod)).map(|pod| pod.uid.clone()).collect()
        };
        match (self.kind, self.kind.concerns(), &self.pod) {
            // The rules of clients are outdated; nothing is wrong with a pod.
            (Kind::ProxyPaused, ..) => Vec::new(),
            (_, Concerns::Node | Concerns::TwoNodes, _) => those(&|pod| self.nodes.contains(&pod.node)),
            (_, Concerns::Pod, Some(pod)) => vec![pod.uid.clone()],
            // By the time of the request another pod may be active.
            (_, Concerns::Group, Some(pod)) => those(&|other| other.group == pod.group),
            _ => Vec::new(),
        }
    }

    /// The nodes on which a client may be routed by outdated rules.
    pub(super) fn outdated<'a>(&'a self, targets: &'a Targets) -> &'a [String] {
        match self.kind.concerns() {
            Concerns::ApiServer => &targets.nodes,
            _ => &self.nodes,
        }
    }

    /// What it is about, for people.
    pub(super) fn target(&self) -> String {
        match (self.kind.concerns(), &self.pod, &self.replica) {
            (Concerns::Group, Some(pod), _) => pod.group.clone(),
            (_, Some(pod), _) => pod.name.clone(),
            (_, _, Some(replica)) => replica.name.clone(),
            _ => self.nodes.join(" and "),
        }
    }
}
