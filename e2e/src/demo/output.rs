//! What the demo prints, and the commands that it shows.

use std::{io::Write as _, time::Duration};

use anyhow::{Context as _, Result};
use tokio::process::Command;

use crate::{
    command,
    scenario::{Scenario, beside, ms},
};

pub(super) fn heading(number: u8, text: &str) -> Result<()> {
    say(&format!("\n{number}. {text}"))
}

pub(super) fn note(text: &str) -> Result<()> {
    say(&format!("   {text}"))
}

pub(super) fn told(after: Duration, text: &str) -> Result<()> {
    note(&format!("+{:>6} ms  {text}", ms(after)))
}

pub(super) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush().context("the output is closed")
}

/// Runs kubectl in the demo's namespace, and prints the output.
pub(super) async fn kubectl(scenario: &Scenario, args: &[&str], shown: &str) -> Result<()> {
    let mut all = vec!["-n", &scenario.namespace];
    all.extend(args);
    let text = scenario.stage.run_kubectl(&all).await?;
    printed(&format!("kubectl {shown}"), &text)
}

/// Runs the plugin of kubectl, and prints the output.
pub(super) async fn plugin(scenario: &Scenario, args: &[&str]) -> Result<()> {
    let mut command = Command::new(beside("kubectl-leadergroup")?);
    command.args(args).env("KUBECONFIG", scenario.stage.provider.kubeconfig());
    let text = command::output(command, command::LIMIT).await?;
    printed(&format!("kubectl leadergroup {}", args.join(" ")), &text)
}

fn printed(command: &str, output: &str) -> Result<()> {
    note(&format!("$ {command}"))?;
    output.lines().try_for_each(|line| note(&format!("  {line}")))
}
