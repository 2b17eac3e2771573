//! The demo: a cluster, the operator, three pods behind a Service, planned switchovers, and a power failure of the
//! active pod's node. And an agent that runs a program in the active pod only.

mod output;
mod program;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use tokio::time;

use self::output::{heading, kubectl, note, plugin, say, told};
use crate::{
    client::{Calls, Client},
    cluster::Cluster,
    history::{Checked, check},
    moment::Moment,
    provider::Provider,
    scenario::{Active, Measured, Scenario, Stage, Workload, beside, eventually, target_folder},
    state::Lock,
};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
/// The name of the objects in `examples/`.
const NAME: &str = "hello";
const NAMESPACE: &str = "default";
const INSTALL: &str =
    "The operator: helm install leadergroup charts/leadergroup --set managedEndpoints.enabled=true";
const STARTED: Duration = Duration::from_mins(3);
const NODE_BACK: Duration = Duration::from_mins(3);

/// Runs the demo. The cluster is kept if `KEEP` is set in the environment, or if it was running before.
pub async fn run() -> Result<()> {
    let begun = Instant::now();
    let keep = std::env::var("KEEP").is_ok_and(|keep| !keep.is_empty() && keep != "0");
    say(
        "LeaderGroup: one of three pods is active. It hands over to another one, and that one's node loses power.",
    )?;

    heading(
        1,
        "A cluster: etcd, a control plane, PostgreSQL and three nodes, each in its own network namespace",
    )?;
    let found = Lock::holder()?.is_some();
    if found {
        note("a cluster is already running on this machine: the demo uses it and does not stop it")?;
    } else {
        note("the first time, Kubernetes is built from source, which takes several minutes")?;
    }
    let start = Instant::now();
    let cluster = Box::pin(Cluster::attach_or_start()).await?;
    note(&format!("up after {:.1} s", start.elapsed().as_secs_f64()))?;

    heading(2, INSTALL)?;
    let start = Instant::now();
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let provider = Provider::Own(Box::new(cluster));
    let stage = Stage::start(provider, &program, &beside("leadergroup")?).await?;
    note(&format!("two replicas are ready after {:.1} s", start.elapsed().as_secs_f64()))?;

    let workload = Workload { name: NAME.into(), ..Workload::default() };
    let mut scenario = Scenario::existing(&stage, "demo", NAMESPACE, workload);
    let result = story(&mut scenario).await;
    drop(scenario);
    let line = match result {
        Ok(line) => line,
        Err(error) => {
            if !found {
                note("it failed: the cluster is stopped; its logs are kept")?;
            }
            return Err(error);
        }
    };

    let stage = std::rc::Rc::into_inner(stage).context("the stage is still in use")?;
    let Provider::Own(cluster) = stage.provider else { anyhow::bail!("the demo needs its own cluster") };
    heading(10, "The end")?;
    if keep || found {
        note(&format!(
            "the cluster keeps running; configure kubectl for it with: eval \"$({} env)\"",
            program.display()
        ))?;
        note("stop it with: make cluster-down")?;
        if !found {
            cluster.detach().await?;
        }
    } else {
        cluster.stop().await?;
        note("the cluster and all its files are removed; use KEEP=1 to keep it")?;
    }
    note(&format!("the demo took {:.0} s", begun.elapsed().as_secs_f64()))?;
    say("")?;
    say(&line)
}

async fn story(scenario: &mut Scenario) -> Result<String> {
    heading(3, "A Deployment of three pods, a Service, a LeaderGroup")?;
    program::create(scenario, EXAMPLES).await?;
    kubectl(scenario, &["apply", "-f", EXAMPLES], "apply -f examples/").await?;
    let start = Instant::now();
    let active = scenario.settled(STARTED).await?;
    note(&format!("{} is active after {:.1} s", active.pod, start.elapsed().as_secs_f64()))?;
    show(scenario).await?;

    let node = scenario.another_node(&active.node)?;
    heading(4, &format!("A client on {node} calls the Service 100 times a second"))?;
    let client = scenario.call_from(&node).await?;
    let enough = |calls: &Calls| calls.answered_by(&active.pod) >= 200;
    let calls = client.until("200 answers of the active pod", STARTED, enough).await?;
    note(&calls.to_string())?;

    heading(5, "A planned switchover: another pod becomes active while the present one works")?;
    // The client's node keeps its power later.
    let active = switchover(scenario, &active, &client, &node).await?;
    let planned = last_change(scenario)?;
    show(scenario).await?;

    heading(6, "The same with endpoints that the operator writes: one update where a selector needs two")?;
    manage_endpoints(scenario, &active, &client).await?;
    let active = switchover(scenario, &active, &client, &node).await?;
    let managed = last_change(scenario)?;

    heading(7, &format!("{} loses power, and with it the active pod", active.node))?;
    program::excuse(scenario, &["Silent", "ProbeRefused", "ProgramEnded"]).await?;
    let cluster = scenario.stage.own()?;
    let off = Moment::from(cluster.power_off(&active.node).await?);
    let failover = scenario.failover("power-off", &active, off, Some(&client), &["Silent"]);
    let after = narrated(failover, &client, off).await?;
    let measured = last_change(scenario)?;
    told(
        Duration::from_millis(measured.failover_ms),
        &format!("{} is active, token {}", after.pod, after.token),
    )?;
    let switch = client.calls().switch(&active.pod, &after.pod, off).context("the new pod never answered")?;
    told(switch.first_new.since(off), &format!("{} answers through the Service", after.pod))?;
    show(scenario).await?;

    heading(8, &format!("{} has power again", active.node))?;
    let start = Instant::now();
    scenario.stage.own()?.power_on(&active.node).await?;
    let still = back_as_standby(scenario, &active).await?;
    note(&format!("{} is back as a standby after {:.1} s", active.pod, start.elapsed().as_secs_f64()))?;
    ensure!(still == after, "{} was active, now {} is", after.pod, still.pod);
    show(scenario).await?;

    let calls = client.stop().await?;
    note(&calls.to_string())?;

    heading(9, "A program that works without being called runs under the agent, in the active pod only")?;
    program::play(scenario).await?;
    let history = scenario.history().await?;
    let checked = check(&history);
    checked.ok_or_dump(&history, &target_folder()?.join("demo-history.jsonl"))?;
    Ok(last_line([&planned, &managed], &measured, calls.from(off).lost(), &checked))
}

/// The last line of the output.
fn last_line(planned: [&Measured; 2], failover: &Measured, lost: usize, checked: &Checked) -> String {
    let [labelled, managed] = planned.map(|change| change.lost.unwrap_or_default());
    let [first, second] = planned.map(|change| change.failover_ms);
    format!(
        "switchovers: {first} and {second} ms after the request, {labelled} requests lost by selector and {managed} with \
         managed endpoints · failover: {} ms after power-off (silenceTimeout {} ms), {lost} requests lost · {checked}",
        failover.failover_ms, failover.silence_timeout_ms,
    )
}

/// Changes the Service and the group to managed endpoints, and waits until the active pod answers again all the time.
async fn manage_endpoints(scenario: &Scenario, active: &Active, client: &Client) -> Result<()> {
    let file = format!("{EXAMPLES}/more/managed-endpoints.yaml");
    kubectl(scenario, &["apply", "-f", &file], "apply -f examples/more/managed-endpoints.yaml").await?;
    let slices: Api<EndpointSlice> = Api::namespaced(scenario.stage.kube.clone(), NAMESPACE);
    let name = format!("{NAME}-leadergroup-ipv4");
    eventually("the operator's slice", STARTED, async || {
        let slice = slices.get(&name).await?;
        ensure!(slice.endpoints.len() == 1, "it lists {} pods", slice.endpoints.len());
        Ok(())
    })
    .await?;
    // kube-proxy may apply this change late.
    let latest = |calls: &Calls| calls.latest(100).answered_by(&active.pod) == 100;
    client.until("100 answers in a row", STARTED, latest).await?;
    Ok(())
}

fn last_change(scenario: &Scenario) -> Result<Measured> {
    scenario.changes().last().cloned().context("no change of holder was measured")
}

/// Makes a pod active that is on another node than `avoided`, and tells what the client saw.
async fn switchover(
    scenario: &mut Scenario,
    before: &Active,
    client: &Client,
    avoided: &str,
) -> Result<Active> {
    let pods = scenario.pods_ready().await?;
    let chosen = pods.iter().find_map(|pod| {
        let (name, node) = (pod.metadata.name.as_deref()?, pod.spec.as_ref()?.node_name.as_deref()?);
        (name != before.pod && node != avoided).then_some(name)
    });
    let chosen = chosen.with_context(|| format!("all standbys are on {avoided}"))?;
    let request = ["switchover", NAME, "--to", chosen, "--wait"];
    let at = Moment::now();
    plugin(scenario, &request).await?;
    let after = scenario.failover("switchover", before, at, Some(client), &["Switchover"]).await?;
    let Measured { failover_ms, gap_ms, lost, .. } = last_change(scenario)?;
    told(Duration::from_millis(failover_ms), &format!("{} is active, token {}", after.pod, after.token))?;
    note(&format!(
        "the client waited {} ms for the next answer, and lost {} requests",
        gap_ms.unwrap_or_default(),
        lost.unwrap_or_default()
    ))?;
    Ok(after)
}

/// Waits until the node's own pod is labelled standby and counts as eligible again.
async fn back_as_standby(scenario: &Scenario, lost: &Active) -> Result<Active> {
    let active = scenario.settled(NODE_BACK).await?;
    eventually("the lost pod to be a standby", NODE_BACK, async || {
        let pod = scenario.pods().get(&lost.pod).await?;
        let role = pod.metadata.labels.unwrap_or_default().remove(&scenario.routing().role_label);
        ensure!(role.as_deref() == Some("standby"), "its role is {role:?}");
        Ok(())
    })
    .await?;
    Ok(active)
}

/// Prints once a second what the client sees, until the failover is over.
async fn narrated(
    failover: impl Future<Output = Result<Active>>,
    client: &Client,
    since: Moment,
) -> Result<Active> {
    tokio::pin!(failover);
    let mut seconds = time::interval(Duration::from_secs(1));
    let mut last = since;
    loop {
        tokio::select! {
            done = &mut failover => return done,
            _ = seconds.tick() => {
                let now = Moment::now();
                let calls = client.calls().from(last);
                if now.since(last) >= Duration::from_millis(500) {
                    told(now.since(since), &calls.to_string())?;
                    last = now;
                }
            }
        }
    }
}

async fn show(scenario: &Scenario) -> Result<()> {
    kubectl(scenario, &["get", "leadergroups", NAME], &format!("get lg {NAME}")).await?;
    let columns = "custom-columns=POD:.metadata.name,NODE:.spec.nodeName,ROLE:.metadata.labels.leadergroup\\.dev/role,\
                   READY:.status.conditions[?(@.type==\"Ready\")].status";
    kubectl(scenario, &["get", "pods", "-l", "app=hello", "-o", columns], "get pods").await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_how_long_it_took_and_what_was_lost() {
        let labelled = Measured { failover_ms: 109, lost: Some(103), ..Measured::default() };
        let managed = Measured { failover_ms: 81, lost: Some(0), ..Measured::default() };
        let failover = Measured { failover_ms: 4551, silence_timeout_ms: 5000, ..Measured::default() };
        let checked = Checked { most_active: 1, revisions: 321, ..Checked::default() };
        assert_eq!(
            last_line([&labelled, &managed], &failover, 42, &checked),
            "switchovers: 109 and 81 ms after the request, 103 requests lost by selector and 0 with managed endpoints · \
             failover: 4551 ms after power-off (silenceTimeout 5000 ms), 42 requests lost · 1 active at every revision (321 \
             revisions checked)"
        );
    }
}
