//! The commands of the `leadergroup` program: their arguments and what they print.

mod agent;
mod check;
mod crd;
mod exec;
mod explain;
mod group_name;
mod guardian;
mod installation;
mod lock;
mod lock_alone;
mod print;
mod process_group;
mod ready;
mod reassign;
mod starter;
mod uninstall;

use clap::{Args, Parser, Subcommand};

pub use agent::{AgentArgs, AgentCommand, InjectArgs, InjectError, agent};
pub use check::CheckArgs;
pub use crd::crd_yaml;
pub use exec::{EXIT_LOST, EXIT_NOT_HELD, ExecArgs, ExecError, OnLost, exec};
pub use explain::{ExplainArgs, explain};
pub use guardian::{GuardianArgs, guard};
pub use installation::InstallationArgs;
pub use lock::{HistoryArgs, LockArgs, LockCommand, LockCommandError, LsArgs, ReleaseArgs, ShowArgs};
#[cfg(feature = "conformance")]
pub use lock_alone::ConformArgs;
pub use lock_alone::LockAloneCommand;
pub use print::{Answer, OutputFormat};
pub use process_group::StartError;
pub use ready::{NotReady, ready};
pub use reassign::{ReassignArgs, ReassignError};
pub use starter::{StarterArgs, start};
pub use uninstall::{UninstallArgs, UninstallError, uninstall};

use crate::config::SettingsArgs;

/// Kubernetes operator for active-standby deployments: routes to exactly one of the pods that a LeaderGroup selects
#[derive(Debug, Parser)]
#[command(name = "leadergroup", version, propagate_version = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a replica of the operator until SIGTERM or SIGINT
    Run(RunArgs),
    /// Print the custom resource definition as YAML, for `kubectl apply -f -`
    Crd,
    /// Create or upgrade the tables in the lock's database
    Migrate(MigrateArgs),
    /// Stop the operator and remove its finalizer from all groups; the chart runs this before it is uninstalled
    Uninstall(UninstallArgs),
    /// Wait until all replicas are ready and the API server serves groups; `helm test` runs this
    Ready(InstallationArgs),
    /// Run a command only while a lock is held: leadergroup exec --key KEY -- COMMAND
    Exec(ExecArgs),
    /// Inspect the locks in the database, take one away from its holder, or give it to another group
    Lock(LockArgs),
    /// Show what the election of a group sees, and what it would do next; changes nothing
    Explain(ExplainArgs),
    /// Put the agent into manifests, so that it runs the program of their pods
    Agent(AgentArgs),
    /// Print the version
    Version,
    /// Become the command of `exec`; used only by `exec`
    #[command(name = "__start", hide = true)]
    Start(StarterArgs),
    /// Kill the command of `exec` when `exec` ends; used only by `exec`
    #[command(name = "__guard", hide = true)]
    Guard(GuardianArgs),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Print the effective settings and the source of each, without passwords, and exit
    #[arg(long)]
    pub print_config: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The settings; only those of the database are used.
    #[command(flatten)]
    pub settings: SettingsArgs,
}
