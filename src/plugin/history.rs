//! `history`: the last changes of the active pod.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    ink::Ink,
    moments::{ago, utc},
    table::{Row, inked, table},
};
use crate::api::{HumanDuration, LeaderGroup, Reason};

/// One change of the active pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change {
    time: Timestamp,
    from: Option<String>,
    to: Option<String>,
    reason: String,
    duration: HumanDuration,
    token: i64,
}

/// The changes, the newest first.
pub(super) fn changes(group: &LeaderGroup) -> Vec<Change> {
    let entries = group.status.iter().flat_map(|status| &status.history);
    entries
        .map(|entry| Change {
            time: entry.time.0,
            from: entry.from.clone(),
            to: entry.to.clone(),
            reason: entry.reason.clone(),
            duration: entry.duration,
            token: entry.token,
        })
        .collect()
}

/// The changes for people.
pub(super) fn text(changes: &[Change], group: &str, now: Timestamp, width: Option<usize>) -> String {
    if changes.is_empty() {
        return format!("No pod of {group} has been active yet.\n");
    }
    table_of(changes, now, width)
}

/// The last changes, as a part of the status.
pub(super) fn short(changes: &[Change], now: Timestamp, width: Option<usize>) -> String {
    let rows: Vec<Row> = changes
        .iter()
        .map(|change| Row {
            cells: vec![
                ago(change.time, now).into(),
                dash(change.from.as_ref()).into(),
                dash(change.to.as_ref()).into(),
                inked(ink(&change.reason), change.reason.clone()),
            ],
            remark: why(&change.reason).to_owned(),
        })
        .collect();
    table(&["AGO", "FROM", "TO", "REASON", "WHAT HAPPENED"], &rows, width)
}

fn dash(pod: Option<&String>) -> String {
    pod.cloned().unwrap_or_else(|| "-".to_owned())
}

/// The table of changes.
fn table_of(changes: &[Change], now: Timestamp, width: Option<usize>) -> String {
    let rows: Vec<Row> = changes
        .iter()
        .map(|change| Row {
            cells: vec![
                utc(change.time).into(),
                ago(change.time, now).into(),
                change.token.to_string().into(),
                dash(change.from.as_ref()).into(),
                dash(change.to.as_ref()).into(),
                change.duration.to_string().into(),
                inked(ink(&change.reason), change.reason.clone()),
            ],
            remark: why(&change.reason).to_owned(),
        })
        .collect();
    table(&["AT", "AGO", "TOKEN", "FROM", "TO", "TOOK", "REASON", "WHAT HAPPENED"], &rows, width)
}

fn ink(reason: &str) -> Ink {
    match Reason::of_change(reason) {
        Some(reason) if reason.is_failure() => Ink::Warning,
        _ => Ink::Plain,
    }
}

/// The reason of a change in words. A newer operator may have reasons that this version does not know.
pub(super) fn why(reason: &str) -> &'static str {
    match Reason::of_change(reason) {
        Some(Reason::FirstHolder) => "no pod was active before",
        Some(Reason::PodDeleted) => "the former pod was deleted, drained or evicted",
        Some(Reason::PodFinished) => "the former pod ended",
        Some(Reason::DisruptionTarget) => "the former pod was being evicted or preempted",
        Some(Reason::ContainerTerminated) => "a container of the former pod ended: a crash, or out of memory",
        Some(Reason::ContainerRestarted) => "a container of the former pod ended and was restarted",
        Some(Reason::PodNotReady) => "the kubelet reported the former pod not Ready",
        Some(Reason::ProbeRefused) => "the former pod refused its probes or connections",
        Some(Reason::Silent) => "the former pod did not answer: it hung, or its node was lost",
        Some(Reason::Switchover) => "somebody requested it",
        Some(Reason::NodeCordoned) => "the node was cordoned or about to be removed",
        Some(Reason::Rollout) => "a rollout was about to delete the former pod",
        Some(Reason::Failback) => "a preferred pod was back",
        Some(Reason::Resumed) => "an interrupted change was completed or given up",
        Some(Reason::LostCommits) => "the database lost commits; the pod kept the role",
        Some(Reason::ProgramEnded) => "the program of the pod ended; it is started again",
        Some(Reason::LabelLost) => "somebody removed the label of the pod; the operator restored it",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::samples::{now, plain, web};

    #[test]
    fn a_table_shows_the_newest_change_first() {
        let text = plain(&text(&changes(&web()), "web", now(), None));
        assert_eq!(
            text,
            "AT                    AGO   TOKEN  FROM   TO     TOOK    REASON      WHAT HAPPENED\n\
             2026-11-18 08:00:00Z  2d4h  7      web-0  web-1  5s41ms  Silent      the former pod did not answer: it hung, \
             or its node was lost\n\
             2026-11-10 08:00:00Z  10d   6      web-2  web-0  87ms    Switchover  somebody requested it\n"
        );
    }

    #[test]
    fn each_reason_of_a_change_has_words_of_its_own() {
        let all = Reason::ALL.iter().filter(|reason| reason.cause().is_some());
        let mut words: Vec<&str> = all.map(|reason| why(&reason.to_string())).collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert!(words.len() == count && !words.contains(&""), "{words:?}");
        assert_eq!(why("OfANewerVersion"), "");
    }
}
