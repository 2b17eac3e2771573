//! The results: rows of the table, figures as JSON, pictures, and wrong results.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    measure::Latencies,
    plot::{Axis, Lines, Series},
    replica::NAMES,
    report::{Report, number},
    requests::Requests,
};

/// One line of the table.
struct Row {
    subject: String,
    measured: String,
    wanted: &'static str,
    before: &'static str,
}

/// Collects the results.
pub(crate) struct Outcome {
    report: Report,
    rows: Vec<Row>,
    figures: BTreeMap<&'static str, Vec<Value>>,
    wrong: Vec<String>,
}

impl Outcome {
    pub(crate) fn new(machine: Value) -> Self {
        Self {
            report: Report::new("fleet", machine),
            rows: Vec::new(),
            figures: BTreeMap::new(),
            wrong: Vec::new(),
        }
    }

    /// Adds a row: the measured value, and for 1,000 groups the wanted value and that of the first version.
    pub(crate) fn row(
        &mut self,
        subject: impl Into<String>,
        measured: String,
        wanted: &'static str,
        before: &'static str,
    ) {
        let subject = subject.into();
        println!("{subject}: {measured}");
        self.rows.push(Row { subject, measured, wanted, before });
    }

    /// Adds a row for the memory of the replicas after a subject, in MB: now, and at most so far.
    pub(crate) fn memory_after(&mut self, memory: &[(f64, f64)], before: &'static str) {
        let replicas = memory.iter().map(|(now, most)| format!("{now:.0} MB ({most:.0} MB)"));
        let measured = replicas.collect::<Vec<_>>().join(" and ");
        self.row("  memory of each replica after it (and at most)", measured, "80 MB", before);
    }

    /// Adds a row for requests to the API server, and prints them by kind.
    pub(crate) fn requests(
        &mut self,
        subject: &str,
        requests: &Requests,
        count: usize,
        wanted: &'static str,
        before: &'static str,
    ) {
        println!("  {}", requests.per(count));
        self.row(subject, number(requests.total() / count.max(1) as f64), wanted, before);
    }

    /// Adds to the figures of a subject.
    pub(crate) fn figure(&mut self, subject: &'static str, figure: Value) {
        self.figures.entry(subject).or_default().push(figure);
    }

    /// Adds to the last line.
    pub(crate) fn summarise(&mut self, text: String) {
        self.report.summarise(text);
    }

    /// Adds a picture under a file name.
    pub(crate) fn picture(&mut self, name: &'static str, svg: String) {
        self.report.picture(name, svg);
    }

    /// Adds a wrong result: one that is wrong on a machine of any speed.
    pub(crate) fn wrong(&mut self, what: String) {
        eprintln!("wrong: {what}");
        self.wrong.push(what);
    }

    pub(crate) fn wrongs(&mut self, all: Vec<String>) {
        for what in all {
            self.wrong(what);
        }
    }

    pub(crate) fn is_wrong(&self) -> bool {
        !self.wrong.is_empty()
    }

    /// Prints the table and the last line, and writes the files. The exit status is a failure if a result was wrong.
    pub(crate) fn finish(mut self, bench: &Bench) -> Result<ExitCode> {
        if !bench.plan.short {
            self.usage(bench);
        }
        let longest =
            |cell: fn(&Row) -> &str| self.rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0);
        let left = |width: usize| -i32::try_from(width).unwrap_or(40);
        let table = Report::table(
            "A fleet of groups",
            &[
                ("", left(longest(|row| &row.subject))),
                ("measured", left(longest(|row| &row.measured).max(8))),
                ("wanted", left(longest(|row| row.wanted).max(6))),
                ("first version", -13),
            ],
        );
        let mut rows = Vec::new();
        for Row { subject, measured, wanted, before } in &self.rows {
            table.row(&[subject.clone(), measured.clone(), (*wanted).to_owned(), (*before).to_owned()]);
            rows.push(
                json!({ "subject": subject, "measured": measured, "wanted": wanted, "before": before }),
            );
        }
        self.report.figures("table", rows);
        self.report.figures("wrong", self.wrong.iter().map(|what| json!(what)).collect());
        for (subject, figures) in self.figures {
            self.report.figures(subject, figures);
        }
        let verdict = match self.wrong.len() {
            0 => "nothing wrong".to_owned(),
            count => format!("{count} WRONG, first: {}", self.wrong[0]),
        };
        self.report.summarise(verdict);
        self.report.finish(bench.plan.is_complete())?;
        Ok(if self.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Adds pictures of the CPU and memory of the replicas over time.
    fn usage(&mut self, bench: &Bench) {
        let curves = |value: fn(&crate::usage::Sample) -> f64| {
            let curve = |name: &'static str| Series {
                name,
                points: bench.record.samples(name).iter().map(|sample| (sample.at, value(sample))).collect(),
            };
            NAMES.map(curve).into()
        };
        let cpu = Lines {
            title: "CPU of each replica in a run of the fleet benchmark",
            x: "seconds",
            y: "% of a core",
            across: Axis::Linear,
            series: curves(|sample| sample.cores * 100.0),
        };
        self.report.picture("fleet-cpu.svg", cpu.svg());
        let memory = Lines {
            title: "Memory of each replica in a run of the fleet benchmark",
            x: "seconds",
            y: "MB",
            across: Axis::Linear,
            series: curves(|sample| sample.memory),
        };
        self.report.picture("fleet-memory.svg", memory.svg());
    }
}

/// A time in seconds.
pub(crate) fn seconds(milliseconds: f64) -> String {
    format!("{} s", number(milliseconds / 1e3))
}

/// Median, 99th percentile and maximum.
pub(crate) fn spread(times: &Latencies) -> String {
    format!(
        "p50 {}, p99 {}, max {}",
        seconds(times.quantile(0.5)),
        seconds(times.quantile(0.99)),
        seconds(times.quantile(1.0))
    )
}

/// One figure for each replica.
pub(crate) fn each(figures: impl IntoIterator<Item = f64>, unit: &str) -> String {
    let figures: Vec<_> = figures.into_iter().map(number).collect();
    format!("{} {unit}", figures.join(" and "))
}
