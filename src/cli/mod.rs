//! The commands of the `leadergroup` program: their arguments and what they print.

mod check;
mod crd;
mod exec;
mod group;
mod guardian;
mod lock;
mod print;
mod starter;
mod uninstall;

use clap::{Args, Parser, Subcommand};

pub use check::CheckArgs;
pub use crd::crd_yaml;
pub use exec::{EXIT_LOST, EXIT_NOT_HELD, ExecArgs, ExecError, OnLost, exec};
pub use group::StartError;
pub use guardian::{GuardianArgs, guard};
pub use lock::{
    HistoryArgs, LockArgs, LockCommand, LockCommandError, LsArgs, ReleaseArgs, ShowArgs, fence_sql,
};
pub use print::{Answer, OutputFormat};
pub use starter::{StarterArgs, start};
pub use uninstall::{UninstallArgs, UninstallError, uninstall};

use crate::config::SettingsArgs;

/// Kubernetes operator for active-standby deployments: of the pods that a LeaderGroup selects, exactly one is routed
/// to.
#[derive(Debug, Parser)]
#[command(name = "leadergroup", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a replica of the operator until SIGTERM or SIGINT
    Run(RunArgs),
    /// Print the custom resource definition as YAML, for `kubectl apply -f -`
    Crd,
    /// Bring the tables of the lock's database to this version, and end
    Migrate(MigrateArgs),
    /// Stop the operator and let all groups go, before it is removed; the chart does it
    Uninstall(UninstallArgs),
    /// Run a command only while a lock is held: leadergroup exec --key KEY -- COMMAND
    Exec(ExecArgs),
    /// Look at the locks in the database, or take one away from its holder
    Lock(LockArgs),
    /// Print the version
    Version,
    /// Become the command of `exec`; for `exec` only
    #[command(name = "__start", hide = true)]
    Start(StarterArgs),
    /// Kill the command of `exec` when `exec` ends; for `exec` only
    #[command(name = "__guard", hide = true)]
    Guard(GuardianArgs),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Print the settings in force and where each comes from, without passwords, and end
    #[arg(long)]
    pub print_config: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The settings, of which those of the database count.
    #[command(flatten)]
    pub settings: SettingsArgs,
}
