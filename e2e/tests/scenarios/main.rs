//! The scenarios that LeaderGroup must survive on a real Kubernetes cluster, one file per scenario.
//!
//! All scenarios share one cluster and one operator. Those that do not affect others run in parallel, the rest one
//! after the other. `cargo test -p leadergroup-e2e --test scenarios -- NAME` runs those whose name contains NAME.

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]

mod active_pod_deleted;
mod api_server_restarted;
mod bad_input;
mod bundled;
mod change;
mod chart_upgraded;
mod clients_view;
mod crashing_pod;
mod database_lost;
mod deletions;
mod demoted_deleted;
mod exactly_one;
mod examples;
mod existing_cluster;
mod failback;
mod fenced_writer;
mod first_promotion;
mod foreign_labels;
mod frozen_pod;
mod group_deleted;
mod headless_service;
mod hooks;
mod leaking_pod;
mod managed_endpoints;
mod node_cut_off;
mod node_drained;
mod node_power_off;
mod not_ready;
mod operator_killed;
mod ownership;
mod path_cut;
mod postgres_away;
mod random_faults;
mod removal;
mod rollout;
mod scaled_down;
mod scaled_to_zero;
mod selector_matches_nothing;
mod switchover;
mod trouble;
mod two_groups;
mod webhook;
#[allow(dead_code, unreachable_pub, reason = "a module of the integration tests")]
#[path = "../../../tests/apiserver/webhook.rs"]
mod webhook_server;

use std::process::ExitCode;

use anyhow::{Result, bail};
use database_lost::{bundled as database_lost_bundled, cloud_native_pg as database_lost_cloud_native_pg};
use deletions::{deletions_with_everything, deletions_without_operator, deletions_without_postgres};
use examples::node_lost as examples_node_lost;
use leadergroup_e2e::{
    command::progress,
    history::check,
    provider::Provider,
    scenario::{Entry, Needs, Stage, beside, build_operator, run_all, target_folder},
};

macro_rules! entries {
    ($($needs:ident: $($name:ident),+;)+) => {
        vec![$($(Entry {
            name: stringify!($name),
            needs: Needs::$needs,
            play: |stage| Box::pin(async move { $name::play(&stage).await }),
        }),+),+]
    };
}

fn entries() -> Vec<Entry> {
    entries! {
        // The longest first, so that none of them runs alone at the end.
        PodFaults: examples, existing_cluster;
        Everything: exactly_one;
        Nothing: rollout, leaking_pod, hooks, crashing_pod, switchover, managed_endpoints, headless_service, failback;
        PodFaults: fenced_writer, frozen_pod;
        Nothing: active_pod_deleted, foreign_labels, scaled_down, scaled_to_zero, two_groups, first_promotion, group_deleted,
            selector_matches_nothing, not_ready;
        // After a node was cut off, the replica there must soon hear the others' questions again: hence path_cut.
        // The webhook's bystander shows what others notice, so nothing else may run beside it.
        Everything: webhook, clients_view, node_power_off, demoted_deleted, node_cut_off, path_cut, node_drained, operator_killed, api_server_restarted, postgres_away, bad_input,
            chart_upgraded, removal, deletions_with_everything, deletions_without_postgres, deletions_without_operator,
            examples_node_lost, database_lost_bundled, database_lost_cloud_native_pg, random_faults;
    }
}

/// Scenarios with these prefixes run only if requested by name.
const ON_REQUEST: [&str; 4] = ["database_lost", "deletions", "examples_node_lost", "random_faults"];

fn main() -> ExitCode {
    // Flags of the standard harness are ignored; names select scenarios.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let chosen = |entry: &Entry| {
        let usual = wanted.is_empty() && !ON_REQUEST.iter().any(|prefix| entry.name.starts_with(prefix));
        usual || wanted.iter().any(|part| entry.name.contains(part.as_str()))
    };
    let entries: Vec<Entry> = entries().into_iter().filter(chosen).collect();
    if std::env::args().any(|arg| arg == "--list") {
        for entry in &entries {
            println!("{}: test", entry.name);
        }
        return ExitCode::SUCCESS;
    }
    if entries.is_empty() {
        progress("scenarios: none of this name");
        return ExitCode::SUCCESS;
    }
    match run(entries) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress(&format!("scenarios: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(entries: Vec<Entry>) -> Result<()> {
    let operator = build_operator().await?;
    let provider = Box::pin(Provider::from_environment()).await?;
    let stage = Stage::start(provider, &beside("leadergroup-e2e")?, &operator).await?;
    let mut failed = run_all(&stage, entries).await;
    let report = target_folder()?.join("e2e-report.json");
    stage.report.write(&report)?;
    progress(&format!("\n{}\n(also in {})", stage.report.table(), report.display()));
    if let Err(error) = check_all(&stage).await {
        failed.push(format!("all together: {error:#}"));
    }
    if !failed.is_empty() {
        bail!("failed:\n{}", failed.join("\n"));
    }
    Ok(())
}

/// Checks the whole history once more, including the deletion of the namespaces.
async fn check_all(stage: &Stage) -> Result<()> {
    let Some(recorder) = &stage.recorder else { return Ok(()) };
    let history = stage.together.explain(recorder.history().await?);
    let checked = check(&history);
    checked.ok_or_dump(&history, &target_folder()?.join("e2e-dump/all-history.jsonl"))?;
    progress(&format!("all together: {checked}"));
    Ok(())
}
