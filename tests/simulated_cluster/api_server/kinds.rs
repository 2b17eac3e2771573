//! The kinds of objects that the server knows, and how they differ.

/// A kind of object. Others are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Namespace,
    Node,
    Pod,
    Service,
    Endpoints,
    EndpointSlice,
    Event,
    Lease,
    ReplicaSet,
    StatefulSet,
    Deployment,
    LeaderGroup,
}

/// Which changes raise `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// It has none.
    None,
    /// Those of the spec.
    Spec,
    /// Those of anything but the metadata, and of the labels.
    ContentAndLabels,
}

/// How the API server treats a kind.
#[derive(Debug)]
pub struct Traits {
    pub name: &'static str,
    pub plural: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    /// The fields beside the metadata. Others are not stored.
    pub fields: &'static [&'static str],
    pub namespaced: bool,
    /// Whether the status is written through a subresource of its own.
    pub status: bool,
    pub generation: Generation,
    /// Whether an update may leave out the version.
    pub unconditional: bool,
    /// Whether the answer to an immediate deletion is the object, and not a status.
    pub returns_deleted: bool,
}

impl Kind {
    pub const ALL: [Self; 12] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::Service,
        Self::Endpoints,
        Self::EndpointSlice,
        Self::Event,
        Self::Lease,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::Deployment,
        Self::LeaderGroup,
    ];

    /// The kind that is served at this place.
    pub fn served(group: &str, version: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| {
            let traits = kind.traits();
            (traits.group, traits.version, traits.plural) == (group, version, plural)
        })
    }

    pub fn traits(self) -> &'static Traits {
        &TRAITS[self as usize]
    }

    /// As in the field `apiVersion`.
    pub fn api_version(self) -> String {
        let Traits { group, version, .. } = self.traits();
        if group.is_empty() { (*version).to_owned() } else { format!("{group}/{version}") }
    }

    /// The plural with the API group, as messages name it.
    pub fn resource(self) -> String {
        self.qualified(self.traits().plural)
    }

    /// The name of the kind with the API group, as messages name it.
    pub fn qualified_name(self) -> String {
        self.qualified(self.traits().name)
    }

    fn qualified(self, name: &str) -> String {
        let group = self.traits().group;
        if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
    }
}

const PLAIN: Traits = Traits {
    name: "",
    plural: "",
    group: "",
    version: "v1",
    fields: &["spec", "status"],
    namespaced: true,
    status: false,
    generation: Generation::None,
    unconditional: true,
    returns_deleted: false,
};

const WORKLOAD: Traits = Traits { group: "apps", status: true, generation: Generation::Spec, ..PLAIN };

/// In the order of [`Kind::ALL`].
static TRAITS: [Traits; 12] = [
    Traits {
        name: "Namespace",
        plural: "namespaces",
        namespaced: false,
        status: true,
        returns_deleted: true,
        ..PLAIN
    },
    Traits { name: "Node", plural: "nodes", namespaced: false, status: true, ..PLAIN },
    Traits {
        name: "Pod",
        plural: "pods",
        status: true,
        generation: Generation::Spec,
        returns_deleted: true,
        ..PLAIN
    },
    Traits { name: "Service", plural: "services", status: true, returns_deleted: true, ..PLAIN },
    Traits { name: "Endpoints", plural: "endpoints", fields: &["subsets"], ..PLAIN },
    Traits {
        name: "EndpointSlice",
        plural: "endpointslices",
        group: "discovery.k8s.io",
        fields: &["addressType", "endpoints", "ports"],
        generation: Generation::ContentAndLabels,
        ..PLAIN
    },
    Traits {
        name: "Event",
        plural: "events",
        group: "events.k8s.io",
        fields: &[
            "action",
            "deprecatedCount",
            "deprecatedFirstTimestamp",
            "deprecatedLastTimestamp",
            "deprecatedSource",
            "eventTime",
            "note",
            "reason",
            "regarding",
            "related",
            "reportingController",
            "reportingInstance",
            "series",
            "type",
        ],
        ..PLAIN
    },
    Traits { name: "Lease", plural: "leases", group: "coordination.k8s.io", unconditional: false, ..PLAIN },
    Traits { name: "ReplicaSet", plural: "replicasets", ..WORKLOAD },
    Traits { name: "StatefulSet", plural: "statefulsets", ..WORKLOAD },
    Traits { name: "Deployment", plural: "deployments", ..WORKLOAD },
    Traits {
        name: "LeaderGroup",
        plural: "leadergroups",
        group: "leadergroup.dev",
        version: "v1alpha1",
        status: true,
        generation: Generation::Spec,
        unconditional: false,
        ..PLAIN
    },
];
