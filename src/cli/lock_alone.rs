//! The commands of `leadergroup lock` that need no database: they print SQL, or start a database of their own.

#[cfg(feature = "conformance")]
use std::path::PathBuf;
#[cfg(feature = "conformance")]
use std::time::Duration;

#[cfg(feature = "conformance")]
use clap::Args;
use clap::Subcommand;
use leadergroup_lock::admin::{FENCE_SEEN_SQL, install_sql};
#[cfg(feature = "conformance")]
use leadergroup_lock_conformance::Settings;

use super::print::Answer;
#[cfg(feature = "conformance")]
use crate::api::HumanDuration;

/// The subcommands of `lock` that need no database.
#[derive(Clone, Debug, Subcommand)]
pub enum LockAloneCommand {
    /// Print the SQL that installs the fence in a database other than the lock's
    FenceSql,
    /// Print the lock's tables and functions as one file for psql, which does what `leadergroup migrate` does
    InstallSql,
    /// Test a client of the lock in any language: start a PostgreSQL, break things, and name the rules it breaks
    #[cfg(feature = "conformance")]
    Conform(ConformArgs),
}

/// Arguments of `lock conform`.
#[cfg(feature = "conformance")]
#[derive(Clone, Debug, Args)]
pub struct ConformArgs {
    /// The ttl of all sessions
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    pub ttl: HumanDuration,
    /// How often each scenario runs
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub rounds: u32,
    /// Where the order of the scenarios, and the faults of some, come from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// How many scenarios run at a time
    #[arg(long, value_name = "NUMBER", default_value_t = Settings::default().at_a_time)]
    pub at_a_time: usize,
    /// Only scenarios whose names contain this; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Print all that was recorded in a scenario in which a rule was broken
    #[arg(long)]
    pub trace: bool,
    /// Write what each client did, and when, to this file, for a checker of histories
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// The client, with its arguments
    #[arg(last = true, required = true, value_name = "CLIENT")]
    pub client: Vec<String>,
}

impl LockAloneCommand {
    /// Runs the command.
    #[cfg_attr(
        not(feature = "conformance"),
        allow(clippy::unused_async, reason = "one of the commands waits")
    )]
    pub async fn run(&self) -> Answer {
        match self {
            Self::FenceSql => Answer { text: FENCE_SEEN_SQL.to_owned(), status: 0 },
            Self::InstallSql => Answer { text: install_sql(), status: 0 },
            #[cfg(feature = "conformance")]
            Self::Conform(args) => conform(args).await,
        }
    }
}

#[cfg(feature = "conformance")]
async fn conform(args: &ConformArgs) -> Answer {
    let ttl: Duration = args.ttl.0;
    let settings = Settings {
        clients: vec![args.client.clone()],
        ttl,
        rounds: args.rounds,
        seed: args.seed,
        at_a_time: args.at_a_time,
        only: args.only.clone(),
        trace: args.trace,
        history: args.history.clone(),
        ..Settings::default()
    };
    match leadergroup_lock_conformance::conform(settings).await {
        Ok(report) => Answer { text: report.to_string(), status: u8::from(!report.is_clean()) },
        Err(error) => Answer {
            text: format!("the run failed, and says nothing about the client: {error:#}\n"),
            status: 2,
        },
    }
}
