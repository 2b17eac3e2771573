//! From a history and the clients' records to a timeline.

use std::{collections::BTreeMap, time::Duration};

use leadergroup::api::Stamp;

use super::{ChangeOfHolder, GroupLine, Injected, Mark, Span, Timeline};
use crate::client::Calls;
use crate::history::{Change, GroupView, History, Kind, Object, PodView};
use crate::moment::Moment;

/// Answers of one pod that are closer than this are shown as one span, and so are lost calls.
const CLOSE: Duration = Duration::from_secs(1);

impl Timeline {
    /// The timeline of a history from one moment to another. `calls` are the records of the clients of each group.
    pub fn of(
        history: &History,
        (from, until): (Moment, Moment),
        faults: Vec<Injected>,
        calls: &BTreeMap<String, Vec<Calls>>,
    ) -> Self {
        let mut reading = Reading { until, ..Reading::default() };
        for change in &history.changes {
            reading.apply(change);
        }
        let mut groups = reading.end();
        for group in &mut groups {
            let of_group = calls.get(&group.name).map(Vec::as_slice).unwrap_or_default();
            group.answered = of_group.iter().map(|calls| answers(&group.pods, calls)).collect();
        }
        Self { from, until, faults, groups, ..Self::default() }
    }
}

/// A group while the history is read.
struct Open {
    view: GroupView,
    namespace: String,
    line: GroupLine,
    /// Who is active now.
    current: Option<Span>,
    /// Since when nobody is, if nobody is.
    bare_since: Moment,
    reasons: BTreeMap<i64, String>,
}

#[derive(Default)]
struct Reading {
    until: Moment,
    groups: BTreeMap<String, Open>,
    pods: BTreeMap<(String, String), PodView>,
    ended: Vec<GroupLine>,
}

impl Reading {
    fn apply(&mut self, change: &Change) {
        let name = (change.id.namespace.clone(), change.id.name.clone());
        match &change.state {
            Some(Object::Pod(pod)) => {
                let before = self.pods.insert(name, pod.clone());
                let before = before.filter(|before| before.uid == pod.uid);
                for group in self.groups.values_mut().filter(|group| group.has(change, pod)) {
                    group.report(change, before.as_ref(), pod);
                }
            }
            None if change.id.kind == Kind::Pod => drop(self.pods.remove(&name)),
            Some(Object::Group(view)) => {
                let open = self.groups.entry(view.uid.clone()).or_insert_with(|| Open::new(change, view));
                open.reasons.extend(view.reasons.iter().cloned());
                open.view = (**view).clone();
            }
            None if change.id.kind == Kind::LeaderGroup => self.gone(&name, change.seen),
            _ => return,
        }
        for group in self.groups.values_mut().filter(|group| group.namespace == change.id.namespace) {
            group.look(&self.pods, change.seen);
        }
    }

    fn gone(&mut self, (namespace, name): &(String, String), at: Moment) {
        let is_gone = |group: &Open| (&group.namespace, &group.line.name) == (namespace, name);
        let uid = self.groups.iter().find(|(_, group)| is_gone(group)).map(|(uid, _)| uid.clone());
        self.ended.extend(uid.and_then(|uid| self.groups.remove(&uid)).map(|group| group.close(at)));
    }

    fn end(self) -> Vec<GroupLine> {
        let mut all = self.ended;
        all.extend(self.groups.into_values().map(|group| group.close(self.until)));
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}

impl Open {
    fn new(change: &Change, view: &GroupView) -> Self {
        let line = GroupLine { name: change.id.name.clone(), ..GroupLine::default() };
        Self {
            view: view.clone(),
            namespace: change.id.namespace.clone(),
            line,
            current: None,
            bare_since: change.seen,
            reasons: BTreeMap::new(),
        }
    }

    fn has(&self, change: &Change, pod: &PodView) -> bool {
        self.namespace == change.id.namespace && self.view.selects(&pod.labels)
    }

    fn index(&mut self, uid: &str, name: &str) -> usize {
        let pods = &mut self.line.pods;
        pods.iter().position(|(known, _)| known == uid).unwrap_or_else(|| {
            pods.push((uid.to_owned(), name.to_owned()));
            pods.len() - 1
        })
    }

    /// Notes what begins to be wrong with a pod.
    fn report(&mut self, change: &Change, before: Option<&PodView>, now: &PodView) {
        let pod = self.index(&now.uid, &change.id.name);
        let Some(before) = before else { return };
        let begins = [
            ("being deleted", now.deleting && !before.deleting),
            ("ended or evicted", now.ended && !before.ended),
            ("not ready", now.unready && !before.unready),
            ("container ended", now.down && !before.down),
            ("container restarted", now.restarts > before.restarts),
        ];
        let marks = begins.into_iter().filter(|(_, begins)| *begins);
        self.line.evidence.extend(marks.map(|(what, _)| Mark {
            at: change.seen,
            pod,
            what: what.to_owned(),
        }));
    }

    /// Notes who is active now.
    fn look(&mut self, pods: &BTreeMap<(String, String), PodView>, now: Moment) {
        let present = pods.range((self.namespace.clone(), String::new())..);
        let actives: Vec<(String, String, Option<i64>)> = present
            .take_while(|((namespace, _), _)| *namespace == self.namespace)
            .filter(|(_, pod)| self.view.selects(&pod.labels) && pod.is_active(&self.view.routing))
            .map(|((_, name), pod)| (pod.uid.clone(), name.clone(), token_of(pod)))
            .collect();
        let token = actives.first().and_then(|(_, _, token)| *token);
        let indices: Vec<usize> = actives.iter().map(|(uid, name, _)| self.index(uid, name)).collect();
        if let Some(mut span) = self.current.take() {
            if span.pods == indices && span.token == token {
                self.current = Some(span);
                return;
            }
            (span.until, self.bare_since) = (now, now);
            self.line.active.push(span);
        }
        let Some(to) = indices.first().copied() else { return };
        if let Some(token) = token {
            let from = self.line.active.last().and_then(|span| span.pods.first().copied());
            let without_active = now.since(self.bare_since);
            self.line.changes.push(ChangeOfHolder { at: now, token, from, to, reason: None, without_active });
        }
        self.current = Some(Span { from: now, until: now, pods: indices, token });
    }

    fn close(mut self, at: Moment) -> GroupLine {
        self.line.active.extend(self.current.take().map(|span| Span { until: at, ..span }));
        for change in &mut self.line.changes {
            change.reason = self.reasons.get(&change.token).cloned();
        }
        self.line
    }
}

fn token_of(pod: &PodView) -> Option<i64> {
    pod.stamp.as_deref().and_then(|stamp| stamp.parse::<Stamp>().ok()).map(|stamp| stamp.token)
}

/// Who answered, and when nobody did.
fn answers(pods: &[(String, String)], calls: &Calls) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for call in calls.all() {
        let who: Vec<usize> = match &call.answer {
            Ok(pod) => pods.iter().rposition(|(_, name)| name == pod).into_iter().collect(),
            Err(_) => Vec::new(),
        };
        match spans.last_mut() {
            Some(last) if last.pods == who && call.at.since(last.until) < CLOSE => last.until = call.end,
            _ => spans.push(Span { from: call.at, until: call.end, pods: who, token: None }),
        }
    }
    spans
}
