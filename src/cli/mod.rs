//! The commands of the `leadergroup` program: their arguments, their settings, and what they print.

mod crd;

use clap::{Parser, Subcommand};

pub use crd::crd_yaml;

/// Kubernetes operator for active-standby deployments: of the pods that a LeaderGroup selects, exactly one is routed to.
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
    /// Print the custom resource definition as YAML, for `kubectl apply -f -`
    Crd,
}
