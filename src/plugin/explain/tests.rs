//! Tests of the explanations.

use serde_json::json;

use super::*;
use crate::{
    api::SWITCHOVER_ANNOTATION,
    plugin::{
        failure::Failure,
        samples::{crashing, object, operator, plain, pod, pods, seen, set, web, without_active},
    },
};

fn next_of(group: LeaderGroup) -> String {
    explained(&seen(group, pods()), None).next.join("\n")
}

#[test]
fn a_group_without_an_active_pod_is_explained_by_its_pods() {
    let mut seen = seen(
        without_active(),
        vec![pod("web-0", "standby", "False"), crashing("web-1"), pod("web-2", "standby", "True")],
    );
    seen.events = Ok(vec![object(json!({
        "metadata": {}, "involvedObject": {}, "type": "Warning", "reason": "ForeignLabel",
        "message": "somebody labelled web-0",
        "eventTime": "2026-11-20T11:59:00.000000Z",
    }))]);
    let shown = plain(&text(&explained(&seen, None), &seen, None));
    let expected = "\
shop/web: NOT READY for 4m12s. No pod is active; 0 of 3 pods eligible

WHY
  - none of 3 pods could be active; check that they are ready and answer their probe
  - pod web-0 is not Ready: containers with unready status: [main]
  - pod web-1 is not Ready: container main: CrashLoopBackOff (last: OOMKilled, exit code 137)
  - pod web-2 is Ready for the kubelet, and not eligible for the operator: it does not answer its probe, may not be \
changed, has a hook that refuses the role, or is selected by another group; `kubectl leadergroup doctor -n shop web` names what may block \
probes
  - web-1 took over from web-0 2d4h ago (Silent): the former pod did not answer: it hung, or its node was lost
  - Event ForeignLabel 1m ago: somebody labelled web-0

WHAT HAPPENS NEXT
  - the first pod that is Ready and answers its probe becomes active, at once

NOT KNOWN HERE
  ? which probes each pod answers, and the row of the lock. An operator that is installed as in the README tells: \
`kubectl -n leadergroup exec deployment/leadergroup -- leadergroup explain shop/web`
";
    assert_eq!(shown, expected, "\n{shown}");
}

#[test]
fn the_next_step_follows_from_the_spec_and_the_status() {
    assert_eq!(
        next_of(web()),
        "if web-1 fails, web-0 or web-2 takes over; at once if it is deleted or crashes, after 5s if it does not answer"
    );
    let changed = |change: &dyn Fn(&mut LeaderGroup)| {
        let mut group = web();
        change(&mut group);
        next_of(group)
    };
    let paused = changed(&|group| group.spec.paused = true);
    assert!(paused.contains("no other pod takes over: the group is paused"), "{paused}");
    let away = changed(&|group| set(group, "LockStoreReachable", "False", "X", "no"));
    assert!(away.contains("until the database is back"), "{away}");
    let alone = changed(&|group| set(group, "Redundant", "False", "NoStandby", "no"));
    assert!(alone.contains("no other pod can take over"), "{alone}");
    let blind = changed(&|group| set(group, "Probed", "False", "NoProbe", "no"));
    assert!(blind.contains("a hang is not noticed") && blind.contains("about 40s"), "{blind}");
    let tcp = changed(&|group| set(group, "Probed", "True", "TcpOnly", ""));
    assert!(tcp.contains("a program that hangs is not noticed"), "{tcp}");
    let asked = changed(&|group| {
        group.annotations_mut().insert(SWITCHOVER_ANNOTATION.to_owned(), "one".to_owned());
    });
    assert!(asked.starts_with("a switchover is requested (one)"), "{asked}");
    let stalled = changed(&|group| set(group, "Stalled", "True", "InvalidSpec", "write a smaller interval"));
    assert_eq!(stalled, "nothing, until somebody changes this: write a smaller interval");
    let unseen = changed(&|group| group.status = None);
    assert!(unseen.contains("if none does, nothing happens"), "{unseen}");
    let gone = changed(&|group| {
        group.metadata.deletion_timestamp = object(json!("2026-11-20T12:00:00Z"));
    });
    assert!(gone.contains("removed its finalizer"), "{gone}");
}

#[test]
fn no_failover_is_promised_if_the_active_pod_is_gone() {
    let mut seen = seen(web(), vec![pod("web-0", "standby", "True"), pod("web-2", "standby", "True")]);
    let shown = plain(&text(&explained(&seen, None), &seen, None));
    assert!(shown.contains("shop/web: NOT READY. web-1 was active"), "{shown}");
    assert!(shown.contains("its active pod web-1 does not exist any more"), "{shown}");
    assert!(shown.contains("none runs, and nothing takes over"), "{shown}");
    assert!(!shown.contains("if web-1 fails") && !shown.contains("nothing is wrong"), "{shown}");
    seen.group.spec.paused = true;
    assert!(explained(&seen, None).next[0].contains("until somebody resumes the group"));
}

#[test]
fn two_pods_with_the_active_label_are_named_with_the_next_step() {
    let mut pods = pods();
    pods[0] = pod("web-0", "active", "True");
    let found = explained(&seen(web(), pods), None);
    assert_eq!(found.because[0], "two pods carry the active label: web-1 (the holder), web-0");
    assert!(found.next[0].contains("label pod web-0 leadergroup.dev/role-"), "{found:?}");
}

#[test]
fn a_cordoned_node_moves_the_role_unless_the_group_forbids_it() {
    let node = object(json!({ "metadata": { "name": "node-2" }, "spec": { "unschedulable": true } }));
    let mut seen = seen(web(), pods());
    seen.node = Ok(Some(node));
    assert!(explained(&seen, None).next[0].contains("a pod on another node becomes active"));
    seen.group.spec.election.on_cordon = PlannedLoss::Ignore;
    assert!(explained(&seen, None).next[0].contains("onCordon is Ignore"));
    seen.group.spec.paused = true;
    assert!(explained(&seen, None).next[0].contains("the group is paused"));
    let text = explained(&seen, None).next.join("\n");
    assert!(text.contains("`kubectl leadergroup resume -n shop web`"), "{text}");
}

#[test]
fn an_active_pod_that_is_not_ready_is_the_first_thing_that_is_said() {
    let mut pods = pods();
    pods[1] = pod("web-1", "active", "False");
    let mut group = web();
    group.status.as_mut().expect("a status").eligible = 2;
    let next = explained(&seen(group, pods), None).next;
    assert!(
        next[0].starts_with("web-1 is not Ready") && next[0].ends_with("the operator replaces it"),
        "{next:?}"
    );
}

#[test]
fn what_may_not_be_read_is_not_known() {
    let mut seen = seen(web(), pods());
    seen.pods = Err(Failure::new("could not list the pods: forbidden", ""));
    let found = explained(&seen, None);
    assert_eq!(found.unknown[0], "could not list the pods: forbidden");
    assert!(found.next[0].starts_with("if web-1 fails, another pod takes over"), "{found:?}");
}

#[test]
fn the_operator_that_was_found_is_named() {
    let place = Place::of(&operator("lg", 2, ""));
    let found = explained(&seen(web(), pods()), Some(&place));
    let expected =
        "The operator tells: `kubectl -n lg exec deployment/leadergroup -- leadergroup explain shop/web`";
    assert!(found.unknown[0].ends_with(expected), "{found:?}");
    let shown = serde_json::to_value(&found).expect("an object");
    assert_eq!(shown["group"], "shop/web");
    assert!(shown["next"][0].as_str().is_some_and(|next| next.starts_with("if web-1 fails")), "{shown}");
}
