//! Sequences of events, and the groups to look at, the worlds and the requests that come of them.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::runtime::watcher;
use serde_json::{Value, json};

use super::{Event, Index, IndexedGroup, Notice, Request};
use crate::{
    api::{Reason, Role, Sighting},
    election::Standing,
    health::{ProbeEvent, ProbeOutcome, ProbeStep, Refusal},
    operator::{lock_view::LockNews, object::GroupName, probing::Probing, watch_health::Watched},
};
use leadergroup_lock::{LockError, SessionId};

const TTL: Duration = Duration::from_secs(5);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn name(name: &str) -> GroupName {
    GroupName { namespace: "shop".into(), name: name.into() }
}

/// An index and its time.
struct Case {
    index: Index,
    now: Duration,
    version: u64,
}

impl Case {
    fn new() -> Self {
        Self { index: Index::new("c1".to_owned(), &[], TTL), now: s(100), version: 10 }
    }

    /// Group `web`, which selects the pods with the label `app: web`, and its pods `a` and `b`; nothing is dirty.
    fn web() -> Self {
        let mut case = Self::new();
        case.group("web", "g1", "web", 0);
        case.pod("a", "web", &json!({}));
        case.pod("b", "web", &json!({}));
        case.seen("web");
        case
    }

    fn apply(&mut self, event: Event) -> Vec<Request> {
        self.index.apply(event, self.now)
    }

    /// A group that selects by the label `app` and was created in this second.
    fn object(&mut self, name: &str, uid: &str, app: &str, second: u32) -> Value {
        self.version += 1;
        json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": {
                "namespace": "shop", "name": name, "uid": uid, "resourceVersion": self.version.to_string(),
                "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            },
            "spec": {
                "selector": { "matchLabels": { "app": app } },
                "health": { "probe": { "tcpSocket": { "port": 80 } } },
            },
        })
    }

    fn group(&mut self, name: &str, uid: &str, app: &str, second: u32) -> Vec<Request> {
        let object = self.object(name, uid, app, second);
        self.watch(object)
    }

    fn watch(&mut self, object: Value) -> Vec<Request> {
        self.apply(Event::Group(None, watcher::Event::Apply(sighting(object))))
    }

    /// A ready pod with the label `app`, with `more` in its metadata.
    fn manifest(&mut self, uid: &str, app: &str, more: &Value) -> Pod {
        self.version += 1;
        let mut pod = json!({
            "metadata": {
                "namespace": "shop", "name": uid, "uid": uid, "resourceVersion": self.version.to_string(),
                "labels": { "app": app },
            },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "main" }] },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            pod["metadata"][key] = value.clone();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn pod(&mut self, uid: &str, app: &str, more: &Value) -> Vec<Request> {
        let pod = self.manifest(uid, app, more);
        self.apply(Event::Pod(None, watcher::Event::Apply(pod)))
    }

    /// A probe of a pod that was sent now and ended so.
    fn probe(&mut self, uid: &str, outcome: ProbeOutcome) {
        self.version += 1;
        for step in [ProbeStep::Sent, ProbeStep::Ended(outcome)] {
            let event = ProbeEvent { uid: uid.into(), seq: self.version, sent_at: self.now, step };
            self.apply(Event::Probe(event));
        }
    }

    fn beat(&mut self, own: SessionId, living: &[SessionId]) -> Vec<Request> {
        self.apply(Event::Lock(LockNews::Beat {
            own,
            living: living.to_vec(),
            suspects: Vec::new(),
            doubt: false,
            yielded: false,
            took: Duration::ZERO,
        }))
    }

    fn lease(&mut self, node: &str, renewed: u32) {
        let lease = json!({
            "metadata": { "name": node },
            "spec": { "renewTime": format!("2026-01-01T00:{renewed:02}:00.000000Z") },
        });
        let lease: Lease = serde_json::from_value(lease).expect("a lease");
        self.apply(Event::NodeLease(watcher::Event::Apply(lease)));
    }

    fn dirty(&mut self) -> Vec<String> {
        self.index.take_dirty().into_iter().map(|name| name.name.to_string()).collect()
    }

    /// Looks at a group: its pods and their standings.
    fn seen(&mut self, group: &str) -> Vec<(String, Standing)> {
        let world = self.index.world(&name(group), Some("a"), self.now).expect("the group");
        world.members.into_iter().map(|member| (member.pod.uid, member.standing)).collect()
    }

    fn obstacle(&self, group: &str) -> Option<Reason> {
        self.index.group(&name(group)).and_then(IndexedGroup::obstacle)
    }
}

fn sighting(object: Value) -> Sighting {
    serde_json::from_value(object).expect("any object is one")
}

/// The UIDs of the pods that are not to be probed any more.
fn stopped(requests: &[Request]) -> Vec<&str> {
    requests
        .iter()
        .filter_map(|request| match request {
            Request::StopProbing(uid) => Some(&**uid),
            _ => None,
        })
        .collect()
}

fn forgotten(requests: &[Request]) -> bool {
    requests.iter().any(|request| matches!(request, Request::Forget(_)))
}

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
    // One that is older than what a write has returned changes nothing.
    case.version = 5;
    case.pod("a", "web", &json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
    assert_eq!(case.dirty(), [""; 0]);
}

#[test]
fn a_probe_is_looked_at_only_if_it_changes_the_standing() {
    let mut case = Case::web();
    case.probe("a", ProbeOutcome::Success);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0], ("a".into(), Standing::Eligible));
    let first = case.index.next_deadline().expect("the proof grows old");
    for _ in 0..3 {
        case.now += s(1);
        case.probe("a", ProbeOutcome::Success);
        assert_eq!(case.dirty(), [""; 0], "it is as well as before");
    }
    // The first proof would be too old by now. Time alone does not make the group dirty while there is a later one.
    case.now = case.now.max(first);
    case.index.advance(case.now);
    assert_eq!(case.dirty(), [""; 0]);
    let next = case.index.next_deadline().expect("the last proof grows old too");
    assert!(next > first);
    case.probe("a", ProbeOutcome::Refused(Refusal::ConnectionRefused));
    assert_eq!(case.dirty(), ["web"], "there is no fresh proof any more");
    case.seen("web");
    case.probe("a", ProbeOutcome::Refused(Refusal::ConnectionRefused));
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Standing::Failing(Reason::ProbeRefused));
    // A pod that nobody tracks.
    case.probe("z", ProbeOutcome::Success);
    assert_eq!(case.dirty(), [""; 0]);
}

#[test]
fn a_proof_that_grows_old_makes_the_group_dirty_when_its_time_has_come() {
    let mut case = Case::web();
    case.probe("a", ProbeOutcome::Success);
    case.seen("web");
    let at = case.index.next_deadline().expect("the proof grows old");
    case.index.advance(at.saturating_sub(Duration::from_millis(1)));
    assert_eq!(case.dirty(), [""; 0]);
    case.now = at;
    case.index.advance(at);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Standing::Unproven);
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
    assert!(requests.iter().any(|request| matches!(request, Request::AskForClaims)));
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
    assert_eq!(case.seen("web")[0], ("a".into(), Standing::Unproven), "its evidence was forgotten");
}

#[test]
fn of_two_groups_that_select_a_pod_the_older_one_has_it_and_the_younger_one_waits() {
    let mut case = Case::web();
    case.group("younger", "g2", "web", 1);
    assert_eq!(case.dirty(), ["younger"]);
    assert_eq!((case.obstacle("web"), case.obstacle("younger")), (None, Some(Reason::SelectedByOtherGroup)));
    assert!(case.seen("younger").is_empty());
    let younger = case.index.group(&name("younger")).expect("it is there");
    assert_eq!(younger.older_groups().into_iter().collect::<Vec<_>>(), ["shop/web"]);
    // The older one goes.
    let gone = case.object("web", "g1", "web", 0);
    let requests = case.apply(Event::Group(None, watcher::Event::Delete(sighting(gone))));
    assert!(forgotten(&requests));
    assert_eq!(stopped(&requests), ["a", "b"]);
    assert_eq!((case.obstacle("younger"), case.seen("younger").len()), (None, 2));
    // An even older one comes.
    case.group("ancient", "g3", "web", 0);
    assert_eq!(case.obstacle("younger"), Some(Reason::SelectedByOtherGroup));
    assert_eq!((case.seen("younger").len(), case.seen("ancient").len()), (0, 2));
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
    assert_eq!(case.seen("web")[0].1, Standing::Eligible);
    let requests = case.group("web", "g2", "web", 9);
    assert!(forgotten(&requests));
    assert_eq!(stopped(&requests), ["a", "b"]);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(&*case.index.group(&name("web")).expect("the new one").record().uid, "g2");
    let unproven = |uid: &str| (uid.to_owned(), Standing::Unproven);
    assert_eq!(case.seen("web"), [unproven("a"), unproven("b")], "what was known of the pods is forgotten");
    // An owner's selector that was read for the old group is nothing to the new one.
    let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs" });
    let owner = serde_json::from_value(owner).expect("a reference");
    case.apply(Event::OwnerRead { group: name("web"), uid: "g1".into(), owner, selects: Ok(true) });
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
fn the_targets_are_the_pods_that_can_be_probed() {
    let mut case = Case::web();
    let targets = |case: &Case, probing| -> Vec<bool> {
        let targets = case.index.targets(&name("web"), probing);
        targets.into_iter().map(|(_, target)| target.is_some()).collect()
    };
    assert_eq!(targets(&case, Probing::All), [true, true]);
    assert_eq!(targets(&case, Probing::None), [false, false]);
    assert_eq!(targets(&case, Probing::Holder), [false, false], "there is no holder");
    let mut object = case.object("web", "g1", "web", 0);
    object["status"] = json!({ "declaration": { "token": 1, "holder": { "name": "b", "uid": "b" } } });
    case.watch(object);
    assert_eq!(targets(&case, Probing::Holder), [false, true]);
    // What goes elsewhere begins again.
    case.probe("a", ProbeOutcome::Success);
    case.seen("web");
    let first = case.version + 1;
    case.apply(Event::Retargeted("a".into(), first));
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Standing::Unproven);
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
    case.apply(Event::OwnerRead { group: name("web"), uid, owner, selects: Ok(true) });
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.obstacle("web"), Some(Reason::RoleLabelInOwnerSelector));
}

#[test]
fn a_lost_session_and_other_living_sessions_concern_all_groups() {
    let mut case = Case::web();
    let [own, other] = [SessionId::new(), SessionId::new()];
    case.beat(own, &[own]);
    assert_eq!(case.dirty(), ["web"]);
    let requests = case.beat(own, &[own]);
    assert!(matches!(requests[..], [Request::AskForClaims]), "{requests:?}");
    assert_eq!(case.dirty(), [""; 0], "all is as before");
    case.beat(own, &[own, other]);
    assert_eq!(case.dirty(), ["web"]);
    let requests = case.apply(Event::Lock(LockNews::Lost));
    assert!(matches!(requests[..], [Request::SessionEnded]) && case.index.lock().own().is_none());
    let again = SessionId::new();
    assert!(matches!(case.beat(again, &[again])[0], Request::SessionEnded));
    assert_eq!(case.index.lock().own(), Some(again));
}

#[test]
fn a_database_that_is_away_ends_the_session_after_its_ttl_and_no_deletion_waits_for_it() {
    let mut case = Case::web();
    let own = SessionId::new();
    case.beat(own, &[own]);
    let mut deleted = case.object("web", "g1", "web", 0);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    case.watch(deleted);
    case.group("other", "g2", "other", 0);
    case.dirty();
    let away = |case: &mut Case| case.index.world(&name("web"), None, case.now).expect("the group").lock_away;
    let down = || Event::Lock(LockNews::Down(LockError::ReadOnly));
    let requests = case.apply(down());
    assert!(matches!(&requests[..], [Request::Log(Notice::DatabaseDown(_))]), "{requests:?}");
    assert_eq!(case.dirty(), ["other", "web"]);
    case.now += s(1);
    assert!(case.apply(down()).is_empty() && !away(&mut case));
    assert_eq!(case.dirty(), [""; 0], "the one that was just looked at");
    case.now += TTL;
    assert!(matches!(case.apply(down())[..], [Request::SessionEnded]));
    assert_eq!(case.dirty(), ["web"], "it is asked whether it still waits");
    case.now += s(10);
    assert!(case.apply(down()).is_empty() && away(&mut case));
    assert_eq!(case.dirty(), ["other"], "the outage is worth a report");
    let requests = case.beat(own, &[own]);
    assert!(matches!(requests[0], Request::Log(Notice::DatabaseUp)), "{requests:?}");
    assert!(!away(&mut case));
}

#[test]
fn a_lease_that_stands_still_speaks_against_the_pods_of_its_node_that_cannot_be_probed() {
    let mut case = Case::new();
    let mut object = case.object("web", "g1", "web", 0);
    object["spec"]["health"] = json!({});
    case.watch(object);
    case.pod("a", "web", &json!({}));
    case.lease("node-1", 1);
    case.seen("web");
    case.now += s(10);
    case.lease("node-1", 2);
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Standing::Eligible);
    case.now += s(5);
    case.lease("node-1", 2);
    assert_eq!(case.dirty(), [""; 0], "it is as alive as before");
    // The leases of other nodes show that the watch works.
    for renewed in 3..9 {
        case.now += s(10);
        case.lease("node-2", renewed);
        case.index.advance(case.now);
    }
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Standing::Silent);
    // If the watch fails, nothing is held against the node any more.
    case.apply(Event::WatchFailed(Watched::NodeLeases, None, "gone".to_owned()));
    assert_eq!(case.dirty(), ["web"]);
    assert_eq!(case.seen("web")[0].1, Standing::Unproven);
}

#[test]
fn a_group_that_cannot_be_decoded_is_passed_on_reported_once_and_left_when_it_can_be_again() {
    let mut case = Case::web();
    let mut broken = case.object("web", "g1", "web", 0);
    broken["spec"]["onDelete"] = "Explode".into();
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
