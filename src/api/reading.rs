//! Decoding a group as the API server stores it. It may have been written for a newer version of the operator, or
//! without validation.
//!
//! A group that cannot be decoded must not make the watch of all groups fail. No decision may be based on a partly
//! decoded spec; but when such a group is deleted, its finalizer must still be removed.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Declaration, DeletionPolicy, ElectionSpec, HealthSpec, LabelSelectorOperator, LabelSelectorRequirement,
    LeaderGroup, LeaderGroupSpec, LeaderGroupStatus, LockSpec, PodSelector, RoutingSpec,
};

/// A group, or an object that this version of the operator cannot decode as one. Decoding never fails.
#[derive(Clone, Debug)]
pub struct Sighting(pub Result<LeaderGroup, Box<Unreadable>>);

/// A stored group that this version of the operator cannot decode.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Which field cannot be read, why, and what to do.
    pub problem: String,
    spec: Value,
    status: Value,
}

/// A label that no pod has.
const UNREADABLE_LABEL: &str = "leadergroup.dev/unreadable";
/// Limit of the decoding attempts in the search for the invalid field.
const MOST_ATTEMPTS: u32 = 200;

impl<'de> Deserialize<'de> for Sighting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        Ok(Self(LeaderGroup::deserialize(&object).map_err(|error| {
            let problem = problem(&object, &error);
            let mut part = |name: &str| object.get_mut(name).map(Value::take).unwrap_or_default();
            let metadata = serde_json::from_value(part("metadata")).unwrap_or_default();
            Box::new(Unreadable { metadata, problem, spec: part("spec"), status: part("status") })
        })))
    }
}

impl Resource for Sighting {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        LeaderGroup::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        LeaderGroup::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        LeaderGroup::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        LeaderGroup::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(group) => group.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(group) => group.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}

impl Sighting {
    /// Whether the object has no status, which is possible if the CRD sets no defaults.
    pub fn is_without_status(&self) -> bool {
        match &self.0 {
            Ok(group) => group.status.is_none(),
            Err(unreadable) => unreadable.status.is_null(),
        }
    }

    /// For a group that is being deleted: a spec that the API server accepts in place of the stored one. Its
    /// immutable fields are the stored ones, otherwise the API server would refuse the change.
    pub fn acceptable_spec(&self) -> Option<Value> {
        self.meta().deletion_timestamp.as_ref()?;
        let spec = match &self.0 {
            Ok(group) => serde_json::to_value(&group.spec).unwrap_or_default(),
            Err(unreadable) => unreadable.spec.clone(),
        };
        let stored = |pointer: &str| spec.pointer(pointer).filter(|value| !value.is_null()).cloned();
        let selector =
            stored("/selector").unwrap_or_else(|| json!({ "matchLabels": { UNREADABLE_LABEL: "true" } }));
        let mut acceptable = json!({ "selector": selector });
        for (section, field) in [
            ("lock", "key"),
            ("routing", "roleLabel"),
            ("routing", "activeValue"),
            ("routing", "standbyValue"),
        ] {
            if let Some(value) = stored(&format!("/{section}/{field}")) {
                acceptable[section][field] = value;
            }
        }
        Some(acceptable)
    }

    /// The term that the status declares. If the status cannot be decoded, only the token is set.
    pub fn declaration(&self) -> Declaration {
        let status = match &self.0 {
            Ok(group) => group.status.clone(),
            Err(unreadable) => unreadable.status(),
        };
        status.unwrap_or_default().declaration
    }
}

impl Unreadable {
    /// The conditions in the status that can be decoded.
    pub fn conditions(&self) -> Vec<Condition> {
        let stored = self.status.get("conditions").and_then(Value::as_array);
        stored.into_iter().flatten().filter_map(|condition| Condition::deserialize(condition).ok()).collect()
    }

    /// A substitute for the group, to be used only for its deletion: its labels, its lock row and its finalizer.
    ///
    /// `known` is the last spec that could be decoded; the group's pods were labelled according to it. The substitute
    /// is this spec, with the stored `deletionPolicy` if that can be decoded.
    ///
    /// Without `known`, the fields that the deletion depends on are the stored ones if they can be decoded, and the
    /// defaults otherwise. The selector then matches no pods, because an incomplete selector would match too many,
    /// perhaps pods of another group. Pods with the group's stamp are found without a selector, and no pod can be
    /// promoted. If the lock's key cannot be decoded, the row has to be found by other means.
    pub fn remains(&self, known: Option<&LeaderGroupSpec>) -> LeaderGroup {
        let mut spec = known.cloned().unwrap_or_else(|| self.without_pods());
        self.amend("/deletionPolicy", &mut spec.deletion_policy);
        let mut group = LeaderGroup::new("", spec);
        group.metadata = self.metadata.clone();
        group.status = self.status();
        group
    }

    /// The stored spec with a selector that matches nothing.
    fn without_pods(&self) -> LeaderGroupSpec {
        let none_of_no_values = LabelSelectorRequirement {
            key: UNREADABLE_LABEL.to_owned(),
            operator: LabelSelectorOperator::In,
            values: Vec::new(),
        };
        let (mut lock, mut routing) = (LockSpec::default(), RoutingSpec::default());
        self.amend("/lock/key", &mut lock.key);
        self.amend("/routing/roleLabel", &mut routing.role_label);
        self.amend("/routing/activeValue", &mut routing.active_value);
        self.amend("/routing/standbyValue", &mut routing.standby_value);
        LeaderGroupSpec {
            selector: PodSelector { match_expressions: vec![none_of_no_values], ..PodSelector::default() },
            lock,
            health: HealthSpec::default(),
            election: ElectionSpec::default(),
            routing,
            agent: None,
            hooks: None,
            deletion_policy: DeletionPolicy::default(),
            paused: false,
        }
    }

    /// Sets the field to the stored value, if there is one and it can be decoded.
    fn amend<T: DeserializeOwned>(&self, pointer: &str, field: &mut T) {
        if let Some(stored) = self.spec.pointer(pointer).and_then(|stored| T::deserialize(stored).ok()) {
            *field = stored;
        }
    }

    fn status(&self) -> Option<LeaderGroupStatus> {
        if self.status.is_null() {
            return None;
        }
        let whole = LeaderGroupStatus::deserialize(&self.status);
        Some(whole.unwrap_or_else(|_| {
            let token = |pointer: &str| self.status.pointer(pointer).and_then(Value::as_i64);
            let token = token("/declaration/token").or_else(|| token("/token")).unwrap_or_default();
            LeaderGroupStatus {
                token,
                declaration: Declaration { token, ..Declaration::default() },
                conditions: self.conditions(),
                ..LeaderGroupStatus::default()
            }
        }))
    }
}

/// A message that names the field and says why it cannot be read and what to do.
fn problem(object: &Value, error: &serde_json::Error) -> String {
    let mut attempts = MOST_ATTEMPTS;
    let field = ["spec", "status"].into_iter().find_map(|section| {
        let mut path = vec![section.to_owned()];
        guilty(object, &mut path, &mut attempts).then(|| path.join("."))
    });
    format!(
        "{} cannot be read: {error}; correct it, or upgrade the operator if a newer version supports it. Until then \
         nothing changes for this group",
        field.as_deref().unwrap_or("the object")
    )
}

/// Extends `path` to the field without which the object can be decoded. False if the field is not below `path`.
fn guilty(object: &Value, path: &mut Vec<String>, attempts: &mut u32) -> bool {
    let pointer = |path: &[String]| format!("/{}", path.join("/"));
    let keys: Vec<String> = match object.pointer(&pointer(path)) {
        Some(Value::Object(fields)) => fields.keys().cloned().collect(),
        Some(Value::Array(items)) => (0..items.len()).map(|index| index.to_string()).collect(),
        _ => return false,
    };
    for key in &keys {
        if *attempts == 0 {
            return false;
        }
        *attempts -= 1;
        let mut without = object.clone();
        match without.pointer_mut(&pointer(path)) {
            Some(Value::Object(fields)) => drop(fields.remove(key)),
            Some(Value::Array(items)) => drop(key.parse().map(|index: usize| items.remove(index))),
            _ => return false,
        }
        if LeaderGroup::deserialize(&without).is_ok() {
            path.push(key.clone());
            // Go deeper if possible.
            guilty(object, path, attempts);
            return true;
        }
    }
    // Leaving out a required field proves nothing, but the fields below it can be tried.
    for key in keys {
        path.push(key);
        if guilty(object, path, attempts) {
            return true;
        }
        path.pop();
    }
    false
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::ResourceExt as _;

    use super::*;

    fn stored(spec: &Value, status: &Value) -> Sighting {
        let object = json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "namespace": "shop", "name": "web", "uid": "u1", "finalizers": ["a", "b"] },
            "spec": spec,
            "status": status
        });
        serde_json::from_value(object).expect("every object can be decoded")
    }

    fn unreadable(spec: &Value, status: &Value) -> Unreadable {
        *stored(spec, status).0.expect_err("it is bad")
    }

    fn selector() -> Value {
        json!({ "matchLabels": { "app": "web" } })
    }

    #[test]
    fn a_valid_group_is_decoded() {
        let good = stored(&json!({ "selector": selector() }), &json!({ "declaration": { "token": 3 } }));
        assert_eq!((good.declaration().token, good.is_without_status()), (3, false));
        assert_eq!(good.0.expect("it is valid").name_any(), "web");
    }

    #[test]
    fn the_problem_names_the_invalid_field() {
        for (spec, field) in [
            (json!({ "selector": selector(), "deletionPolicy": "Explode" }), "spec.deletionPolicy"),
            (
                json!({ "selector": selector(), "health": { "silenceTimeout": "5 days", "interval": "1s" } }),
                "spec.health.silenceTimeout",
            ),
            (json!({ "selector": { "matchLabels": { "app": 5 } } }), "spec.selector.matchLabels.app"),
            (json!({ "selector": selector(), "paused": "maybe" }), "spec.paused"),
        ] {
            let unreadable = unreadable(&spec, &Value::Null);
            assert!(
                unreadable.problem.starts_with(&format!("{field} cannot be read: ")),
                "{}",
                unreadable.problem
            );
            assert_eq!(unreadable.metadata.uid.as_deref(), Some("u1"));
        }
        for spec in [json!({}), json!(7), json!({ "selector": 1, "paused": 2 })] {
            let unreadable = unreadable(&spec, &Value::Null);
            assert!(unreadable.problem.starts_with("the object cannot be read: "), "{}", unreadable.problem);
        }
    }

    /// Specs that can be decoded only in part, with the expected key, role label, its values, and `deletionPolicy`.
    fn broken() -> [(Value, [&'static str; 4], DeletionPolicy); 8] {
        let routing = json!({ "roleLabel": "a.b/role", "activeValue": "on", "standbyValue": "off" });
        let lock = json!({ "key": "k" });
        let defaults = ["leadergroup.dev/role", "active", "standby"];
        let [label, active, standby] = defaults;
        [
            (
                json!({ "selector": selector(), "paused": 7, "lock": lock, "routing": routing, "deletionPolicy": "Retain" }),
                ["k", "a.b/role", "on", "off"],
                DeletionPolicy::Retain,
            ),
            (
                json!({ "selector": { "matchLabels": 1 }, "lock": lock, "deletionPolicy": "Explode" }),
                ["k", label, active, standby],
                DeletionPolicy::RemoveLabels,
            ),
            (
                json!({ "lock": { "key": "k", "after": 5 }, "routing": { "roleLabel": "a.b/role", "activeValue": 1 } }),
                ["k", "a.b/role", active, standby],
                DeletionPolicy::RemoveLabels,
            ),
            (
                json!({ "lock": { "key": [] }, "routing": { "roleLabel": {}, "standbyValue": "off" } }),
                ["", label, active, "off"],
                DeletionPolicy::RemoveLabels,
            ),
            (
                json!({ "health": [], "lock": "k", "routing": null, "deletionPolicy": null }),
                ["", label, active, standby],
                DeletionPolicy::RemoveLabels,
            ),
            (json!({ "deletionPolicy": "Retain" }), ["", label, active, standby], DeletionPolicy::Retain),
            (json!([]), ["", label, active, standby], DeletionPolicy::RemoveLabels),
            (Value::Null, ["", label, active, standby], DeletionPolicy::RemoveLabels),
        ]
    }

    #[test]
    fn fields_needed_for_deletion_are_kept_and_no_pod_is_selected() {
        for (spec, [key, label, active, standby], deletion_policy) in broken() {
            let remains = unreadable(&spec, &Value::Null).remains(None);
            let routing = RoutingSpec {
                role_label: label.to_owned(),
                active_value: active.to_owned(),
                standby_value: standby.to_owned(),
                ..RoutingSpec::default()
            };
            assert_eq!(remains.spec.routing, routing, "{spec}");
            assert_eq!(remains.spec.lock.key.as_deref().unwrap_or_default(), key, "{spec}");
            assert_eq!(remains.spec.deletion_policy, deletion_policy, "{spec}");
            for labels in [vec![], vec![("app", "web")], vec![("leadergroup.dev/unreadable", "")]] {
                let labels: BTreeMap<_, _> =
                    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                assert!(!remains.spec.selector.matches(&labels), "{spec} selects {labels:?}");
            }
            assert!(remains.spec.validate().is_err(), "{spec} can be carried out");
            assert_eq!((remains.name_any(), remains.finalizers().len()), ("web".to_owned(), 2));
            assert_eq!(remains.status, None);
        }
    }

    #[test]
    fn the_last_known_spec_is_used_with_the_stored_deletion_policy() {
        let known = json!({
            "selector": selector(),
            "lock": { "key": "before" },
            "routing": { "roleLabel": "a.b/before", "activeValue": "before" },
            "deletionPolicy": "Retain"
        });
        let known: LeaderGroupSpec = serde_json::from_value(known).expect("it is good");
        for nothing in [json!(7), json!({}), json!({ "deletionPolicy": "Explode" })] {
            assert_eq!(unreadable(&nothing, &Value::Null).remains(Some(&known)).spec, known, "{nothing}");
        }
        let some = json!({
            "selector": { "matchLabels": { "app": "another" } },
            "lock": { "key": 1 },
            "routing": { "roleLabel": "a.b/after" },
            "deletionPolicy": "RemoveLabels"
        });
        let remains = unreadable(&some, &Value::Null).remains(Some(&known)).spec;
        assert_eq!(remains, LeaderGroupSpec { deletion_policy: DeletionPolicy::RemoveLabels, ..known });
    }

    #[test]
    fn only_the_spec_of_a_group_in_deletion_may_be_replaced() {
        let broken = json!({
            "selector": selector(),
            "lock": { "key": "k", "after": 5 },
            "routing": { "roleLabel": "a.b/role", "activeValue": "on" },
            "health": 7,
            "deletionPolicy": "Retain"
        });
        let defaults = json!({
            "roleLabel": "leadergroup.dev/role", "activeValue": "active", "standbyValue": "standby"
        });
        for (spec, expected) in [
            // Can be decoded, but is not valid according to the CRD.
            (
                json!({ "selector": selector(), "health": [] }),
                json!({ "selector": selector(), "routing": defaults }),
            ),
            (
                broken,
                json!({ "selector": selector(), "lock": { "key": "k" }, "routing": { "roleLabel": "a.b/role", "activeValue": "on" } }),
            ),
            (
                json!({ "selector": null, "lock": 7 }),
                json!({ "selector": { "matchLabels": { UNREADABLE_LABEL: "true" } } }),
            ),
        ] {
            let mut found = stored(&spec, &Value::Null);
            assert_eq!(found.acceptable_spec(), None, "it lives");
            found.meta_mut().deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
            assert_eq!(found.acceptable_spec(), Some(expected.clone()));
            let accepted: LeaderGroupSpec = serde_json::from_value(expected).expect("it can be read");
            assert_eq!(accepted.validate(), Ok(()));
        }
    }

    #[test]
    fn the_token_and_the_conditions_of_an_unreadable_status_are_kept() {
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "AsExpected", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            })
        };
        let good = json!({ "selector": selector() });
        for (status, token, conditions) in [
            (json!({ "declaration": { "token": 4, "holder": 1 }, "token": 3 }), 4, 0),
            (
                json!({ "declaration": { "token": "4" }, "token": 3, "conditions": [condition("Ready"), 7] }),
                3,
                1,
            ),
            (json!({ "declaration": 4, "conditions": {} }), 0, 0),
            (
                json!({ "history": 1, "token": 5, "conditions": [condition("Ready"), condition("Active")] }),
                5,
                2,
            ),
            (json!(7), 0, 0),
        ] {
            let unreadable = unreadable(&good, &status);
            assert_eq!(unreadable.conditions().len(), conditions, "{status}");
            let remains = unreadable.remains(None).status.expect("there is one");
            assert_eq!((remains.token, remains.declaration.token), (token, token), "{status}");
            assert_eq!(remains.conditions.len(), conditions, "{status}");
        }
        // A history that another version has written is no reason to stop.
        let entry =
            json!({ "token": 1, "reason": "Silent", "time": "2026-01-01T00:00:00Z", "duration": "1s" });
        let history = json!({ "history": [{ "token": 2, "reason": "Silent", "duration": "1s" }, entry] });
        let group = stored(&good, &history).0.expect("it can be read");
        assert_eq!(
            group.status.expect("a status").history.iter().map(|it| it.token).collect::<Vec<_>>(),
            [1]
        );
        let whole = json!({ "declaration": { "token": 2, "grant": "g" }, "replicas": 3, "conditions": [] });
        let bad = stored(&json!({}), &whole);
        assert_eq!((bad.declaration().token, bad.declaration().grant.as_deref()), (2, Some("g")));
        assert!(!bad.is_without_status() && stored(&json!({}), &Value::Null).is_without_status());
    }
}
