//! The commands that change a group.

use std::process::{Command, Stdio};

use leadergroup::api::{LeaderGroup, SWITCHOVER_ANNOTATION, SWITCHOVER_TO_ANNOTATION};
use serde_json::{Value, json};

use crate::{apiserver, world::World};

#[tokio::test]
async fn pause_and_resume_change_the_spec_and_nothing_else() {
    let world = World::new("plugin-pause").await;
    world.web().await;
    let groups = world.api::<LeaderGroup>();
    let before = groups.get("web").await.unwrap().spec;
    let text = world.text(&["pause", "web"]).await;
    assert!(text.contains("is paused: web-0 stays active") && text.contains("resume -n"), "{text}");
    assert!(groups.get("web").await.unwrap().spec.paused);
    let text = world.text(&["pause", "web"]).await;
    assert!(text.contains("is paused already"), "{text}");
    let text = world.text(&["status"]).await;
    assert!(text.contains("paused"), "{text}");
    let text = world.text(&["resume", "web"]).await;
    assert!(text.contains("is resumed"), "{text}");
    assert_eq!(groups.get("web").await.unwrap().spec, before);
    assert!(world.text(&["resume", "web"]).await.contains("was not paused"));
}

#[tokio::test]
async fn a_pause_for_a_while_ends_by_itself() {
    let world = World::new("plugin-pause-for").await;
    world.web().await;
    let groups = world.api::<LeaderGroup>();
    let before = groups.get("web").await.unwrap().spec;
    let text = world.text(&["pause", "web", "--for", "100ms"]).await;
    assert!(text.contains("It is resumed in 100ms") && text.contains("is resumed: "), "{text}");
    assert_eq!(groups.get("web").await.unwrap().spec, before);

    // Ctrl-C ends it at once.
    let mut command = world.command(&["pause", "web", "--for", "1h"]);
    let process = command.stdout(Stdio::piped()).spawn().unwrap();
    let paused = |group: Option<&LeaderGroup>| group.is_some_and(|group| group.spec.paused);
    let waited = kube::runtime::wait::await_condition(world.api::<LeaderGroup>(), "web", paused);
    tokio::time::timeout(apiserver::DEADLINE, waited).await.unwrap().unwrap();
    let interrupt = Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let output = tokio::task::spawn_blocking(move || process.wait_with_output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("is resumed: "), "{text}");
    assert_eq!(groups.get("web").await.unwrap().spec, before);

    // It does not end a pause of somebody else.
    world.text(&["pause", "web"]).await;
    let refused = world.complaint(&["pause", "web", "--for", "1s"]).await;
    assert!(refused.contains("is paused already") && refused.contains("resume -n"), "{refused}");
    assert!(groups.get("web").await.unwrap().spec.paused);
}

#[tokio::test]
async fn a_switchover_is_requested_and_its_result_awaited() {
    let world = World::new("plugin-switchover").await;
    world.web().await;
    let requested = world.text(&["switchover", "web", "--to", "web-1"]).await;
    assert!(requested.starts_with("requested"), "{requested}");
    let group = world.api::<LeaderGroup>().get("web").await.unwrap();
    let annotations = group.metadata.annotations.clone().unwrap();
    assert_eq!(annotations[SWITCHOVER_TO_ANNOTATION], "web-1");
    let writers: Vec<_> =
        group.metadata.managed_fields.iter().flatten().filter_map(|it| it.manager.clone()).collect();
    assert!(writers.contains(&"kubectl-leadergroup".to_owned()), "{writers:?}");
    let text = world.text(&["explain", "web"]).await;
    assert!(text.contains("a switchover is requested"), "{text}");

    // An operator that answers each request.
    for (result, message) in [("Done", "web-1 is active with token 4"), ("Refused", "the group is paused")] {
        let asked = world.api::<LeaderGroup>().get("web").await.unwrap().metadata.annotations.unwrap();
        let old = asked[SWITCHOVER_ANNOTATION].clone();
        let answer = async {
            let is_asked = |group: Option<&LeaderGroup>| {
                let annotations = group.and_then(|group| group.metadata.annotations.as_ref());
                annotations.is_some_and(|annotations| annotations[SWITCHOVER_ANNOTATION] != old)
            };
            let waited = kube::runtime::wait::await_condition(world.api::<LeaderGroup>(), "web", is_asked);
            let group = tokio::time::timeout(apiserver::DEADLINE, waited).await.unwrap().unwrap().unwrap();
            let request = group.metadata.annotations.unwrap()[SWITCHOVER_ANNOTATION].clone();
            let status = json!({ "request": request, "result": result, "message": message });
            world.report("web", json!({ "switchover": status })).await;
        };
        let args = ["switchover", "web", "--wait", "-o", "json"];
        let ((status, text, errors), ()) = tokio::join!(world.run(&args), answer);
        assert_eq!(status, i32::from(result == "Refused"), "{text}{errors}");
        assert_eq!(errors.contains(message), result == "Refused", "{errors}");
        let answer: Value = serde_json::from_str(&text).expect("an answer");
        assert_eq!((&answer["result"], &answer["message"]), (&json!(result), &json!(message)), "{text}");
    }
    let requested = world.json(&["switchover", "web"]).await;
    let group = world.api::<LeaderGroup>().get("web").await.unwrap();
    assert_eq!(requested["request"], group.metadata.annotations.unwrap()[SWITCHOVER_ANNOTATION]);
    assert!(requested["result"].is_null(), "{requested}");
    let late = world.complaint(&["switchover", "web", "--wait", "--timeout", "200ms"]).await;
    for words in [
        "no result after 200ms",
        "kubectl leadergroup doctor",
        "The request stays",
        "annotate leadergroup web leadergroup.dev/switchover- leadergroup.dev/switchover-to-",
    ] {
        assert!(late.contains(words), "no {words:?} in {late}");
    }
}
