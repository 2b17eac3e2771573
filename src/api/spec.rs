//! What a user asks for: the spec of a `LeaderGroup`.

use std::{collections::BTreeMap, time::Duration};

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ACTIVE_VALUE, HumanDuration, LeaderGroupStatus, ROLE_LABEL, STANDBY_VALUE};

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
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
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

/// A label selector, as in a Deployment. It must not be empty.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodSelector {
    /// Labels that a pod must carry with just these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements on the pods' labels; all must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// One requirement of a label selector.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
pub struct LabelSelectorRequirement {
    /// The label's key.
    pub key: String,
    /// How the label's value relates to `values`.
    pub operator: LabelSelectorOperator,
    /// The values to compare with: at least one for In and NotIn, none for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label's value relates to the values of a requirement.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum LabelSelectorOperator {
    /// The label is there, with one of the values.
    In,
    /// The label is not there, or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

/// How the group's lock is kept.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct LockSpec {
    /// How long the active pod may stay silent before another takes over: the price of a hang or a lost node.
    pub ttl: HumanDuration,
    /// How often each pod is probed. At most a third of `ttl`.
    pub retry_interval: HumanDuration,
    /// How long to wait after a holder was lost without a clean end before the next pod is promoted, for workloads that
    /// need time to notice that they lost the lock.
    pub lock_delay: HumanDuration,
    /// The row of the lock table. Immutable. Default: `<kube-system UID>/<namespace>/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
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
pub struct HealthSpec {
    /// The container whose readinessProbe is carried out. Default: the pod's `kubectl.kubernetes.io/default-container`,
    /// else its first container that has a readinessProbe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// A probe to use in place of the pod's own readinessProbe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,
    /// How long one probe may take. Default: the readinessProbe's own timeout, at most `lock.retryInterval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// How many explicit refusals in a row make a pod failing.
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
pub struct HttpGetProbe {
    /// The path. Default: `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The port, by number or by the name it has in the container.
    pub port: ProbePort,
    /// HTTP or HTTPS; a certificate is not verified, as the kubelet does not either.
    #[serde(default)]
    pub scheme: ProbeScheme,
}

/// A TCP connection.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
pub struct TcpSocketProbe {
    /// The port, by number or by the name it has in the container.
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
pub struct RoutingSpec {
    /// The label that tells the active pod from the standbys. Immutable.
    pub role_label: String,
    /// The role label's value on the active pod.
    pub active_value: String,
    /// The role label's value on every other pod.
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
