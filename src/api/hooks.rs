//! Hooks: the requests by which pods learn that their role changes.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::{HumanDuration, Reason, Role, rules, schema};

/// How long a hook may take at most. A change of holder waits for it.
pub(super) const LONGEST_HOOK: Duration = Duration::from_secs(30);

/// HTTP requests to pods whose role changes. At least one of its fields must be set.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::hooks)]
pub struct HooksSpec {
    /// promote is the request to the pod that becomes active: after the former one was demoted, and before this one is
    /// labelled active. It is sent again if the container of the active pod restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<HookSpec>,
    /// demote is the request to a pod that was active: after it lost the active label, and before the next pod is
    /// promoted. A pod that is silent is sent it when it answers probes again. While nothing is to be changed, each
    /// standby that works is sent it once, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demote: Option<HookSpec>,
}

/// An HTTP POST request to the pod's own address. The body is JSON, with the token and the reason of the change. It
/// succeeds on status 200-299.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::hook)]
pub struct HookSpec {
    /// path is the path of the request, such as `/promote`.
    #[schemars(extend("maxLength" = 1024))]
    pub path: String,
    /// port is the port, by number or by its name in the container.
    #[schemars(schema_with = "schema::port")]
    pub port: IntOrString,
    /// timeout is how long the request may take. A change of holder waits for the answer. From 100ms to 30s. Defaults
    /// to 5s.
    #[serde(default = "default_timeout")]
    pub timeout: HumanDuration,
    /// onFailure is what happens if the request fails. With Continue, the change proceeds, and the operator retries the
    /// request until it succeeds. With Abort, a pod that cannot be promoted is passed over, and the former pod of a
    /// planned change becomes active again if it cannot be demoted. If the former pod has failed, the change always
    /// proceeds. Defaults to Continue.
    #[serde(default)]
    pub on_failure: OnHookFailure,
}

fn default_timeout() -> HumanDuration {
    HumanDuration::from_secs(5)
}

/// What happens if a hook fails.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum OnHookFailure {
    /// The change goes on.
    #[default]
    Continue,
    /// Another pod becomes or stays active.
    Abort,
}

impl HooksSpec {
    /// The hook that tells a pod of this role; none if there is none for it.
    pub fn of(&self, role: Role) -> Option<&HookSpec> {
        match role {
            Role::Active => self.promote.as_ref(),
            Role::Standby => self.demote.as_ref(),
            Role::None => None,
        }
    }
}

/// The body of a hook's request.
#[derive(Clone, Debug, Serialize)]
pub struct RoleChange<'a> {
    /// The role that the pod has from now on: `active` or `standby`, whatever the values of the role label are.
    #[serde(serialize_with = "role_name")]
    pub role: Role,
    /// The namespace.
    pub namespace: &'a str,
    /// The name of the `LeaderGroup`.
    pub group: &'a str,
    /// The name of the pod.
    pub pod: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// The key of the lock.
    pub key: &'a str,
    /// The fencing token of the term that begins. A request with a smaller one than the last is out of date.
    pub token: i64,
    /// The reason of the change of holder.
    #[serde(serialize_with = "reason_name")]
    pub reason: Reason,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn role_name<S: Serializer>(role: &Role, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *role == Role::Active { super::ACTIVE_VALUE } else { super::STANDBY_VALUE })
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn reason_name<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_flat_and_has_the_token_as_a_number() {
        let change = RoleChange {
            role: Role::Active,
            namespace: "shop",
            group: "web",
            pod: "web-1",
            uid: "u",
            key: "k",
            token: 7,
            reason: Reason::Switchover,
        };
        let body = serde_json::to_value(&change).expect("plain text and numbers");
        let expected = serde_json::json!({
            "role": "active", "namespace": "shop", "group": "web", "pod": "web-1", "uid": "u", "key": "k",
            "token": 7, "reason": "Switchover",
        });
        assert_eq!(body, expected);
    }
}
