//! Groups to claim, by the key of their lock. Several groups may name the same key, and at most one of them can have
//! its row. They are claimed together, so that they cost one question and not one each.

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

    /// What to claim now, by key, for at most so many keys. `claim` says what to claim for a group, if it is to be
    /// claimed at all. Those that were not asked about stay.
    pub fn take<T>(&mut self, most: usize, mut claim: impl FnMut(&Name) -> Option<T>) -> Vec<Vec<T>> {
        let mut claims = Vec::new();
        self.0.retain(|_, names| {
            if claims.len() == most {
                return true;
            }
            let of_key: Vec<T> = names.iter().filter_map(&mut claim).collect();
            if !of_key.is_empty() {
                claims.push(of_key);
            }
            false
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
    fn the_groups_with_one_key_are_claimed_together_and_count_as_one() {
        let mut unclaimed =
            unclaimed(&[("a", "k"), ("b", "k"), ("c", "k"), ("d", "l"), ("e", "m"), ("a", "k")]);
        let mut asked = Vec::new();
        let mut take = |most, due: &[&str]| {
            unclaimed.take(most, |name| {
                asked.push(*name);
                due.contains(name).then_some(*name)
            })
        };
        assert_eq!(take(2, &["b", "c", "d", "e"]), [vec!["b", "c"], vec!["d"]], "those that are due");
        assert_eq!(take(2, &["b", "c", "d", "e"]), [["e"]], "the claim was full");
        assert_eq!(take(2, &["a", "b", "c", "d", "e"]), [[""; 0]; 0], "each was asked about");
        assert_eq!(asked, ["a", "b", "c", "d", "e"], "once");
    }

    #[test]
    fn a_group_that_is_gone_is_not_claimed() {
        let mut unclaimed = unclaimed(&[("a", "k"), ("b", "k"), ("c", "l")]);
        for (name, of) in [("a", "k"), ("c", "l"), ("d", "m"), ("b", "l")] {
            unclaimed.remove(&key(of), &name);
        }
        assert_eq!(unclaimed.take(1_000, |name| Some(*name)), [["b"]]);
        assert!(unclaimed.0.is_empty());
    }
}
