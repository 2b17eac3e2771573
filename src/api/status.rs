//! The status of a `LeaderGroup`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{ConditionType, Former, FormerRun, HumanDuration, Reason, Run, schema};

/// The largest integer that every reader of JSON distinguishes from its neighbours. A larger token would leave no room
/// for the next one.
const MAX_TOKEN: i64 = (1 << 53) - 1;

/// What the operator last observed and did. Written only when it changes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = with_default)]
pub struct LeaderGroupStatus {
    /// observedGeneration is the generation of the spec that this status is based on; -1 before the operator has seen
    /// the LeaderGroup.
    #[schemars(range(min = -1))]
    pub observed_generation: i64,
    /// active is the pod that is labelled active, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<ActivePod>,
    /// token is the fencing token of the term that was declared last.
    #[schemars(range(min = 0, max = MAX_TOKEN))]
    pub token: i64,
    /// key is the lock's key: spec.lock.key or its default. SQL statements that check the fencing token need it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// declaration is the current term. The operator declares a change of holder here before it changes any label.
    /// For the operator's use: do not edit.
    pub declaration: Declaration,
    /// eligible is the number of pods that could be active now.
    pub eligible: u32,
    /// replicas is the number of pods that the selector matches.
    pub replicas: u32,
    /// eligibleSummary is `eligible/replicas`, such as 2/3, for display.
    pub eligible_summary: String,
    /// switchover is the result of the last request for a switchover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switchover: Option<SwitchoverStatus>,
    /// history contains the last 10 changes of holder, newest first.
    // It is for people: an entry of another version that cannot be read is left out, and stops no election.
    #[serde(deserialize_with = "readable")]
    pub history: Vec<HistoryEntry>,
    /// conditions are Accepted, Active, Redundant, Routed, Probed, `LockStoreReachable`, Ready and Stalled.
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The status before the operator has seen the group. `Ready` is Unknown in it, so that tools that wait for the group
/// do not treat an object without a status as ready.
impl Default for LeaderGroupStatus {
    fn default() -> Self {
        Self {
            observed_generation: -1,
            active: None,
            token: 0,
            key: None,
            declaration: Declaration::default(),
            eligible: 0,
            replicas: 0,
            eligible_summary: "0/0".to_owned(),
            switchover: None,
            history: Vec::new(),
            conditions: vec![Condition {
                type_: ConditionType::Ready.to_string(),
                status: "Unknown".to_owned(),
                reason: Reason::Pending.to_string(),
                message:
                    "the operator has not seen this group yet; if this persists, check that it is running"
                        .to_owned(),
                last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
                observed_generation: None,
            }],
        }
    }
}

/// Puts the default of the status into its schema. Without it, tools take a new object for one that is up to date.
fn with_default(schema: &mut Schema) {
    schema::conform(schema);
    let default = serde_json::to_value(LeaderGroupStatus::default())
        .expect("a status serialises: its map keys are strings and its numbers finite");
    schema.insert("default".to_owned(), default);
}

/// The active pod.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ActivePod {
    /// pod is the name of the pod.
    pub pod: String,
    /// uid is the UID of the pod. A later pod of the same name has another UID.
    pub uid: String,
    /// node is the node that the pod runs on, if the operator knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// since is when the pod was labelled active.
    #[schemars(schema_with = "schema::time")]
    pub since: Time,
}

/// A pod, identified by name and UID.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub struct PodRef {
    /// name is the name of the pod.
    pub name: String,
    /// uid is the UID of the pod.
    pub uid: String,
}

/// A pod to be written, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAt {
    /// The pod.
    pub pod: PodRef,
    /// The resourceVersion that the first write is bound to; none if the pod has to be read before.
    pub version: Option<String>,
}

impl From<PodRef> for PodAt {
    fn from(pod: PodRef) -> Self {
        Self { pod, version: None }
    }
}

/// Declaration announces a term. It is made by compare-and-set before any pod is changed; from then on no older term
/// can be carried out.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Declaration {
    /// token is the fencing token of the term; 0 before the first term.
    #[schemars(range(min = 0, max = MAX_TOKEN))]
    #[serde(default)]
    pub token: i64,
    /// grant is the identifier of the lock's grant. It distinguishes two grants of the same token, which are possible
    /// after a database lost commits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// holder is the pod that this term makes active; empty if the last holder has no successor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<PodRef>,
    /// strip contains the holders since the last confirmed term, including that term's. They are labelled standby
    /// before `holder` is promoted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip: Vec<PodRef>,
    /// run is the program of the term: which agent may run it, and for how long after a read. None if the group has no
    /// agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// former is the program of an earlier term that may still run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<FormerRun>,
    /// switchover is the last request for a switchover that a term carried out. It is declared together with the term,
    /// so that a request is carried out once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover: Option<String>,
    /// Fields that a newer version has added. Terms of this version keep them: a compare-and-set compares the whole
    /// declaration, so one that was read without them could never be replaced. So a new field about one term must name
    /// that term's token.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

impl Declaration {
    /// Whether this may be declared in place of another one: it is of a later term, or of the same one, and differs in
    /// what it says about programs.
    pub fn may_replace(&self, previous: &Self) -> bool {
        let (run, former) = (previous.run.clone(), previous.former.clone());
        self.token > previous.token || (self != previous && Self { run, former, ..self.clone() } == *previous)
    }

    /// What may run beside the program of this term.
    pub fn former(&self) -> Former {
        Former::of(self.token, self.run.as_ref(), self.former.as_ref())
    }

    /// What may run when the next term begins.
    pub fn former_of_next(&self) -> Former {
        Former::after(self.run.as_ref(), self.former.as_ref())
    }

    /// The program of this term, whether it may start yet or not.
    pub fn program(&self) -> Option<&Run> {
        self.run.as_ref().filter(|run| run.token == self.token)
    }
}

/// The result of the last request for a switchover.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SwitchoverStatus {
    /// request is the value of the annotation `leadergroup.dev/switchover`.
    pub request: String,
    /// result is Done or Refused.
    pub result: SwitchoverResult,
    /// message is a human-readable explanation.
    pub message: String,
}

/// The elements of a list that can be read.
fn readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(list: D) -> Result<Vec<T>, D::Error> {
    let elements = Vec::<Value>::deserialize(list)?;
    Ok(elements.into_iter().filter_map(|element| serde_json::from_value(element).ok()).collect())
}

/// How a request for a switchover ended.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum SwitchoverResult {
    /// The requested pod is active.
    Done,
    /// It was not carried out. The message says why.
    Refused,
}

/// One change of holder.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// token is the fencing token of the term that began.
    #[schemars(range(min = 0, max = MAX_TOKEN))]
    pub token: i64,
    /// from is the name of the pod that was active before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// to is the name of the pod that became active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// reason is the reason for the change, as one CamelCase word.
    pub reason: String,
    /// time is when the new pod was labelled active.
    #[schemars(schema_with = "schema::time")]
    pub time: Time,
    /// duration is how long the change took, until the confirmation of the new term. It begins with the last answer of
    /// the old pod if that was silent, with the decision if it still worked, and otherwise with the first evidence
    /// against it.
    pub duration: HumanDuration,
}
