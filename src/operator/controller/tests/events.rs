//! Which events lead to work for a group.

use super::{
    objects::name,
    stage::{PODS, Stage},
};

#[test]
fn an_event_that_changes_nothing_steps_no_election_and_computes_no_status() {
    let mut stage = Stage::new(2, PODS);
    let versions = |stage: &Stage| [0, 1].map(|group| stage.view(&name(group)).group.version());
    let before = versions(&stage);
    stage.probe_all();
    let pods = stage.newer_pods(0);
    stage.see_all(pods);
    assert_eq!(versions(&stage), before);
    assert!([0, 1].into_iter().all(|group| !stage.view(&name(group)).group.report.writing));
    // A change of holder begins in one of them. It is not reported before it had time to end.
    stage.begin_changes(1);
    let after = versions(&stage);
    assert!(after[0] > before[0] && after[1] == before[1]);
    assert!(!stage.view(&name(0)).group.report.writing);
    stage.probe_all();
    assert_eq!(versions(&stage), after);
}
