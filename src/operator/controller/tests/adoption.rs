//! Becoming the owner of a group, and what is begun while the replica stops.

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;

use super::*;
use crate::operator::index::Event;

#[test]
fn a_claim_that_was_made_for_a_session_that_has_ended_gives_no_group() {
    let mut stage = listed(1);
    stage.beat(&[], Yielded::None);
    stage.turn();
    // Another replica marked the session dead, and may own the group.
    let former = std::mem::replace(&mut stage.own, SessionId::new());
    stage.beat(&[], Yielded::None);
    stage.claim(former);
    assert!(!owns(&stage, 0));
    stage.turn();
    stage.claim(stage.own);
    assert!(owns(&stage, 0), "it is claimed again");
}

#[test]
fn a_group_without_the_finalizer_is_read_at_its_adoption_because_that_adds_it() {
    for (finalizer, phase) in [(true, Phase::Stable), (false, Phase::Reading)] {
        let mut stage = Stage::before_lists(1, None, SESSION_TTL);
        let mut object = group(0);
        if !finalizer {
            object.metadata.finalizers = None;
        }
        stage.list_groups(vec![object]);
        stage.beat(&[], Yielded::None);
        stage.turn();
        stage.claim(stage.own);
        assert_eq!(*election(&stage, 0).phase(), phase, "with the finalizer: {finalizer}");
        assert_eq!(election(&stage, 0).busy(), !finalizer);
    }
}

#[test]
fn an_adoption_keeps_the_holder_and_its_term() {
    let mut stage = listed(1);
    stage.adopt_all();
    let (held, declared) = (election(&stage, 0).holder().cloned(), election(&stage, 0).declared().clone());
    let term = row(0, stage.own);
    assert_eq!(held.as_ref().map(|pod| &pod.uid), term.holder.as_ref().map(|holder| &holder.uid));
    // Its session ends, and it becomes the owner again under another one.
    stage.own = SessionId::new();
    stage.beat(&[], Yielded::None);
    assert!(!owns(&stage, 0));
    stage.turn();
    stage.claim(stage.own);
    stage.turn();
    let election = election(&stage, 0);
    assert!(election.is_at_work() && *election.phase() == Phase::Stable && !election.busy());
    assert_eq!((election.holder().cloned(), election.row().token), (held, term.token.get()));
    assert_eq!(*election.declared(), declared);
}

#[test]
fn a_replica_that_stops_begins_no_change_of_holder() {
    for stops in [false, true] {
        let mut stage = listed(1);
        stage.adopt_all();
        stage.controller.draining = stops;
        let deleted: Pod = stage.pod(0, 0, true);
        stage.see(Event::Pod(None, watcher::Event::Apply(deleted)));
        stage.turn();
        assert_eq!(election(&stage, 0).is_changing(), !stops, "stops: {stops}");
    }
}

/// A group that was seen again after a list that went back in time is claimed twice.
#[test]
fn the_answer_to_a_second_claim_does_not_begin_the_election_anew() {
    let mut stage = listed(1);
    stage.adopt_all();
    let since = |stage: &Stage| stage.view(&name(0)).group.ownership.ours_since();
    let before = since(&stage);
    stage.now += s(1);
    stage.claim(stage.own);
    assert_eq!((owns(&stage, 0), since(&stage)), (true, before));
}
