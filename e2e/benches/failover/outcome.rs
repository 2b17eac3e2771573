//! The results: a table, targets, a last line, figures as JSON, and pictures.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use leadergroup_e2e::history::{Checked, History, check};
use serde_json::json;

use crate::{
    bench::{PROXY_DEFAULT, Plan},
    candidate::{CANDIDATES, Candidate},
    fault::Fault,
    measure::Latencies,
    plot::Bars,
    report::{Report, number},
    round::Figures,
    timelines::TimeLines,
};

/// What a row is about: the change, kube-proxy's `minSyncPeriod`, and the candidate's place in the list.
type Subject = (Fault, Duration, usize);

/// The candidates in the pictures.
const PICTURED: [&str; 5] =
    ["managed endpoints", "by selector", "Kubernetes alone", "client-go, 5 s", "baseline"];

/// The rounds of a subject.
#[derive(Debug, Default)]
struct Row {
    rounds: Vec<Figures>,
    /// Rounds after which the Service was not served again in time.
    failed: usize,
}

/// Collects the results.
pub(crate) struct Outcome {
    report: Report,
    complete: bool,
    rows: BTreeMap<Subject, Row>,
    /// What went wrong with our groups.
    wrong: Vec<String>,
}

impl Outcome {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let load = fs::read_to_string("/proc/loadavg").context("reading the machine's load")?;
        let machine = json!({
            "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "load before": load.split_whitespace().next(),
            "rounds": plan.rounds,
            "calls a second": 100,
        });
        Ok(Self {
            report: Report::new("failover", machine),
            complete: plan.only.is_empty(),
            rows: BTreeMap::new(),
            wrong: Vec::new(),
        })
    }

    /// Adds the result of a round. Returns whether it succeeded.
    pub(crate) fn add(
        &mut self,
        candidate: &Candidate,
        fault: Fault,
        proxy: Duration,
        figures: Result<Figures>,
    ) -> bool {
        let row = self.rows.entry((fault, proxy, place(candidate.name))).or_default();
        match figures {
            Ok(figures) => {
                row.rounds.push(figures);
                true
            }
            Err(error) => {
                row.failed += 1;
                let what = format!("{}, {}: {error:#}", candidate.name, fault.name());
                eprintln!("failed: {what}");
                self.wrong.extend(candidate.is_ours().then_some(what));
                false
            }
        }
    }

    /// Prints and writes everything. Fails if a round of ours failed, or if our groups broke an invariant.
    pub(crate) fn finish(mut self, history: &History) -> Result<()> {
        self.table();
        self.targets();
        self.pictures();
        let rows = self.rows.iter().map(|((fault, proxy, place), row)| {
            json!({
                "change": fault.name(),
                "proxy_min_sync_period_ms": u64::try_from(proxy.as_millis()).unwrap_or(u64::MAX),
                "candidate": CANDIDATES[*place].0,
                "rounds": row.rounds,
                "failed": row.failed,
            })
        });
        self.report.figures("rows", rows.collect());
        let checked = check(history);
        let Checked { revisions, most_active, violations, .. } = &checked;
        self.report.summarise(format!(
            "ours: at most {most_active} active at each of {revisions} revisions, {} violations, {} rounds failed",
            violations.len(),
            self.wrong.len()
        ));
        self.report.finish(self.complete)?;
        ensure!(violations.is_empty(), "violations: {violations:?}");
        if let Some(first) = self.wrong.first() {
            bail!("{} rounds failed, first: {first}", self.wrong.len());
        }
        Ok(())
    }

    fn table(&self) {
        let cell = |name: &'static str| (name, 18);
        let table = Report::table(
            "Milliseconds from the change: median, 99th percentile. Gap: the longest time between two answers",
            &[
                ("change", -11),
                ("proxy", 6),
                ("candidate", -20),
                ("rounds", 6),
                cell("decided"),
                cell("labelled"),
                cell("endpoint"),
                cell("answered"),
                cell("gap"),
                ("lost", 14),
                ("stale", 5),
                ("misrouted", 9),
                ("two", 4),
            ],
        );
        for ((fault, proxy, place), Row { rounds, failed }) in &self.rows {
            table.row(&[
                fault.name().to_owned(),
                format!("{} ms", proxy.as_millis()),
                CANDIDATES[*place].0.to_owned(),
                format!("{}+{failed}", rounds.len()).trim_end_matches("+0").to_owned(),
                spread(&times(rounds, |round| round.decided)),
                spread(&times(rounds, |round| round.labelled)),
                spread(&times(rounds, |round| round.endpoint)),
                spread(&times(rounds, |round| round.answered)),
                spread(&times(rounds, |round| Some(round.gap))),
                spread(&times(rounds, |round| Some(round.lost as f64))),
                rounds.iter().map(|round| round.stale).sum::<usize>().to_string(),
                rounds
                    .iter()
                    .map(|round| round.misrouted)
                    .sum::<Option<usize>>()
                    .map_or("-".to_owned(), |all| all.to_string()),
                rounds.iter().filter(|round| round.two_endpoints).count().to_string(),
            ]);
        }
    }

    fn targets(&mut self) {
        let targets = [
            ("managed endpoints", Fault::Switchover, 0.5, 50.0),
            ("managed endpoints", Fault::Deletion, 0.99, 100.0),
            ("managed endpoints", Fault::Crash, 0.5, 300.0),
            ("managed endpoints", Fault::PowerOff, 0.99, 5_100.0),
            ("managed, silence 1 s", Fault::PowerOff, 0.99, 1_100.0),
        ];
        for (candidate, fault, share, limit) in targets {
            let labelled = times(self.rounds(candidate, fault), |round| round.labelled);
            self.at_most(
                &format!("{candidate}: {} to label, {}", fault.name(), percentile(share)),
                &labelled,
                share,
                limit,
            );
        }
        for (share, limit) in [(0.5, 50.0), (0.99, 150.0)] {
            for fault in [Fault::Switchover, Fault::Deletion] {
                let rounds = self.rounds("managed endpoints", fault);
                let beyond = times(rounds, |round| Some(round.answered? - round.labelled?));
                let what =
                    format!("managed endpoints: {}, answer after label, {}", fault.name(), percentile(share));
                self.at_most(&what, &beyond, share, limit);
            }
        }
    }

    fn at_most(&mut self, what: &str, times: &Latencies, share: f64, limit: f64) {
        if times.count() > 0 {
            self.report.at_most(format!("{what} ms"), times.quantile(share), limit);
        }
    }

    fn rounds(&self, candidate: &str, fault: Fault) -> &[Figures] {
        let row = self.rows.get(&(fault, PROXY_DEFAULT, place(candidate)));
        row.map_or(&[], |row| row.rounds.as_slice())
    }

    /// The gap of each change, and the course of three of them.
    fn pictures(&mut self) {
        let gap =
            |fault: Fault, name: &str| times(self.rounds(name, fault), |round| Some(round.gap)).quantile(0.5);
        let groups = Fault::ALL.iter().map(|fault| {
            let gaps = PICTURED.iter().map(|name| gap(*fault, name));
            (fault.name().to_owned(), gaps.map(or_nothing).collect())
        });
        let gaps = Bars {
            title: "Longest time without an answer, median of all rounds, ms",
            names: PICTURED.into(),
            groups: groups.collect(),
        };
        self.report.picture("failover-gaps.svg", gaps.svg());
        for (fault, title, file) in [
            (Fault::Switchover, "From the request of a switchover, median, ms", "failover-switchover.svg"),
            (Fault::Deletion, "From the deletion of the active pod, median, ms", "failover-deletion.svg"),
            (
                Fault::PowerOff,
                "From the power-off of the active pod's node, median, ms",
                "failover-power-off.svg",
            ),
        ] {
            let steps: [fn(&Figures) -> Option<f64>; 4] = [
                |round| round.decided,
                |round| round.labelled,
                |round| round.endpoint,
                |round| round.answered,
            ];
            let measured = PICTURED.into_iter().filter(|name| !self.rounds(name, fault).is_empty());
            let lines = measured.map(|name| {
                let step = |step| or_nothing(times(self.rounds(name, fault), step).quantile(0.5));
                (name, steps.map(step).into())
            });
            let stages = vec!["decided", "labelled", "endpoint", "answered"];
            let lines = TimeLines { title, stages, lines: lines.collect() };
            self.report.picture(file, lines.svg());
        }
    }
}

/// The candidate's place in the list.
fn place(candidate: &str) -> usize {
    CANDIDATES.iter().position(|(name, ..)| *name == candidate).unwrap_or(CANDIDATES.len())
}

fn times(rounds: &[Figures], of: impl Fn(&Figures) -> Option<f64>) -> Latencies {
    Latencies::of(rounds.iter().filter_map(of).map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1e3)).collect())
}

fn spread(times: &Latencies) -> String {
    if times.count() == 0 {
        return "-".to_owned();
    }
    format!("{}, {}", number(times.quantile(0.5)), number(times.quantile(0.99)))
}

fn percentile(share: f64) -> &'static str {
    if share < 0.9 { "p50" } else { "p99" }
}

/// Pictures have no place for what was not measured.
fn or_nothing(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}
