//! `explain`: why a group is as it is, and what happens next, from what the API server shows.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde::Serialize;

use super::{
    cluster::{Seen, when},
    history::why,
    holder,
    ink::Ink,
    moments::ago,
    operator::Place,
    pods::{self, PodLine, PodRole},
    state::{
        GroupLine, State, complaint, condition, failed, is_seen, is_up_to_date, judged, pending_switchover,
    },
    status::headline,
    table::point,
};
use crate::api::{ConditionType, Failback, LeaderGroup, PlannedLoss, Reason, Sighting};

/// The newest Events that are shown.
const EVENTS: usize = 3;

/// An explanation: each part is a list of sentences.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Explained {
    /// Namespace and name.
    pub(super) group: String,
    /// Why it is as it is.
    pub(super) because: Vec<String>,
    /// What happens next.
    pub(super) next: Vec<String>,
    /// What cannot be seen from here.
    pub(super) unknown: Vec<String>,
}

/// Explains a group. `operator` can tell more of it.
pub(super) fn explained(seen: &Seen, operator: Option<&Place>) -> Explained {
    let pods = seen.pods.as_ref().map(|found| pods::lines(&seen.group, found));
    let lines = pods.clone().unwrap_or_default();
    let mut unknown = unread(seen);
    let group = name(&seen.group);
    let who = match operator {
        Some(_) => "The operator",
        None => "An operator that is installed as in the README",
    };
    unknown.push(format!(
        "which probes each pod answers, and the row of the lock. {who} tells: {}",
        operators_word(operator, &group)
    ));
    Explained { group, because: because(seen, &lines), next: next(seen, &lines), unknown }
}

/// The command by which the operator itself explains a group. If it was not found, with the names that the README
/// installs it under.
pub(super) fn operators_word(operator: Option<&Place>, group: &str) -> String {
    match operator {
        Some(place) => place.explain(group),
        None => {
            format!("`kubectl -n leadergroup exec deployment/leadergroup -- leadergroup explain {group}`")
        }
    }
}

fn name(group: &LeaderGroup) -> String {
    format!("{}/{}", group.namespace().unwrap_or_default(), group.name_any())
}

/// A command of this program about a group.
pub(super) fn command(verb: &str, group: &LeaderGroup) -> String {
    format!("`kubectl leadergroup {verb} -n {} {}`", group.namespace().unwrap_or_default(), group.name_any())
}

fn unread(seen: &Seen) -> Vec<String> {
    let parts = [seen.pods.as_ref().err(), seen.node.as_ref().err(), seen.events.as_ref().err()];
    parts.into_iter().flatten().map(|failure| failure.problem.clone()).collect()
}

fn because(seen: &Seen, pods: &[PodLine]) -> Vec<String> {
    let group = &seen.group;
    let mut all = Vec::new();
    let (state, message) = judged(group, seen.pods.as_deref().ok());
    if !message.is_empty() {
        all.push(message);
    }
    let more = [ConditionType::LockStoreReachable, ConditionType::Probed, ConditionType::Routed];
    let told = more.into_iter().filter_map(|kind| failed(group, kind)).chain(complaint(group));
    for condition in told {
        if !all.iter().any(|said| said.contains(&condition.message)) {
            all.push(condition.message.clone());
        }
    }
    all.extend(holder::several(group, pods).map(|(text, _)| text));
    if is_seen(group) && !is_up_to_date(group) && state != State::Unknown {
        all.push("the operator has not seen the last change of the spec yet".to_owned());
    }
    all.extend(pods.iter().filter(|pod| !pod.ready).map(|pod| format!("pod {} {}", pod.pod, said(pod))));
    let doubtful = pods.iter().filter(|pod| pod.ready && pod.eligible == Some(false));
    all.extend(doubtful.map(|pod| {
        format!(
            "pod {} is Ready for the kubelet, and not eligible for the operator: it does not answer its probe, may not be \
             changed, has a hook that refuses the role, or is selected by another group; {} names what may block \
             probes",
            pod.pod,
            command("doctor", group)
        )
    }));
    if all.is_empty() {
        all.push("nothing is wrong".to_owned());
    }
    let last = group.status.as_ref().and_then(|status| status.history.first());
    if let Some(last) = last.filter(|last| last.to.is_some()) {
        let to = last.to.as_deref().unwrap_or_default();
        let words = why(&last.reason);
        let words = if words.is_empty() { String::new() } else { format!(": {words}") };
        let how = match last.from.as_deref() {
            Some(from) if from != to => format!("took over from {from}"),
            Some(_) => "got a new term".to_owned(),
            None => "became active".to_owned(),
        };
        all.push(format!("{to} {how} {} ago ({}){words}", ago(last.time.0, seen.now), last.reason));
    }
    let events = seen.events.iter().flatten().rev().take(EVENTS);
    all.extend(events.filter(|event| event.type_.as_deref() == Some("Warning")).map(|event| {
        let at = when(event).map_or_else(String::new, |at| format!(" {} ago", ago(at, seen.now)));
        let reason = event.reason.as_deref().unwrap_or("?");
        format!("Event {reason}{at}: {}", event.message.as_deref().unwrap_or_default())
    }));
    all
}

/// What the kubelet says of a pod that is not Ready, as the end of a sentence.
fn said(pod: &PodLine) -> String {
    match pod.health.split_once(' ') {
        Some(("is" | "has", _)) => pod.health.clone(),
        Some(("not", rest)) => format!("is not {rest}"),
        _ => format!("is not Ready: {}", pod.health),
    }
}

fn next(seen: &Seen, pods: &[PodLine]) -> Vec<String> {
    let group = &seen.group;
    if group.metadata.deletion_timestamp.is_some() {
        return vec![format!(
            "the object goes away as soon as an operator has removed its finalizer; if it stays, no operator runs, \
             or it cannot finish: its log says why ({})",
            command("doctor", group)
        )];
    }
    if !is_seen(group) {
        return vec![format!(
            "an operator that runs and watches this namespace reports within seconds; if none does, nothing happens ({})",
            command("doctor", group)
        )];
    }
    if let Some(stalled) = condition(group, ConditionType::Stalled).filter(|it| it.status == "True") {
        return vec![format!("nothing, until somebody changes this: {}", stalled.message)];
    }
    let active = group.status.as_ref().and_then(|status| status.active.as_ref());
    let is_gone = seen.pods.as_ref().is_ok_and(|pods| holder::gone(group, pods).is_some());
    let mut all = planned(seen);
    all.extend(holder::several(group, pods).map(|(_, remedy)| remedy));
    match active {
        None => all.extend(without_active(group, pods)),
        Some(active) if is_gone => all.push(after_loss(group, &active.pod)),
        Some(active) => all.extend(on_failure(group, &active.pod, pods)),
    }
    all
}

/// Changes of the active pod that are about to come while it works.
fn planned(seen: &Seen) -> Vec<String> {
    let group = &seen.group;
    let mut all = Vec::new();
    if let Some(request) = pending_switchover(group) {
        all.push(format!(
            "a switchover is requested ({request}) and has no result yet: the operator begins the change or refuses \
             the request within 30s"
        ));
    }
    if let Ok(Some(node)) = &seen.node
        && is_cordoned(node)
    {
        let name = node.name_any();
        all.push(match group.spec.election.on_cordon {
            _ if group.spec.paused => {
                format!("the node {name} is cordoned, and the group is paused: no hand-over")
            }
            PlannedLoss::Handover => {
                format!(
                    "the node {name} is cordoned: a pod on another node becomes active once one is eligible"
                )
            }
            PlannedLoss::Ignore => {
                format!("the node {name} is cordoned, and election.onCordon is Ignore: no hand-over")
            }
        });
    }
    if group.spec.election.failback == Failback::WhenReady && !group.spec.paused {
        all.push(format!(
            "a pod of a higher priority becomes active once it has been eligible for {}",
            group.spec.election.failback_delay
        ));
    }
    all
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

fn without_active(group: &LeaderGroup, pods: &[PodLine]) -> Vec<String> {
    let reason = condition(group, ConditionType::Active).map_or("", |active| active.reason.as_str());
    let is = |other: Reason| other.to_string() == reason;
    if group.spec.paused {
        let resume = command("resume", group);
        return vec![format!("no pod becomes active until somebody resumes the group ({resume})")];
    }
    let kept = pods.iter().find(|pod| pod.role == PodRole::Active).filter(|_| is(Reason::WriteRefused));
    if let Some(kept) = kept {
        return vec![format!(
            "the operator tries again to take the active label off {}; until the API server accepts that, no other pod \
             becomes active",
            kept.pod
        )];
    }
    let sentence = if is(Reason::NoPods) {
        "the first pod that has the labels of spec.selector, is Ready and answers its probe becomes active"
    } else if is(Reason::NoEligiblePod) {
        "the first pod that is Ready and answers its probe becomes active, at once"
    } else if is(Reason::LockStoreUnavailable) {
        "no pod becomes active until the database is back; then one does, at once"
    } else if is(Reason::Changing) {
        "the operator finishes the change that is under way"
    } else if is(Reason::WriteRefused) && group.status.as_ref().is_some_and(|status| status.eligible == 0) {
        "a pod becomes active once the API server accepts the change, which the operator tries again, or once another \
         pod is eligible"
    } else if is(Reason::HookFailed) {
        "a pod becomes active once its hook accepts the role, which the operator sends again, or once another pod is \
         eligible"
    } else if is(Reason::WriteRefused) {
        "the operator repeats the write until the API server accepts it; until then no pod becomes active"
    } else if is(Reason::WatchFailed) {
        "no pod becomes active until the operator may watch the pods again"
    } else {
        "no pod becomes active until what is named above is put right"
    };
    vec![sentence.to_owned()]
}

/// What happens if the active pod does not exist any more.
fn after_loss(group: &LeaderGroup, active: &str) -> String {
    if group.spec.paused {
        return format!(
            "no pod follows {active} until somebody resumes the group ({})",
            command("resume", group)
        );
    }
    if failed(group, ConditionType::LockStoreReachable).is_some() {
        return format!("no pod follows {active} until the database is back");
    }
    format!(
        "an operator that runs replaces {active} within seconds; if this stays, none runs, and nothing takes over ({})",
        command("doctor", group)
    )
}

/// What happens if the active pod fails.
fn on_failure(group: &LeaderGroup, active: &str, pods: &[PodLine]) -> Vec<String> {
    if group.spec.paused {
        return vec![format!(
            "if {active} fails, no other pod takes over: the group is paused ({})",
            command("resume", group)
        )];
    }
    if failed(group, ConditionType::LockStoreReachable).is_some() {
        return vec![format!("if {active} fails, no other pod takes over until the database is back")];
    }
    let others: Vec<&PodLine> = pods.iter().filter(|pod| pod.pod != active && pod.ready).collect();
    let named = |wanted: Option<bool>| {
        let some = others.iter().filter(|pod| pod.eligible == wanted).map(|pod| pod.pod.as_str());
        some.collect::<Vec<_>>().join(" or ")
    };
    let (sure, perhaps) = (named(Some(true)), named(None));
    let is_redundant = failed(group, ConditionType::Redundant).is_none();
    let mut all = Vec::new();
    if !is_redundant || (sure.is_empty() && perhaps.is_empty() && !pods.is_empty()) {
        all.push(format!("if {active} fails, no other pod can take over until one is eligible"));
    } else {
        let who = match (sure.as_str(), perhaps.as_str()) {
            ("", "") => "another pod".to_owned(),
            ("", perhaps) => format!("an eligible one of {perhaps}"),
            (sure, _) => sure.to_owned(),
        };
        all.push(format!("if {active} fails, {who} takes over; {}", how_soon(group)));
    }
    let unwell = pods.iter().find(|pod| pod.pod == active && !pod.ready && pod.role == PodRole::Active);
    if let Some(unwell) = unwell.filter(|_| group.spec.agent.is_none()) {
        let and = if is_redundant { "the operator replaces it" } else { "no other pod can take over" };
        all.insert(0, format!("{active} {}: {and}", said(unwell)));
    }
    all
}

fn how_soon(group: &LeaderGroup) -> String {
    let (silence, delay) = (group.spec.health.silence_timeout, group.spec.election.delay);
    let probed = condition(group, ConditionType::Probed);
    let mut words = match probed.map(|probed| (probed.status.as_str(), probed.reason.as_str())) {
        Some(("True", "TcpOnly")) => format!(
            "at once if it is deleted or crashes, after {silence} if its node is lost; a program that hangs is not noticed, \
             because the probes only connect"
        ),
        Some(("False", _)) => {
            "at once if it is deleted; a hang is not noticed, and a lost node after about 40s, because \
                               the pods are not probed"
                .to_owned()
        }
        _ => format!("at once if it is deleted or crashes, after {silence} if it does not answer"),
    };
    if !delay.0.is_zero() {
        words += &format!(", and {delay} later (election.delay) unless it ended cleanly");
    }
    if group.spec.agent.is_some() {
        words += "; its program starts when the former one is certainly over";
    }
    words
}

/// The explanation for people.
pub(super) fn text(explained: &Explained, seen: &Seen, width: Option<usize>) -> String {
    let mut text = {
        let group = Sighting(Ok(seen.group.clone()));
        headline(&GroupLine::with_pods(&group, seen.pods.as_deref().ok()), seen.now)
    };
    let parts = [
        ("WHY", &explained.because, "-"),
        ("WHAT HAPPENS NEXT", &explained.next, "-"),
        ("NOT KNOWN HERE", &explained.unknown, "?"),
    ];
    for (title, sentences, mark) in parts {
        text += &format!("\n{}\n", Ink::Heading.paint(title));
        text.extend(sentences.iter().map(|sentence| point(mark, Ink::Dim, sentence, width)));
    }
    text
}

#[cfg(test)]
mod tests;
