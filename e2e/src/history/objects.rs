//! The fields of pods, Services, EndpointSlices and `LeaderGroup`s that the invariants use. Of Events they use none.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use leadergroup::api::{
    Declaration, FENCING_ANNOTATION, GROUP_LABEL, LabelSelectorOperator, LeaderGroup, PodSelector,
    RoutingSpec, SLICE_MANAGER, STAMP_ANNOTATION, Stamp,
};
use serde::Serialize;
use serde_json::Value;

/// The role that the scenarios' Services select if the operator writes their endpoints. No pod has it.
const NO_ROLE: &str = "managed";

/// The kinds of objects in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// v1 Pod.
    Pod,
    /// v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice,
    /// leadergroup.dev/v1alpha1 LeaderGroup.
    LeaderGroup,
    /// events.k8s.io/v1 Event.
    Event,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Pod, Self::Service, Self::EndpointSlice, Self::LeaderGroup, Self::Event];
}

/// A recorded object.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A pod.
    Pod(PodView),
    /// A Service.
    Service(ServiceView),
    /// An EndpointSlice.
    Slice(SliceView),
    /// A `LeaderGroup`.
    Group(Box<GroupView>),
    /// An Event.
    Event,
}

/// The relevant fields of a pod.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// Its UID.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its stamp, unparsed.
    pub stamp: Option<String>,
    /// Its fencing token, unparsed.
    pub fencing: Option<String>,
    /// The node it was bound to.
    pub node: Option<String>,
    /// Its address, if it has one.
    pub address: Option<String>,
    /// It has a deletionTimestamp.
    pub deleting: bool,
    /// It has finished, or is being evicted.
    pub ended: bool,
    /// Kubernetes is about to delete it because of a taint of its node: a lost node gets one.
    pub tainted: bool,
    /// Its condition Ready says that it is not.
    pub unready: bool,
    /// How often its containers were restarted.
    pub restarts: i64,
    /// One of its containers has ended and does not run.
    pub down: bool,
}

/// The relevant fields of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceView {
    /// Its UID.
    pub uid: String,
    /// Its selector.
    pub selector: BTreeMap<String, String>,
    /// The group that its label names.
    pub group: Option<String>,
}

/// The relevant fields of an EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceView {
    /// The Service it belongs to, by its label.
    pub service: Option<String>,
    /// The UID of the Service that owns it.
    pub service_uid: Option<String>,
    /// Its address family.
    pub family: String,
    /// The endpoints that are ready or serving: the pod's UID, or the addresses of an endpoint without a pod.
    pub serving: Vec<String>,
    /// All endpoints, named in the same way.
    pub endpoints: Vec<String>,
    /// The operator writes it.
    pub managed: bool,
    /// Its stamp, unparsed.
    pub stamp: Option<String>,
}

/// The relevant fields of a `LeaderGroup`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupView {
    /// Its UID.
    pub uid: String,
    /// When it was created: if two groups select a pod, it belongs to the older one.
    pub created: Timestamp,
    /// Its selector.
    pub selector: PodSelector,
    /// Its role label and the label's values.
    pub routing: RoutingSpec,
    /// The lock's key, if the spec names one.
    pub key: Option<String>,
    /// How long the active pod may be silent.
    pub silence_timeout: Duration,
    /// The declared term.
    pub declaration: Declaration,
    /// The token in the status.
    pub token: i64,
    /// The UID of the pod that the status calls active.
    pub active: Option<String>,
    /// The status and the reason of the condition Ready.
    pub ready: Option<(String, String)>,
    /// The reasons of the last changes to another holder, by token. A change to none has the token of the term that it
    /// ended.
    pub reasons: Vec<(i64, String)>,
}

impl Object {
    /// Reads an object from the JSON that the API server stores or serves.
    pub fn read(kind: Kind, json: &Value) -> Result<Self> {
        Ok(match kind {
            Kind::Pod => Self::Pod(pod(json)?),
            Kind::Service => Self::Service(ServiceView {
                uid: uid(json)?,
                selector: strings(json.pointer("/spec/selector")),
                group: strings(json.pointer("/metadata/labels")).remove(GROUP_LABEL),
            }),
            Kind::EndpointSlice => Self::Slice(slice(json)),
            Kind::Event => Self::Event,
            Kind::LeaderGroup => {
                let group: LeaderGroup = serde_json::from_value(json.clone())
                    .context("a LeaderGroup that its types cannot read")?;
                let status = group.status.unwrap_or_default();
                let Some(created) = group.metadata.creation_timestamp else {
                    bail!("a LeaderGroup without creationTimestamp")
                };
                Self::Group(Box::new(GroupView {
                    uid: uid(json)?,
                    created: created.0,
                    selector: group.spec.selector,
                    routing: group.spec.routing,
                    key: group.spec.lock.key,
                    silence_timeout: group.spec.health.silence_timeout.0,
                    declaration: status.declaration,
                    token: status.token,
                    active: status.active.map(|active| active.uid),
                    ready: status
                        .conditions
                        .into_iter()
                        .find(|one| one.type_ == "Ready")
                        .map(|one| (one.status, one.reason)),
                    reasons: status
                        .history
                        .into_iter()
                        .filter(|entry| entry.to.is_some())
                        .map(|entry| (entry.token, entry.reason))
                        .collect(),
                }))
            }
        })
    }
}

fn uid(json: &Value) -> Result<String> {
    let uid = json.pointer("/metadata/uid").and_then(Value::as_str);
    Ok(uid.context("an object without metadata.uid")?.to_owned())
}

fn pod(json: &Value) -> Result<PodView> {
    let text = |pointer| json.pointer(pointer).and_then(Value::as_str);
    let disrupted = condition(json, "DisruptionTarget", "status") == Some("True");
    Ok(PodView {
        uid: uid(json)?,
        labels: strings(json.pointer("/metadata/labels")),
        stamp: annotation(json, STAMP_ANNOTATION),
        fencing: annotation(json, FENCING_ANNOTATION),
        node: text("/spec/nodeName").map(str::to_owned),
        address: text("/status/podIP").map(str::to_owned),
        deleting: text("/metadata/deletionTimestamp").is_some(),
        ended: matches!(text("/status/phase"), Some("Failed" | "Succeeded")) || disrupted,
        tainted: disrupted && condition(json, "DisruptionTarget", "reason") == Some("DeletionByTaintManager"),
        unready: condition(json, "Ready", "status").is_some_and(|status| status != "True"),
        restarts: containers(json).filter_map(|one| one.get("restartCount")?.as_i64()).sum(),
        down: containers(json).any(|one| one.pointer("/state/terminated").is_some_and(Value::is_object)),
    })
}

fn condition<'a>(json: &'a Value, name: &str, field: &str) -> Option<&'a str> {
    let all = json.pointer("/status/conditions")?.as_array()?;
    let found = all.iter().find(|one| one.get("type").and_then(Value::as_str) == Some(name))?;
    found.get(field)?.as_str()
}

fn containers(json: &Value) -> impl Iterator<Item = &Value> {
    json.pointer("/status/containerStatuses").and_then(Value::as_array).into_iter().flatten()
}

fn annotation(json: &Value, name: &str) -> Option<String> {
    let value = json.pointer("/metadata/annotations")?.get(name)?;
    value.as_str().map(str::to_owned)
}

fn strings(map: Option<&Value>) -> BTreeMap<String, String> {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn slice(json: &Value) -> SliceView {
    let owners = json.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten();
    let service_uid = owners
        .filter(|owner| owner.get("kind").and_then(Value::as_str) == Some("Service"))
        .find_map(|owner| owner.get("uid").and_then(Value::as_str))
        .map(str::to_owned);
    let endpoints = || json.get("endpoints").and_then(Value::as_array).into_iter().flatten();
    let mut labels = strings(json.pointer("/metadata/labels"));
    let by = labels.remove("endpointslice.kubernetes.io/managed-by");
    SliceView {
        service: labels.remove("kubernetes.io/service-name"),
        service_uid,
        family: json.get("addressType").and_then(Value::as_str).unwrap_or_default().to_owned(),
        serving: endpoints().filter(|endpoint| serves(endpoint)).map(endpoint_name).collect(),
        endpoints: endpoints().map(endpoint_name).collect(),
        managed: by.is_some_and(|by| by == SLICE_MANAGER),
        stamp: annotation(json, STAMP_ANNOTATION),
    }
}

/// Whether the endpoint is ready or serving. A missing condition counts as true, as it does for routing.
fn serves(endpoint: &Value) -> bool {
    let condition =
        |name: &str| endpoint.get("conditions").and_then(|c| c.get(name)).and_then(Value::as_bool);
    let ready = condition("ready").unwrap_or(true);
    ready || condition("serving").unwrap_or(ready)
}

fn endpoint_name(endpoint: &Value) -> String {
    let pod = endpoint.pointer("/targetRef/uid").and_then(Value::as_str);
    pod.map_or_else(|| endpoint.get("addresses").unwrap_or(&Value::Null).to_string(), str::to_owned)
}

/// Whether labels match a selector. An empty selector matches nothing, because the CRD refuses it.
pub(super) fn selects(selector: &PodSelector, labels: &BTreeMap<String, String>) -> bool {
    let listed = selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    let expressed = selector.match_expressions.iter().all(|wanted| {
        let value = labels.get(&wanted.key);
        let among = value.is_some_and(|value| wanted.values.contains(value));
        match wanted.operator {
            LabelSelectorOperator::In => among,
            LabelSelectorOperator::NotIn => !among,
            LabelSelectorOperator::Exists => value.is_some(),
            LabelSelectorOperator::DoesNotExist => value.is_none(),
        }
    });
    let empty = selector.match_labels.is_empty() && selector.match_expressions.is_empty();
    !empty && listed && expressed
}

impl GroupView {
    /// Whether a pod with these labels belongs to the group, unless an older group selects it, too.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        selects(&self.selector, labels)
    }
}

impl ServiceView {
    /// Whether the Service selects no pod, so that the operator may write its endpoints.
    pub fn selects_nothing(&self, role_label: &str) -> bool {
        self.selector.is_empty() || self.selector.get(role_label).is_some_and(|role| role == NO_ROLE)
    }
}

impl SliceView {
    /// Whether another slice of the same Service has the stamp of a later term.
    pub fn is_behind(&self, other: &Self) -> bool {
        let token = |slice: &Self| slice.stamp.as_deref()?.parse().ok().map(|stamp: Stamp| stamp.token);
        self.service == other.service && token(self) < token(other)
    }
}

impl PodView {
    /// The term of its stamp.
    pub fn term(&self) -> Option<Stamp> {
        self.stamp.as_deref()?.parse().ok()
    }

    /// Whether the pod's role label has the value for the active pod.
    pub fn is_active(&self, routing: &RoutingSpec) -> bool {
        self.labels.get(&routing.role_label) == Some(&routing.active_value)
    }

    /// The role label's value.
    pub fn role(&self, routing: &RoutingSpec) -> Option<&str> {
        self.labels.get(&routing.role_label).map(String::as_str)
    }
}
