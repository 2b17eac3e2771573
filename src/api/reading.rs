//! Reading a group as the API server stores it: perhaps for a newer version of the program, or past all validation.
//!
//! One that cannot be read must not keep the others from being seen; and although nothing may be decided on a spec that
//! is understood by half, it must not stay for ever once it is to go.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Declaration, HealthSpec, LabelSelectorOperator, LabelSelectorRequirement, LeaderGroup, LeaderGroupSpec,
    LeaderGroupStatus, LockSpec, OnDelete, PodSelector, RoutingSpec,
};

/// A group, or what is known of one that this version of the program cannot read. Every object can be sighted.
#[derive(Clone, Debug)]
pub struct Sighting(pub Result<LeaderGroup, Box<Unreadable>>);

/// An object that is no group to this version of the program, though the API server stores it.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Which field, why, and what to do.
    pub problem: String,
    spec: Value,
    status: Value,
}

/// A label that no pod has.
const UNREADABLE_LABEL: &str = "leadergroup.dev/unreadable";
/// The most attempts at reading that the search for the guilty field may take.
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
    /// Whether the object has no status at all, as when its definition sets no defaults.
    pub(crate) fn is_without_status(&self) -> bool {
        match &self.0 {
            Ok(group) => group.status.is_none(),
            Err(unreadable) => unreadable.status.is_null(),
        }
    }

    /// A spec that the API server accepts in place of the stored one, if this is a group that is being deleted. What is
    /// immutable in it is as stored, or the API server would not accept it either.
    pub(crate) fn acceptable_spec(&self) -> Option<Value> {
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

    /// The term that the status declares; of one that cannot be read, no more than its token.
    pub fn declaration(&self) -> Declaration {
        let status = match &self.0 {
            Ok(group) => group.status.clone(),
            Err(unreadable) => unreadable.status(),
        };
        status.unwrap_or_default().declaration
    }
}

impl Unreadable {
    /// What the status says, as far as that can be read.
    pub fn conditions(&self) -> Vec<Condition> {
        let stored = self.status.get("conditions").and_then(Value::as_array);
        stored.into_iter().flatten().filter_map(|condition| Condition::deserialize(condition).ok()).collect()
    }

    /// What is left of the group, for its end: with this its labels, its lock's row and its finalizer are seen to.
    /// Nothing else may be done with it.
    ///
    /// `known` is the spec from when the group last could be read, which is what its pods were labelled by; of what is
    /// stored only `onDelete` counts then, if that can be read. Of a group that is not known counts what can be read of
    /// the fields that its end depends on, else their default. It selects no pods: they may be another group's, and a
    /// selector of which a part is missing selects more than was meant. Those with its stamp are found all the same,
    /// and nobody can be promoted. If its lock's key cannot be read, its row has to be found by other means.
    pub(crate) fn remains(&self, known: Option<&LeaderGroupSpec>) -> LeaderGroup {
        let mut spec = known.cloned().unwrap_or_else(|| self.without_pods());
        self.amend("/onDelete", &mut spec.on_delete);
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
            routing,
            on_delete: OnDelete::default(),
            paused: false,
        }
    }

    /// Puts what is stored in the field, if it is there and can be read.
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

/// Says which field it is, why it cannot be read, and what to do.
fn problem(object: &Value, error: &serde_json::Error) -> String {
    let mut attempts = MOST_ATTEMPTS;
    let field = ["spec", "status"].into_iter().find_map(|section| {
        let mut path = vec![section.to_owned()];
        guilty(object, &mut path, &mut attempts).then(|| path.join("."))
    });
    format!(
        "{} cannot be read: {error}; put it right, or upgrade the operator if a newer one knows what is meant. Until then \
         nothing changes for this group",
        field.as_deref().unwrap_or("the object")
    )
}

/// Narrows `path` down to the field without which the object can be read. False: it is not below the path.
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
            // Deeper, if it can be told.
            guilty(object, path, attempts);
            return true;
        }
    }
    // A field that has to be there cannot be left out to see; what is below it can.
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
        serde_json::from_value(object).expect("every object can be sighted")
    }

    fn unreadable(spec: &Value, status: &Value) -> Unreadable {
        *stored(spec, status).0.expect_err("it is bad")
    }

    fn selector() -> Value {
        json!({ "matchLabels": { "app": "web" } })
    }

    #[test]
    fn a_good_group_is_a_group() {
        let good = stored(&json!({ "selector": selector() }), &json!({ "declaration": { "token": 3 } }));
        assert_eq!((good.declaration().token, good.is_without_status()), (3, false));
        assert_eq!(good.0.expect("it is good").name_any(), "web");
    }

    #[test]
    fn a_bad_one_says_which_field_it_is() {
        for (spec, field) in [
            (json!({ "selector": selector(), "onDelete": "Explode" }), "spec.onDelete"),
            (
                json!({ "selector": selector(), "lock": { "ttl": "5 days", "retryInterval": "1s" } }),
                "spec.lock.ttl",
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

    /// Specs of which a part cannot be read, and the key, the role label and its values, and `onDelete` that remain.
    fn broken() -> [(Value, [&'static str; 4], OnDelete); 8] {
        let routing = json!({ "roleLabel": "a.b/role", "activeValue": "on", "standbyValue": "off" });
        let lock = json!({ "key": "k" });
        let defaults = ["leadergroup.dev/role", "active", "standby"];
        let [label, active, standby] = defaults;
        [
            (
                json!({ "selector": selector(), "paused": 7, "lock": lock, "routing": routing, "onDelete": "Keep" }),
                ["k", "a.b/role", "on", "off"],
                OnDelete::Keep,
            ),
            (
                json!({ "selector": { "matchLabels": 1 }, "lock": lock, "onDelete": "Explode" }),
                ["k", label, active, standby],
                OnDelete::Strip,
            ),
            (
                json!({ "lock": { "key": "k", "ttl": 5 }, "routing": { "roleLabel": "a.b/role", "activeValue": 1 } }),
                ["k", "a.b/role", active, standby],
                OnDelete::Strip,
            ),
            (
                json!({ "lock": { "key": [] }, "routing": { "roleLabel": {}, "standbyValue": "off" } }),
                ["", label, active, "off"],
                OnDelete::Strip,
            ),
            (
                json!({ "health": [], "lock": "k", "routing": null, "onDelete": null }),
                ["", label, active, standby],
                OnDelete::Strip,
            ),
            (json!({ "onDelete": "Keep" }), ["", label, active, standby], OnDelete::Keep),
            (json!([]), ["", label, active, standby], OnDelete::Strip),
            (Value::Null, ["", label, active, standby], OnDelete::Strip),
        ]
    }

    #[test]
    fn what_the_end_depends_on_remains_and_no_pod_is_selected() {
        for (spec, [key, label, active, standby], on_delete) in broken() {
            let remains = unreadable(&spec, &Value::Null).remains(None);
            let routing = RoutingSpec {
                role_label: label.to_owned(),
                active_value: active.to_owned(),
                standby_value: standby.to_owned(),
            };
            assert_eq!(remains.spec.routing, routing, "{spec}");
            assert_eq!(remains.spec.lock.key.as_deref().unwrap_or_default(), key, "{spec}");
            assert_eq!(remains.spec.on_delete, on_delete, "{spec}");
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
    fn what_was_known_stays_but_for_the_last_will() {
        let known = json!({
            "selector": selector(),
            "lock": { "key": "before" },
            "routing": { "roleLabel": "a.b/before", "activeValue": "before" },
            "onDelete": "Keep"
        });
        let known: LeaderGroupSpec = serde_json::from_value(known).expect("it is good");
        for nothing in [json!(7), json!({}), json!({ "onDelete": "Explode" })] {
            assert_eq!(unreadable(&nothing, &Value::Null).remains(Some(&known)).spec, known, "{nothing}");
        }
        let some = json!({
            "selector": { "matchLabels": { "app": "another" } },
            "lock": { "key": 1 },
            "routing": { "roleLabel": "a.b/after" },
            "onDelete": "Strip"
        });
        let remains = unreadable(&some, &Value::Null).remains(Some(&known)).spec;
        assert_eq!(remains, LeaderGroupSpec { on_delete: OnDelete::Strip, ..known });
    }

    #[test]
    fn only_the_spec_of_a_group_that_goes_may_be_replaced() {
        let broken = json!({
            "selector": selector(),
            "lock": { "key": "k", "ttl": 5 },
            "routing": { "roleLabel": "a.b/role", "activeValue": "on" },
            "health": 7,
            "onDelete": "Keep"
        });
        let defaults = json!({
            "roleLabel": "leadergroup.dev/role", "activeValue": "active", "standbyValue": "standby"
        });
        for (spec, expected) in [
            // Read, but not what the definition asks for.
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
    fn of_a_status_the_token_and_the_conditions_remain() {
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
                json!({ "history": [1], "token": 5, "conditions": [condition("Ready"), condition("Active")] }),
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
        let whole = json!({ "declaration": { "token": 2, "grant": "g" }, "members": 3, "conditions": [] });
        let bad = stored(&json!({}), &whole);
        assert_eq!((bad.declaration().token, bad.declaration().grant.as_deref()), (2, Some("g")));
        assert!(!bad.is_without_status() && stored(&json!({}), &Value::Null).is_without_status());
    }
}
