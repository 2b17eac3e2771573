//! What a user asks for: the spec of a `LeaderGroup`.

use std::time::Duration;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ACTIVE_VALUE, HumanDuration, LeaderGroupStatus, PodSelector, ROLE_LABEL, STANDBY_VALUE, rules, schema,
};

/// A set of pods of which exactly one is active at a time.
///
/// The operator elects one of the pods that `selector` matches, gives it a fencing token, and labels it active; every
/// other pod is labelled standby. A Service that has the role label in its selector routes to the active pod alone.
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
    doc = "A set of pods of which exactly one is active at a time: labelled, routed to and holding the fencing token.",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name must be at most 63 characters: write a shorter name"),
    printcolumn(name = "Active", type_ = "string", json_path = ".status.active.pod", description = "The active pod"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.active.node", description = "The node it is on"),
    printcolumn(name = "Token", type_ = "integer", json_path = ".status.token", description = "The fencing token"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.ready",
        description = "How many pods could be active, of how many"
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
        description = "For how long the pod has been active"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::spec)]
pub struct LeaderGroupSpec {
    /// Which pods of the group's namespace belong to it. Immutable.
    pub selector: PodSelector,
    /// How the group's lock is kept.
    #[serde(default)]
    pub lock: LockSpec,
    /// How the operator tells a working pod from a broken one.
    #[serde(default)]
    pub health: HealthSpec,
    /// How the winner is marked.
    #[serde(default)]
    pub routing: RoutingSpec,
    /// What becomes of the role labels when the group is deleted.
    #[serde(default)]
    pub on_delete: OnDelete,
    /// Stops elections: the active pod stays as it is, whatever happens. A change of holder under way is finished.
    #[serde(default)]
    pub paused: bool,
}

/// How the group's lock is kept.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::lock)]
pub struct LockSpec {
    /// How long the active pod may stay silent before another takes over: the price of a hang or a lost node. From 1s
    /// to 1h, written like 5s or 1m30s.
    pub ttl: HumanDuration,
    /// How often each pod is probed: from 100ms to a third of `ttl`.
    pub retry_interval: HumanDuration,
    /// How long to wait after a holder was lost without a clean end before the next pod is promoted, for workloads that
    /// need time to notice that they lost the lock. From 0s to 1h.
    pub lock_delay: HumanDuration,
    /// The row of the lock table: 1 to 255 printable ASCII characters. Immutable. Default:
    /// `<kube-system UID>/<namespace>/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 255))]
    pub key: Option<String>,
}

impl Default for LockSpec {
    fn default() -> Self {
        Self {
            ttl: HumanDuration::from_secs(5),
            retry_interval: HumanDuration::from_secs(1),
            lock_delay: HumanDuration(Duration::ZERO),
            key: None,
        }
    }
}

/// How the operator tells a working pod from a broken one.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::health)]
pub struct HealthSpec {
    /// The container whose readinessProbe is carried out. Default: the pod's `kubectl.kubernetes.io/default-container`,
    /// else its first container that has a readinessProbe.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 63))]
    pub container: Option<String>,
    /// A probe to use in place of the pod's own readinessProbe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,
    /// How long one probe may take, at most `lock.ttl`. Default: the readinessProbe's own timeout, at most
    /// `lock.retryInterval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// How many explicit refusals in a row make a pod failing, and how many probes must at least have gone unanswered
    /// before a pod counts as silent: 1 to 10.
    pub failure_threshold: u32,
}

impl Default for HealthSpec {
    fn default() -> Self {
        Self { container: None, probe: None, timeout: None, failure_threshold: 2 }
    }
}

/// A probe, always sent to the pod's own address. Exactly one kind is set.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::probe)]
pub struct ProbeSpec {
    /// An HTTP GET that answers with a status from 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGetProbe>,
    /// A TCP connection that is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocketProbe>,
}

/// An HTTP GET.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::http_get)]
pub struct HttpGetProbe {
    /// The path. Default: `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 1024))]
    pub path: Option<String>,
    /// The port, by number or by the name it has in the container.
    #[schemars(schema_with = "schema::port")]
    pub port: ProbePort,
    /// HTTP or HTTPS; a certificate is not verified, as the kubelet does not either.
    #[serde(default)]
    pub scheme: ProbeScheme,
}

/// A TCP connection.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[schemars(transform = rules::port)]
pub struct TcpSocketProbe {
    /// The port, by number or by the name it has in the container.
    #[schemars(schema_with = "schema::port")]
    pub port: ProbePort,
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
    /// HTTP over TLS, the certificate not verified.
    Https,
}

/// How the winner is marked.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::routing)]
pub struct RoutingSpec {
    /// The label that tells the active pod from the standbys; a Service has it in its selector. It must not be part of
    /// the selector of this group or of the pods' owner. Immutable.
    #[schemars(extend("maxLength" = 317))]
    pub role_label: String,
    /// The role label's value on the active pod. Immutable.
    #[schemars(extend("maxLength" = 63))]
    pub active_value: String,
    /// The role label's value on every other pod. Immutable.
    #[schemars(extend("maxLength" = 63))]
    pub standby_value: String,
}

impl Default for RoutingSpec {
    fn default() -> Self {
        Self {
            role_label: ROLE_LABEL.to_owned(),
            active_value: ACTIVE_VALUE.to_owned(),
            standby_value: STANDBY_VALUE.to_owned(),
        }
    }
}

/// What becomes of the role labels when the group is deleted.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum OnDelete {
    /// The role labels are taken off: the Service routes nowhere.
    #[default]
    Strip,
    /// The role labels stay as they are: the active pod keeps serving, and nobody fails over any more.
    Keep,
}
