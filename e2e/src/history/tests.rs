//! Tests of the checker with constructed histories: a valid one passes, and each kind of violation is found.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

mod rest;
mod roles;

const KEY: &str = "cluster/ns/web";

/// A history under construction: every call adds one revision.
#[derive(Clone, Default)]
struct Tape {
    history: History,
}

fn at(revision: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + revision).expect("a valid time")
}

impl Tape {
    fn new() -> Self {
        let history = History { cluster: Some("cluster".into()), one_clock: true, ..History::default() };
        Self { history: History { terms: Some(Vec::new()), complete_to: 1, ..history } }
    }

    /// A group whose Service has managed endpoints: `a` is active with token 1, and there is no slice yet.
    fn managed() -> Self {
        let mut tape = Self::new();
        tape.group(0, None);
        tape.managed_service();
        tape.change_holder(1, None, "a");
        tape.history.changes.retain(|change| change.id.kind != Kind::EndpointSlice);
        tape
    }

    fn push(&mut self, kind: Kind, name: &str, json: Option<&Value>) -> i64 {
        self.history.complete_to += 1;
        let revision = self.history.complete_to;
        self.history.changes.push(Change {
            revision,
            seen: moment(revision),
            seen_at: at(revision),
            id: ObjectId { kind, namespace: "ns".into(), name: name.into() },
            state: json.map(|json| Object::read(kind, json).expect("a readable object")),
            operator: json.and_then(|json| operator_wrote(json.pointer("/metadata/managedFields"))),
            raw: json.map(Value::to_string).unwrap_or_default().into(),
        });
        revision
    }

    /// A pod: its name is its UID. `role` and `stamp` as on the labels. An active pod has the fencing token of its
    /// stamp.
    fn pod(&mut self, name: &str, role: Option<&str>, stamp: Option<&str>) -> i64 {
        let token = stamp.and_then(|stamp| stamp.rsplit_once('/')).filter(|_| role == Some("active"));
        let fencing = token.map(|(_, token)| format!("{KEY}/{token}"));
        self.pod_with(name, role, stamp, fencing.as_deref())
    }

    fn pod_with(
        &mut self,
        name: &str,
        role: Option<&str>,
        stamp: Option<&str>,
        fencing: Option<&str>,
    ) -> i64 {
        let mut json = json!({ "metadata": { "name": name, "uid": name, "labels": { "app": "web" } } });
        if let Some(role) = role {
            json["metadata"]["labels"]["leadergroup.dev/role"] = role.into();
        }
        if let Some(stamp) = stamp {
            json["metadata"]["annotations"]["leadergroup.dev/stamp"] = stamp.into();
        }
        if let Some(fencing) = fencing {
            json["metadata"]["annotations"]["leadergroup.dev/fencing-token"] = fencing.into();
        }
        self.push(Kind::Pod, name, Some(&json))
    }

    fn group_as(&mut self, name: &str, uid: &str, created: i64, token: i64, holder: Option<&str>) -> i64 {
        let holder = holder.map(|uid| json!({ "name": uid, "uid": uid }));
        let mut declaration = json!({ "token": token });
        if let Some(holder) = holder {
            declaration["grant"] = format!("{token}-{}", holder["uid"].as_str().unwrap_or_default()).into();
            declaration["holder"] = holder;
        }
        let created = at(created).to_string();
        let json = json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup",
            "metadata": { "name": name, "namespace": "ns", "uid": uid, "creationTimestamp": created },
            "spec": { "selector": { "matchLabels": { "app": "web" } } },
            "status": { "observedGeneration": 1, "token": token, "declaration": declaration },
        });
        self.push(Kind::LeaderGroup, name, Some(&json))
    }

    fn group(&mut self, token: i64, holder: Option<&str>) -> i64 {
        self.group_as("web", "g", 1, token, holder)
    }

    fn grant(&mut self, token: i64, owner: &str) {
        let granted_at = at(self.history.complete_to);
        let term = Term {
            key: KEY.into(),
            token,
            grant: format!("{token}-{owner}"),
            owner: owner.into(),
            granted_at,
        };
        self.history.terms.as_mut().expect("made with terms").push(term);
    }

    fn service(&mut self, selector: &Value) -> i64 {
        self.push(
            Kind::Service,
            "web",
            Some(&json!({ "metadata": { "name": "web", "uid": "s" }, "spec": { "selector": selector } })),
        )
    }

    fn slice(&mut self, name: &str, family: &str, endpoints: &[(&str, Value)]) -> i64 {
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|(pod, conditions)| json!({ "targetRef": { "uid": pod }, "conditions": conditions }))
            .collect();
        let json = json!({
            "metadata": {
                "name": name, "uid": name, "labels": { "kubernetes.io/service-name": "web" },
                "ownerReferences": [{ "kind": "Service", "name": "web", "uid": "s" }],
            },
            "addressType": family, "endpoints": endpoints,
        });
        self.push(Kind::EndpointSlice, name, Some(&json))
    }

    /// A Service whose endpoints the operator writes.
    fn managed_service(&mut self) -> i64 {
        let json = json!({ "metadata": { "name": "web", "uid": "s", "labels": { "leadergroup.dev/group": "web" } } });
        self.push(Kind::Service, "web", Some(&json))
    }

    fn managed_slice(&mut self, token: i64, pods: &[&str]) -> i64 {
        self.managed_slice_of("IPv4", token, pods)
    }

    fn managed_slice_of(&mut self, family: &str, token: i64, pods: &[&str]) -> i64 {
        self.managed_slice_with(family, token, pods, &ready())
    }

    fn managed_slice_with(&mut self, family: &str, token: i64, pods: &[&str], conditions: &Value) -> i64 {
        let name = format!("web-leadergroup-{}", family.to_lowercase());
        let endpoints: Vec<Value> =
            pods.iter().map(|pod| json!({ "targetRef": { "uid": pod }, "conditions": conditions })).collect();
        let json = json!({
            "metadata": {
                "name": name, "uid": name,
                "labels": {
                    "kubernetes.io/service-name": "web",
                    "endpointslice.kubernetes.io/managed-by": "leadergroup.dev",
                },
                "annotations": { "leadergroup.dev/stamp": format!("g/{token}") },
                "ownerReferences": [{ "kind": "Service", "name": "web", "uid": "s" }],
            },
            "addressType": family, "endpoints": endpoints,
        });
        self.push(Kind::EndpointSlice, &name, Some(&json))
    }

    /// One complete change of holder: grant, declare, strip, promote, and the resulting slice.
    fn change_holder(&mut self, token: i64, from: Option<&str>, to: &str) {
        self.grant(token, to);
        self.group(token, Some(to));
        let stamp = format!("g/{token}");
        if let Some(from) = from {
            self.pod(from, Some("standby"), Some(&stamp));
            self.slice("web-1", "IPv4", &[]);
        }
        self.pod(to, Some("active"), Some(&stamp));
        self.slice("web-1", "IPv4", &[(to, ready())]);
    }

    fn violated(&self) -> Vec<Invariant> {
        let mut found: Vec<Invariant> = check(&self.history).violations.iter().map(|v| v.invariant).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn ready() -> Value {
    json!({ "ready": true, "serving": true, "terminating": false })
}

/// A group with three pods; `a` is active with token 1.
fn first() -> Tape {
    let mut tape = Tape::new();
    tape.service(&json!({ "app": "web", "leadergroup.dev/role": "active" }));
    tape.group(0, None);
    for pod in ["a", "b", "c"] {
        tape.pod(pod, None, None);
        tape.pod(pod, Some("standby"), Some("g/0"));
    }
    tape.change_holder(1, None, "a");
    tape
}

/// The same after a failover to `b` with token 2.
fn failed_over() -> Tape {
    let mut tape = first();
    tape.change_holder(2, Some("a"), "b");
    tape
}

fn edit(tape: &mut Tape, name: &str, nth: usize, change: impl FnOnce(&mut Change)) {
    let mut of_name = tape.history.changes.iter_mut().filter(|c| c.id.name == name);
    change(of_name.nth(nth).expect("the history has that change"));
}

/// Swaps the contents of two changes; the revisions stay in order.
fn swap(tape: &mut Tape, one: usize, other: usize) {
    let changes = &mut tape.history.changes;
    changes.swap(one, other);
    let (revision, seen, seen_at) = (changes[one].revision, changes[one].seen, changes[one].seen_at);
    changes[one] = Change {
        revision: changes[other].revision,
        seen: changes[other].seen,
        seen_at: changes[other].seen_at,
        ..changes[one].clone()
    };
    changes[other] = Change { revision, seen, seen_at, ..changes[other].clone() };
}

fn position(tape: &Tape, revision: i64) -> usize {
    tape.history.changes.iter().position(|c| c.revision == revision).expect("recorded")
}

#[test]
fn a_failover_that_keeps_to_the_rules_passes() {
    let checked = check(&failed_over().history);
    assert_eq!(checked.violations, []);
    assert_eq!(checked.most_active, 1);
    assert_eq!(checked.revisions, failed_over().history.changes.len());
    let holders: Vec<_> = checked.promotions.iter().map(|p| (p.token, p.pod.as_str())).collect();
    assert_eq!(holders, [(1, "a"), (2, "b")]);
    assert_eq!(checked.promotions_after("g", checked.promotions[0].revision).len(), 1);
}

#[test]
fn lost_commits_raise_the_token_of_the_same_pod() {
    let mut tape = first();
    tape.change_holder(1_000_001, None, "a");
    assert_eq!(tape.violated(), []);
}

#[test]
fn a_holder_may_go_without_a_successor_and_the_next_token_is_larger() {
    let mut tape = first();
    tape.group(1, None);
    tape.pod("a", Some("standby"), Some("g/1"));
    tape.slice("web-1", "IPv4", &[]);
    tape.change_holder(2, None, "a");
    assert_eq!(tape.violated(), []);
}

#[test]
fn a_group_created_anew_goes_on_with_larger_tokens() {
    let mut tape = failed_over();
    tape.pod("b", None, None);
    tape.push(Kind::LeaderGroup, "web", None);
    tape.group_as("web", "g2", 40, 0, None);
    tape.grant(3, "c");
    tape.group_as("web", "g2", 40, 3, Some("c"));
    tape.slice("web-1", "IPv4", &[]);
    tape.pod("c", Some("active"), Some("g2/3"));
    assert_eq!(tape.violated(), []);
}

#[test]
fn i1_two_pods_active_at_once() {
    let mut tape = first();
    tape.grant(2, "b");
    tape.group(2, Some("b"));
    let promote = tape.pod("b", Some("active"), Some("g/2"));
    tape.pod("a", Some("standby"), Some("g/2"));
    let checked = check(&tape.history);
    assert_eq!(tape.violated(), [Invariant::OneActive]);
    assert_eq!((checked.violations[0].revision, checked.most_active), (promote, 2));
}

#[test]
fn i1_is_about_the_groups_own_label() {
    let relabel = |tape: &mut Tape, role_label: &str| {
        for change in &mut tape.history.changes {
            match &mut change.state {
                Some(Object::Group(group)) => group.routing.role_label = role_label.into(),
                Some(Object::Pod(pod)) => {
                    let role = pod.labels.remove("leadergroup.dev/role");
                    pod.labels.extend(role.map(|role| (role_label.to_owned(), role)));
                }
                _ => {}
            }
        }
    };
    let mut tape = failed_over();
    relabel(&mut tape, "example.com/role");
    assert_eq!(tape.violated(), []);
    tape = first();
    tape.grant(2, "b");
    tape.group(2, Some("b"));
    tape.pod("b", Some("active"), Some("g/2"));
    relabel(&mut tape, "example.com/role");
    assert_eq!(tape.violated(), [Invariant::OneActive]);
}

#[test]
fn i1_a_pod_that_left_the_selector_counts_by_its_stamp() {
    let mut tape = failed_over();
    let uid = "z";
    let json = json!({ "metadata": { "name": uid, "uid": uid, "labels": { "leadergroup.dev/role": "active" },
        "annotations": { "leadergroup.dev/stamp": "g/1" } } });
    tape.push(Kind::Pod, uid, Some(&json));
    assert!(tape.violated().contains(&Invariant::OneActive));
}

#[test]
fn i1_two_serving_endpoints() {
    let other = [
        json!({ "ready": true, "serving": true }),
        json!({ "ready": false, "serving": true, "terminating": true }),
        json!({}),
    ];
    for conditions in other {
        let mut tape = first();
        tape.slice("web-1", "IPv4", &[("a", ready()), ("b", conditions)]);
        assert_eq!(tape.violated(), [Invariant::OneActive]);
    }
    let mut tape = first();
    tape.slice("web-2", "IPv4", &[("b", ready())]);
    assert_eq!(tape.violated(), [Invariant::OneActive], "spread over two slices of one family");
}

#[test]
fn i1_endpoints_that_may_stand_side_by_side() {
    let mut tape = first();
    tape.slice("web-1", "IPv4", &[("a", ready()), ("b", json!({ "ready": false, "serving": false }))]);
    tape.slice("web-6", "IPv6", &[("a", ready())]);
    assert_eq!(tape.violated(), [], "an endpoint that does not serve; another family");

    let mut tape = Tape::new();
    tape.service(&json!({ "app": "web" }));
    tape.slice("web-1", "IPv4", &[("a", ready()), ("b", ready())]);
    assert_eq!(tape.violated(), [], "a Service that selects all pods");
}

#[test]
fn i1_a_service_that_always_selected_the_role_is_held_to_it_after_it_was_made_anew() {
    let mut tape = first();
    tape.push(Kind::Service, "web", None);
    tape.service(&json!({ "app": "web", "leadergroup.dev/role": "active" }));
    tape.slice("web-1", "IPv4", &[("a", ready()), ("b", ready())]);
    assert_eq!(tape.violated(), [Invariant::OneActive]);
}

#[test]
fn the_slices_that_the_operator_writes_follow_the_active_pod() {
    let written = |rules: &[(i64, &[&str])]| {
        let mut tape = Tape::new();
        tape.group(0, None);
        tape.managed_service();
        tape.change_holder(1, None, "a");
        tape.change_holder(2, Some("a"), "b");
        tape.history.changes.retain(|change| change.id.kind != Kind::EndpointSlice);
        for (token, pods) in rules {
            tape.managed_slice(*token, pods);
        }
        tape.violated()
    };
    assert_eq!(written(&[(1, &["a"]), (2, &["b"]), (2, &[])]), []);
    assert_eq!(written(&[(2, &["b"]), (1, &["a"])]), [Invariant::NoLateWrites]);
    assert_eq!(written(&[(1, &["b"])]), [Invariant::GrantedAndDeclared]);
    assert_eq!(written(&[(3, &["b"])]), [Invariant::GrantedAndDeclared]);
    assert_eq!(written(&[(2, &["b", "a"])]), [Invariant::OneActive]);

    let mut tape = Tape::managed();
    tape.managed_slice(1, &["a"]);
    tape.slice("left-behind", "IPv4", &[("b", ready())]);
    assert_eq!(tape.violated(), [Invariant::OneActive], "a slice of somebody else for the same Service");
}

/// When this revision was seen.
fn moment(revision: i64) -> Moment {
    let seconds = u64::try_from(revision).expect("revisions are positive");
    Moment::default().plus(Duration::from_secs(seconds))
}

/// The times pass without a change of anything that counts.
fn pass(tape: &mut Tape, seconds: usize) {
    for _ in 0..seconds {
        tape.pod("idle", None, None);
    }
}

#[test]
fn a_slice_that_the_operator_writes_does_not_go_on_listing_a_pod_that_was_once_active() {
    let tape = || {
        let mut tape = Tape::managed();
        tape.managed_slice(1, &["a"]);
        tape
    };
    // However long it is active; and while its successor is not active yet.
    let mut long = tape();
    pass(&mut long, 60);
    long.managed_slice(1, &["a"]);
    long.pod("a", Some("standby"), Some("g/2"));
    long.managed_slice(1, &["a"]);
    assert_eq!(long.violated(), []);
    for gone in [false, true] {
        let mut late = tape();
        if gone {
            late.push(Kind::Pod, "a", None);
        } else {
            late.pod("a", Some("standby"), Some("g/2"));
        }
        pass(&mut late, 15);
        // A write that takes it out of use may be late: the API server was away, for example.
        late.managed_slice_with("IPv4", 1, &["a"], &json!({ "ready": false, "serving": false }));
        assert_eq!(late.violated(), [], "gone: {gone}");
        late.managed_slice(1, &["a"]);
        assert_eq!(late.violated(), [Invariant::NoLateWrites], "gone: {gone}");
    }
}

#[test]
fn a_write_of_a_slice_that_the_test_let_take_effect_late_is_judged_by_when_it_was_sent() {
    let mut tape = Tape::managed();
    tape.managed_slice(1, &["a"]);
    let ended = moment(tape.push(Kind::Pod, "a", None));
    pass(&mut tape, 29);
    let written = moment(tape.managed_slice(1, &["a"]));
    let late = [Invariant::NoLateWrites];
    assert_eq!(tape.violated(), late, "it took effect at once");
    let before = ended.plus(Duration::from_secs(20));
    for (name, sent, until, expected) in [
        ("ipv4", 9, written, &[][..]),
        ("ipv4", 16, written, &late),
        ("ipv4", 9, before, &late),
        ("ipv6", 9, written, &late),
    ] {
        let object = id_of_slice(&format!("web-leadergroup-{name}"));
        let sent = ended.plus(Duration::from_secs(sent));
        tape.history.late = vec![LateWrite { object, sent, until }];
        assert_eq!(tape.violated(), expected, "{:?}", tape.history.late);
    }
}

/// Its conditions are written again, after changes that were begun and do not complete.
#[test]
fn a_slice_lists_a_pod_that_stays_active_under_its_former_stamp_until_the_change_is_complete() {
    let tape = |declared: &[(i64, &str)], stamped: &[i64]| {
        let mut tape = Tape::managed();
        tape.managed_slice(1, &["a"]);
        for (token, holder) in declared {
            tape.grant(*token, holder);
            tape.group(*token, Some(holder));
            if stamped.contains(token) {
                tape.pod("a", Some("active"), Some(&format!("g/{token}")));
            }
        }
        tape
    };
    let violated = |mut tape: Tape| {
        pass(&mut tape, 16);
        tape.managed_slice(1, &["a"]);
        tape.violated()
    };
    let late = [Invariant::NoLateWrites];
    assert_eq!(violated(tape(&[(2, "a"), (3, "a")], &[2])), []);
    assert_eq!(violated(tape(&[(2, "a"), (3, "a"), (4, "a")], &[2, 3])), [], "after several of them");
    assert_eq!(violated(tape(&[(2, "a"), (3, "a")], &[2, 3])), late, "it is complete");
    assert_eq!(violated(tape(&[(2, "a"), (3, "b")], &[2])), late, "another pod follows");
    let mut again = tape(&[(2, "a")], &[]);
    again.pod("a", Some("standby"), Some("g/2"));
    again.pod("a", Some("active"), Some("g/2"));
    again.grant(3, "a");
    again.group(3, Some("a"));
    assert_eq!(violated(again), late, "it was not active in between");
}

#[test]
fn i1_an_address_family_is_behind_by_one_change_at_most() {
    let tape = || {
        let mut tape = Tape::managed();
        tape.managed_slice_of("IPv4", 1, &["a"]);
        tape.managed_slice_of("IPv6", 1, &["a"]);
        tape.grant(2, "b");
        tape.group(2, Some("b"));
        tape.pod("a", Some("standby"), Some("g/2"));
        tape.pod("b", Some("active"), Some("g/2"));
        tape.managed_slice_of("IPv4", 2, &["b"]);
        tape
    };
    assert_eq!(tape().violated(), [], "the other one follows");
    let mut follows = tape();
    follows.managed_slice_of("IPv6", 2, &["b"]);
    assert_eq!(follows.violated(), []);
    let mut stays = tape();
    stays.managed_slice_of("IPv4", 2, &["b"]);
    assert_eq!(stays.violated(), [Invariant::OneActive]);
    for (name, seconds, expected) in [
        ("web-leadergroup-ipv6", 60, &[][..]),
        ("web-leadergroup-ipv6", 1, &[Invariant::OneActive]),
        ("web-leadergroup-ipv4", 60, &[Invariant::OneActive]),
        ("other-leadergroup-ipv6", 60, &[Invariant::OneActive]),
    ] {
        let until = Moment::default().plus(Duration::from_secs(seconds));
        stays.history.unanswered = vec![unanswered(name, until)];
        assert_eq!(stays.violated(), expected, "the write of {name} is not answered for {seconds} s");
    }
}

#[test]
fn i3_a_token_that_two_primaries_have_granted_is_used_once() {
    let mut tape = first();
    let granted = |tape: &Tape, grant: &str| {
        let term = Term {
            grant: grant.into(),
            owner: "b".into(),
            ..tape.history.terms.as_ref().expect("made with terms")[0].clone()
        };
        let mut tape = tape.clone();
        tape.history.terms.as_mut().expect("made with terms").push(term);
        tape
    };
    assert_eq!(granted(&tape, "other").violated(), [Invariant::TokensGrow]);
    tape.history.grants_apart = ["other".to_owned()].into();
    assert_eq!(granted(&tape, "other").violated(), []);
    assert_eq!(granted(&tape, "third").violated(), [Invariant::TokensGrow], "the present one, twice");
}

#[test]
fn i3_a_new_group_does_not_know_what_another_database_has_granted() {
    let recreated = |apart: &[&str]| {
        let mut tape = Tape::new();
        tape.group(0, None);
        tape.change_holder(7, None, "a");
        tape.pod("a", Some("standby"), None);
        tape.push(Kind::LeaderGroup, "web", None);
        tape.group_as("web", "g2", 1, 0, None);
        tape.grant(3, "b");
        tape.group_as("web", "g2", 1, 3, Some("b"));
        tape.pod("b", Some("active"), Some("g2/3"));
        tape.history.grants_apart = apart.iter().map(|grant| (*grant).to_owned()).collect();
        tape
    };
    let both = [Invariant::TokensGrow, Invariant::NoLateWrites];
    assert_eq!(recreated(&[]).violated(), both);
    assert_eq!(recreated(&["7-a", "3-b"]).violated(), both, "the same database");
    assert_eq!(recreated(&["3-b"]).violated(), []);
    let mut later = recreated(&["3-b"]);
    later.group_as("web", "g2", 1, 2, Some("a"));
    assert!(later.violated().contains(&Invariant::TokensGrow), "the same group");
}

#[test]
fn i1_an_address_family_need_not_list_no_pod_between_two() {
    let mut tape = Tape::managed();
    tape.managed_slice_of("IPv4", 1, &["a"]);
    tape.managed_slice_of("IPv6", 1, &["a"]);
    tape.push(Kind::Pod, "a", None);
    tape.managed_slice_of("IPv4", 1, &[]);
    tape.grant(2, "b");
    tape.group(2, Some("b"));
    tape.pod("b", Some("active"), Some("g/2"));
    tape.managed_slice_of("IPv4", 2, &["b"]);
    assert_eq!(tape.violated(), [], "IPv6 goes from a to b at once");
    tape.grant(3, "b");
    tape.group(3, Some("b"));
    tape.pod("b", Some("active"), Some("g/3"));
    tape.managed_slice_of("IPv4", 3, &["b"]);
    assert_eq!(tape.violated(), [], "another term of the same pod");
    tape.grant(4, "c");
    tape.group(4, Some("c"));
    tape.pod("b", Some("standby"), Some("g/4"));
    tape.pod("c", Some("active"), Some("g/4"));
    tape.managed_slice_of("IPv4", 4, &["c"]);
    assert_eq!(tape.violated(), [Invariant::OneActive], "and not that late");
}

#[test]
fn i1_a_late_write_of_an_address_family_lists_what_another_one_lists_or_did_before() {
    let follow = |tape: &mut Tape, token: i64, from: &str, to: &str| {
        tape.grant(token, to);
        tape.group(token, Some(to));
        tape.pod(from, Some("standby"), Some(&format!("g/{token}")));
        tape.pod(to, Some("active"), Some(&format!("g/{token}")));
        tape.managed_slice_of("IPv4", token, &[to]);
    };
    let mut tape = Tape::managed();
    tape.managed_slice_of("IPv4", 1, &["a"]);
    tape.managed_slice_of("IPv6", 1, &["a"]);
    follow(&mut tape, 2, "a", "b");
    let mut once = tape.clone();
    once.managed_slice_of("IPv6", 1, &["a"]);
    assert_eq!(once.violated(), [], "it is behind, and still has the stamp of the former term");

    let mut twice = tape;
    follow(&mut twice, 3, "b", "c");
    let seen = twice.history.changes.last().expect("a change").seen;
    twice.history.unanswered = vec![unanswered("web-leadergroup-ipv6", seen)];
    assert_eq!(twice.violated(), [], "nothing was late so far");
    pass(&mut twice, 1);
    let late = twice.managed_slice_of("IPv6", 1, &["a"]);
    assert_eq!(twice.violated(), [Invariant::OneActive], "it is behind by two changes");
    let seen = twice.history.changes.iter().find(|change| change.revision == late).expect("it").seen;
    twice.history.unanswered = vec![unanswered("web-leadergroup-ipv6", seen)];
    assert_eq!(twice.violated(), [], "its write was not answered");
}

/// A write of this slice was not answered until then.
fn unanswered(slice: &str, until: Moment) -> Unanswered {
    Unanswered { slice: id_of_slice(slice), from: Moment::default(), until }
}

fn id_of_slice(name: &str) -> ObjectId {
    ObjectId { kind: Kind::EndpointSlice, namespace: "ns".into(), name: name.into() }
}

#[test]
fn i1_a_slice_that_lists_nothing_yet_says_nothing_about_other_families() {
    let mut tape = Tape::managed();
    tape.managed_slice_of("IPv6", 1, &["a"]);
    // Another replica writes it, too, as it was created.
    tape.managed_slice_of("IPv4", 1, &[]);
    tape.managed_slice_of("IPv4", 1, &[]);
    tape.managed_slice_of("IPv4", 1, &["a"]);
    assert_eq!(tape.violated(), []);
}

#[test]
fn i1_a_slice_that_is_created_again_goes_on_with_what_it_listed() {
    let tape = || {
        let mut tape = Tape::managed();
        tape.managed_slice_of("IPv6", 1, &["a"]);
        tape.managed_slice_of("IPv4", 1, &["a"]);
        tape.push(Kind::EndpointSlice, "web-leadergroup-ipv4", None);
        tape.managed_slice_of("IPv4", 1, &[]);
        tape
    };
    assert_eq!(tape().violated(), [], "slices are created without endpoints");
    let mut filled = tape();
    filled.managed_slice_of("IPv4", 1, &["a"]);
    assert_eq!(filled.violated(), []);
    let next = || {
        let mut tape = tape();
        tape.grant(2, "b");
        tape.group(2, Some("b"));
        tape.pod("a", Some("standby"), Some("g/2"));
        tape.pod("b", Some("active"), Some("g/2"));
        tape.managed_slice_of("IPv4", 2, &["b"]);
        tape
    };
    assert_eq!(next().violated(), [], "the other one follows");
    let mut stays = next();
    stays.managed_slice_of("IPv4", 2, &["b"]);
    assert_eq!(stays.violated(), [Invariant::OneActive]);
}

#[test]
fn i1_a_service_is_held_to_one_endpoint_again_some_time_after_its_selector_was_edited() {
    let edited = |seconds: usize| {
        let mut tape = Tape::new();
        tape.group(0, None);
        tape.service(&json!({ "app": "web" }));
        tape.slice("web-1", "IPv4", &[("a", ready()), ("b", ready())]);
        tape.service(&json!({ "app": "web", "leadergroup.dev/role": "active" }));
        pass(&mut tape, seconds);
        tape
    };
    assert_eq!(edited(4).violated(), []);
    assert_eq!(edited(5).violated(), [Invariant::OneActive], "the slice was left as it was");
    let mut followed = edited(1);
    followed.slice("web-1", "IPv4", &[("a", ready())]);
    pass(&mut followed, 10);
    assert_eq!(followed.violated(), []);
    let mut again = edited(10);
    again.slice("web-1", "IPv4", &[("a", ready())]);
    assert_eq!(again.violated(), []);
    again.slice("web-1", "IPv4", &[("a", ready()), ("b", ready())]);
    assert_eq!(again.violated(), [Invariant::OneActive]);
}

#[test]
fn i2_the_declaration_is_skipped() {
    let mut tape = failed_over();
    tape.history
        .changes
        .retain(|c| !matches!(&c.state, Some(Object::Group(group)) if group.declaration.token == 2));
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared]);
}

#[test]
fn i2_the_declaration_comes_after_the_promotion() {
    let mut tape = first();
    tape.grant(2, "b");
    tape.pod("a", Some("standby"), Some("g/2"));
    let promote = tape.pod("b", Some("active"), Some("g/2"));
    let declare = tape.group(2, Some("b"));
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared]);
    let (promote, declare) = (position(&tape, promote), position(&tape, declare));
    swap(&mut tape, promote, declare);
    assert_eq!(tape.violated(), []);
}

#[test]
fn i2_the_declaration_names_another_pod() {
    let mut tape = first();
    tape.grant(2, "b");
    tape.group(2, Some("b"));
    tape.pod("a", Some("standby"), Some("g/2"));
    tape.pod("c", Some("active"), Some("g/2"));
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared]);
}

#[test]
fn i2_the_lock_never_granted_it() {
    let mut tape = failed_over();
    tape.history.terms.as_mut().expect("made with terms").retain(|term| term.token != 2);
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared]);
    let mut tape = failed_over();
    tape.history.terms.as_mut().expect("made with terms")[1].owner = "c".into();
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared]);
    let mut tape = failed_over();
    tape.history.terms = None;
    assert_eq!(tape.violated(), [], "a database that cannot be read from here");
}

#[test]
fn i2_a_holder_is_declared_and_never_promoted() {
    let mut tape = first();
    tape.group(2, Some("b"));
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared], "the terms are read after the objects");
    tape.grant(3, "c");
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared]);
    tape.grant(2, "b");
    let revision = tape.history.complete_to;
    tape.history.terms.as_mut().expect("made with terms").last_mut().expect("granted").granted_at =
        at(revision - 1);
    assert_eq!(tape.violated(), []);
    let mut tape = first();
    tape.group(2, Some("b"));
    tape.history.terms = None;
    assert_eq!(tape.violated(), [], "a database that cannot be read from here");
    let mut tape = first();
    tape.group(2, Some("b"));
    tape.history.baseline = tape.history.complete_to;
    assert_eq!(tape.violated(), [], "it was declared before the recording");
}

#[test]
fn i2_the_lock_granted_it_too_late() {
    let mut tape = failed_over();
    let late = at(tape.history.complete_to + 1);
    tape.history.terms.as_mut().expect("made with terms")[1].granted_at = late;
    let checked = check(&tape.history);
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared]);
    assert_eq!(checked.violations.len(), 2, "the promotion and the declaration were both too early");
    tape.history.clock_set = vec![(at(0), Some(at(1)))];
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared], "it was set before");
    tape.history.clock_set = vec![(at(0), None)];
    assert_eq!(tape.violated(), [], "the test had set the database's clock");
    tape.history.clock_set.clear();
    tape.history.one_clock = false;
    assert_eq!(tape.violated(), [], "two clocks cannot be compared");
}

#[test]
fn i2_a_promotion_without_a_stamp_or_with_a_strangers() {
    for stamp in [None, Some("nonsense"), Some("another-group/2")] {
        let mut tape = first();
        tape.pod("a", Some("standby"), Some("g/1"));
        tape.pod("b", Some("active"), stamp);
        assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared], "{stamp:?}");
    }
}

#[test]
fn i1_a_fencing_token_on_a_pod_that_is_not_active() {
    let token = Some("cluster/ns/web/1");
    // The strip leaves it, gives it to the next holder first, or the deletion of the group leaves it.
    for (role, stamp) in [(Some("standby"), Some("g/2")), (None, None), (Some("standby"), None)] {
        let mut tape = first();
        tape.pod_with("a", role, stamp, token);
        assert_eq!(tape.violated(), [Invariant::OneActive], "{role:?} {stamp:?}");
    }
    // The label was removed by hand, or kept when its group was deleted.
    for (role, stamp) in [(None, Some("g/1")), (Some("active"), None)] {
        let mut tape = first();
        tape.pod_with("a", role, stamp, token);
        assert!(!tape.violated().contains(&Invariant::OneActive), "{role:?} {stamp:?}");
    }
}

#[test]
fn i2_an_active_pod_with_another_fencing_token_than_its_terms() {
    for (fencing, wrong) in [
        (None, true),
        (Some("cluster/ns/web/1"), true),
        (Some("web/2"), true),
        (Some("cluster/ns/web/2"), false),
    ] {
        let mut tape = first();
        tape.grant(2, "b");
        tape.group(2, Some("b"));
        tape.pod("a", Some("standby"), Some("g/2"));
        tape.pod_with("b", Some("active"), Some("g/2"), fencing);
        let expected: &[Invariant] = if wrong { &[Invariant::GrantedAndDeclared] } else { &[] };
        assert_eq!(tape.violated(), expected, "{fencing:?}");
        // Others may remove it later.
        if !wrong {
            tape.pod_with("b", Some("active"), Some("g/2"), None);
            assert_eq!(tape.violated(), []);
        }
    }
}

#[test]
fn i3_a_token_is_used_twice() {
    // Two grants of one token, as after lost commits: in the term history ...
    let mut tape = failed_over();
    tape.grant(2, "c");
    assert_eq!(tape.violated(), [Invariant::TokensGrow]);
    // ... in the declarations, which is without a grant, too ...
    let mut tape = failed_over();
    tape.group(2, Some("c"));
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared, Invariant::TokensGrow]);
    // ... and on the pods.
    let mut tape = failed_over();
    tape.pod("b", Some("standby"), Some("g/2"));
    tape.pod("c", Some("active"), Some("g/2"));
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared, Invariant::TokensGrow]);
}

#[test]
fn i3_a_vacated_term_is_filled_again() {
    let mut tape = first();
    tape.group(1, None);
    tape.group(1, Some("a"));
    assert_eq!(tape.violated(), [Invariant::TokensGrow]);
}

#[test]
fn i3_a_token_goes_back() {
    let mut tape = failed_over();
    tape.group(1, Some("a"));
    assert_eq!(tape.violated(), [Invariant::TokensGrow]);
    let mut tape = failed_over();
    tape.history.terms.as_mut().expect("made with terms")[0].granted_at = at(1000);
    assert!(tape.violated().contains(&Invariant::TokensGrow), "token 2 was granted before token 1");
}

#[test]
fn i3_a_group_created_anew_starts_again_at_one() {
    let mut tape = failed_over();
    tape.pod("b", None, None);
    tape.push(Kind::LeaderGroup, "web", None);
    tape.group_as("web", "g2", 40, 1, Some("a"));
    assert_eq!(tape.violated(), [Invariant::TokensGrow]);
}

#[test]
fn i4_a_late_promotion() {
    let mut tape = first();
    tape.grant(2, "b");
    tape.group(2, Some("b"));
    tape.pod("a", Some("standby"), Some("g/2"));
    tape.grant(3, "c");
    tape.group(3, Some("c"));
    let late = tape.pod("b", Some("active"), Some("g/2"));
    let checked = check(&tape.history);
    assert_eq!(tape.violated(), [Invariant::NoLateWrites]);
    assert_eq!(checked.violations[0].revision, late);
}

#[test]
fn i4_a_late_promotion_of_a_group_that_was_made_anew() {
    let mut tape = failed_over();
    tape.pod("b", None, None);
    tape.push(Kind::LeaderGroup, "web", None);
    tape.group_as("web", "g2", 40, 3, Some("c"));
    tape.grant(3, "c");
    tape.pod("b", Some("active"), Some("g/2"));
    assert_eq!(tape.violated(), [Invariant::GrantedAndDeclared], "its group is not there any more");
}

#[test]
fn two_groups_share_pods_and_each_pod_counts_for_the_older() {
    let mut tape = first();
    tape.group_as("young", "y", 30, 0, None);
    assert_eq!(tape.violated(), [], "the younger one promotes no pod");
    tape.group_as("young", "y", 30, 1, Some("b"));
    tape.pod("b", Some("active"), Some("y/1"));
    assert!(
        tape.violated().contains(&Invariant::OneActive),
        "the younger one promoted a pod of the older one's"
    );
}

#[test]
fn what_was_there_before_the_recording_is_no_transition() {
    let mut tape = failed_over();
    tape.history.terms = None;
    tape.history.baseline = tape.history.complete_to;
    tape.history.changes.retain({
        let mut promoted = false;
        move |c| {
            promoted |= c.id.name == "b"
                && matches!(&c.state, Some(Object::Pod(p)) if p.stamp.as_deref() == Some("g/2"));
            promoted || c.id.kind != Kind::LeaderGroup
        }
    });
    let checked = check(&tape.history);
    assert_eq!((checked.revisions, checked.promotions.len()), (0, 0));
    assert_eq!(checked.violations, []);
}

#[test]
fn edits_of_the_past_are_seen() {
    // Turn the strip into a late one.
    let mut tape = failed_over();
    edit(&mut tape, "a", 3, |strip| {
        if let Some(Object::Pod(pod)) = &mut strip.state {
            pod.labels.insert("leadergroup.dev/role".into(), "active".into());
        }
    });
    assert!(tape.violated().contains(&Invariant::OneActive));
}

#[test]
fn keys_of_etcd_are_told_apart() {
    let id = etcd::object_id("/registry/services/specs/ns/web").expect("a Service");
    assert_eq!((id.kind, id.namespace.as_str(), id.name.as_str()), (Kind::Service, "ns", "web"));
    assert_eq!(etcd::object_id("/registry/events/ns/web.1").map(|id| id.kind), Some(Kind::Event));
    for other in
        ["/registry/services/endpoints/ns/web", "/registry/podtemplates/ns/x", "/registry/pods", "compact"]
    {
        assert_eq!(etcd::object_id(other), None, "{other}");
    }
}
