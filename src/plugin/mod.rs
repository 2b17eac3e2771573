//! `kubectl leadergroup`: the plugin for people. It uses the Kubernetes API only, with the rights of the user, and has
//! neither the operator nor a database in it.
//!
//! Files that decide what to say are pure: they turn objects into rows, sentences and findings. `cluster.rs`,
//! `switchover.rs`, `pause.rs`, `watch.rs`, `print.rs` and parts of the doctor make calls.

mod args;
mod cluster;
mod doctor;
mod explain;
mod failure;
mod history;
mod holder;
mod ink;
mod moments;
mod operator;
mod pause;
mod pods;
mod print;
#[cfg(test)]
mod samples;
mod services;
mod state;
mod status;
mod switchover;
mod table;
mod watch;

use clap::CommandFactory as _;
use jiff::Timestamp;

pub use args::{
    Access, Command, CommandLine, CompletionArgs, DoctorArgs, ExplainArgs, GroupArgs, HistoryArgs, Output,
    StatusArgs, SwitchoverArgs,
};
use cluster::Cluster;
use doctor::Patient;
pub use failure::{Failure, Kind};
use print::{can_redraw, formatted, width, write};

/// The exit status of a doctor that has found something.
const FOUND: u8 = 1;

/// Runs a command. Returns its exit status.
pub async fn run(line: &CommandLine) -> Result<u8, Failure> {
    if let Command::Completion(args) = &line.command {
        let mut script = Vec::new();
        clap_complete::generate(args.shell, &mut CommandLine::command(), "kubectl-leadergroup", &mut script);
        return write(&String::from_utf8_lossy(&script)).map(|()| 0);
    }
    let cluster = Cluster::find(&line.access).await?;
    let text = match &line.command {
        Command::Status(args) => return status(&cluster, args, &line.access).await.map(|()| 0),
        Command::Doctor(args) => return examine(&cluster, args, &line.access).await,
        Command::Explain(args) => {
            let name = cluster.name(&args.group);
            let (seen, operators) = tokio::join!(cluster.see(&name), operator::deployments(&cluster));
            let seen = seen?;
            let operator = operator::of_namespace(&operators.unwrap_or_default(), &name.namespace);
            let found = explain::explained(&seen, operator.as_ref());
            formatted(args.output, &found, || explain::text(&found, &seen, width()))?
        }
        Command::History(args) => {
            let changes = history::changes(&cluster.group(&cluster.name(&args.group)).await?);
            let text = || history::text(&changes, &args.group, Timestamp::now(), width());
            formatted(args.output, &changes, text)?
        }
        Command::Switchover(args) => {
            let answer = switchover::switchover(&cluster, &cluster.name(&args.group), args).await?;
            if let Some(failure) = answer.failure.clone() {
                // Programs get the answer as well.
                write(&formatted(args.output, &answer, String::new)?)?;
                return Err(failure);
            }
            formatted(args.output, &answer, || answer.message.clone() + "\n")?
        }
        Command::Pause(args) => {
            let name = cluster.name(&args.group);
            match args.limit {
                None => pause::set_paused(&cluster, &name, true).await?,
                Some(limit) => {
                    pause::pause_for(&cluster, &name, limit, |text| write(&line.access.with_cluster(text)))
                        .await?
                }
            }
        }
        Command::Resume(args) => pause::set_paused(&cluster, &cluster.name(&args.group), false).await?,
        Command::Completion(_) => String::new(),
    };
    write(&line.access.with_cluster(&text)).map(|()| 0)
}

async fn status(cluster: &Cluster, args: &StatusArgs, access: &Access) -> Result<(), Failure> {
    let namespace = (!args.all_namespaces).then_some(cluster.namespace.as_str());
    let name = args.group.as_ref().map(|group| cluster.name(group));
    if args.watch {
        return match name.as_ref() {
            Some(name) if can_redraw() => watch::group(cluster, name).await,
            name => watch::list(cluster, namespace, name).await,
        };
    }
    let text = if let Some(name) = &name {
        let seen = cluster.see(name).await?;
        let found = status::of_group(&seen);
        formatted(args.output, &found, || status::text(&found, &seen, width()))?
    } else {
        let groups = cluster.groups(namespace).await?;
        let lines = status::lines(&groups, cluster.pods_of(&groups, namespace).await.as_deref());
        formatted(args.output, &lines, || status::list(&lines, namespace, Timestamp::now(), width()))?
    };
    write(&access.with_cluster(&text))
}

async fn examine(cluster: &Cluster, args: &DoctorArgs, access: &Access) -> Result<u8, Failure> {
    let name = args.group.as_ref().map(|group| cluster.name(group));
    let patient = match &name {
        Some(name) => Patient::Group(name),
        None if args.all_namespaces => Patient::All,
        None => Patient::Namespace(&cluster.namespace),
    };
    let findings = doctor::findings(cluster, &patient).await?;
    let text = formatted(args.output, &findings, || doctor::text(&findings, width()))?;
    write(&access.with_cluster(&text))?;
    Ok(if doctor::is_any_wrong(&findings) { FOUND } else { 0 })
}
