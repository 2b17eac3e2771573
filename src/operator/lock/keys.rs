//! Which keys a group may take. All groups of a database, of all namespaces and clusters, share one set of keys.

use std::sync::Arc;

use crate::operator::object::record::Record;

/// The characters of a UID.
const UID_LENGTH: usize = 36;

/// Which keys groups may take.
#[derive(Clone, Debug)]
pub(in crate::operator) struct KeyRule {
    /// The cluster's UID, with which its default keys begin.
    pub(in crate::operator) cluster: String,
    /// Whether an explicit key must begin with the namespace of its group.
    pub(in crate::operator) namespaced: bool,
}

/// Why a group may not take its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::operator) enum KeyRefusal {
    /// The key may be the default key of another group, which may not exist yet.
    #[error(
        "spec.lock.key begins with a UID and a slash, as the default keys of groups do; create this group again without \
         spec.lock.key, which gives it its own default key, or with another one"
    )]
    Reserved,
    /// The key is not one of the group's namespace.
    #[error(
        "spec.lock.key must begin with {0}/, because the operator's setting namespacedKeys confines the keys of groups to \
         their namespaces; create this group again with such a key, or without one"
    )]
    OtherNamespace(Arc<str>),
}

impl KeyRule {
    /// Why a group may not take its key. A group that has had a term under its key keeps it: its key cannot be changed,
    /// and the rule may be newer than the group.
    pub(in crate::operator) fn refusal(&self, group: &Record) -> Option<KeyRefusal> {
        let key = group.object.spec.lock.key.as_deref()?;
        let had_it = group.declared().token > 0;
        let own = format!("{}/{}", group.name.namespace, group.name.name);
        let is_own_default =
            key.strip_prefix(&self.cluster).and_then(|rest| rest.strip_prefix('/')) == Some(&own);
        if had_it || is_own_default {
            return None;
        }
        if begins_with_uid(key) || key.starts_with(&self.cluster) {
            return Some(KeyRefusal::Reserved);
        }
        let namespace = &group.name.namespace;
        let inside = key.strip_prefix(&**namespace).is_some_and(|rest| rest.starts_with('/'));
        (self.namespaced && !inside).then(|| KeyRefusal::OtherNamespace(namespace.clone()))
    }
}

/// Whether a key begins as the default keys of some cluster do: with its UID and a slash.
fn begins_with_uid(key: &str) -> bool {
    let Some((uid, _)) = key.split_once('/') else { return false };
    uid.len() == UID_LENGTH && uuid::Uuid::try_parse(uid).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operator::object::GroupName;

    const CLUSTER: &str = "6a9b3f9e-0d2c-4a55-9f6e-2b8f0b6f7f10";

    /// What becomes of a group `web` in the namespace `shop` that wants this key, and whose status declares this token.
    fn refusal(key: Option<&str>, token: i64, namespaced: bool) -> Option<KeyRefusal> {
        let object = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "lock": { "key": key } },
            "status": { "declaration": { "token": token } },
        });
        let name = GroupName { namespace: "shop".into(), name: "web".into() };
        let object = serde_json::from_value(object).expect("a group");
        let record = Record::first(object, name, CLUSTER).expect("it has a name");
        KeyRule { cluster: CLUSTER.to_owned(), namespaced }.refusal(&record)
    }

    #[test]
    fn the_default_keys_of_all_clusters_are_reserved_for_their_groups() {
        let own = format!("{CLUSTER}/shop/web");
        let another_cluster = "0d2c3f9e-6a9b-4a55-9f6e-2b8f0b6f7f10/shop/web".to_owned();
        for (key, refused) in [
            (own.clone(), false),
            (format!("{CLUSTER}/shop/other"), true),
            (format!("{CLUSTER}/team/web"), true),
            (format!("{own}/x"), true),
            (another_cluster.clone(), true),
            (another_cluster.to_uppercase(), true),
            (format!("{CLUSTER}/"), true),
            (another_cluster.replace('/', "-"), false),
            ("orders".to_owned(), false),
            ("/orders".to_owned(), false),
        ] {
            let expected = refused.then_some(KeyRefusal::Reserved);
            assert_eq!(refusal(Some(&key), 0, false), expected, "{key}");
            assert_eq!(refusal(Some(&key), 1, false), None, "a group that has had its key keeps it: {key}");
        }
        assert_eq!(refusal(None, 0, true), None);
    }

    #[test]
    fn the_keys_of_groups_can_be_confined_to_their_namespaces() {
        for (key, inside) in
            [("shop/web", true), ("shop/", true), ("shop", false), ("shopping/x", false), ("x", false)]
        {
            assert_eq!(refusal(Some(key), 0, false), None, "{key}");
            let expected = (!inside).then(|| KeyRefusal::OtherNamespace("shop".into()));
            assert_eq!(refusal(Some(key), 0, true), expected, "{key}");
            assert_eq!(refusal(Some(key), 7, true), None, "{key}");
        }
        let own = format!("{CLUSTER}/shop/web");
        assert_eq!(refusal(Some(&own), 0, true), None);
    }
}
