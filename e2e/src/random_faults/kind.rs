//! The kinds of faults, what each concerns, and which two may happen at the same time.

use std::collections::BTreeSet;

use crate::{deck::Deck, random::Random};

macro_rules! kinds {
    ($($kind:ident: $concerns:ident $breaks:ident $reasons:expr),+ $(,)?) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names say what they are")]
        pub enum Kind {
            $($kind),+
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// What it concerns.
            pub fn concerns(self) -> Concerns {
                match self {
                    $(Self::$kind => Concerns::$concerns),+
                }
            }

            /// What of it does not work meanwhile, as far as clients and pods are concerned.
            fn breaks(self) -> Breaks {
                match self {
                    $(Self::$kind => Breaks::$breaks),+
                }
            }

            /// The reasons for which its pods may be replaced, as far as the API server does not show them. None: the
            /// pods are well.
            pub fn reasons(self) -> &'static [&'static str] {
                match self {
                    $(Self::$kind => $reasons),+
                }
            }
        }
    };
}

/// What a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// A node.
    Node,
    /// Two nodes.
    TwoNodes,
    /// A pod of a group.
    Pod,
    /// PostgreSQL.
    Database,
    /// The API server.
    ApiServer,
    /// A replica of the operator.
    Replica,
    /// All replicas, one after the other.
    Operator,
    /// A group.
    Group,
}

/// What does not work during a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breaks {
    /// Nothing that a client or a pod would notice.
    Nothing,
    /// The rules of its nodes may be outdated.
    Rules,
    /// Its pods hang, or cannot be reached, and come back later.
    Pods,
    /// Both.
    PodsAndRules,
}

const PROBED: &[&str] = &["Silent", "ProbeRefused"];
const SILENT: &[&str] = &["Silent"];
const WELL: &[&str] = &[];

kinds! {
    NodePowerOff: Node PodsAndRules PROBED,
    NodeCutOff: Node PodsAndRules PROBED,
    NodeFrozen: Node PodsAndRules PROBED,
    NodeFromApiServer: Node Rules WELL,
    NodeToApiServer: Node Rules WELL,
    ApiServerToNode: Node Rules WELL,
    NodeFromDatabase: Node Nothing WELL,
    NodeToDatabase: Node Nothing WELL,
    DatabaseToNode: Node Nothing WELL,
    NodeFromNode: TwoNodes Pods PROBED,
    NodeToNode: TwoNodes Pods PROBED,
    NodeCordoned: Node Nothing &["NodeCordoned"],
    ProxyPaused: Node Rules WELL,
    PodFrozen: Pod Pods SILENT,
    PodPaused: Pod Pods SILENT,
    PodKilled: Pod Nothing PROBED,
    PodDeleted: Pod Nothing PROBED,
    PodDeletedByForce: Pod Pods PROBED,
    DatabaseStopped: Database Nothing WELL,
    DatabaseKilled: Database Nothing WELL,
    DatabasePaused: Database Nothing WELL,
    DatabaseRestarted: Database Nothing WELL,
    DatabaseFailedOver: Database Nothing WELL,
    DatabaseClockStepped: Database Nothing WELL,
    ApiServerStopped: ApiServer Rules WELL,
    ApiServerKilled: ApiServer Rules WELL,
    ApiServerPaused: ApiServer Rules WELL,
    EtcdKilled: ApiServer Rules WELL,
    ReplicaKilled: Replica Nothing WELL,
    ReplicaPaused: Replica Nothing WELL,
    ReplicaDeleted: Replica Nothing WELL,
    OperatorUpgraded: Operator Nothing WELL,
    SwitchoverRequested: Group Nothing &["Switchover"],
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

/// What there is to disturb and works, as listed before the faults: afterwards the API server may be away.
#[derive(Clone, Default)]
pub struct Targets {
    /// The nodes.
    pub nodes: Vec<String>,
    /// The groups' pods.
    pub pods: Vec<Target>,
    /// The operator's replicas.
    pub replicas: Vec<Replica>,
}

/// A pod of a group.
#[derive(Clone)]
pub struct Target {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Its group.
    pub group: String,
    /// Whether it has the active label.
    pub active: bool,
    /// Whether it works: no fault can take place in another one.
    pub works: bool,
}

/// A replica of the operator.
#[derive(Clone)]
pub struct Replica {
    /// The UID of its pod.
    pub uid: String,
    /// The name of its pod.
    pub name: String,
    /// Its node.
    pub node: String,
}

/// A fault that can take place.
#[derive(Clone)]
pub struct Plan {
    /// Its kind.
    pub kind: Kind,
    /// The nodes that it disturbs.
    pub nodes: Vec<String>,
    /// The pod that it disturbs, or one of the group.
    pub pod: Option<Target>,
    /// The replica that it disturbs.
    pub replica: Option<Replica>,
}

impl Targets {
    /// The same without the pods of a group.
    #[must_use]
    pub fn without(&self, group: &str) -> Self {
        let pods = self.pods.iter().filter(|pod| pod.group != group).cloned().collect();
        Self { pods, nodes: self.nodes.clone(), replicas: self.replicas.clone() }
    }

    /// Deals a kind that may take place now, and chooses what it concerns.
    pub fn choose(
        &self,
        kinds: &mut Deck<Kind>,
        may: impl Fn(Kind) -> bool,
        random: &mut Random,
        during: Option<&Plan>,
    ) -> Option<Plan> {
        let is_possible =
            |kind: Kind| may(kind) && during.is_none_or(|first| kind.is_possible_during(first.kind));
        kinds
            .deal(random, |kind, random| is_possible(kind).then(|| self.plan(kind, random, during)).flatten())
    }

    /// A fault of this kind. Nothing that `during` disturbs is chosen: it would make no difference to cut off a frozen
    /// node, and a pod on a node without power cannot be killed.
    fn plan(&self, kind: Kind, random: &mut Random, during: Option<&Plan>) -> Option<Plan> {
        let busy: BTreeSet<&String> = during.iter().flat_map(|plan| &plan.nodes).collect();
        let free = |node: &String| !busy.contains(node);
        let mut plan = Plan { kind, nodes: Vec::new(), pod: None, replica: None };
        let mut nodes: Vec<String> = self.nodes.iter().filter(|node| free(node)).cloned().collect();
        let mut take =
            |random: &mut Random| (!nodes.is_empty()).then(|| nodes.swap_remove(random.below(nodes.len())));
        let found = match kind.concerns() {
            Concerns::Node => {
                plan.nodes.extend(take(random));
                plan.nodes.len() == 1
            }
            Concerns::TwoNodes => {
                plan.nodes.extend(take(random).into_iter().chain(take(random)));
                plan.nodes.len() == 2
            }
            Concerns::Pod | Concerns::Group => {
                plan.pod = self.pod(random, during, free);
                plan.pod.is_some()
            }
            Concerns::Replica => {
                let replicas: Vec<_> = self.replicas.iter().filter(|one| free(&one.node)).cloned().collect();
                plan.replica = random.pick(&replicas);
                plan.replica.is_some()
            }
            Concerns::Database | Concerns::ApiServer | Concerns::Operator => true,
        };
        found.then_some(plan)
    }

    /// Mostly an active pod, on a node that runs, and not the one that is disturbed already.
    fn pod(
        &self,
        random: &mut Random,
        during: Option<&Plan>,
        free: impl Fn(&String) -> bool,
    ) -> Option<Target> {
        let taken = during.and_then(|plan| plan.pod.as_ref()).map(|pod| &pod.uid);
        let may = |pod: &&Target| pod.works && free(&pod.node) && Some(&pod.uid) != taken;
        let pods: Vec<Target> = self.pods.iter().filter(may).cloned().collect();
        let actives: Vec<Target> = pods.iter().filter(|pod| pod.active).cloned().collect();
        let among = if random.below(4) > 0 && !actives.is_empty() { actives } else { pods };
        random.pick(&among)
    }
}

impl Plan {
    /// The UIDs of the pods that it disturbs.
    pub fn disturbed(&self, targets: &Targets) -> Vec<String> {
        let those = |concerned: &dyn Fn(&Target) -> bool| -> Vec<String> {
            targets.pods.iter().filter(|pod| concerned(pod)).map(|pod| pod.uid.clone()).collect()
        };
        match (self.kind.concerns(), &self.pod) {
            _ if self.kind.reasons().is_empty() => Vec::new(),
            (Concerns::Node | Concerns::TwoNodes, _) => those(&|pod| self.nodes.contains(&pod.node)),
            (Concerns::Pod, Some(pod)) => vec![pod.uid.clone()],
            // By the time of the request another pod may be active.
            (Concerns::Group, Some(pod)) => those(&|other| other.group == pod.group),
            _ => Vec::new(),
        }
    }

    /// The UIDs of the pods that hang, or cannot be reached, and may come back later.
    pub fn hanging(&self, targets: &Targets) -> Vec<String> {
        let hang = matches!(self.kind.breaks(), Breaks::Pods | Breaks::PodsAndRules);
        if hang { self.disturbed(targets) } else { Vec::new() }
    }

    /// The pods that stand still with all that is in them, and go on later.
    pub fn standing<'a>(&self, targets: &'a Targets) -> impl Iterator<Item = &'a Target> + use<'a> {
        let stands = matches!(self.kind, Kind::PodFrozen | Kind::PodPaused | Kind::NodeFrozen);
        let disturbed = if stands { self.disturbed(targets) } else { Vec::new() };
        targets.pods.iter().filter(move |pod| disturbed.contains(&pod.uid))
    }

    /// The nodes whose clients may be routed by outdated rules.
    pub fn outdated<'a>(&'a self, targets: &'a Targets) -> &'a [String] {
        match (self.kind.breaks(), self.kind.concerns()) {
            (Breaks::Nothing | Breaks::Pods, _) => &[],
            (_, Concerns::ApiServer) => &targets.nodes,
            _ => &self.nodes,
        }
    }

    /// What it is about, for people.
    pub fn target(&self) -> String {
        match (self.kind.concerns(), &self.pod, &self.replica) {
            (Concerns::Group, Some(pod), _) => pod.group.clone(),
            (_, Some(pod), _) => pod.name.clone(),
            (_, _, Some(replica)) => replica.name.clone(),
            _ => self.nodes.join(" and "),
        }
    }
}
