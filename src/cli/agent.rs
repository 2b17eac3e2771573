//! `leadergroup agent`: puts the agent into manifests.

mod documents;
mod inject;
mod refusal;

use std::{
    fs,
    io::{self, Read as _},
    path::PathBuf,
};

use clap::{Args, Subcommand};

use documents::DocumentsError;
use inject::Wish;

/// Arguments of `agent`.
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: AgentCommand,
}

/// The subcommands of `agent`.
#[derive(Clone, Debug, Subcommand)]
pub enum AgentCommand {
    /// Print manifests in which the agent runs the program of the pods: leadergroup agent inject -f deployment.yaml
    Inject(InjectArgs),
}

/// Arguments of `agent inject`.
#[derive(Clone, Debug, Args)]
pub struct InjectArgs {
    /// The manifests; `-` reads standard input
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub filename: Vec<PathBuf>,
    /// The LeaderGroup of all workloads in the manifests; default: the label leadergroup.dev/agent of the pods, or the
    /// LeaderGroup with spec.agent in the manifests that selects them. Workloads without one are not changed
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// The container whose program the agent runs; default: the annotation leadergroup.dev/agent-container of the pods,
    /// or the first one
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// The agent's image
    #[arg(long, default_value = concat!("ghcr.io/leadergroup/leadergroup-agent:", env!("CARGO_PKG_VERSION")))]
    pub image: String,
    /// How the agent asks the program whether it is ready: http://:PORT/PATH or tcp://:PORT; default: the annotation
    /// leadergroup.dev/agent-ready of the pods, or as the container's readinessProbe does
    #[arg(long, value_name = "URL")]
    pub ready: Option<String>,
    /// How long after SIGTERM the program is killed; default: the annotation leadergroup.dev/agent-stop-timeout of the
    /// pods, or the agent's own. Let agent.stopTimeout of the LeaderGroup be longer
    #[arg(long, value_name = "SECONDS")]
    pub stop_timeout: Option<u32>,
    /// The role that lets agents read LeaderGroups: the chart creates a cluster role of this name
    #[arg(long, value_name = "NAME", default_value = "leadergroup-agent")]
    pub cluster_role: String,
}

/// Why no manifests are printed.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// A file could not be read.
    #[error("{} could not be read: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The manifests cannot be changed as asked.
    #[error(transparent)]
    Documents(#[from] DocumentsError),
}

/// The manifests of the files, in which the agent runs the programs.
pub fn agent(args: &AgentArgs) -> Result<String, InjectError> {
    let AgentCommand::Inject(args) = &args.command;
    let mut texts = Vec::new();
    for file in &args.filename {
        let text = read(file).map_err(|error| InjectError::Read { file: file.clone(), error })?;
        texts.push(text);
    }
    let wish = Wish {
        group: args.group.clone(),
        container: args.container.clone(),
        image: args.image.clone(),
        ready: args.ready.clone(),
        stop_timeout: args.stop_timeout.map(|seconds| seconds.to_string()),
    };
    Ok(documents::injected(&texts, &wish, &args.cluster_role)?)
}

fn read(file: &PathBuf) -> io::Result<String> {
    if file.as_os_str() != "-" {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}
