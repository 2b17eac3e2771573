//! `status`: all groups in a table, or one with everything that belongs to it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{ResourceExt as _, core::PartialObjectMeta};
use serde::Serialize;

use super::{
    cluster::Seen,
    history::{self, Change},
    ink::Ink,
    moments::ago,
    pods::{self, PodLine},
    services::{self, ServiceLine},
    state::{GroupLine, State},
    table::{Cell, Row, indented, inked, point, table},
};
use crate::api::{ConditionType, Sighting};

/// How many changes of the active pod are shown.
const CHANGES: usize = 3;

/// One group with what belongs to it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupStatus {
    #[serde(flatten)]
    group: GroupLine,
    paused: bool,
    pods: Vec<PodLine>,
    services: Vec<ServiceLine>,
    conditions: Vec<Condition>,
    history: Vec<Change>,
    /// What could not be read, and why.
    unread: Vec<String>,
}

/// The lines of a list: groups with a problem first. `pods` are those of the namespaces, if they could be read.
pub(super) fn lines<'a>(
    groups: impl IntoIterator<Item = &'a Sighting>,
    pods: Option<&[PartialObjectMeta<Pod>]>,
) -> Vec<GroupLine> {
    let mut near: BTreeMap<Option<String>, Vec<PartialObjectMeta<Pod>>> = BTreeMap::new();
    for pod in pods.into_iter().flatten() {
        near.entry(pod.namespace()).or_default().push(pod.clone());
    }
    let line = |group: &Sighting| {
        let own = near.get(&group.namespace()).map_or(&[][..], Vec::as_slice);
        GroupLine::with_pods(group, pods.map(|_| own))
    };
    let mut all: Vec<GroupLine> = groups.into_iter().map(line).collect();
    all.sort_by(|a, b| (a.state, &a.namespace, &a.group).cmp(&(b.state, &b.namespace, &b.group)));
    all
}

/// The table of groups, and how many there are of each state. `namespace` is that of all of them.
pub(super) fn list(
    groups: &[GroupLine],
    namespace: Option<&str>,
    now: Timestamp,
    width: Option<usize>,
) -> String {
    if groups.is_empty() {
        return match namespace {
            Some(namespace) => format!(
                "The namespace {namespace} has no LeaderGroups. `kubectl leadergroup status -A` shows those of all \
                 namespaces.\n"
            ),
            None => "There are no LeaderGroups in this cluster.\n".to_owned(),
        };
    }
    let rows: Vec<Row> = groups.iter().map(|group| row(group, namespace.is_none(), now)).collect();
    let titles = ["NAMESPACE", "GROUP", "STATE", "ACTIVE POD", "NODE", "ELIGIBLE", "SINCE", "WHAT IS WRONG"];
    let text = table(&titles[usize::from(namespace.is_some())..], &rows, width);
    if groups.len() == 1 || width.is_none() { text } else { format!("{text}\n{}\n", counted(groups)) }
}

fn row(group: &GroupLine, with_namespace: bool, now: Timestamp) -> Row {
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let short = group.eligible < 2 || group.eligible < group.replicas;
    // Before the operator has seen the group, nothing is known.
    let is_known = group.replicas > 0 || group.since.is_some();
    let eligible = if is_known { format!("{}/{}", group.eligible, group.replicas) } else { "-".to_owned() };
    let mut cells: Vec<Cell> = Vec::new();
    cells.extend(with_namespace.then(|| group.namespace.clone().into()));
    cells.extend([
        group.group.clone().into(),
        inked(group.state.ink(), group.state.word()),
        dash(&group.active).into(),
        dash(&group.node).into(),
        inked(if short { Ink::Warning } else { Ink::Plain }, eligible),
        group.since.map_or_else(|| "-".to_owned(), |since| ago(since, now)).into(),
    ]);
    Row { cells, remark: group.message.clone() }
}

fn counted(groups: &[GroupLine]) -> String {
    let states =
        [State::NotReady, State::Unknown, State::AtRisk, State::Paused, State::Deleting, State::Ready];
    let counts = states.into_iter().filter_map(|state| {
        let count = groups.iter().filter(|group| group.state == state).count();
        (count > 0).then(|| state.ink().paint(&format!("{count} {}", state.word())))
    });
    format!("{} groups: {}", groups.len(), counts.collect::<Vec<_>>().join(", "))
}

/// What is seen of one group.
pub(super) fn of_group(seen: &Seen) -> GroupStatus {
    let none = Vec::new();
    let pods = seen.pods.as_ref().unwrap_or(&none);
    let services = match (&seen.services, &seen.slices) {
        (Ok(services), Ok(slices)) => services::lines(&seen.group, pods, services, slices),
        _ => Vec::new(),
    };
    let failures = [seen.pods.as_ref().err(), seen.services.as_ref().err(), seen.slices.as_ref().err()];
    GroupStatus {
        group: GroupLine::with_pods(&Sighting(Ok(seen.group.clone())), seen.pods.as_deref().ok()),
        paused: seen.group.spec.paused,
        pods: pods::lines(&seen.group, pods),
        services,
        conditions: seen.group.status.clone().unwrap_or_default().conditions,
        history: history::changes(&seen.group),
        unread: failures.into_iter().flatten().map(|failure| failure.problem.clone()).collect(),
    }
}

/// One group for people.
pub(super) fn text(status: &GroupStatus, seen: &Seen, width: Option<usize>) -> String {
    let now = seen.now;
    let mut text = headline(&status.group, now);
    if !status.group.message.is_empty() {
        text += &indented(&status.group.message, 2, width);
    }
    if !status.pods.is_empty() {
        text.push('\n');
        text += &pod_table(&status.pods, now, width);
    }
    if seen.services.is_ok() && seen.slices.is_ok() {
        text.push('\n');
        text += &service_table(status, width);
    }
    text.push('\n');
    text += &condition_table(&status.conditions, now, width);
    if !status.history.is_empty() {
        let shown = &status.history[..status.history.len().min(CHANGES)];
        text.push('\n');
        text += &history::short(shown, now, width);
    }
    for problem in &status.unread {
        text += &format!("\n{}", point("?", Ink::Warning, problem, width));
    }
    text
}

/// One line about a group: its state, and its active pod.
pub(super) fn headline(group: &GroupLine, now: Timestamp) -> String {
    let name = Ink::Heading.paint(&format!("{}/{}", group.namespace, group.group));
    let state = group.state.ink().paint(group.state.word());
    let since = group.since.map_or_else(String::new, |since| format!(" for {}", ago(since, now)));
    let (state_since, active) = match (&group.active, &group.node) {
        (Some(pod), _) if group.is_gone => (String::new(), format!("{pod} was active")),
        (Some(pod), Some(node)) if !node.is_empty() => {
            (String::new(), format!("{pod} is active on {node}{since}"))
        }
        (Some(pod), _) => (String::new(), format!("{pod} is active{since}")),
        (None, _) if group.state == State::NotReady => (since, "No pod is active".to_owned()),
        (None, _) => (String::new(), "No pod is active".to_owned()),
    };
    let token = if group.active.is_some() { format!(", token {}", group.token) } else { String::new() };
    format!(
        "{name}: {state}{state_since}. {active}{token}; {} of {} pods eligible\n",
        group.eligible, group.replicas
    )
}

fn pod_table(pods: &[PodLine], now: Timestamp, width: Option<usize>) -> String {
    let rows: Vec<Row> = pods
        .iter()
        .map(|pod| Row {
            cells: vec![
                pod.pod.clone().into(),
                inked(if pod.role.word() == "active" { Ink::Good } else { Ink::Plain }, pod.role.word()),
                pod.node.clone().unwrap_or_else(|| "-".to_owned()).into(),
                inked(pod.ink(), pod.eligible_word()),
                pod.restarts.to_string().into(),
                pod.created.map_or_else(|| "-".to_owned(), |created| ago(created, now)).into(),
            ],
            remark: pod.health.clone(),
        })
        .collect();
    table(&["POD", "ROLE", "NODE", "ELIGIBLE", "RESTARTS", "AGE", "KUBELET SAYS"], &rows, width)
}

fn service_table(status: &GroupStatus, width: Option<usize>) -> String {
    if status.services.is_empty() {
        return "No Service of this namespace selects pods of the group.\n".to_owned();
    }
    let rows: Vec<Row> = status
        .services
        .iter()
        .map(|service| {
            let endpoints = match service.endpoints.as_slice() {
                [] => "-".to_owned(),
                [first, second, third, more @ ..] if !more.is_empty() => {
                    format!("{first}, {second}, {third} and {} more", more.len())
                }
                few => few.join(", "),
            };
            Row {
                cells: vec![
                    service.service.clone().into(),
                    inked(service.ink(), service.selects_words()),
                    endpoints.into(),
                ],
                remark: service.problem.clone(),
            }
        })
        .collect();
    table(&["SERVICE", "ROUTES TO", "ENDPOINTS", "WHAT IS WRONG"], &rows, width)
}

/// The conditions, those that are not well first. The headline tells whether the group is Ready.
fn condition_table(conditions: &[Condition], now: Timestamp, width: Option<usize>) -> String {
    let word = |condition: &Condition| {
        // Of this one False is well.
        let well = if condition.type_ == ConditionType::Stalled.name() { "False" } else { "True" };
        match condition.status.as_str() {
            status if status == well => (2, "ok", Ink::Good),
            "True" | "False" => (0, "NO", Ink::Bad),
            _ => (1, "?", Ink::Warning),
        }
    };
    let shown = conditions.iter().filter(|condition| condition.type_ != ConditionType::Ready.name());
    let mut sorted: Vec<&Condition> = shown.collect();
    sorted.sort_by_key(|condition| word(condition).0);
    let rows: Vec<Row> = sorted
        .into_iter()
        .map(|condition| {
            let (_, word, ink) = word(condition);
            let Time(since) = condition.last_transition_time;
            // Before the operator has seen the group, there is no time.
            let since = if since.as_second() == 0 { "-".to_owned() } else { ago(since, now) };
            Row {
                cells: vec![condition.type_.clone().into(), inked(ink, word), since.into()],
                remark: condition.message.clone(),
            }
        })
        .collect();
    table(&["CONDITION", "IS", "SINCE", "THE OPERATOR SAYS"], &rows, width)
}

/// One line for a change that `status --watch` has seen, where the output is no terminal.
pub(super) fn change_line(group: &GroupLine, now: Timestamp) -> String {
    let wrong = if group.message.is_empty() { String::new() } else { format!(": {}", group.message) };
    let line = headline(group, now);
    format!("{} {}{wrong}\n", super::moments::utc(now), line.trim_end())
}

/// One line for a group that is gone.
pub(super) fn gone_line(group: &Sighting, now: Timestamp) -> String {
    let name = format!("{}/{}", group.namespace().unwrap_or_default(), group.name_any());
    format!("{} {name}: deleted\n", super::moments::utc(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::samples::{crashing, now, plain, pod, pods, seen, set, web, without_active};

    fn groups() -> Vec<GroupLine> {
        let named = |mut group: crate::api::LeaderGroup, name: &str| {
            group.metadata.name = Some(name.to_owned());
            Sighting(Ok(group))
        };
        let (mut paused, mut alone) = (web(), web());
        paused.spec.paused = true;
        set(&mut alone, "Redundant", "False", "NoStandby", "no other pod could take over now; add replicas");
        let all = [
            named(web(), "web"),
            named(paused, "billing"),
            named(alone, "queue"),
            named(without_active(), "search"),
        ];
        lines(all.iter(), None)
    }

    #[test]
    fn a_list_shows_the_worst_group_first() {
        assert_eq!(
            plain(&list(&groups(), Some("shop"), now(), Some(80))),
            "\
GROUP    STATE      ACTIVE POD  NODE    ELIGIBLE  SINCE
search   NOT READY  -           -       0/3       4m12s
    none of 3 pods could be active; check that they are ready and answer their
    probe
queue    at risk    web-1       node-2  3/3       2d4h
    no other pod could take over now; add replicas
billing  paused     web-1       node-2  3/3       2d4h
    paused: the active pod is not replaced, whatever happens to it
web      ready      web-1       node-2  3/3       2d4h

4 groups: 1 NOT READY, 1 at risk, 1 paused, 1 ready
"
        );
    }

    #[test]
    fn a_list_for_programs_has_one_line_for_each_group() {
        assert_eq!(
            plain(&list(&groups()[1..2], None, now(), None)),
            "NAMESPACE  GROUP  STATE    ACTIVE POD  NODE    ELIGIBLE  SINCE  WHAT IS WRONG\n\
             shop       queue  at risk  web-1       node-2  3/3       2d4h   no other pod could take over now; add \
             replicas\n"
        );
    }

    #[test]
    fn one_group_is_shown_with_its_pods_services_conditions_and_changes() {
        let mut seen = seen(without_active(), vec![pod("web-0", "standby", "False"), crashing("web-1")]);
        seen.group.status.as_mut().expect("a status").replicas = 2;
        let shown = plain(&text(&of_group(&seen), &seen, Some(110)));
        let expected = "\
shop/web: NOT READY for 4m12s. No pod is active; 0 of 2 pods eligible
  none of 3 pods could be active; check that they are ready and answer their probe

POD    ROLE     NODE    ELIGIBLE  RESTARTS  AGE  KUBELET SAYS
web-0  standby  node-2  no        1         3d   not Ready: containers with unready status: [main]
web-1  standby  node-2  no        12        3d   container main: CrashLoopBackOff (last: OOMKilled, exit code
                                                 137)

SERVICE  ROUTES TO       ENDPOINTS            WHAT IS WRONG
all      all pods        web-0, web-1, web-2
web      the active pod  web-1                it routes to web-1, although no pod is active

CONDITION           IS  SINCE  THE OPERATOR SAYS
Active              NO  4m12s  none of 3 pods could be active; check that they are ready and answer their
                               probe
Redundant           NO  4m12s  no other pod could take over now; check the pods that are not ready, or add
                               replicas
Accepted            ok  4m12s  the spec can be carried out
Routed              ok  4m12s  the pods carry the labels of the declared term
Probed              ok  4m12s  the operator probes the pods
LockStoreReachable  ok  4m12s  the lock's database answers
Stalled             ok  4m12s  no action needed

AGO   FROM   TO     REASON      WHAT HAPPENED
2d4h  web-0  web-1  Silent      the former pod did not answer: it hung, or its node was lost
10d   web-2  web-0  Switchover  somebody requested it
";
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn what_could_not_be_read_is_said() {
        let mut seen = seen(web(), pods());
        let failure = crate::plugin::failure::Failure::new("could not list the Services: no", "");
        (seen.pods, seen.services) = (Err(failure.clone()), Err(failure));
        let shown = plain(&text(&of_group(&seen), &seen, None));
        assert!(shown.contains("\n  ? could not list the Services: no\n"), "{shown}");
        assert!(!shown.contains("No Service"), "{shown}");
    }

    #[test]
    fn a_change_is_one_line() {
        let line = plain(&change_line(&groups()[1], now()));
        assert_eq!(
            line,
            "2026-11-20 12:00:00Z shop/queue: at risk. web-1 is active on node-2 for 2d4h, token 7; 3 of 3 pods \
             eligible: no other pod could take over now; add replicas\n"
        );
    }
}
