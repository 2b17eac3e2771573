//! A new group: one pod becomes active, and the Service routes to it from every node.

use std::rc::Rc;

use anyhow::{Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use leadergroup_e2e::scenario::{OPERATOR_NAMESPACE, STARTED, Scenario, Stage, Workload, eventually};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "first-promotion", Workload::default(), async |s| {
        let nodes: Vec<String> = match s.stage.provider.faults() {
            Some(cluster) => cluster.nodes().iter().map(|node| node.name.clone()).collect(),
            None => vec!["elsewhere".into()],
        };
        let mut clients = Vec::new();
        for node in &nodes {
            clients.push((node, s.call_from(node).await?));
        }
        s.pods_ready().await?;
        for (_, client) in &clients {
            client.until("a call", STARTED, |calls| calls.len() > 5).await?;
            ensure!(client.calls().answers().next().is_none(), "the Service routes before there is a group");
        }
        let active = s.elect().await?;
        for (node, client) in clients {
            let heard =
                client.until("50 answers", STARTED, |calls| calls.answered_by(&active.pod) >= 50).await?;
            ensure!(heard.pods() == [active.pod.as_str()], "{node} was answered by {:?}", heard.pods());
            s.hang_up(client).await?;
        }
        let group = s.workload.name.clone();
        let wait =
            ["wait", "-n", &s.namespace, "--for=condition=Ready", "--timeout=5s", "leadergroup", &group];
        s.stage.run_kubectl(&wait).await?;
        // A standby that answers one probe late on a busy machine is not counted until it answers the next one.
        eventually("what kubectl shows", STARTED, async || {
            let shown = s.stage.run_kubectl(&["get", "-n", &s.namespace, "lg", &group]).await?;
            for word in ["ACTIVE", "NODE", "TOKEN", "ELIGIBLE", "STATUS", "3/3", &active.pod, &active.node] {
                ensure!(shown.contains(word), "`kubectl get lg` does not show {word}:\n{shown}");
            }
            explains(s, &active.pod).await
        })
        .await?;
        let events: Api<Event> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
        eventually("an Event of the first promotion", STARTED, async || {
            let all = events.list(&ListParams::default()).await?.items;
            let told = all.iter().any(|event| {
                let about = event.regarding.as_ref().and_then(|about| about.name.as_deref());
                about == Some(&group)
                    && event.reason.as_deref() == Some("FirstHolder")
                    && event.note.as_ref().is_some_and(|note| note.contains(&active.pod))
            });
            ensure!(told, "the Events are {all:?}");
            Ok(())
        })
        .await
    })
    .await
}

/// `leadergroup explain`, run in a pod of the operator, reaches the pods and finds nothing to do.
async fn explains(s: &Scenario, active: &str) -> Result<()> {
    let group = format!("{}/{}", s.namespace, s.workload.name);
    let args =
        ["exec", "-n", OPERATOR_NAMESPACE, "deployment/leadergroup", "--", "leadergroup", "explain", &group];
    let text = s.stage.run_kubectl(&args).await?;
    let eligible =
        text.lines().filter(|line| line.contains("eligible") && line.contains("succeeded")).count();
    ensure!(eligible == 3, "{eligible} pods are eligible:\n{text}");
    for words in [&format!("held by {active}"), "next: nothing. The active pod is healthy"] {
        ensure!(text.contains(words), "no {words:?} in:\n{text}");
    }
    Ok(())
}
