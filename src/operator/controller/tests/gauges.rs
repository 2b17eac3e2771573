//! What the metrics show of groups that no replica owns.

use std::time::Duration;

use kube::runtime::watcher;
use leadergroup_lock::controller::Claimed;
use serde_json::json;

use super::{
    listed,
    objects::{answered, group, name, row},
    stage::Stage,
};
use crate::{
    api::Sighting,
    operator::{index::Event, message::Message},
    ownership::Yielded,
};

/// The group's series, without its name and without counters.
fn series(stage: &mut Stage) -> Vec<String> {
    stage.within(|controller, now| controller.set_gauges(Duration::ZERO, now));
    let page = stage.controller.executor.metrics().encode().expect("text");
    let of_group = "{namespace=\"shop\",name=\"g0\"";
    let shown = page.lines().filter(|line| line.contains(of_group) && !line.contains("_total{"));
    let mut shown: Vec<_> = shown.map(|line| line.replace(of_group, "")).collect();
    shown.sort();
    shown
}

/// What makes the alert for groups that wait for a user fire.
fn stalled() -> Vec<String> {
    let condition = |text| format!("leadergroup_group_condition,type={text}}} 1");
    let all = [r#""Accepted",status="false""#, r#""Ready",status="false""#, r#""Stalled",status="true""#];
    all.map(condition).to_vec()
}

/// The group as the API server has it, with a value that this version does not know.
fn undecodable(version: u64) -> Sighting {
    let mut object = serde_json::to_value(group(0)).expect("an object");
    object["spec"]["deletionPolicy"] = json!("Explode");
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    let sighting: Sighting = serde_json::from_value(object).expect("decoding never fails");
    assert!(sighting.0.is_err());
    sighting
}

#[test]
fn a_group_whose_key_belongs_to_another_one_is_shown_as_stalled_until_it_has_an_owner() {
    let mut stage = listed(1);
    stage.beat(&[], Yielded::None);
    stage.turn();
    assert_eq!(series(&mut stage), [""; 0]);
    let answers = vec![answered(0, Claimed::Foreign { group: "other".to_owned() })];
    stage.take(Message::Claimed { session: stage.own, answers });
    stage.turn();
    assert_eq!(series(&mut stage), stalled());
    stage.now += Duration::from_secs(10);
    stage.beat(&[], Yielded::None);
    stage.turn();
    let answers = vec![answered(0, Claimed::Ours(row(0, stage.own)))];
    stage.take(Message::Claimed { session: stage.own, answers });
    stage.turn();
    stage.report(&name(0));
    let owned = series(&mut stage);
    assert!(owned.iter().any(|one| one.starts_with("leadergroup_active_pods")), "{owned:?}");
    assert!(!owned.contains(&stalled()[2]), "{owned:?}");
}

#[test]
fn a_group_that_was_never_read_is_shown_as_stalled_until_it_is_gone() {
    let gone = [
        vec![watcher::Event::Delete(undecodable(2))],
        // It was deleted while there was no watch.
        vec![watcher::Event::Init, watcher::Event::InitDone],
    ];
    for events in gone {
        let mut stage = listed(0);
        stage.see(Event::Group(None, watcher::Event::Apply(undecodable(1))));
        stage.turn();
        assert_eq!(series(&mut stage), stalled());
        for event in events {
            stage.see(Event::Group(None, event));
        }
        stage.turn();
        assert_eq!(series(&mut stage), [""; 0]);
    }
}

#[test]
fn a_group_that_can_no_longer_be_read_is_shown_as_stalled_until_it_can_be() {
    let mut stage = listed(1);
    stage.adopt_all();
    assert!(!series(&mut stage).contains(&stalled()[2]));
    stage.see(Event::Group(None, watcher::Event::Apply(undecodable(1 << 61))));
    stage.turn();
    assert_eq!(series(&mut stage), stalled());
    let mut object = group(0);
    object.metadata.resource_version = Some(((1_u64 << 61) + 1).to_string());
    stage.see(Event::Group(None, watcher::Event::Apply(Sighting(Ok(object)))));
    stage.turn();
    assert_eq!(series(&mut stage), [""; 0], "no replica has claimed it yet");
}
