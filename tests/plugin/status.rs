//! The commands that show something.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use k8s_openapi::api::events::v1::Event;
use leadergroup::api::LeaderGroup;
use serde_json::json;

use crate::{apiserver, world::World};

#[tokio::test]
async fn status_shows_the_groups_and_one_with_all_that_belongs_to_it() {
    let world = World::new("plugin-status").await;
    let empty = world.text(&["status"]).await;
    assert!(empty.contains("has no LeaderGroups"), "{empty}");
    world.web().await;
    world.group("new").await;
    let text = world.text(&["status"]).await;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["GROUP", "STATE", "ACTIVE"], "{text}");
    assert_eq!(lines[1][..2], ["new", "unknown"], "those with a problem are first: {text}");
    assert_eq!(lines[2][..5], ["web", "ready", "web-0", "node-1", "2/2"], "{text}");
    assert!(!text.contains('\u{1b}'), "no colours without a terminal: {text:?}");
    let everywhere = world.text(&["status", "-A"]).await;
    assert!(everywhere.lines().any(|line| line.starts_with(&world.namespace) && line.contains(" web ")));
    let listed = world.json(&["status"]).await;
    assert_eq!((&listed[1]["group"], &listed[1]["state"]), (&json!("web"), &json!("ready")), "{listed}");

    let one = world.text(&["status", "web"]).await;
    for words in [
        "web: ready. web-0 is active on node-1 for ",
        "token 3; 2 of 2 pods eligible",
        "web-0  active   node-1  yes ",
        "the active pod  web-0",
        "1 pod could take over",
        "the former pod did not answer",
    ] {
        assert!(one.contains(words), "no {words:?} in:\n{one}");
    }
    let one = world.json(&["status", &format!("{}/web", world.namespace)]).await;
    assert_eq!(
        (&one["pods"][1]["pod"], &one["pods"][1]["eligible"]),
        (&json!("web-1"), &json!(true)),
        "{one}"
    );
    assert_eq!(one["services"][0]["endpoints"], json!(["web-0"]), "{one}");
    let yaml = world.text(&["status", "web", "-o", "yaml"]).await;
    assert!(yaml.contains("state: ready") && yaml.contains("token: 3"), "{yaml}");
}

#[tokio::test]
async fn a_watch_prints_a_line_for_each_change() {
    let world = World::new("plugin-watch").await;
    world.web().await;
    let mut child = Running(world.command(&["status", "-w"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Some(Ok(line)) = lines.next()
            && sender.send(line).is_ok()
        {}
    });
    let mut next =
        async || tokio::time::timeout(apiserver::DEADLINE, receiver.recv()).await.unwrap().unwrap();
    let first = next().await;
    assert!(first.contains("/web: ready. web-0 is active"), "{first}");
    // What people do not see is no change.
    world.report("web", json!({ "key": "k" })).await;
    world.report("web", json!({ "eligible": 1 })).await;
    let second = next().await;
    assert!(second.contains("1 of 2 pods eligible"), "{second}");
    world.api::<LeaderGroup>().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    let last = next().await;
    assert!(last.ends_with("/web: deleted"), "{last}");
    // It ends when the reader closes the pipe, as in `status -w | head`.
    drop(receiver);
    world.group("web").await;
    let (start, mut token) = (std::time::Instant::now(), 0);
    let ended = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < apiserver::DEADLINE, "it goes on without a reader");
        token += 1;
        world.report("web", json!({ "token": token })).await;
    };
    assert!(ended.success(), "{ended:?}");
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn explain_and_history_tell_the_past_and_the_next() {
    let world = World::new("plugin-explain").await;
    world.web().await;
    let uid = world.api::<LeaderGroup>().get("web").await.unwrap().metadata.uid.unwrap();
    world
        .create::<Event>(json!({
            "metadata": { "generateName": "web-" }, "eventTime": "2026-01-01T00:00:00.000000Z",
            "type": "Warning", "reason": "ForeignLabel", "note": "somebody labelled web-1", "action": "Strip",
            "reportingController": "leadergroup.dev", "reportingInstance": "r",
            "regarding": {
                "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup", "name": "web", "uid": uid,
                "namespace": world.namespace,
            },
        }))
        .await;
    let text = world.text(&["explain", "web"]).await;
    for words in [
        "web-0 took over from web-1",
        "(Silent): the former pod did not answer",
        "Event ForeignLabel",
        "somebody labelled web-1",
        "if web-0 fails, web-1 takes over; at once if it is deleted or crashes, after 5s if it does not answer",
        "which probes each pod answers",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
    let explained = world.json(&["explain", "web"]).await;
    assert_eq!(explained["group"], format!("{}/web", world.namespace), "{explained}");
    assert!(explained["next"][0].as_str().unwrap().starts_with("if web-0 fails"), "{explained}");
    let text = world.text(&["history", "web"]).await;
    assert!(text.contains("2026-01-01 00:00:00Z") && text.contains("5s41ms  Silent"), "{text}");
    let changes = world.json(&["history", "web"]).await;
    assert_eq!((&changes[0]["from"], &changes[0]["token"]), (&json!("web-1"), &json!(3)), "{changes}");
}

#[tokio::test]
async fn the_completion_of_each_shell_knows_the_commands() {
    let world = World::new("plugin-completion").await;
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = world.text(&["completion", shell]).await;
        assert!(script.contains("kubectl-leadergroup") && script.contains("switchover"), "{shell}: {script}");
    }
}
