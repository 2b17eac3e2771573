//! The time in which two pods served, computed from the intervals of calls.
//!
//! A pod served a call at some moment between its start and its end. So the old pod certainly served later than the new
//! one if a call that it answered started after a call that the new one answered had ended. What is in between is the
//! overlap; it is never more than the true one. A Service routes only calls that open a connection, so calls through
//! kept connections are measured by themselves.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{client::Call, moment::Moment, network::REMEMBERED};

/// How long clients may reach a pod that hung after it is back: as long as nodes remember its connections, and as long
/// again for an answer. It is longer than a connection is kept.
pub(super) const STILL_KNOWN: Duration = REMEMBERED.saturating_mul(2);
/// A cut-off node must have caught up after this time. The pause between two attempts of kube-proxy to reach the API
/// server grows to 30 to 60 s (`defaultBackoffMax` and `defaultBackoffJitter` in client-go's `tools/cache`). After the
/// longest one it has to list the endpoints and write its rules.
const CATCH_UP: Duration = Duration::from_secs(70);

/// A term of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Its token.
    pub token: i64,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// Not later than when the pod was first routed to.
    pub began: Moment,
    /// When the pod was gone from the API server, if it is.
    pub gone: Option<Moment>,
}

/// The record of one client.
#[derive(Clone, Debug)]
pub struct Record {
    /// The node that it called from.
    pub node: String,
    /// Its calls, in any order.
    pub calls: Vec<Call>,
}

/// A time in which something is not promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// A node, or a pod's UID.
    pub name: String,
    /// From when.
    pub from: Moment,
    /// Until when; `None`: until the end.
    pub until: Option<Moment>,
}

impl Exempt {
    /// Whether a part of the call is in this time.
    fn includes(&self, call: &Call) -> bool {
        self.from <= call.end && self.until.is_none_or(|until| call.at < until)
    }
}

/// What is allowed.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The longest overlap of calls that open a connection.
    pub overlap: Duration,
    /// Nodes whose kube-proxy does not hear of changes. Their clients are left out until they have followed a change.
    pub nodes: Vec<Exempt>,
    /// Pods that hang or are cut off, by UID. When such a pod comes back, a connection from a port that was used before
    /// may follow the former one to it, and it may outlive its object.
    pub pods: Vec<Exempt>,
    /// Other pods that were given the address of a former holder, by name. If a client's connection was not answered,
    /// or was reset, its node remembers for a while where it led. The next connection from the same port leads there,
    /// too, and reaches the pod that has the address by then. A node that does not hear of changes leads there until it
    /// does. No operator can prevent this.
    pub successors: Vec<Exempt>,
}

/// What clients noticed of one change of holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The token of the new term.
    pub token: i64,
    /// The overlap of calls that open a connection.
    pub opened: Duration,
    /// The overlap of calls through kept connections.
    pub kept: Duration,
    /// How late the last exempt answer of the old pod was.
    pub exempt: Duration,
}

/// A kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Trouble {
    /// A pod answered that had never held the role.
    NeverActive,
    /// Two pods served for longer than the limit.
    TooLong,
    /// On one node a new connection led to the old pod after one had led to the new pod.
    WentBack,
    /// A pod answered after it was gone.
    Gone,
    /// Two pods answered through one connection.
    Moved,
}

/// The outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Overlaps {
    /// The changes of holder in which a new pod answered, by token.
    pub changes: Vec<Overlap>,
    /// Answers through new connections.
    pub opened: usize,
    /// Answers through kept connections.
    pub kept: usize,
    /// Answers of pods that were never active, from the address of a former holder.
    pub strange: usize,
    /// The violations.
    pub violations: Vec<(Trouble, String)>,
}

/// An answer, and the index of the term in which it was given.
struct Answer<'a> {
    node: &'a str,
    call: &'a Call,
    pod: &'a str,
    term: usize,
}

/// An answer of a pod that had not been active until then.
struct Stranger<'a> {
    node: &'a str,
    call: &'a Call,
    pod: &'a str,
}

/// When something first happened.
type FirstOf<K> = BTreeMap<K, Moment>;

/// Computes the overlaps and finds the violations. The terms are in order, and begin before the calls.
pub fn overlaps(terms: &[Term], records: &[Record], limits: &Limits) -> Overlaps {
    let mut out = Overlaps::default();
    let (answers, strangers) = out.answers(terms, records);
    out.kept = answers.iter().filter(|answer| answer.call.kept).count();
    out.opened = answers.len() - out.kept;
    let away = Away::new(terms, &answers, limits);
    for stranger in &strangers {
        out.answered_by(stranger, &away, limits);
    }
    let (first, first_on) = firsts(terms, &answers, &away);
    let mut changes: BTreeMap<usize, Overlap> =
        first.keys().map(|term| (*term, Overlap::default())).collect();
    let later = earliest_after(&first, terms.len());
    for answer in &answers {
        let is_exempt =
            hung(limits, &terms[answer.term], answer.call) || away.covers(answer.node, answer.call);
        if terms[answer.term].gone.is_some_and(|gone| answer.call.at > gone) && !is_exempt {
            let text = format!("{} answered at {}, when it was gone", answer.pod, answer.call.end);
            out.violated(Trouble::Gone, text);
        }
        let Some((since, next)) = later[answer.term].filter(|(since, _)| answer.call.at > *since) else {
            continue;
        };
        let overlap = changes.entry(next).or_default();
        let late = answer.call.at.since(since);
        if is_exempt {
            overlap.exempt = overlap.exempt.max(late);
        } else if answer.call.kept {
            overlap.kept = overlap.kept.max(late);
        } else {
            overlap.opened = overlap.opened.max(late);
            let here = first_on.range((answer.node, answer.term + 1)..(answer.node, usize::MAX));
            if here.map(|(_, at)| *at).min().is_some_and(|at| answer.call.at > at) {
                let Answer { node, pod, call, .. } = answer;
                let text = format!("on {node} a connection at {} led to {pod} again", call.at);
                out.violated(Trouble::WentBack, text);
            }
        }
    }
    for (term, overlap) in changes.into_iter().filter(|(term, _)| *term > 0) {
        let overlap = Overlap { token: terms[term].token, ..overlap };
        if overlap.opened > limits.overlap {
            let Overlap { token, opened, .. } = overlap;
            let text = format!("token {token}: {opened:?}, and {:?} is allowed", limits.overlap);
            out.violated(Trouble::TooLong, text);
        }
        out.changes.push(overlap);
    }
    out
}

/// The pod that answered: the first word of the answer.
pub(super) fn pod_of(call: &Call) -> Option<&str> {
    call.answer.as_deref().ok()?.split_whitespace().next()
}

/// When a call that opened a connection was first answered in a term: anywhere, and on each node. A call that a pod
/// answered in its second term, and that began before it, may have been routed in the first one.
fn firsts<'a>(
    terms: &[Term],
    answers: &[Answer<'a>],
    away: &Away,
) -> (FirstOf<usize>, FirstOf<(&'a str, usize)>) {
    let mut first = BTreeMap::new();
    let mut first_on = BTreeMap::new();
    let counts = |answer: &&Answer<'_>| {
        let (earlier, term) = (&terms[..answer.term], &terms[answer.term]);
        let is_of_it = answer.call.at >= term.began || !earlier.iter().any(|earlier| earlier.pod == term.pod);
        is_of_it && !answer.call.kept && !away.covers(answer.node, answer.call)
    };
    for answer in answers.iter().filter(counts) {
        let end = answer.call.end;
        let here = first_on.entry((answer.node, answer.term)).or_insert(end);
        for at in [first.entry(answer.term).or_insert(end), here] {
            *at = end.min(*at);
        }
    }
    (first, first_on)
}

/// For each term the earliest moment of all later terms, and the term that it belongs to.
fn earliest_after(first: &FirstOf<usize>, terms: usize) -> Vec<Option<(Moment, usize)>> {
    let mut earliest = None;
    let mut after: Vec<_> = (0..terms)
        .rev()
        .map(|term| {
            let before = earliest;
            let own = first.get(&term).map(|at| (*at, term));
            earliest = [own, earliest].into_iter().flatten().min();
            before
        })
        .collect();
    after.reverse();
    after
}

/// Whether the pod of a term hung during the call, or its node may still lead connections to it from then.
fn hung(limits: &Limits, term: &Term, call: &Call) -> bool {
    let known =
        |pod: &Exempt| Exempt { until: pod.until.map(|until| until.plus(STILL_KNOWN)), ..pod.clone() };
    limits.pods.iter().any(|pod| pod.name == term.uid && known(pod).includes(call))
}

impl Overlaps {
    fn violated(&mut self, trouble: Trouble, text: String) {
        self.violations.push((trouble, text));
    }

    /// The kinds of the violations.
    pub fn troubles(&self) -> Vec<Trouble> {
        let mut kinds: Vec<Trouble> = self.violations.iter().map(|(trouble, _)| *trouble).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The longest overlap of calls that open a connection.
    pub fn longest(&self) -> Duration {
        self.changes.iter().map(|change| change.opened).max().unwrap_or_default()
    }

    /// The longest overlap of calls through kept connections.
    pub fn longest_kept(&self) -> Duration {
        self.changes.iter().map(|change| change.kept).max().unwrap_or_default()
    }

    /// The answers, each with its term, and those that were given in no term.
    fn answers<'a>(&mut self, terms: &[Term], records: &'a [Record]) -> (Vec<Answer<'a>>, Vec<Stranger<'a>>) {
        let mut answers = Vec::new();
        let mut strangers = Vec::new();
        for Record { node, calls } in records {
            self.moved(calls);
            for call in calls {
                let Some(pod) = pod_of(call) else { continue };
                let begun = terms.partition_point(|term| term.began <= call.end);
                match terms[..begun].iter().rposition(|term| term.pod == pod) {
                    Some(term) => answers.push(Answer { node, call, pod, term }),
                    None => strangers.push(Stranger { node, call, pod }),
                }
            }
        }
        (answers, strangers)
    }

    /// Judges an answer of a pod that had not been active.
    fn answered_by(&mut self, stranger: &Stranger<'_>, away: &Away, limits: &Limits) {
        let Stranger { node, call, pod } = stranger;
        let is_exempt = |it: &Exempt| it.includes(call) || it.from <= call.end && away.covers(node, call);
        if limits.successors.iter().any(|it| it.name == *pod && is_exempt(it)) {
            self.strange += 1;
            return;
        }
        let way = if call.kept { "kept" } else { "new" };
        let text = format!(
            "{pod} answered at {} a call of {} from {node}, through a {way} connection",
            call.end, call.at
        );
        self.violated(Trouble::NeverActive, text);
    }

    /// How late the last exempt answer of an old pod was.
    pub fn longest_exempt(&self) -> Duration {
        self.changes.iter().map(|change| change.exempt).max().unwrap_or_default()
    }

    fn moved(&mut self, calls: &[Call]) {
        let mut pods: BTreeMap<u64, &str> = BTreeMap::new();
        for call in calls {
            let Some(pod) = pod_of(call) else { continue };
            let before = *pods.entry(call.connection).or_insert(pod);
            if before != pod {
                let text = format!("{before} and {pod} answered through connection {}", call.connection);
                self.violated(Trouble::Moved, text);
            }
        }
    }
}

/// The times in which clients are exempt, by node.
struct Away(Vec<Exempt>);

impl Away {
    /// A node that is back has caught up when a new connection first leads to the holder of that moment, if the fault
    /// began before its term. That it leads to an earlier holder shows nothing: kube-proxy may wait for a minute before
    /// it asks the API server again.
    fn new(terms: &[Term], answers: &[Answer<'_>], limits: &Limits) -> Self {
        let caught_up = |exempt: &Exempt| {
            let until = exempt.until?;
            let holds = |answer: &&Answer<'_>| {
                let is_present = terms.get(answer.term + 1).is_none_or(|next| next.began > answer.call.at);
                is_present && terms[answer.term].began >= exempt.from
            };
            let back =
                answers.iter().filter(|it| it.node == exempt.name && !it.call.kept && it.call.at >= until);
            let latest = until.plus(CATCH_UP);
            Some(back.filter(holds).map(|answer| answer.call.at).min().map_or(latest, |at| at.min(latest)))
        };
        Self(limits.nodes.iter().map(|it| Exempt { until: caught_up(it), ..it.clone() }).collect())
    }

    fn covers(&self, node: &str, call: &Call) -> bool {
        self.0.iter().any(|away| away.name == node && away.includes(call))
    }
}

#[cfg(test)]
#[path = "overlap_tests.rs"]
mod tests;
