//! Groups and pods.

use super::*;

#[test]
fn a_new_version_of_a_pod_is_looked_at_only_if_it_differs_in_something_else() {
    let mut case = Case::web();
    case.pod("a", "web", &json!({}));
    assert_eq!(case.dirty(), [""; 0]);
    let versions = |case: &mut Case| {
        let world = case.index.world(&name("web"), None, case.now).expect("the group");
        world.members[0].version.clone()
    };
    assert_eq!(versions(&mut case), case.version.to_string(), "the next world has it");
    let labels = json!({ "app": "web", "leadergroup.dev/role": "active" });
    let stamp = json!({ "leadergroup.dev/stamp": "g1/3" });
    case.pod("a", "web", &json!({ "labels": labels, "annotations": stamp }));
    assert_eq!(case.dirty(), ["web"]);
    let world = case.index.world(&name("web"), None, case.now).expect("the group");
    let member = &world.members[0];
    assert_eq!((member.role, member.stamp, member.stamped_by_us), (Role::Active, Some(3), true));
    assert!(!member.fencing_fits, "it has none");
    let right = "c1/shop/web/3";
    for (fencing, fits) in
        [(right, true), ("c1/shop/web/2", false), (right, true), ("c1/shop/other/3", false)]
    {
        let annotations =
            json!({ "leadergroup.dev/stamp": "g1/3", "leadergroup.dev/fencing-token": fencing });
        case.pod("a", "web", &json!({ "labels": labels, "annotations": annotations }));
        assert_eq!(case.dirty(), ["web"]);
        let world = case.index.world(&name("web"), None, case.now).expect("the group");
        assert_eq!(world.members[0].fencing_fits, fits, "{fencing}");
    }
    // One that is older than what a write has returned changes nothing.
    case.version = 5;
    case.pod("a", "web", &json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
    assert_eq!(case.dirty(), [""; 0]);
}

#[test]
fn pods_of_one_workload_are_recognized_across_its_revisions() {
    let controlled_by = |version: &str, kind: &str, name: &str, uid: &str| json!([{ "controller": true, "apiVersion": version, "kind": kind, "name": name, "uid": uid }]);
    let owner = |kind: &str, name: &str, uid: &str| controlled_by("apps/v1", kind, name, uid);
    let mut case = Case::web();
    for (pod, hash, owners, workload) in [
        ("web-1", Some("7d4b9"), owner("ReplicaSet", "web-7d4b9", "rs-1"), Some(("web", None))),
        ("web-2", Some("5c8ff"), owner("ReplicaSet", "web-5c8ff", "rs-2"), Some(("web", None))),
        ("web-3", None, owner("ReplicaSet", "web-7d4b9", "rs-1"), None),
        ("web-4", Some("7d4b9"), owner("ReplicaSet", "other", "rs-3"), None),
        ("db-10", None, owner("StatefulSet", "db", "sts-1"), Some(("sts-1", Some(10)))),
        ("agent-x2", None, owner("DaemonSet", "agent", "ds-1"), Some(("ds-1", None))),
        ("job-1", None, owner("Job", "job", "job-1"), None),
        ("clone-1", None, controlled_by("apps.kruise.io/v1beta1", "StatefulSet", "clone", "kruise-1"), None),
        ("bare-1", None, json!([]), None),
    ] {
        let labels = json!({ "app": "web", "pod-template-hash": hash });
        let labels = if hash.is_some() { labels } else { json!({ "app": "web" }) };
        case.pod(pod, "web", &json!({ "labels": labels, "ownerReferences": owners }));
        let world = case.index.world(&name("web"), None, case.now).expect("the group");
        let member = world.members.iter().find(|member| member.pod.name == pod).expect("the pod");
        let found = member.workload.as_ref().map(|found| (&*found.name, found.ordinal));
        assert_eq!(found, workload, "{pod}");
    }
}

#[test]
fn the_revision_of_a_pod_is_in_a_label_or_else_its_controller() {
    let mut case = Case::web();
    let owners = json!([
        { "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "other" },
        { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs-1", "controller": true },
    ]);
    for (labels, owners, revision) in [
        (json!({ "pod-template-hash": "7d4b9" }), &owners, Some("7d4b9")),
        (json!({ "controller-revision-hash": "db-5c8" }), &owners, Some("db-5c8")),
        (json!({}), &owners, Some("rs-1")),
        (json!({}), &json!([]), None),
    ] {
        let mut labels = labels;
        labels["app"] = "web".into();
        case.pod("a", "web", &json!({ "labels": labels, "ownerReferences": owners }));
        let world = case.index.world(&name("web"), None, case.now).expect("the group");
        assert_eq!(world.members[0].revision.as_deref(), revision);
    }
}

#[test]
fn what_a_relist_does_not_contain_is_gone() {
    let mut case = Case::web();
    case.group("other", "g2", "other", 0);
    case.dirty();
    let (web, pod) = (case.object("web", "g1", "web", 0), case.manifest("b", "web", &json!({})));
    for event in [watcher::Event::Init, watcher::Event::InitApply(pod)] {
        assert!(stopped(&case.apply(Event::Pod(None, event))).is_empty());
    }
    let requests = case.apply(Event::Pod(None, watcher::Event::InitDone));
    assert_eq!(stopped(&requests), ["a"]);
    assert!(requests.iter().any(|request| matches!(request, Request::Heartbeat)));
    assert_eq!((case.dirty(), case.seen("web").len()), (vec!["web".to_owned()], 1));
    for event in [watcher::Event::Init, watcher::Event::InitApply(sighting(web))] {
        case.apply(Event::Group(None, event));
    }
    assert!(forgotten(&case.apply(Event::Group(None, watcher::Event::InitDone))));
    assert!(case.index.group(&name("other")).is_none());
    assert_eq!(case.dirty(), ["other", "web"]);
}

#[test]
fn a_pod_that_leaves_the_selector_is_no_longer_the_groups() {
    let mut case = Case::web();
    assert_eq!(stopped(&case.pod("a", "elsewhere", &json!({}))), ["a"]);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web").len(), 1);
    // A probe that was on its way changes nothing.
    case.probe("a", ProbeOutcome::Success);
    assert_eq!(case.dirty(), [""; 0]);
    case.pod("a", "web", &json!({}));
    assert_eq!(case.seen("web")[0], ("a".into(), Verdict::Unknown), "its evidence was forgotten");
}

#[test]
fn a_pod_that_two_groups_select_is_a_candidate_of_neither_and_both_say_so() {
    let mut case = Case::web();
    let contested = |case: &Case, group: &str| {
        let found = case.index.group(&name(group)).expect("it is there").contested();
        found
            .map(|words| (words.contains("shop/web"), words.contains("shop/younger"), words.contains("a, b")))
    };
    let eligible = |case: &mut Case| {
        for pod in ["a", "b"] {
            case.probe(pod, ProbeOutcome::Success);
        }
        case.seen("web").into_iter().map(|(_, verdict)| verdict).collect::<Vec<_>>()
    };
    assert_eq!((eligible(&mut case), contested(&case, "web")), (vec![Verdict::Eligible; 2], None));
    case.group("younger", "g2", "web", 1);
    assert_eq!(case.dirty(), ["web", "younger"]);
    assert_eq!(eligible(&mut case), [Verdict::Contested; 2]);
    assert!(case.seen("younger").is_empty(), "the pods belong to the older one");
    assert_eq!(contested(&case, "web"), Some((false, true, true)));
    assert_eq!(contested(&case, "younger"), Some((true, false, true)));
    // Each may make a pod active that only it selects.
    assert_eq!((case.obstacle("web"), case.obstacle("younger")), (None, None));
    // The older one goes.
    let gone = case.object("web", "g1", "web", 0);
    let requests = case.apply(Event::Group(None, watcher::Event::Delete(sighting(gone))));
    assert!(forgotten(&requests));
    assert_eq!(stopped(&requests), ["a", "b"]);
    assert_eq!((contested(&case, "younger"), case.seen("younger").len()), (None, 2));
    // An even older one comes.
    case.group("ancient", "g3", "web", 0);
    assert_eq!((case.seen("younger").len(), case.seen("ancient").len()), (0, 2));
    assert_eq!(contested(&case, "ancient"), Some((false, true, true)));
}

#[test]
fn a_group_keeps_its_active_pod_that_an_older_one_begins_to_select() {
    let mut case = Case::web();
    case.group("younger", "g2", "blue", 1);
    let labels = |both: bool, role: &str| {
        let older = if both { "web" } else { "none" };
        json!({ "app": older, "colour": "blue", "leadergroup.dev/role": role })
    };
    let mut younger = case.object("younger", "g2", "blue", 1);
    younger["spec"]["selector"] = json!({ "matchLabels": { "colour": "blue" } });
    case.watch(younger.clone());
    let put = |case: &mut Case, both: bool, role: &str| {
        let metadata =
            json!({ "labels": labels(both, role), "annotations": { "leadergroup.dev/stamp": "g2/3" } });
        case.pod("q", "", &metadata)
    };
    let of = |case: &mut Case, group: &str| -> Vec<String> {
        case.seen(group).into_iter().map(|(pod, _)| pod).filter(|pod| pod == "q").collect()
    };
    put(&mut case, false, "active");
    case.probe("q", ProbeOutcome::Success);
    assert_eq!(stopped(&put(&mut case, true, "active")), [""; 0], "its evidence stays");
    assert_eq!(case.seen("younger"), [("q".into(), Verdict::Eligible)]);
    // A second active pod behind a Service that selects by the labels of the older one is not made.
    assert_eq!(of(&mut case, "web"), [""; 0]);
    assert_eq!((case.obstacle("web"), case.obstacle("younger")), (Some(Reason::SelectedByOtherGroup), None));
    // It is no longer active, nor declared: it belongs to the older one, and neither makes it active.
    put(&mut case, true, "standby");
    assert_eq!(
        (case.obstacle("web"), of(&mut case, "web").len(), of(&mut case, "younger").len()),
        (None, 1, 0)
    );
    case.probe("q", ProbeOutcome::Success);
    assert!(case.seen("web").contains(&("q".into(), Verdict::Contested)));
    // The younger one has declared it, and not labelled it yet.
    younger["status"] = json!({ "observedGeneration": 1,
        "declaration": { "token": 3, "holder": { "name": "q", "uid": "q" } } });
    case.version += 1;
    younger["metadata"]["resourceVersion"] = case.version.to_string().into();
    case.watch(younger);
    case.probe("q", ProbeOutcome::Success);
    assert_eq!(
        (case.seen("younger"), of(&mut case, "web").len()),
        (vec![("q".into(), Verdict::Contested)], 0)
    );
    put(&mut case, false, "standby");
    assert_eq!(case.seen("younger"), [("q".into(), Verdict::Eligible)]);
}

#[test]
fn a_changed_selector_gathers_the_pods_again() {
    let mut case = Case::web();
    case.pod("c", "blue", &json!({}));
    assert_eq!(case.dirty(), [""; 0], "no group selects it");
    case.group("blue", "g2", "blue", 1);
    assert_eq!((case.dirty(), case.seen("blue").len()), (vec!["blue".to_owned()], 1));
    // The API server does not allow it for one group, but a group that was deleted may come back with another selector.
    case.group("blue", "g9", "green", 2);
    assert!(case.seen("blue").is_empty());
}

#[test]
fn a_group_of_the_same_name_with_another_uid_is_another_group() {
    let mut case = Case::web();
    case.probe("a", ProbeOutcome::Success);
    assert_eq!(case.seen("web")[0].1, Verdict::Eligible);
    let requests = case.group("web", "g2", "web", 9);
    assert!(forgotten(&requests));
    assert_eq!(stopped(&requests), ["a", "b"]);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(&*case.index.group(&name("web")).expect("the new one").record().uid, "g2");
    let unproven = |uid: &str| (uid.to_owned(), Verdict::Unknown);
    assert_eq!(case.seen("web"), [unproven("a"), unproven("b")], "what was known of the pods is forgotten");
    // An owner's selector that was read for the old group is nothing to the new one.
    let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs" });
    let owner = serde_json::from_value(owner).expect("a reference");
    let found = Ok(Some(RoleLabelUse { workload: "Deployment web".into(), selects: true }));
    case.apply(Event::OwnerRead { group: name("web"), uid: "g1".into(), owner, found });
    assert_eq!(case.dirty(), [""; 0]);
}

#[test]
fn an_older_version_of_a_group_than_a_write_returned_is_dropped() {
    let mut case = Case::web();
    let stale = case.object("web", "g1", "web", 0);
    let mut paused = case.object("web", "g1", "web", 0);
    paused["spec"]["paused"] = true.into();
    case.apply(Event::GroupRead(sighting(paused.clone())));
    assert_eq!(case.dirty(), ["web"]);
    for repeated in [stale, paused] {
        case.watch(repeated);
        assert_eq!(case.dirty(), [""; 0]);
    }
    let world = case.index.world(&name("web"), None, case.now).expect("the group");
    assert!(world.policy.paused);
}

#[test]
fn pods_that_a_call_returned_are_taken_in_only_while_the_watch_shows_them() {
    let mut case = Case::web();
    let labels = json!({ "app": "web", "leadergroup.dev/role": "active" });
    let [promoted, unknown] = ["a", "x"].map(|uid| case.manifest(uid, "web", &json!({ "labels": labels })));
    case.apply(Event::PodsRead(vec![promoted.clone(), unknown]));
    assert_eq!((case.dirty(), case.seen("web").len()), (vec!["web".to_owned()], 2));
    case.apply(Event::Pod(None, watcher::Event::Delete(promoted.clone())));
    case.apply(Event::PodsRead(vec![promoted]));
    assert_eq!(case.seen("web").len(), 1, "it is not brought back");
}

#[test]
fn an_owner_is_to_be_read_when_a_new_pod_carries_the_role_label() {
    let mut case = Case::web();
    let born = json!({
        "labels": { "app": "web", "leadergroup.dev/role": "standby" },
        "ownerReferences": [
            { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true },
        ],
    });
    let requests = case.pod("c", "web", &born);
    let Some(Request::ReadOwner(record, owner)) = requests.into_iter().next() else { panic!("no request") };
    assert_eq!((case.dirty(), case.obstacle("web")), (vec!["web".to_owned()], Some(Reason::Pending)));
    let uid: Arc<str> = record.uid.clone();
    let found = Ok(Some(RoleLabelUse { workload: "Deployment web".into(), selects: true }));
    case.apply(Event::OwnerRead { group: name("web"), uid, owner, found });
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.obstacle("web"), Some(Reason::RoleLabelInOwnerSelector));
}

#[test]
fn a_group_that_cannot_be_decoded_is_passed_on_reported_once_and_left_when_it_can_be_again() {
    let mut case = Case::web();
    let mut broken = case.object("web", "g1", "web", 0);
    broken["spec"]["deletionPolicy"] = "Explode".into();
    let requests = case.watch(broken.clone());
    assert!(
        matches!(
            &requests[..],
            [Request::PassOn(_), Request::Log(Notice::Undecodable(..)), Request::ReportUndecodable(_),]
        ),
        "{requests:?}"
    );
    assert_eq!((case.dirty(), case.obstacle("web")), (vec!["web".to_owned()], Some(Reason::InvalidSpec)));
    assert_eq!(case.seen("web").len(), 2, "it stays as it was last decoded");
    assert!(matches!(case.watch(broken)[..], [Request::PassOn(_)]), "it is reported once");
    case.group("web", "g1", "web", 0);
    assert_eq!(case.obstacle("web"), None);
}

#[test]
fn the_pods_of_a_cordoned_node_leave_unless_the_group_ignores_it() {
    let node = |name: &str, cordoned: bool| -> Node {
        let node = json!({ "metadata": { "name": name }, "spec": { "unschedulable": cordoned } });
        serde_json::from_value(node).expect("a node")
    };
    let leaving = |case: &mut Case| {
        let world = case.index.world(&name("web"), None, case.now).expect("the group");
        world.members.iter().filter(|member| member.leaving).count()
    };
    let mut case = Case::web();
    case.apply(Event::Node(watcher::Event::Apply(node("node-2", true))));
    case.apply(Event::Node(watcher::Event::Apply(node("node-1", false))));
    assert!(case.dirty().is_empty(), "no pod of the group is concerned");
    case.apply(Event::Node(watcher::Event::Apply(node("node-1", true))));
    assert_eq!((case.dirty(), leaving(&mut case)), (vec!["web".to_owned()], 2));
    let mut object = case.object("web", "g1", "web", 0);
    object["spec"]["election"] = json!({ "onCordon": "Ignore" });
    case.watch(object);
    assert_eq!(leaving(&mut case), 0);
    case.group("web", "g1", "web", 0);
    assert_eq!(leaving(&mut case), 2);
    // The watch was interrupted, and the node was deleted meanwhile.
    for event in
        [watcher::Event::Init, watcher::Event::InitApply(node("node-2", true)), watcher::Event::InitDone]
    {
        case.apply(Event::Node(event));
    }
    assert_eq!((case.dirty(), leaving(&mut case)), (vec!["web".to_owned()], 0));
}

#[test]
fn the_priority_of_a_pod_is_the_sum_of_the_weights_that_match_it_and_its_node() {
    let node = |zone: &str| -> Node {
        let node = json!({ "metadata": { "name": "node-1", "labels": { "zone": zone } } });
        serde_json::from_value(node).expect("a node")
    };
    let priorities = |case: &mut Case| -> Vec<u32> {
        let world = case.index.world(&name("web"), None, case.now).expect("the group");
        world.members.iter().map(|member| member.priority).collect()
    };
    let mut case = Case::web();
    assert_eq!(priorities(&mut case), [0, 0]);
    let mut object = case.object("web", "g1", "web", 0);
    object["spec"]["election"] = json!({ "priorities": [
        { "weight": 1, "podLabels": { "app": "web" } },
        { "weight": 10, "nodeLabels": { "zone": "a" } },
        { "weight": 50, "podLabels": { "app": "other" }, "nodeLabels": { "zone": "a" } },
        { "weight": 100, "podLabels": { "app": "web" }, "nodeLabels": { "zone": "b" } },
    ] });
    case.watch(object);
    assert_eq!(priorities(&mut case), [1, 1]);
    for (zone, expected) in [("a", [11, 11]), ("b", [101, 101]), ("c", [1, 1])] {
        case.apply(Event::Node(watcher::Event::Apply(node(zone))));
        assert_eq!((case.dirty(), priorities(&mut case)), (vec!["web".to_owned()], expected.to_vec()));
    }
}
