//! A group as it comes on the watch: one that cannot be read must not keep the others from being seen.

use std::{borrow::Cow, time::Duration};

use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::sleep;

use super::{driver::Driver, message::GroupName, report};
use crate::{api::LeaderGroup, routing::Router};

/// A group, or what is known of one that this version of the program cannot read.
#[derive(Clone, Debug)]
pub(super) struct Sighting(pub(super) Result<LeaderGroup, Box<Unreadable>>);

/// An object that is no group to this version of the program, though the API server stores it.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    pub(super) metadata: ObjectMeta,
    /// Which field, why, and what to do.
    pub(super) problem: String,
    /// What its status says, as far as that can be read.
    pub(super) conditions: Vec<Condition>,
}

/// Between attempts to report on a group that cannot be read.
const REPORT_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16), Duration::from_secs(64)];
/// The most attempts at reading that the search for the guilty field may take.
const MOST_ATTEMPTS: u32 = 1_000;

impl<'de> Deserialize<'de> for Sighting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        Ok(Self(LeaderGroup::deserialize(&object).map_err(|error| {
            let part = |value: Option<&Value>| value.cloned().unwrap_or_default();
            Box::new(Unreadable {
                metadata: serde_json::from_value(part(object.get("metadata"))).unwrap_or_default(),
                problem: problem(&object, &error),
                conditions: serde_json::from_value(part(object.pointer("/status/conditions")))
                    .unwrap_or_default(),
            })
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

impl Unreadable {
    pub(super) fn name(&self) -> Option<(String, String, String)> {
        let metadata = &self.metadata;
        Some((metadata.namespace.clone()?, metadata.name.clone()?, metadata.uid.clone()?))
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

impl Driver {
    pub(super) fn sighted(&mut self, object: Sighting) {
        match object.0 {
            Ok(object) => self.group_seen(object),
            Err(unreadable) => self.group_unreadable(*unreadable),
        }
    }

    /// A group that cannot be read stays as it was last read, if it ever was; all that changes for it is what is said.
    fn group_unreadable(&mut self, unreadable: Unreadable) {
        let Some((namespace, name, uid)) = unreadable.name() else {
            tracing::error!(problem = unreadable.problem, "a LeaderGroup without a name cannot be read");
            return;
        };
        let name = GroupName { namespace: namespace.into(), name: name.into() };
        if self.entries.get(&name).is_some_and(|entry| *entry.uid != *uid) {
            self.group_gone(&name);
        }
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.unreadable = Some(unreadable.problem.clone());
            self.touched.insert(name.clone());
        }
        let version = (uid, unreadable.metadata.generation);
        if self.unreadable.insert(name.clone(), version.clone()) == Some(version) {
            // Once: a replica that can read it may have another word on it, and they would quarrel.
            return;
        }
        tracing::error!(group = %name, problem = unreadable.problem, "a LeaderGroup cannot be read");
        let Some(status) = report::of_unreadable(&unreadable) else { return };
        let router = self.parts.router.clone();
        self.tasks.spawn(async move { tell_unreadable(&router, &unreadable, &status).await });
    }
}

/// Says in the status of a group that it cannot be read.
async fn tell_unreadable(router: &Router, unreadable: &Unreadable, status: &Value) {
    let Some((namespace, name, uid)) = unreadable.name() else { return };
    for pause in REPORT_PAUSES {
        match router.report_unreadable(&namespace, &name, &uid, status).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(group = %format!("{namespace}/{name}"), %error, "could not write the status");
            }
        }
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::*;

    fn sighting(spec: &Value) -> Sighting {
        let object = json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "namespace": "shop", "name": "web", "uid": "u1" },
            "spec": spec
        });
        serde_json::from_value(object).expect("every object can be sighted")
    }

    #[test]
    fn a_good_group_is_a_group() {
        let good = sighting(&json!({ "selector": { "matchLabels": { "app": "web" } } }));
        assert_eq!(good.0.expect("it is good").name_any(), "web");
    }

    #[test]
    fn a_bad_one_says_which_field_it_is() {
        let selector = json!({ "matchLabels": { "app": "web" } });
        for (spec, field) in [
            (json!({ "selector": selector, "onDelete": "Explode" }), "spec.onDelete"),
            (
                json!({ "selector": selector, "lock": { "ttl": "5 days", "retryInterval": "1s" } }),
                "spec.lock.ttl",
            ),
            (json!({ "selector": { "matchLabels": { "app": 5 } } }), "spec.selector.matchLabels.app"),
            (json!({ "selector": selector, "paused": "maybe" }), "spec.paused"),
        ] {
            let unreadable = sighting(&spec).0.expect_err("it is bad");
            assert!(
                unreadable.problem.starts_with(&format!("{field} cannot be read: ")),
                "{}",
                unreadable.problem
            );
            assert_eq!(unreadable.name(), Some(("shop".into(), "web".into(), "u1".into())));
        }
        for spec in [json!({}), json!(7), json!({ "selector": 1, "paused": 2 })] {
            let unreadable = sighting(&spec).0.expect_err("it is bad");
            assert!(unreadable.problem.starts_with("the object cannot be read: "), "{}", unreadable.problem);
        }
    }
}
