//! The measurements of the scenarios: one line each, as a table for people and as JSON for programs.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::Serialize;

use crate::client::Calls;

/// The measurement of one change of holder.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    /// The fault of the active pod.
    pub fault: String,
    /// The token of the new term.
    pub token: i64,
    /// The operator's reason for the change.
    pub reason: String,
    /// From the fault to the revision that made the other pod active.
    pub failover_ms: u64,
    /// From the first evidence in the API server to that revision, if there was any there.
    pub evidence_ms: Option<u64>,
    /// How long the active pod may be silent.
    pub silence_timeout_ms: u64,
    /// The deadline of that revision, from the fault.
    pub deadline_ms: u64,
    /// From the old pod's last answer to the new one's first, through the Service.
    pub gap_ms: Option<u64>,
    /// Calls through the Service that got no answer.
    pub lost: Option<usize>,
    /// Answers of the old pod after the new one's first.
    pub stale: Option<usize>,
    /// How long both pods answered calls that opened a connection, if clients on all nodes called.
    pub overlap_ms: Option<u64>,
    /// How much longer the old pod answered through kept connections.
    pub kept_overlap_ms: Option<u64>,
}

/// The record of a client that called through the Service all the time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    /// How many calls each pod answered.
    pub answered: BTreeMap<String, usize>,
    /// How many calls got no answer, and why.
    pub lost: BTreeMap<String, usize>,
    /// The gaps between answers that are longer than the pauses between calls.
    pub gaps_ms: Vec<u64>,
}

/// The least length of a gap: ten calls.
const GAP: Duration = Duration::from_millis(100);

impl From<&Calls> for Seen {
    fn from(calls: &Calls) -> Self {
        let pods = calls.pods().into_iter();
        Self {
            answered: pods.map(|pod| (pod.to_owned(), calls.answered_by(pod))).collect(),
            lost: calls.errors().into_iter().map(|(error, count)| (error.to_owned(), count)).collect(),
            gaps_ms: calls.gaps(GAP).into_iter().map(ms).collect(),
        }
    }
}

/// One scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its name.
    pub scenario: String,
    /// How long it took.
    pub seconds: f64,
    /// Revisions that the history checker went through.
    pub revisions: usize,
    /// Changes of holder, without the first promotion.
    pub changes: Vec<Measured>,
    /// The records of its clients.
    pub clients: Vec<Seen>,
    /// Notes.
    pub notes: Vec<String>,
}

/// The report of a run.
#[derive(Debug, Default)]
pub struct Report(Mutex<Vec<Line>>);

const HEADINGS: [&str; 11] = [
    "scenario",
    "fault",
    "reason",
    "failover ms",
    "evidence ms",
    "gap ms",
    "lost",
    "stale",
    "overlap ms",
    "kept ms",
    "revisions",
];

/// Whole milliseconds.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Report {
    /// Adds a line.
    pub fn add(&self, line: Line) {
        self.0.lock().push(line);
    }

    /// The table.
    pub fn table(&self) -> String {
        let lines = self.0.lock();
        let mut rows = vec![HEADINGS.map(String::from)];
        for line in lines.iter() {
            let number = |n: Option<usize>| n.map_or_else(|| "-".into(), |n| n.to_string());
            let time = |ms: Option<u64>| ms.map_or_else(|| "-".into(), |ms| ms.to_string());
            let revisions = line.revisions.to_string();
            if line.changes.is_empty() {
                let gaps = line.clients.iter().flat_map(|client| client.gaps_ms.iter());
                let lost = line.clients.iter().flat_map(|client| client.lost.values());
                rows.push([
                    line.scenario.clone(),
                    "none".into(),
                    String::new(),
                    String::new(),
                    String::new(),
                    time(gaps.max().copied()),
                    lost.sum::<usize>().to_string(),
                    String::new(),
                    String::new(),
                    String::new(),
                    revisions.clone(),
                ]);
            }
            for change in &line.changes {
                rows.push([
                    line.scenario.clone(),
                    change.fault.clone(),
                    change.reason.clone(),
                    change.failover_ms.to_string(),
                    time(change.evidence_ms),
                    time(change.gap_ms),
                    number(change.lost),
                    number(change.stale),
                    time(change.overlap_ms),
                    time(change.kept_overlap_ms),
                    revisions.clone(),
                ]);
            }
        }
        let widths: [usize; HEADINGS.len()] =
            std::array::from_fn(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0));
        let mut text = String::new();
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// Writes the lines as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let lines = self.0.lock();
        fs::write(path, serde_json::to_vec_pretty(&*lines)?)
            .with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_has_every_change() {
        let report = Report::default();
        let change = Measured {
            fault: "power-off".into(),
            reason: "Silent".into(),
            failover_ms: 5100,
            lost: Some(7),
            overlap_ms: Some(321),
            ..Measured::default()
        };
        report.add(Line {
            scenario: "node".into(),
            seconds: 1.0,
            revisions: 10,
            changes: vec![change.clone(), change],
            clients: vec![],
            notes: vec![],
        });
        report.add(Line {
            scenario: "quiet".into(),
            seconds: 1.0,
            revisions: 3,
            changes: vec![],
            clients: vec![Seen { gaps_ms: vec![120, 450, 110], ..Seen::default() }],
            notes: vec![],
        });
        let table = report.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        let column = lines[0].find("failover").expect("the heading");
        assert!(lines[1][column..].starts_with("5100"));
        let column = lines[0].find("overlap").expect("the heading");
        assert!(lines[2][column..].starts_with("321"));
        assert!(lines[3].starts_with("quiet") && lines[3].contains("450"));
    }
}
