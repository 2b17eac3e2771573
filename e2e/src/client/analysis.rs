//! Analysis of a client's calls: which pod answered when, gaps between answers, and lost calls.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::moment::Moment;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When it started.
    pub at: Moment,
    /// When the answer or the error arrived.
    pub end: Moment,
    /// The name of the pod that answered, or the error.
    pub answer: Result<String, String>,
    /// What was called.
    #[serde(default)]
    pub path: String,
    /// The number of the connection, among those of this client.
    #[serde(default)]
    pub connection: u64,
    /// Whether an earlier call opened the connection. A Service routes only calls that open one.
    #[serde(default)]
    pub kept: bool,
}

impl Call {
    /// A call through an unknown connection.
    pub fn through_any(at: Moment, end: Moment, answer: Result<String, String>) -> Self {
        Self { at, end, answer, path: String::new(), connection: 0, kept: false }
    }
}

/// The calls of one client, ordered by start time.
#[derive(Clone, Debug, Default)]
pub struct Calls(Vec<Call>);

/// The transition of answers from one pod to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Switch {
    /// When the last answer of the old pod before the first one of the new pod arrived.
    pub last_old: Option<Moment>,
    /// When the first answer of the new pod arrived.
    pub first_new: Moment,
    /// The time between the two.
    pub gap: Option<Duration>,
    /// Calls that failed between the fault and the end of the record.
    pub lost: usize,
    /// Answers of the old pod to calls that started after the new pod had answered.
    pub stale: usize,
}

impl Calls {
    /// Sorts the calls.
    pub fn new(mut calls: Vec<Call>) -> Self {
        calls.sort_by_key(|call| call.at);
        Self(calls)
    }

    /// The number of calls.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The calls, ordered by start time.
    pub fn all(&self) -> &[Call] {
        &self.0
    }

    /// The calls.
    pub fn into_all(self) -> Vec<Call> {
        self.0
    }

    /// The calls that started at a moment or later.
    #[must_use]
    pub fn from(&self, moment: Moment) -> Self {
        Self(self.0.iter().filter(|call| call.at >= moment).cloned().collect())
    }

    /// The calls from the last answer before a moment on.
    #[must_use]
    pub fn around(&self, moment: Moment) -> Self {
        let last = self.0.iter().rposition(|call| call.end <= moment && call.answer.is_ok());
        Self(self.0[last.unwrap_or(0)..].to_vec())
    }

    /// The same calls, where those whose answer is wrong count as lost. Also the number of these.
    #[must_use]
    pub fn losing(&self, is_wrong: impl Fn(Moment, &str) -> bool) -> (Self, usize) {
        let mut calls = self.0.clone();
        let mut wrong = 0;
        for call in &mut calls {
            if call.answer.as_ref().is_ok_and(|pod| is_wrong(call.end, pod)) {
                call.answer = Err("answered by the wrong pod".to_owned());
                wrong += 1;
            }
        }
        (Self(calls), wrong)
    }

    /// When the first answer after a lost call arrived.
    pub fn recovered(&self) -> Option<Moment> {
        let lost = self.0.iter().position(|call| call.answer.is_err())?;
        self.0[lost..].iter().find(|call| call.answer.is_ok()).map(|call| call.end)
    }

    /// The last calls.
    #[must_use]
    pub fn latest(&self, count: usize) -> Self {
        Self(self.0[self.0.len().saturating_sub(count)..].to_vec())
    }

    /// The answers, ordered by start of the call: when the call started, when it ended, and which pod answered.
    pub fn answers(&self) -> impl Iterator<Item = (Moment, Moment, &str)> {
        self.0.iter().filter_map(|call| Some((call.at, call.end, call.answer.as_deref().ok()?)))
    }

    /// The number of answers of a pod.
    pub fn answered_by(&self, pod: &str) -> usize {
        self.answers().filter(|(_, _, who)| *who == pod).count()
    }

    /// The pods that answered, ordered by first answer.
    pub fn pods(&self) -> Vec<&str> {
        let mut pods = Vec::new();
        for (_, _, pod) in self.answers() {
            if !pods.contains(&pod) {
                pods.push(pod);
            }
        }
        pods
    }

    /// The number of calls without an answer.
    pub fn lost(&self) -> usize {
        self.0.iter().filter(|call| call.answer.is_err()).count()
    }

    /// When the calls that failed with this error started and ended.
    pub fn failed(&self, error: &str) -> impl Iterator<Item = (Moment, Moment)> {
        let failed = self.0.iter().filter(move |call| call.answer.as_ref().is_err_and(|why| why == error));
        failed.map(|call| (call.at, call.end))
    }

    /// When the first and the last call started.
    pub fn first_and_last(&self) -> Option<(Moment, Moment)> {
        Some((self.0.first()?.at, self.0.last()?.at))
    }

    /// The number of failed calls by error.
    pub fn errors(&self) -> BTreeMap<&str, usize> {
        let mut errors = BTreeMap::new();
        for error in self.0.iter().filter_map(|call| call.answer.as_deref().err()) {
            *errors.entry(error.as_str()).or_default() += 1;
        }
        errors
    }

    /// The longest time between two consecutive answers; zero with fewer than two answers.
    pub fn longest_gap(&self) -> Duration {
        self.gaps(Duration::ZERO).into_iter().max().unwrap_or_default()
    }

    /// The times between consecutive answers that are longer than `least`, in order.
    pub fn gaps(&self, least: Duration) -> Vec<Duration> {
        let mut ends: Vec<Moment> = self.answers().map(|(_, end, _)| end).collect();
        ends.sort_unstable();
        let gaps = ends.windows(2).map(|pair| pair[1].since(pair[0]));
        gaps.filter(|gap| *gap > least).collect()
    }

    /// The transition of answers from `old` to `new` after `fault`; `None` if `new` never answered.
    pub fn switch(&self, old: &str, new: &str, fault: Moment) -> Option<Switch> {
        let first_new =
            self.from(fault).answers().filter(|(_, _, who)| *who == new).map(|(_, end, _)| end).min()?;
        let of_old = || self.answers().filter(|(_, _, who)| *who == old);
        let last_old = of_old().map(|(_, end, _)| end).filter(|end| *end <= first_new).max();
        Some(Switch {
            last_old,
            first_new,
            gap: last_old.map(|last| first_new.since(last)),
            lost: self.from(fault).lost(),
            stale: of_old().filter(|(at, _, _)| *at > first_new).count(),
        })
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls", self.len())?;
        for pod in self.pods() {
            write!(f, ", {} answered by {pod}", self.answered_by(pod))?;
        }
        for (error, count) in self.errors() {
            write!(f, ", {count} lost: {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(ms))
    }

    fn call(at: u64, took: u64, answer: Result<&str, &str>) -> Call {
        let answer = answer.map(str::to_owned).map_err(str::to_owned);
        Call::through_any(ms(at), ms(at + took), answer)
    }

    #[test]
    fn a_switch_is_measured_from_the_last_old_to_the_first_new_answer() {
        let calls = Calls::new(vec![
            call(30, 2, Err("refused")),
            call(0, 2, Ok("a")),
            call(10, 2, Ok("a")),
            call(20, 250, Err("timeout")),
            call(40, 2, Ok("b")),
            call(50, 2, Ok("b")),
        ]);
        let switch = calls.switch("a", "b", ms(15)).expect("b answered");
        let expected = Switch {
            last_old: Some(ms(12)),
            first_new: ms(42),
            gap: Some(Duration::from_millis(30)),
            lost: 2,
            stale: 0,
        };
        assert_eq!(switch, expected);
        assert_eq!(calls.longest_gap(), Duration::from_millis(30));
        assert_eq!(calls.pods(), ["a", "b"]);
        let text = "6 calls, 2 answered by a, 2 answered by b, 1 lost: refused, 1 lost: timeout";
        assert_eq!(calls.to_string(), text);
        assert_eq!(calls.switch("b", "c", ms(0)), None);
    }

    #[test]
    fn an_old_answer_after_a_new_one_is_stale_unless_its_call_began_before() {
        let calls = Calls::new(vec![
            call(0, 2, Ok("a")),
            call(10, 100, Ok("a")),
            call(20, 2, Ok("b")),
            call(30, 2, Ok("a")),
            call(40, 2, Ok("b")),
        ]);
        let switch = calls.switch("a", "b", ms(5)).expect("b answered");
        assert_eq!((switch.stale, switch.lost, switch.last_old), (1, 0, Some(ms(2))));
    }

    #[test]
    fn what_happened_before_the_fault_is_not_counted_but_for_the_last_answer() {
        let calls = Calls::new(vec![
            call(0, 2, Ok("a")),
            call(10, 2, Err("refused")),
            call(500, 2, Ok("a")),
            call(510, 250, Err("timeout")),
            call(520, 2, Err("refused")),
            call(530, 2, Ok("a")),
        ]);
        let around = calls.around(ms(515));
        assert_eq!((around.len(), around.lost(), around.longest_gap()), (4, 2, Duration::from_millis(30)));
        assert_eq!(around.recovered(), Some(ms(532)));
        assert_eq!(calls.around(ms(1)).len(), 6, "no answer before that moment");
        assert_eq!(calls.latest(1).recovered(), None);
    }

    #[test]
    fn an_answer_of_the_wrong_pod_is_no_answer() {
        let calls = Calls::new(vec![
            call(0, 2, Ok("a")),
            call(10, 2, Ok("b")),
            call(20, 2, Err("timeout")),
            call(30, 2, Ok("b")),
        ]);
        let (served, wrong) = calls.losing(|end, pod| pod == "b" && end < ms(30));
        assert_eq!((served.lost(), wrong, served.longest_gap()), (2, 1, Duration::from_millis(30)));
    }

    #[test]
    fn no_calls_no_claims() {
        let none = Calls::default();
        assert_eq!((none.lost(), none.longest_gap(), none.is_empty()), (0, Duration::ZERO, true));
    }
}
