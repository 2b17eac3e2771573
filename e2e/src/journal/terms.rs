//! When programs ran: a pure function of what they have written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

/// A program that writes a hundred times a second has stood still if it wrote nothing for this time.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// For so long a program may run when it goes on, if its time was over: until its agent has killed it.
const UNTIL_KILLED: Duration = Duration::from_millis(500);

/// What one process of a program has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The fencing token of the term that it was started in.
    pub token: i64,
    /// The pod's name.
    pub pod: String,
    /// When it wrote, since the start of the machine.
    pub times: Vec<Duration>,
}

impl Process {
    /// Reads a journal. Its name begins with the token and the pod; its last line may be cut off.
    pub(super) fn read(name: &str, text: &str) -> Result<Self> {
        let mut parts = name.split('.');
        let token = parts.next().and_then(|token| token.parse().ok()).context("a journal without a token")?;
        let pod = parts.next().context("a journal without a pod")?.to_owned();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let times = lines.map(|line| Ok(Duration::try_from_secs_f64(line.trim().parse()?)?));
        Ok(Self { token, pod, times: times.collect::<Result<_>>().context(name.to_owned())? })
    }

    /// When it ran, without what it wrote after it had stood still, if that was little and the last that it wrote.
    fn ran(&self, stood_still: bool) -> Option<(Duration, Duration, Duration)> {
        let (first, last) = (*self.times.first()?, *self.times.last()?);
        let pause = self.times.windows(2).rev().find(|pair| pair[1] >= pair[0] + STOOD_STILL);
        let ended = pause.filter(|pair| stood_still && last <= pair[1] + UNTIL_KILLED);
        Some(
            ended
                .map_or((first, last, Duration::ZERO), |pair| (first, pair[0], last.saturating_sub(pair[1]))),
        )
    }
}

/// A pod's part of a term.
#[derive(Clone, Debug)]
struct Term {
    token: i64,
    pod: String,
    first: Duration,
    last: Duration,
}

/// The terms in which programs ran, none at the same moment as another.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The time between the end of a program and the start of the next one, for each but the first.
    pub gaps: Vec<Duration>,
    /// For how long a program at most went on whose time was over while its pod stood still.
    pub went_on: Duration,
}

impl Terms {
    /// Fails if processes of two pods or terms have run at the same moment, or a term after a later one.
    pub(super) fn of(processes: Vec<Process>, stood_still: &BTreeSet<String>) -> Result<Self> {
        let mut terms: BTreeMap<(i64, String), Term> = BTreeMap::new();
        let mut went_on = Duration::ZERO;
        for process in processes {
            let Some((first, last, after)) = process.ran(stood_still.contains(&process.pod)) else {
                continue;
            };
            let Process { token, pod, .. } = process;
            let new = || Term { token, pod: pod.clone(), first, last };
            let term = terms.entry((token, pod.clone())).or_insert_with(new);
            (term.first, term.last) = (term.first.min(first), term.last.max(last));
            went_on = went_on.max(after);
        }
        let mut terms = terms.into_values();
        let mut latest = terms.next().context("the programs have written nothing")?;
        let mut gaps = Vec::new();
        for term in terms {
            ensure!(
                term.first > latest.last,
                "the program of term {} in {} ran until {:.2} s, and that of term {} in {} from {:.2} s on",
                latest.token,
                latest.pod,
                latest.last.as_secs_f64(),
                term.token,
                term.pod,
                term.first.as_secs_f64()
            );
            gaps.push(term.first.saturating_sub(latest.last));
            latest = term;
        }
        Ok(Self { gaps, went_on })
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} terms", self.gaps.len() + 1)?;
        let longest = self.gaps.iter().max().copied().unwrap_or_default();
        if self.gaps.len() > 12 {
            let mut sorted = self.gaps.clone();
            sorted.sort_unstable();
            let median = sorted[sorted.len() / 2];
            let [median, longest] = [median, longest].map(|gap| gap.as_secs_f64());
            write!(f, ", without a program for {median:.2} s (median), {longest:.2} s at most")?;
        } else if !self.gaps.is_empty() {
            let gaps: Vec<_> = self.gaps.iter().map(|gap| format!("{:.2} s", gap.as_secs_f64())).collect();
            write!(f, ", without a program for {}", gaps.join(", "))?;
        }
        if self.went_on > Duration::ZERO {
            write!(
                f,
                "; after a stop of the whole pod a program went on for {} ms",
                self.went_on.as_millis()
            )?;
        }
        Ok(())
    }
}
