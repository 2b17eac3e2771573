//! `/metrics`, in the text format of Prometheus. All labels are numbers or words of the agent, so none needs escaping.
//!
//! Counters of reads begin again when the network process does, which is at each end of the program. The supervisor
//! keeps the others. What the program has done in its last term is not seen here if it ends by itself, because that
//! ends the container: Kubernetes has its exit status.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use super::readiness::LastRead;
use crate::{machine::Why, messages::State, moment::Moment};

/// How a read has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// It showed a term.
    Declared,
    /// It showed that no term is declared.
    Undeclared,
    /// It was refused, or the API server cannot be reached.
    Failed,
    /// It was not answered in time.
    TimedOut,
}

const RESULTS: [(ReadResult, &str); 4] = [
    (ReadResult::Declared, "declared"),
    (ReadResult::Undeclared, "undeclared"),
    (ReadResult::Failed, "failed"),
    (ReadResult::TimedOut, "timeout"),
];
const REASONS: [(Why, &str); 4] = [
    (Why::Superseded, "superseded"),
    (Why::Gone, "gone"),
    (Why::Planned, "planned"),
    (Why::Lapsed, "lapsed"),
];

/// How many reads have ended in each way.
#[derive(Debug, Default)]
pub(super) struct ReadCounts([AtomicU64; RESULTS.len()]);

impl ReadCounts {
    /// Counts a read.
    pub(super) fn add(&self, result: ReadResult) {
        for (count, (of, _)) in self.0.iter().zip(RESULTS) {
            count.fetch_add(u64::from(of == result), Ordering::Relaxed);
        }
    }
}

/// The text of all metrics.
pub(super) fn text(state: &State, reads: &ReadCounts, last: Option<&LastRead>, now: Moment) -> String {
    let mut text = String::new();
    let counted = reads.0.iter().zip(RESULTS);
    let counted = counted.map(|(count, (_, name))| (label("result", name), count.load(Ordering::Relaxed)));
    family(&mut text, "reads_total", "Reads of the LeaderGroup, by result.", counted);
    let age = last.map(|last| (String::new(), now.since(last.sent_at).as_secs_f64()));
    family(
        &mut text,
        "last_read_age_seconds",
        "The time since the last read that was answered was sent.",
        age,
    );
    let left = state.deadline.map_or(0.0, |deadline| now.until(deadline).as_secs_f64());
    let help = "The time until the end of the program's lease; 0 if it does not run.";
    family(&mut text, "lease_remaining_seconds", help, one(left));
    family(
        &mut text,
        "token",
        "The token of the program; 0 if it does not run.",
        one(state.token.unwrap_or(0)),
    );
    let runs = u8::from(state.token.is_some());
    family(
        &mut text,
        "program_running",
        "Whether the program runs, also while it is being stopped.",
        one(runs),
    );
    family(&mut text, "starts_total", "How often the program was started.", one(state.counts.starts));
    let ends = REASONS.map(|(why, name)| {
        let times = state.counts.ends.iter().find(|(of, _)| *of == why).map_or(0, |(_, times)| *times);
        (label("reason", name), times)
    });
    family(&mut text, "ends_total", "Programs that had to end and have, by reason.", ends);
    let help = "Programs that were killed, because they had not ended in time.";
    family(&mut text, "kills_total", help, one(state.counts.kills));
    let exits = state.counts.exits.iter().map(|(status, times)| (label("status", status), *times));
    family(&mut text, "exits_total", "Programs that had to end and have, by exit status.", exits);
    text
}

/// The samples of one metric: labels and value. Counters are those whose names end in `_total`.
fn family<V: std::fmt::Display>(
    text: &mut String,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (String, V)>,
) {
    let name = format!("leadergroup_agent_{name}");
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

fn label(name: &str, value: impl std::fmt::Display) -> String {
    format!("{{{name}=\"{value}\"}}")
}

fn one<V>(value: V) -> [(String, V); 1] {
    [(String::new(), value)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::messages::Counts;

    fn at(milliseconds: u64) -> Moment {
        let time = Duration::from_millis(milliseconds);
        Moment { boottime: time, raw: time }
    }

    fn samples(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.strip_prefix("leadergroup_agent_")).collect()
    }

    #[test]
    fn each_metric_says_what_happened() {
        let reads = ReadCounts::default();
        for result in [ReadResult::Declared, ReadResult::Declared, ReadResult::TimedOut] {
            reads.add(result);
        }
        let mut counts = Counts { starts: 3, kills: 1, ..Counts::default() };
        for (why, status) in [(Why::Planned, 143), (Why::Lapsed, 137), (Why::Planned, 143)] {
            counts.ended(why, Some(status));
        }
        let state = State { token: Some(7), deadline: Some(at(9_500)), counts, ..State::default() };
        let last = LastRead { sent_at: at(1_000), shown: None, problem: None };
        let text = text(&state, &reads, Some(&last), at(2_250));
        assert_eq!(
            samples(&text),
            [
                "reads_total{result=\"declared\"} 2",
                "reads_total{result=\"undeclared\"} 0",
                "reads_total{result=\"failed\"} 0",
                "reads_total{result=\"timeout\"} 1",
                "last_read_age_seconds 1.25",
                "lease_remaining_seconds 7.25",
                "token 7",
                "program_running 1",
                "starts_total 3",
                "ends_total{reason=\"superseded\"} 0",
                "ends_total{reason=\"gone\"} 0",
                "ends_total{reason=\"planned\"} 2",
                "ends_total{reason=\"lapsed\"} 1",
                "kills_total 1",
                "exits_total{status=\"137\"} 1",
                "exits_total{status=\"143\"} 2",
            ]
        );
        assert!(text.contains("# TYPE leadergroup_agent_token gauge\n"), "{text}");
        assert!(text.contains("# TYPE leadergroup_agent_starts_total counter\n"), "{text}");
        // Each has a help and a type, once.
        for name in ["reads_total", "exits_total", "last_read_age_seconds"] {
            assert_eq!(text.matches(&format!("# HELP leadergroup_agent_{name} ")).count(), 1);
            assert_eq!(text.matches(&format!("# TYPE leadergroup_agent_{name} ")).count(), 1);
        }
    }

    #[test]
    fn a_standby_that_has_read_nothing_has_no_age() {
        let text = text(&State::default(), &ReadCounts::default(), None, at(5));
        let samples = samples(&text);
        assert!(!samples.iter().any(|sample| sample.starts_with("last_read_age")), "{text}");
        for none in ["token 0", "program_running 0", "lease_remaining_seconds 0", "starts_total 0"] {
            assert!(samples.contains(&none), "{text}");
        }
    }
}
