//! Groups to claim, by the key of their lock. Several groups may name the same key, and one claim asks for a key only
//! once: the others wait for its answer, without being looked at again and again.

use std::collections::{BTreeMap, BTreeSet};

use leadergroup_lock::Key;

/// Groups with names of this type, to be claimed if they still have no owner.
#[derive(Debug)]
pub struct Unclaimed<Name>(BTreeMap<Key, BTreeSet<Name>>);

impl<Name> Default for Unclaimed<Name> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<Name: Clone + Ord> Unclaimed<Name> {
    /// A group is to be claimed.
    pub fn add(&mut self, key: &Key, group: &Name) {
        if let Some(names) = self.0.get_mut(key) {
            names.insert(group.clone());
        } else {
            self.0.insert(key.clone(), [group.clone()].into());
        }
    }

    /// A group is gone.
    pub fn remove(&mut self, key: &Key, group: &Name) {
        if let Some(names) = self.0.get_mut(key) {
            names.remove(group);
            if names.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// What to claim now, at most so many groups and one for each key. `claim` says what to claim for a group, if it is
    /// to be claimed at all. Those that were not asked about stay.
    pub fn take<T>(&mut self, most: usize, mut claim: impl FnMut(&Name) -> Option<T>) -> Vec<T> {
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
    use super::*;

    fn key(key: &str) -> Key {
        Key::new(key).expect("a key")
    }

    fn unclaimed(groups: &[(&'static str, &str)]) -> Unclaimed<&'static str> {
        let mut unclaimed = Unclaimed::default();
        for (name, of) in groups {
            unclaimed.add(&key(of), name);
        }
        unclaimed
    }

    #[test]
    fn a_claim_asks_for_each_key_once_and_the_others_of_the_key_come_next() {
        let mut unclaimed =
            unclaimed(&[("a", "k"), ("b", "k"), ("c", "k"), ("d", "l"), ("e", "m"), ("a", "k")]);
        let mut take = |most, due: &[&str]| unclaimed.take(most, |name| due.contains(name).then_some(*name));
        assert_eq!(take(2, &["b", "c", "d", "e"]), ["b", "d"], "the first of a key that is due");
        assert_eq!(take(2, &["b", "c", "d", "e"]), ["c", "e"], "the claim was full");
        assert_eq!(take(2, &["a", "b", "c", "d", "e"]), [""; 0], "each was asked about");
    }

    #[test]
    fn the_groups_with_one_key_are_asked_about_once_each() {
        const GROUPS: usize = 100;
        let mut unclaimed = Unclaimed::default();
        for group in 0..GROUPS {
            unclaimed.add(&key("k"), &group);
        }
        let mut asked = 0;
        for _ in 0..GROUPS {
            let claim = |_: &usize| {
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
        for (name, of) in [("a", "k"), ("c", "l"), ("d", "m"), ("b", "l")] {
            unclaimed.remove(&key(of), &name);
        }
        assert_eq!(unclaimed.take(1_000, |name| Some(*name)), ["b"]);
        assert!(unclaimed.0.is_empty());
    }
}
