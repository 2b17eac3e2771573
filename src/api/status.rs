//! What the operator answers: the status of a `LeaderGroup`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::{ConditionType, HumanDuration, Reason, schema};

/// What the operator last saw and did. Written on change only.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = with_default)]
pub struct LeaderGroupStatus {
    /// The generation of the spec that this status speaks of; -1 before the operator has seen the group.
    pub observed_generation: i64,
    /// The pod that is labelled active, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<ActivePod>,
    /// The fencing token of the last term that was declared.
    pub token: i64,
    /// The term that is being, or was last, carried out. A change of holder is declared here before any label moves.
    pub declaration: Declaration,
    /// How many pods could be active now.
    pub eligible: u32,
    /// How many pods the selector matches.
    pub members: u32,
    /// `eligible/members`, for people.
    pub ready: String,
    /// The last changes of holder, the newest first; at most 10.
    pub history: Vec<HistoryEntry>,
    /// Accepted, Active, Redundant, Routed, `LockStoreReachable`, Ready, Stalled.
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// What the API server shows before the operator has seen the group. `Ready` is Unknown there, so that nothing that
/// waits for the group takes an object without a status for a finished one.
impl Default for LeaderGroupStatus {
    fn default() -> Self {
        Self {
            observed_generation: -1,
            active: None,
            token: 0,
            declaration: Declaration::default(),
            eligible: 0,
            members: 0,
            ready: "0/0".to_owned(),
            history: Vec::new(),
            conditions: vec![Condition {
                type_: ConditionType::Ready.to_string(),
                status: "Unknown".to_owned(),
                reason: Reason::Pending.to_string(),
                message: "the operator has not seen this group yet; if this stays, is it running?".to_owned(),
                last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
                observed_generation: None,
            }],
        }
    }
}

/// Puts the default of the status into its schema. Without it, tools take a new object for one that is already settled.
fn with_default(schema: &mut Schema) {
    schema::settle(schema);
    let default = serde_json::to_value(LeaderGroupStatus::default())
        .expect("a status serialises: its map keys are strings and its numbers finite");
    schema.insert("default".to_owned(), default);
}

/// The active pod.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ActivePod {
    /// Its name.
    pub pod: String,
    /// Its UID: a pod of the same name that came later is another one.
    pub uid: String,
    /// The node it runs on.
    pub node: String,
    /// When it was labelled active.
    #[schemars(schema_with = "schema::time")]
    pub since: Time,
}

/// A pod, by name and UID.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub struct PodRef {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// The public announcement of a term, made by compare-and-set before any pod is touched: whoever wants to carry out
/// an older term is refused from here on.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Declaration {
    /// The fencing token of the term; 0 before the first.
    #[serde(default)]
    pub token: i64,
    /// The grant that the lock gave for it: two grants of one token, possible after a database lost commits, differ
    /// here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// The pod that is to be active; none after a holder went away without a successor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<PodRef>,
    /// The holders of the terms since the last confirmed one, that one included: they are stripped before `holder` is
    /// promoted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip: Vec<PodRef>,
}

/// One change of holder.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The fencing token of the term that began.
    pub token: i64,
    /// The pod that was active before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The pod that became active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// When the new pod was labelled.
    #[schemars(schema_with = "schema::time")]
    pub at: Time,
    /// From the decision to the new pod's label.
    pub duration: HumanDuration,
}
