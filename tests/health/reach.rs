//! Whether a replica that reaches no pod on another node judges anybody.

use std::{sync::Arc, time::Duration};

use leadergroup::health::Reach;
use proptest::prelude::*;

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn pod(name: &str) -> Arc<str> {
    name.into()
}

/// A replica on `own` that lost a pod on each of these nodes at 100 s, and reached both before.
fn lost(nodes: &[&str]) -> Reach {
    let mut reach = Reach::of(Some("own".to_owned()));
    for node in nodes {
        reach.reached(node, s(99));
    }
    for node in nodes {
        reach.lost(node, &pod(node), s(100));
    }
    reach
}

#[test]
fn nodes_that_renew_their_leases_but_are_not_reached_are_not_judged() {
    let mut reach = lost(&["a", "b"]);
    assert!(!reach.cuts_off("a", s(105)), "both may have lost their power");
    assert!(reach.renewed("a", s(103)));
    assert!(reach.cuts_off("a", s(114)) && reach.cuts_off("b", s(114)));
    assert!(!reach.cuts_off("own", s(104)), "pods on the own node are judged all the same");
    assert!(!reach.cuts_off("a", s(115)), "it was not renewed again");
    assert!(reach.renewed("b", s(113)));
    assert!(reach.cuts_off("a", s(124)));
    reach.reached("b", s(124));
    assert!(!reach.cuts_off("a", s(124)), "one of them was reached");
    assert!(!reach.renewed("a", s(130)), "what was lost before counts no more");
}

#[test]
fn a_replica_that_reaches_another_node_again_is_told_since_when_it_reached_none() {
    let mut reach = lost(&["a", "b"]);
    reach.lost("a", &pod("a"), s(101));
    assert_eq!(reach.reached("own", s(106)), None);
    assert_eq!(reach.reached("b", s(106)), Some(s(100)));
    assert_eq!(reach.reached("a", s(106)), None, "that was told");
    let mut reach = lost(&["a"]);
    assert_eq!(reach.reached("a", s(106)), None, "it was a single pod");
    let mut reach = lost(&["a", "b"]);
    assert_eq!(
        reach.reached("c", s(106)),
        None,
        "it was not probed in vain: a and b may have lost their power"
    );
}

#[test]
fn a_node_that_lost_its_power_is_judged() {
    // Its last renewal arrives with a delay.
    let mut reach = lost(&["a"]);
    reach.lost("a", &pod("other"), s(100));
    assert!(!reach.renewed("a", s(101)));
    assert!(!reach.cuts_off("a", s(105)));
    // The lease of a node without pods, or of the own one, says nothing of those that were lost.
    assert!(!reach.renewed("c", s(104)) && !reach.renewed("own", s(104)));
    assert!(!reach.cuts_off("a", s(105)));
}

#[test]
fn a_single_pod_that_is_not_reached_is_judged() {
    let mut reach = lost(&["a"]);
    assert!(!reach.renewed("a", s(104)));
    reach.lost("a", &pod("a"), s(105));
    assert!(!reach.cuts_off("a", s(105)), "it is still the same pod");
    reach.lost("a", &pod("other"), s(105));
    assert!(reach.cuts_off("a", s(106)));
}

#[test]
fn without_the_name_of_the_own_node_nothing_is_concluded() {
    let mut reach = Reach::of(None);
    for name in ["one", "other"] {
        reach.lost("a", &pod(name), s(100));
    }
    assert!(!reach.renewed("a", s(105)) && !reach.cuts_off("a", s(105)));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reached(usize),
    Lost(usize, usize),
    Renewed(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4usize).prop_map(Step::Reached),
        (0..4usize, 0..3usize).prop_map(|(node, pod)| Step::Lost(node, pod)),
        (0..4usize).prop_map(Step::Renewed),
    ]
}

proptest! {
    /// Whatever happens: the own node is always judged; after a pod on another node was reached, all are; and without a
    /// renewal for longer than a kubelet's interval, all are.
    #[test]
    fn silence_is_set_aside_only_while_other_nodes_are_known_to_live(steps in prop::collection::vec((0..4u64, step()), 1..60)) {
        const NODES: [&str; 4] = ["own", "a", "b", "c"];
        let mut reach = Reach::of(Some("own".to_owned()));
        let (mut now, mut renewed_at) = (s(100), None);
        for (pause, step) in steps {
            now += s(pause);
            match step {
                Step::Reached(node) => drop(reach.reached(NODES[node], now)),
                Step::Lost(node, name) => reach.lost(NODES[node], &pod(&format!("{node}-{name}")), now),
                Step::Renewed(node) => {
                    reach.renewed(NODES[node], now);
                    renewed_at = Some(now);
                }
            }
            let reached = matches!(step, Step::Reached(1..));
            let cut_off = NODES.map(|node| reach.cuts_off(node, now));
            prop_assert!(!cut_off[0]);
            prop_assert!(cut_off[1] == cut_off[2] && cut_off[2] == cut_off[3]);
            if cut_off[1] {
                prop_assert!(!reached);
                prop_assert!(renewed_at.is_some_and(|at| now < at + s(12)));
            }
        }
    }
}
