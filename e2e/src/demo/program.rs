//! The part of the demo with the agent: a program that runs in the active pod only.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use kube::{Api, api::ListParams};
use leadergroup::api::LeaderGroup;

use super::output::{kubectl, note, plugin};
use crate::{
    images,
    scenario::{Scenario, TOLD, eventually},
};

/// The name of the objects in the example.
const NAME: &str = "clockwork";
/// A new group waits until a program of an earlier one of its name is certainly over.
const FIRST_PROGRAM: Duration = Duration::from_mins(2);

/// Creates the example's objects. All containers have the image of the tests: busybox with the agent.
pub(super) async fn create(scenario: &Scenario, examples: &str) -> Result<()> {
    let example = fs::read_to_string(format!("{examples}/more/agent.yaml")).context("reading the example")?;
    let mut lines: Vec<String> = example.lines().map(str::to_owned).collect();
    for line in lines.iter_mut().filter(|line| line.trim_start().starts_with("image: ")) {
        let indent = line.len() - line.trim_start().len();
        *line = format!("{:indent$}image: {}", "", images::SUPERVISED);
    }
    scenario.stage.apply(&scenario.namespace, &lines.join("\n")).await
}

/// Records that the changes of this group's holder until now have causes: its node loses power, or a switchover.
pub(super) async fn excuse(scenario: &mut Scenario, reasons: &[&str]) -> Result<()> {
    let pods = scenario.pods().list(&ListParams::default().labels(&format!("app={NAME}"))).await?;
    scenario.fails_for(pods.items.into_iter().filter_map(|pod| pod.metadata.uid), reasons);
    Ok(())
}

/// Shows that a switchover ends the program in one pod before it starts in the other one.
pub(super) async fn play(scenario: &mut Scenario) -> Result<()> {
    let start = Instant::now();
    let before = working(scenario).await?;
    if start.elapsed() > Duration::from_secs(1) {
        note(&format!(
            "the first program of a new group starts after a minute: one of an earlier group could still run ({:.0} s more)",
            start.elapsed().as_secs_f64()
        ))?;
    }
    log(scenario, &before, 2).await?;
    excuse(scenario, &["Switchover"]).await?;
    plugin(scenario, &["switchover", NAME, "--wait"]).await?;
    let after = working(scenario).await?;
    ensure!(after != before, "{before} is still active");
    log(scenario, &before, 3).await?;
    log(scenario, &after, 2).await
}

/// The active pod, once its program has written something.
async fn working(scenario: &Scenario) -> Result<String> {
    let groups: Api<LeaderGroup> = scenario.groups();
    eventually("the program of the active pod", FIRST_PROGRAM, async || {
        let status = groups.get(NAME).await?.status.unwrap_or_default();
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready").context("no condition")?;
        ensure!(ready.status == "True", "{}", ready.message);
        let pod = status.active.context("no active pod")?.pod;
        let written =
            scenario.stage.run_kubectl(&["-n", &scenario.namespace, "logs", "-c", NAME, &pod]).await?;
        ensure!(written.contains(&format!("term {}:", status.token)), "{pod} has written nothing");
        Ok(pod)
    })
    .await
}

/// Prints the last lines that a pod's program has written.
async fn log(scenario: &Scenario, pod: &str, lines: usize) -> Result<()> {
    let tail = lines.to_string();
    let args = ["logs", "-c", NAME, "--tail", &tail, pod];
    let shown = format!("logs --tail {tail} {pod}");
    eventually("the log", TOLD, async || kubectl(scenario, &args, &shown).await).await
}
