//! The spec of a `LeaderGroup`.

use std::{collections::BTreeMap, time::Duration};

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ACTIVE_VALUE, AgentSpec, HooksSpec, HumanDuration, LeaderGroupStatus, PodSelector, ROLE_LABEL,
    STANDBY_VALUE, rules, schema,
};

/// LeaderGroup is a set of pods, exactly one of which is active at a time.
///
/// The operator elects one of the pods that `selector` matches, gives it a fencing token and labels it active; it
/// labels every other pod standby. A Service that has the role label in its selector routes only to the active pod.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[kube(
    group = "leadergroup.dev",
    version = "v1alpha1",
    kind = "LeaderGroup",
    plural = "leadergroups",
    shortname = "lg",
    namespaced,
    status = "LeaderGroupStatus",
    derive = "PartialEq",
    doc = "LeaderGroup is a set of pods, exactly one of which is active at a time: it is labelled active, gets the traffic and holds the fencing token.",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name must be at most 63 characters: write a shorter name"),
    printcolumn(name = "Active", type_ = "string", json_path = ".status.active.pod", description = "The active pod"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.active.node", description = "The node of the active pod"),
    printcolumn(name = "Token", type_ = "integer", json_path = ".status.token", description = "The fencing token"),
    printcolumn(
        name = "Eligible",
        type_ = "string",
        json_path = ".status.eligibleSummary",
        description = "The number of pods that could be active, and of all pods of the group"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "The reason of the condition Ready"
    ),
    printcolumn(
        name = "Since",
        type_ = "date",
        json_path = ".status.active.since",
        description = "How long the pod has been active"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Endpoints",
        type_ = "string",
        json_path = ".spec.routing.endpoints",
        description = "Who writes the EndpointSlices of the Services",
        priority = 1
    ),
    printcolumn(
        name = "Switchover",
        type_ = "string",
        json_path = ".status.switchover.result",
        description = "The result of the last request for a switchover",
        priority = 1
    ),
    printcolumn(
        name = "Key",
        type_ = "string",
        json_path = ".status.key",
        description = "The key of the lock",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::spec)]
pub struct LeaderGroupSpec {
    /// selector is a label query over the pods in the namespace of the LeaderGroup. It must not be empty and must not
    /// contain the role label. Immutable.
    pub selector: PodSelector,
    /// lock configures the group's lock in the database.
    #[serde(default)]
    pub lock: LockSpec,
    /// health configures how the operator judges the health of the pods.
    #[serde(default)]
    pub health: HealthSpec,
    /// election configures when the role changes, and which pod gets it.
    #[serde(default)]
    pub election: ElectionSpec,
    /// routing configures the labels that mark the active pod and the standbys.
    #[serde(default)]
    pub routing: RoutingSpec,
    /// agent is set if `leadergroup-agent` runs a program in each of the pods. The program then runs in the active pod
    /// only, and the next one starts when the former one is over. The operator probes the agents; what the kubelet says
    /// of the readiness of the active pod does not count against it, because a program may need time to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSpec>,
    /// hooks are requests by which pods without an agent learn that their role changes. They cannot be set together
    /// with `agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<HooksSpec>,
    /// deletionPolicy is what happens to the role labels when the LeaderGroup is deleted. `RemoveLabels` removes them,
    /// so that a Service that selects them has no endpoints. `Retain` leaves them as they are: the active pod keeps
    /// serving, but without failover. Defaults to `RemoveLabels`.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// paused suspends elections: the active pod is not replaced, whatever happens to it. A change of holder that has
    /// begun is finished first. Defaults to false.
    #[serde(default)]
    pub paused: bool,
}

/// Configuration of the group's lock.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::lock)]
pub struct LockSpec {
    /// key is the key of the group's row in the lock table: 1 to 255 printable ASCII characters. Immutable. Defaults
    /// to `<kube-system UID>/<namespace>/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 255))]
    pub key: Option<String>,
}

/// Configuration of how the operator judges the health of the pods.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::health)]
pub struct HealthSpec {
    /// interval is how often each pod is probed. From 100ms to a third of silenceTimeout. Defaults to 1s.
    pub interval: HumanDuration,
    /// silenceTimeout is how long the active pod may be silent before another pod takes over. This is how long a
    /// failover takes when the pod hangs or its node is lost. From 1s to 1h, written like 5s or 1m30s. Defaults to 5s.
    pub silence_timeout: HumanDuration,
    /// container is the container whose readinessProbe the operator runs. Defaults to the pod's annotation
    /// `kubectl.kubernetes.io/default-container`, or to the first container that has a readinessProbe.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 63))]
    pub container: Option<String>,
    /// probe replaces the pod's own readinessProbe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,
    /// timeout is how long one probe may take: at most silenceTimeout, and at most four times interval. Defaults to the
    /// timeout of the readinessProbe, but at most interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// failureThreshold is how many consecutive refused probes make a pod failing. It is also the least number of
    /// unanswered probes before a pod counts as silent. From 1 to 10; multiplied by interval it must not exceed
    /// silenceTimeout. Defaults to 2.
    #[schemars(range(min = 1, max = 10))]
    pub failure_threshold: u32,
    /// holdConnection is whether the operator holds a TCP connection open to the port that it probes on the active pod.
    /// The kernel closes it when the process ends, so a crash is noticed at once, and not only when the next probes are
    /// due. `WhenKeptAlive` holds one if the server keeps the connection of an HTTP probe open, or speaks gRPC.
    /// `Always` opens one to any server; a server that serves one connection at a time is blocked by it. `Never` holds
    /// none. Defaults to `WhenKeptAlive`.
    pub hold_connection: HoldConnection,
}

impl Default for HealthSpec {
    fn default() -> Self {
        Self {
            interval: HumanDuration::from_secs(1),
            silence_timeout: HumanDuration::from_secs(5),
            container: None,
            probe: None,
            timeout: None,
            failure_threshold: 2,
            hold_connection: HoldConnection::default(),
        }
    }
}

/// Whether a connection is held open to the active pod.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum HoldConnection {
    /// The one of an HTTP probe, if the server keeps it open.
    #[default]
    WhenKeptAlive,
    /// One to any server.
    Always,
    /// None.
    Never,
}

/// A probe, always sent to the pod's own address. Exactly one of its fields must be set.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::probe)]
pub struct ProbeSpec {
    /// httpGet is an HTTP GET request. It succeeds on status 200-399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGetProbe>,
    /// tcpSocket is a TCP connection. It succeeds if the connection is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocketProbe>,
    /// grpc is a call of the gRPC health checking protocol, without TLS. It succeeds if the service is serving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcProbe>,
}

impl ProbeSpec {
    /// The field that is set; none if it is not exactly one.
    pub fn one(&self) -> Option<OneProbe<'_>> {
        let Self { http_get, tcp_socket, grpc } = self;
        match (http_get, tcp_socket, grpc) {
            (Some(http), None, None) => Some(OneProbe::HttpGet(http)),
            (None, Some(tcp), None) => Some(OneProbe::TcpSocket(tcp)),
            (None, None, Some(grpc)) => Some(OneProbe::Grpc(grpc)),
            _ => None,
        }
    }
}

/// The one field of a [`ProbeSpec`] that is set.
#[derive(Clone, Copy, Debug)]
pub enum OneProbe<'a> {
    /// `httpGet`.
    HttpGet(&'a HttpGetProbe),
    /// `tcpSocket`.
    TcpSocket(&'a TcpSocketProbe),
    /// `grpc`.
    Grpc(&'a GrpcProbe),
}

/// An HTTP GET request.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::http_get)]
pub struct HttpGetProbe {
    /// path is the path of the request. Defaults to `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 1024))]
    pub path: Option<String>,
    /// port is the port, by number or by its name in the container.
    #[schemars(schema_with = "schema::port")]
    pub port: ProbePort,
    /// scheme is HTTP or HTTPS. Certificates are not verified, as in the kubelet's probes. Defaults to HTTP.
    #[serde(default)]
    pub scheme: ProbeScheme,
}

/// A TCP connection.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[schemars(transform = rules::port)]
pub struct TcpSocketProbe {
    /// port is the port, by number or by its name in the container.
    #[schemars(schema_with = "schema::port")]
    pub port: ProbePort,
}

/// A call of the gRPC health checking protocol.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[schemars(transform = rules::port)]
pub struct GrpcProbe {
    /// port is the port, by number or by its name in the container.
    #[schemars(schema_with = "schema::port")]
    pub port: ProbePort,
    /// service is the name of the service that is asked for. Defaults to the whole server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 253))]
    pub service: Option<String>,
}

/// A port, by number or by the name it has in the container.
pub type ProbePort = k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The scheme of an HTTP probe.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum ProbeScheme {
    /// Plain HTTP.
    #[default]
    Http,
    /// HTTP over TLS, without verification of the certificate.
    Https,
}

/// Configuration of when the role changes, and which pod gets it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::election)]
pub struct ElectionSpec {
    /// delay is how long to wait before the next pod is promoted when the active one did not end cleanly (silent or
    /// failing). It is for workloads that need time to notice that they lost the role. From 0s to 1h. Defaults to 0s.
    pub delay: HumanDuration,
    /// onCordon is what happens when the active pod's node is cordoned, for example by `kubectl drain`, or when an
    /// autoscaler is about to remove it. Handover makes an eligible pod on another node active while the present one
    /// still works. Ignore waits until the pod is deleted. Defaults to Handover.
    pub on_cordon: PlannedLoss,
    /// onRollout is what happens when the active pod is the next one that a rollout deletes. Handover makes an eligible
    /// pod of the newest revision active while the present one still works. Ignore waits until the pod is deleted.
    /// Defaults to Handover.
    pub on_rollout: PlannedLoss,
    /// onDemote is what happens to a pod that was active, once the next one is. Keep leaves it as a standby. Its open
    /// connections stay, and a program that does not know that it is a standby goes on. Delete deletes the pod, so that
    /// both end; it is also deleted if its node comes back later. Delete requires the chart's value
    /// `podDeletion.enabled`. A `PodDisruptionBudget` is not asked. Defaults to Keep.
    pub on_demote: OnDemote,
    /// priorities prefer some pods to others when a holder is chosen. A pod has the sum of the weights of all entries
    /// that match it. Health, cordoned nodes and rollouts are considered before the priority. At most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "atomic"))]
    pub priorities: Vec<Priority>,
    /// failback is whether the role returns to a pod of a higher priority that is eligible again. `Never` leaves the
    /// role where it is until it changes for another reason. `WhenReady` makes that pod active after `failbackDelay`.
    /// Defaults to Never.
    pub failback: Failback,
    /// failbackDelay is how long a pod of a higher priority must have been eligible, without a break, before the role
    /// goes back to it. From 0s to 1h. Defaults to 1m.
    pub failback_delay: HumanDuration,
}

impl Default for ElectionSpec {
    fn default() -> Self {
        Self {
            delay: HumanDuration(Duration::ZERO),
            on_cordon: PlannedLoss::default(),
            on_rollout: PlannedLoss::default(),
            on_demote: OnDemote::default(),
            priorities: Vec::new(),
            failback: Failback::default(),
            failback_delay: HumanDuration::from_secs(60),
        }
    }
}

/// The weight of some pods. A pod matches if its node has all of `nodeLabels`, and it has all of `podLabels` itself. At
/// least one label must be given.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::priority)]
pub struct Priority {
    /// weight is added to the priority of each pod that matches. From 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub weight: u32,
    /// nodeLabels are labels of the pod's node, such as `topology.kubernetes.io/zone: a`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub node_labels: BTreeMap<String, String>,
    /// podLabels are labels of the pod, such as `apps.kubernetes.io/pod-index: "0"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub pod_labels: BTreeMap<String, String>,
}

/// Whether the role returns to a pod of a higher priority that is eligible again.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum Failback {
    /// Nothing, until the role changes for another reason.
    #[default]
    Never,
    /// That pod becomes active.
    WhenReady,
}

/// What happens when the active pod is about to be deleted although it works.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum PlannedLoss {
    /// An eligible pod that stays becomes active first.
    #[default]
    Handover,
    /// Nothing, until the pod is deleted.
    Ignore,
}

/// What happens to a pod that was active, once the next one is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum OnDemote {
    /// It is a standby.
    #[default]
    Keep,
    /// It is deleted.
    Delete,
}

/// Configuration of the labels that mark the active pod and the standbys.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::routing)]
pub struct RoutingSpec {
    /// roleLabel is the label that marks pods as active or standby; the Service selects by it. It must not be part of
    /// the selector of this LeaderGroup or of the pods' owner. A label other than the default must be listed in the
    /// chart's `admissionPolicies.roleLabels`. Immutable. Defaults to `leadergroup.dev/role`.
    #[schemars(extend("maxLength" = 317))]
    pub role_label: String,
    /// activeValue is the value of the role label on the active pod. Immutable. Defaults to active.
    #[schemars(extend("maxLength" = 63))]
    pub active_value: String,
    /// standbyValue is the value of the role label on every other pod of the group. Immutable. Defaults to standby.
    #[schemars(extend("maxLength" = 63))]
    pub standby_value: String,
    /// endpoints is who writes the EndpointSlices of the group's Services. With Selector, Kubernetes does: a Service
    /// selects the role label. With Managed, the operator writes the slices of each Service with the label
    /// `leadergroup.dev/group: <name of this LeaderGroup>` and replaces the former active pod by the next one in one
    /// update. kube-proxy applies one update sooner than two. The Service must have no selector, or a selector with the
    /// role label `managed`, a value that no pod has. Managed requires the chart's value `managedEndpoints.enabled`.
    /// With Selector, a Service may have that label, too: the condition Routed then tells whether it routes to the
    /// active pod alone. Defaults to Selector.
    pub endpoints: Endpoints,
}

/// Who writes the EndpointSlices of a group's Services.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum Endpoints {
    /// Kubernetes, by a selector of the Service that contains the role label.
    #[default]
    Selector,
    /// The operator.
    Managed,
}

impl Default for RoutingSpec {
    fn default() -> Self {
        Self {
            role_label: ROLE_LABEL.to_owned(),
            active_value: ACTIVE_VALUE.to_owned(),
            standby_value: STANDBY_VALUE.to_owned(),
            endpoints: Endpoints::default(),
        }
    }
}

/// What happens to the role labels when the group is deleted.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum DeletionPolicy {
    /// The role labels are removed, so that a Service that selects them has no endpoints.
    #[default]
    RemoveLabels,
    /// The role labels stay as they are: the active pod keeps serving, but without failover.
    Retain,
}
