use super::*;
use crate::random_faults::{Concerns, Replica};

const TTL: Duration = Duration::from_secs(5);

fn at(second: u64) -> Moment {
    Moment::default().plus(Duration::from_secs(second))
}

fn pod(uid: &str, node: &str, group: &str, active: bool) -> Target {
    Target { uid: uid.into(), name: uid.into(), node: node.into(), group: group.into(), active, works: true }
}

fn replicas(nodes: &[&str]) -> Vec<Replica> {
    let replica = |node: &&str| Replica { uid: (*node).into(), name: (*node).into(), node: (*node).into() };
    nodes.iter().map(replica).collect()
}

/// Two groups with their active pods on two nodes, and replicas there.
fn targets() -> Targets {
    Targets {
        nodes: ["n1", "n2", "n3"].map(String::from).to_vec(),
        pods: vec![
            pod("a1", "n1", "a", true),
            pod("a2", "n2", "a", false),
            pod("b1", "n2", "b", true),
            pod("b2", "n3", "b", false),
        ],
        replicas: replicas(&["n1", "n2"]),
    }
}

/// A fault of what is called so, if the kind concerns such a thing. It takes place after 100 s; for 10 s nothing else
/// happens.
fn fault(kind: Kind, target: &str) -> Struck {
    let pod = targets().pods.into_iter().find(|pod| pod.uid == target);
    let nodes = if pod.is_none() { vec![target.to_owned()] } else { Vec::new() };
    let mut plan = Plan { kind, nodes: Vec::new(), pod: None, replica: None };
    match kind.concerns() {
        Concerns::Node | Concerns::TwoNodes => plan.nodes = nodes,
        Concerns::Pod | Concerns::Group => plan.pod = pod,
        Concerns::Replica => plan.replica = replicas(&[target]).pop(),
        Concerns::Database | Concerns::ApiServer | Concerns::Operator => {}
    }
    Struck { plan, from: at(100), until: at(110) }
}

/// Whether the kind concerns a pod or a group, and not a node or a server.
fn is_of_pods(kind: Kind) -> bool {
    matches!(kind.concerns(), Concerns::Pod | Concerns::Group)
}

fn due(targets: &Targets, faults: &[Struck]) -> Vec<Deadline> {
    let mut due = Due::new(TTL);
    due.add(targets, faults, at(111));
    due.take()
}

/// The pods with a deadline, and how many seconds each has.
fn within(targets: &Targets, faults: &[Struck]) -> Vec<(String, u64)> {
    due(targets, faults).into_iter().map(|one| (one.uid, one.within.as_secs())).collect()
}

#[test]
fn the_active_pods_of_certain_failures_have_the_usual_deadlines() {
    use Kind as K;
    let own = |seconds| vec![("a1".to_owned(), seconds)];
    for kind in Kind::ALL.iter().copied() {
        let wanted = match kind {
            K::PodDeleted | K::PodDeletedByForce => own(3),
            K::PodFrozen | K::PodPaused | K::NodePowerOff | K::NodeCutOff | K::NodeFrozen => own(7),
            _ => Vec::new(),
        };
        let target = if is_of_pods(kind) { "a1" } else { "n1" };
        assert_eq!(within(&targets(), &[fault(kind, target)]), wanted, "{kind:?}");
    }
    let frozen = Deadline::usual("a1", at(100), "Silent", TTL, Duration::ZERO);
    assert_eq!(due(&targets(), &[fault(K::PodFrozen, "a1")]), [frozen]);
}

#[test]
fn a_standby_has_none_and_a_node_may_have_several_active_pods() {
    assert_eq!(within(&targets(), &[fault(Kind::PodDeleted, "a2")]), []);
    assert_eq!(within(&targets(), &[fault(Kind::NodePowerOff, "n3")]), []);
    let mut targets = targets();
    targets.pods.extend([pod("c1", "n1", "c", true), pod("c2", "n3", "c", false)]);
    let both = [("a1".to_owned(), 7), ("c1".to_owned(), 7)];
    assert_eq!(within(&targets, &[fault(Kind::NodeFrozen, "n1")]), both);
}

#[test]
fn the_failover_must_be_due_before_the_next_fault_and_before_the_mending() {
    for (kind, target, seconds) in
        [(Kind::PodDeleted, "a1", 3), (Kind::PodFrozen, "a1", 7), (Kind::NodeCutOff, "n1", 7)]
    {
        let until = |until: Moment| Struck { until, ..fault(kind, target) };
        assert_eq!(within(&targets(), &[until(at(100 + seconds))]).len(), 1, "{kind:?}");
        let sooner = at(100 + seconds).minus(Duration::from_millis(1));
        assert_eq!(within(&targets(), &[until(sooner)]), [], "{kind:?}");
    }
}

#[test]
fn an_earlier_fault_must_not_take_away_what_the_failover_needs() {
    use Kind as K;
    for first in Kind::ALL.iter().copied() {
        let is_harmless = matches!(
            first,
            K::NodeCordoned
                | K::ProxyPaused
                | K::PodFrozen
                | K::PodPaused
                | K::PodKilled
                | K::PodDeleted
                | K::PodDeletedByForce
                | K::SwitchoverRequested
        );
        let after = |target: &str| {
            let earlier = Struck { from: at(90), until: at(91), ..fault(first, target) };
            within(&targets(), &[earlier, fault(K::PodFrozen, "a1")])
        };
        let elsewhere = after(if is_of_pods(first) { "b2" } else { "n3" });
        assert_eq!(elsewhere.len(), usize::from(is_harmless), "{first:?}");
        if is_of_pods(first) {
            assert_eq!(after("a2"), [], "{first:?} of the same group");
        }
    }
}

#[test]
fn another_pod_of_the_group_must_be_elsewhere() {
    let mut targets = targets();
    targets.pods[1].node = "n1".into();
    assert_eq!(within(&targets, &[fault(Kind::NodePowerOff, "n1")]), []);
    // Only its own pod is disturbed.
    assert_eq!(within(&targets, &[fault(Kind::PodFrozen, "a1")]).len(), 1);
    targets.pods.remove(1);
    assert_eq!(within(&targets, &[fault(Kind::PodFrozen, "a1")]), []);
}

#[test]
fn a_replica_must_be_elsewhere() {
    let with = |nodes: &[&str]| Targets { replicas: replicas(nodes), ..targets() };
    assert_eq!(within(&with(&["n1", "n1"]), &[fault(Kind::NodeFrozen, "n1")]), []);
    assert_eq!(within(&with(&["n1", "n3"]), &[fault(Kind::NodeFrozen, "n1")]).len(), 1);
    assert_eq!(within(&with(&["n1", "n1"]), &[fault(Kind::PodFrozen, "a1")]).len(), 1);
    assert_eq!(within(&with(&[]), &[fault(Kind::PodFrozen, "a1")]), []);
}

#[test]
fn the_owner_that_is_lost_with_the_pod_is_replaced_in_the_meantime() {
    let seconds = |silence, kind, target| {
        let mut due = Due::new(Duration::from_secs(silence));
        due.add(&targets(), &[Struck { until: at(200), ..fault(kind, target) }], at(201));
        due.take()[0].within.as_secs()
    };
    assert_eq!([3, 5, 9].map(|silence| seconds(silence, Kind::NodePowerOff, "n1")), [7, 7, 11]);
    assert_eq!([3, 5, 9].map(|silence| seconds(silence, Kind::PodFrozen, "a1")), [5, 7, 11]);
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/leadergroup/values.yaml");
    let values = std::fs::read_to_string(chart).expect("the chart's values");
    let values: serde_json::Value = serde_saphyr::from_str(&values).expect("values");
    let of_the_chart = ["ttl", "retryInterval"].map(|key| values["settings"][key].as_str());
    let own = [SESSION, BEAT].map(|time| format!("{}s", time.as_secs()));
    assert_eq!(of_the_chart, own.each_ref().map(|text| Some(text.as_str())));
}

#[test]
fn after_lost_packets_a_watch_may_hang_for_a_while() {
    // From the second 100 to the second 111.
    let next = |first: Struck, mended, from| {
        let mut due = Due::new(TTL);
        due.add(&targets(), &[Struck { until: at(101), ..first }], at(mended));
        let frozen = fault(Kind::PodFrozen, "a1");
        due.add(&targets(), &[Struck { from: at(from), until: at(from + 10), ..frozen }], at(from + 11));
        due.take().len()
    };
    let cut = || fault(Kind::NodeCutOff, "n1");
    assert_eq!([132, 133].map(|from| next(cut(), 111, from)), [0, 1], "twice 11 s");
    assert_eq!([229, 230].map(|from| next(cut(), 200, from)), [0, 1], "then the operator gives up the watch");
    assert_eq!(next(fault(Kind::NodeToApiServer, "n2"), 111, 132), 0);
    assert_eq!(next(fault(Kind::NodeCutOff, "n3"), 111, 112), 1, "no replica is there");
    assert_eq!(next(fault(Kind::ApiServerKilled, ""), 111, 112), 1, "connections are closed");
}

#[test]
fn a_run_says_what_it_has_shown_and_a_long_one_must_show_something() {
    let (short, long) = (Duration::from_mins(4), Duration::from_hours(1));
    assert_eq!(proved(7, short).expect("a note"), "deadlines of failovers checked (I6): 7");
    let nothing = "no failover could be asked for: this run proves nothing about I6";
    assert_eq!(proved(0, short).expect("a note"), nothing);
    assert!(proved(7, long).is_ok());
    assert_eq!(proved(0, long).expect_err("an hour").to_string(), nothing);
}

#[test]
fn a_pod_that_did_not_work_has_no_deadline_and_may_be_replaced_all_the_same() {
    let mut targets = targets();
    targets.pods[0].works = false;
    let cordon = fault(Kind::NodeCordoned, "n1");
    assert_eq!(cordon.plan.disturbed(&targets), ["a1"], "it may become active before the cordon is over");
    assert!(due(&targets, &[fault(Kind::PodDeleted, "a1")]).is_empty());
    targets.pods[0].works = true;
    assert_eq!(due(&targets, &[fault(Kind::PodDeleted, "a1")]).len(), 1);
    targets.pods[1].works = false;
    assert!(due(&targets, &[fault(Kind::PodDeleted, "a1")]).is_empty(), "no other pod of the group works");
}
