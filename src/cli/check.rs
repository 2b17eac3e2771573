//! `leadergroup lock check`: reports whether programs can use the lock, for people and for probes.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::print::{Answer, OutputFormat, lines, pretty};
use crate::config::{SettingsArgs, in_settings};
use leadergroup_lock::{
    LockError, Store,
    admin::{Health, Summary},
};

/// Arguments of `lock check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// The settings; only those of the database are used.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// The result of the check.
struct Found {
    verdict: Result<(), LockError>,
    health: Option<Health>,
    summary: Option<Summary>,
}

/// Runs the check. A problem becomes part of the answer, with exit status 1.
pub(super) async fn check(args: &CheckArgs, store: &Store) -> Answer {
    let found = look(store).await;
    let text = match args.output {
        OutputFormat::Json => found.json(),
        OutputFormat::Table => found.text(),
    };
    Answer { text, status: u8::from(found.verdict.is_err()) }
}

async fn look(store: &Store) -> Found {
    let health = match store.check().await {
        Ok(health) => health,
        Err(error) => return Found { verdict: Err(error), health: None, summary: None },
    };
    let (verdict, summary) = match health.verdict() {
        Ok(()) => match store.summary().await {
            Ok(summary) => (Ok(()), Some(summary)),
            Err(error) => (Err(error), None),
        },
        Err(error) => (Err(error), None),
    };
    Found { verdict, health: Some(health), summary }
}

impl Found {
    fn json(&self) -> String {
        pretty(&json!({
            "usable": self.verdict.is_ok(),
            "problem": self.verdict.as_ref().err().map(problem),
            "roundTripMs": self.health.as_ref().map(|health| millis(health.round_trip)),
            "server": self.health.as_ref().map(|health| &health.server_version),
            "writable": self.health.as_ref().map(|health| health.writable),
            "schema": self.health.as_ref().and_then(|health| health.schema_version),
            "schemaNeeds": self.health.as_ref().and_then(|health| health.works_with),
            "schemaOfThisProgram": self.health.as_ref().map(|health| health.program_version),
            "missingPrivileges": self.health.as_ref().map(|health| &health.missing_privileges),
            "publications": self.health.as_ref().map(|health| &health.publications),
            "livingSessions": self.summary.map(|summary| summary.living_sessions),
            "locks": self.summary.map(|summary| summary.locks),
            "held": self.summary.map(|summary| summary.held),
            "waiting": self.summary.map(|summary| summary.waiting),
        }))
    }

    fn text(&self) -> String {
        let verdict = self
            .verdict
            .as_ref()
            .map_or_else(|error| format!("NO: {}", problem(error)), |()| "yes".to_owned());
        let mut all = vec![("usable", verdict)];
        if let Some(health) = &self.health {
            let schema =
                health.schema_version.map_or_else(|| "none".to_owned(), |version| version.to_string());
            let missing = health.missing_privileges.join(", ");
            all.extend([
                ("round trip", format!("{:.1} ms", millis(health.round_trip))),
                ("server", format!("PostgreSQL {}", health.server_version)),
                ("schema", format!("{schema} (this program has {})", health.program_version)),
                ("missing privileges", if missing.is_empty() { "none".to_owned() } else { missing }),
            ]);
            if !health.publications.is_empty() {
                let names = health.publications.join(", ");
                all.push((
                    "replicated by",
                    format!("{names} (do not replicate the schema leadergroup logically)"),
                ));
            }
        }
        if let Some(summary) = self.summary {
            all.extend([
                ("live sessions", summary.living_sessions.to_string()),
                ("locks", format!("{}, {} of them held", summary.locks, summary.held)),
                ("waiting", summary.waiting.to_string()),
            ]);
        }
        lines(&all)
    }
}

fn problem(error: &LockError) -> String {
    in_settings(&error.to_string())
}

fn millis(time: Duration) -> f64 {
    // Rounded to tenths.
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
