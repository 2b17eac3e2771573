//! Which groups a node concerns, compared with a walk over all groups.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const UIDS: [&str; 4] = ["p0", "p1", "p2", "p3"];
const APPS: [&str; 3] = ["a", "b", "none"];
const NODES: [&str; 3] = ["n0", "n1", ""];

#[derive(Clone, Debug)]
enum Step {
    /// A version of a pod with this label, on this node.
    Pod { uid: usize, app: usize, node: usize },
    /// A pod is gone.
    PodGone { uid: usize },
    /// A list of pods shows these, as they were last seen, and no others.
    PodList { uids: [bool; 4] },
    /// A group that was created in this second. One with another UID selects another label: a selector is immutable.
    Group { name: usize, uid: usize, second: u32 },
    /// A group is gone.
    GroupGone { name: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_usize, 0..3_usize, 0..3_usize).prop_map(|(uid, app, node)| Step::Pod { uid, app, node }),
        1 => (0..4_usize).prop_map(|uid| Step::PodGone { uid }),
        1 => any::<[bool; 4]>().prop_map(|uids| Step::PodList { uids }),
        3 => (0..2_usize, 0..2_usize, 0..3_u32)
            .prop_map(|(name, uid, second)| Step::Group { name, uid, second }),
        1 => (0..2_usize).prop_map(|name| Step::GroupGone { name }),
    ]
}

/// An index, and the pods as they were last shown to it.
struct Cluster {
    case: Case,
    pods: [Option<Pod>; 4],
}

impl Cluster {
    fn take(&mut self, step: &Step) {
        let case = &mut self.case;
        match *step {
            Step::Pod { uid, app, node } => {
                let mut pod = case.manifest(UIDS[uid], APPS[app], &json!({}));
                let node = Some(NODES[node].to_owned()).filter(|node| !node.is_empty());
                pod.spec.as_mut().expect("it has one").node_name = node;
                self.pods[uid] = Some(pod.clone());
                case.apply(Event::Pod(None, watcher::Event::Apply(pod)));
            }
            Step::PodGone { uid } => {
                if let Some(pod) = self.pods[uid].take() {
                    case.apply(Event::Pod(None, watcher::Event::Delete(pod)));
                }
            }
            Step::PodList { uids } => {
                case.apply(Event::Pod(None, watcher::Event::Init));
                for (pod, shown) in self.pods.iter_mut().zip(uids) {
                    if !shown {
                        *pod = None;
                    } else if let Some(pod) = pod {
                        case.apply(Event::Pod(None, watcher::Event::InitApply(pod.clone())));
                    }
                }
                case.apply(Event::Pod(None, watcher::Event::InitDone));
            }
            Step::Group { name, uid, second } => {
                case.group(&format!("g{name}"), &format!("g{name}-{uid}"), APPS[uid], second);
            }
            Step::GroupGone { name } => {
                let object = case.object(&format!("g{name}"), "any", "a", 0);
                case.apply(Event::Group(None, watcher::Event::Delete(sighting(object))));
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let index = &self.case.index;
        for node in NODES.into_iter().filter(|node| !node.is_empty()) {
            let walked =
                index.groups.iter().filter(|(_, group)| group.pods.values().any(|it| it.node() == node));
            let walked: BTreeSet<GroupName> = walked.map(|(name, _)| name.clone()).collect();
            prop_assert_eq!(index.placement.groups_on(node), walked, "on {}", node);
        }
        for uid in UIDS {
            let owner = index.groups.iter().find(|(_, group)| group.pods.contains_key(uid));
            prop_assert_eq!(index.placement.group_of(uid), owner.map(|(name, _)| name), "of {}", uid);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_groups_on_a_node_are_those_that_a_walk_over_all_groups_finds(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut cluster = Cluster { case: Case::new(), pods: [const { None }; 4] };
        for step in &steps {
            cluster.take(step);
            cluster.check()?;
        }
        // Nothing is kept of pods that are gone.
        cluster.take(&Step::PodList { uids: [false; 4] });
        cluster.check()?;
        prop_assert!(cluster.case.index.placement.is_empty());
    }
}
