//! Groups to claim, by the key of their lock. Several groups may name the same key, and one claim asks for a key only
//! once: the others wait for its answer, without being looked at again and again.

use std::collections::{BTreeMap, BTreeSet};

use super::{object::GroupName, record::Record};
use leadergroup_lock::Key;

/// Groups to claim, if they still have no owner.
#[derive(Debug, Default)]
pub(super) struct Unclaimed(BTreeMap<Key, BTreeSet<GroupName>>);

impl Unclaimed {
    /// A group is to be claimed.
    pub(super) fn add(&mut self, group: &Record) {
        if let Some(names) = self.0.get_mut(&group.key) {
            names.insert(group.name.clone());
        } else {
            self.0.insert(group.key.clone(), [group.name.clone()].into());
        }
    }

    /// A group is gone.
    pub(super) fn remove(&mut self, group: &Record) {
        if let Some(names) = self.0.get_mut(&group.key) {
            names.remove(&group.name);
            if names.is_empty() {
                self.0.remove(&group.key);
            }
        }
    }

    /// What to claim now, at most so many groups and one for each key. `claim` says what to claim for a group, if it is
    /// to be claimed at all. Those that were not asked about stay.
    pub(super) fn take<T>(&mut self, most: usize, mut claim: impl FnMut(&GroupName) -> Option<T>) -> Vec<T> {
        let mut claims = Vec::new();
        self.0.retain(|_, names| {
            if claims.len() < most {
                let mut names = std::iter::from_fn(|| names.pop_first());
                claims.extend(names.find_map(|name| claim(&name)));
            }
            !names.is_empty()
        });
        claims
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn record(name: &str, key: &str) -> Arc<Record> {
        let object = json!({
            "metadata": { "namespace": "shop", "name": name, "uid": name },
            "spec": { "selector": { "matchLabels": { "app": name } }, "lock": { "key": key } },
        });
        let object = serde_json::from_value(object).expect("a group");
        let name = GroupName { namespace: "shop".into(), name: name.into() };
        Arc::new(Record::first(object, name, "c1").expect("it has a name"))
    }

    fn unclaimed(groups: &[(&str, &str)]) -> Unclaimed {
        let mut unclaimed = Unclaimed::default();
        for (name, key) in groups {
            unclaimed.add(&record(name, key));
        }
        unclaimed
    }

    #[test]
    fn a_claim_asks_for_each_key_once_and_the_others_of_the_key_come_next() {
        let mut unclaimed =
            unclaimed(&[("a", "k"), ("b", "k"), ("c", "k"), ("d", "l"), ("e", "m"), ("a", "k")]);
        let mut take = |most, due: &[&str]| {
            let claim = |name: &GroupName| due.contains(&&*name.name).then(|| name.name.to_string());
            unclaimed.take(most, claim)
        };
        assert_eq!(take(2, &["b", "c", "d", "e"]), ["b", "d"], "the first of a key that is due");
        assert_eq!(take(2, &["b", "c", "d", "e"]), ["c", "e"], "the claim was full");
        assert_eq!(take(2, &["a", "b", "c", "d", "e"]), [""; 0], "each was asked about");
    }

    #[test]
    fn the_groups_with_one_key_are_asked_about_once_each() {
        const GROUPS: usize = 100;
        let mut unclaimed = Unclaimed::default();
        for index in 0..GROUPS {
            unclaimed.add(&record(&format!("g{index}"), "k"));
        }
        let mut asked = 0;
        for _ in 0..GROUPS {
            let claim = |_: &GroupName| {
                asked += 1;
                Some(asked)
            };
            assert_eq!(unclaimed.take(1_000, claim).len(), 1);
        }
        assert_eq!(asked, GROUPS);
        assert!(unclaimed.0.is_empty());
    }

    #[test]
    fn a_group_that_is_gone_is_not_claimed() {
        let mut unclaimed = unclaimed(&[("a", "k"), ("b", "k"), ("c", "l")]);
        for (name, key) in [("a", "k"), ("c", "l"), ("d", "m"), ("b", "l")] {
            unclaimed.remove(&record(name, key));
        }
        assert_eq!(unclaimed.take(1_000, |name| Some(name.name.to_string())), ["b"]);
        assert!(unclaimed.0.is_empty());
    }
}
