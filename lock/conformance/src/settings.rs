//! What to run.

use std::path::PathBuf;
use std::time::Duration;

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The command lines of the client. With several, the processes of a scenario take turns.
    pub clients: Vec<Vec<String>>,
    /// The ttl of all sessions.
    pub ttl: Duration,
    /// How much later than necessary something may happen.
    pub slack: Duration,
    /// How often each scenario runs.
    pub rounds: u32,
    /// Where the order of the scenarios, their pauses and their faults come from. Each round has the next seed.
    pub seed: u64,
    /// How many scenarios run at a time.
    pub at_a_time: usize,
    /// How often a scenario is repeated if something did not happen in time.
    pub attempts: u32,
    /// Only scenarios with these names, or else those whose names contain one of these; all if it is empty.
    pub only: Vec<String>,
    /// Whether all that was recorded in a scenario in which a rule was broken is printed to the standard error.
    pub trace: bool,
    /// The file that gets the history of all clients. With it, fenced writes are made beside the scenarios.
    pub history: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clients: Vec::new(),
            ttl: Duration::from_secs(2),
            slack: Duration::from_secs(1),
            rounds: 1,
            seed: 1,
            at_a_time: 8,
            attempts: 3,
            only: Vec::new(),
            trace: false,
            history: None,
        }
    }
}
