//! What a replica reports of a group that it does not own, and how often an owner does.

use kube::runtime::watcher;
use leadergroup_lock::LockError;

use super::*;
use crate::{
    api::{LeaderGroupStatus, SWITCHOVER_ANNOTATION, Sighting, SwitchoverResult, SwitchoverStatus},
    operator::{
        index::{Event, lock_view::LockNews},
        trouble::Trouble,
    },
};

/// The last status that was to be written.
fn told(stage: &Stage) -> LeaderGroupStatus {
    stage.view(&name(0)).group.report.told.as_deref().cloned().expect("a report")
}

#[test]
fn a_replica_that_never_reached_the_database_leaves_the_report_of_the_owner_as_it_is() {
    // The report of an owner that heard all pods. This replica has heard none.
    let mut owner = Stage::new(1, 3);
    owner.now += s(60);
    let before = owner.view(&name(0)).group.record().status().expect("a status").clone();
    assert_eq!((before.eligible, before.replicas), (3, 3));
    let mut object = group(0);
    object.status = Some(before.clone());

    let mut stage = Stage::before_lists(1, Some("node-9"), SESSION_TTL);
    stage.list_groups(vec![object]);
    let endpoint = "the database".to_owned();
    for _ in 0..15 {
        stage.now += s(1);
        let detail = "connection refused".to_owned();
        let error = LockError::Unreachable { endpoint: endpoint.clone(), detail };
        stage.see(Event::Lock(LockNews::Down(error)));
        stage.turn();
    }
    let mut after = told(&stage);
    let unreachable =
        after.conditions.iter().find(|it| it.type_ == "LockStoreReachable").expect("the reason");
    assert_eq!(unreachable.status, "False");
    after.conditions.clone_from(&before.conditions);
    assert_eq!(after, before);
}

/// As while two databases act as primary: the owner by the other one reports something else as soon as it sees this
/// replica's report.
#[test]
fn two_owners_do_not_overwrite_each_others_reports_in_a_loop() {
    let mut stage = listed(1);
    stage.adopt_all();
    let mut reports = Vec::new();
    for tenth in 0..600_u64 {
        stage.now += Duration::from_millis(100);
        let mut object = stage.view(&name(0)).group.record().object.clone();
        let status = object.status.as_mut().expect("a status");
        status.active = None;
        status.conditions.iter_mut().for_each(|condition| condition.status = "Unknown".to_owned());
        object.metadata.resource_version = Some(((1_u64 << 61) + tenth).to_string());
        stage.see(Event::Group(None, watcher::Event::Apply(Sighting(Ok(object)))));
        stage.turn();
        if stage.view(&name(0)).group.report.writing {
            reports.push(tenth / 10);
            stage.report(&name(0));
        }
    }
    assert!((4..12).contains(&reports.len()), "after so many seconds: {reports:?}");
    assert!(reports.last().is_some_and(|last| *last >= 40), "it goes on: {reports:?}");
}

/// A replica that starts later knows only what the status says.
#[test]
fn what_became_of_a_switchover_is_reported_again_when_somebody_removes_it() {
    let mut stage = listed(1);
    stage.adopt_all();
    let answer = SwitchoverStatus {
        request: "one".to_owned(),
        result: SwitchoverResult::Refused,
        message: "it is paused".to_owned(),
    };
    for (version, switchover) in [(0, Some(answer.clone())), (1, None)] {
        stage.now += s(60);
        let mut object = stage.view(&name(0)).group.record().object.clone();
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(SWITCHOVER_ANNOTATION.to_owned(), "one".to_owned());
        object.status.as_mut().expect("a status").switchover = switchover;
        object.metadata.resource_version = Some(((1_u64 << 61) + version).to_string());
        stage.see(Event::Group(None, watcher::Event::Apply(Sighting(Ok(object)))));
        stage.turn();
        if version == 0 && stage.view(&name(0)).group.report.writing {
            stage.report(&name(0));
        }
    }
    assert!(stage.view(&name(0)).group.report.writing);
    assert_eq!(told(&stage).switchover, Some(answer));
}

/// What is not written costs nothing.
#[test]
fn an_owner_that_has_nothing_new_to_report_keeps_its_short_burst() {
    let mut stage = listed(1);
    stage.adopt_all();
    for _ in 0..3 {
        stage.now += s(1);
        stage.probe_all();
        stage.turn();
        assert!(!stage.view(&name(0)).group.report.writing);
    }
    let now = stage.now;
    let mut report = std::mem::take(&mut stage.controller.groups.get_mut(&name(0)).expect("a group").report);
    assert!((0..4).all(|_| report.allows_minor(now)), "{report:?}");
}

/// As with a CRD that is older than the operator.
#[test]
fn a_status_that_is_refused_again_and_again_is_written_after_growing_pauses() {
    let mut stage = listed(1);
    stage.adopt_all();
    let refuse = |stage: &mut Stage, seconds: u64| {
        let mut written = 0;
        for _ in 0..seconds {
            stage.now += s(1);
            stage.probe_all();
            if stage.view(&name(0)).group.report.writing {
                written += 1;
                let uid = stage.view(&name(0)).group.record().uid.clone();
                let reported = Err(Trouble::Refused("unknown field".to_owned()));
                stage.take(Message::Reported { group: name(0), uid, reported });
                stage.turn();
            }
        }
        written
    };
    let mut object = stage.view(&name(0)).group.record().object.clone();
    object.status.as_mut().expect("a status").conditions.clear();
    object.metadata.resource_version = Some((1_u64 << 61).to_string());
    stage.see(Event::Group(None, watcher::Event::Apply(Sighting(Ok(object)))));
    stage.turn();
    // The executor of this stage ends no write, so there is room for some more only.
    let (first, later) = (refuse(&mut stage, 60), refuse(&mut stage, 120));
    assert!((5..=7).contains(&first), "{first} in the first minute");
    assert!((3..=5).contains(&later), "{later} in two more minutes");
}
