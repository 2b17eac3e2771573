//! I5: an active pod loses the lock only after evidence against it.
//!
//! The API server's history shows what Kubernetes reports of a pod. What only the operator's probes see, the test must
//! have caused itself ([`History::faults`]).

use std::collections::BTreeMap;

use leadergroup::api::{PodRef, Stamp};

use super::outcome::{Checked, Invariant, Violation};
use super::{Change, GroupView, History, Kind, Object, PodView};
use crate::moment::Moment;

/// What Kubernetes reports against a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// Gone, being deleted, or its labels were changed.
    Deleted,
    Ended,
    NotReady,
    Container,
}

#[derive(Default)]
struct Pod {
    view: Option<PodView>,
    /// The term under which it was promoted last.
    term: Option<(String, i64)>,
    /// The evidence since then.
    against: Vec<(Evidence, Moment)>,
}

/// An active pod lost the lock.
struct Replaced {
    group: String,
    object: String,
    revision: i64,
    token: i64,
    former: PodRef,
    against: Vec<(Evidence, Moment)>,
}

#[derive(Default)]
struct Pass {
    pods: BTreeMap<String, Pod>,
    /// The UIDs of the present pods, by namespace and name.
    names: BTreeMap<(String, String), String>,
    groups: BTreeMap<String, GroupView>,
    reasons: BTreeMap<(String, i64), String>,
    replaced: Vec<Replaced>,
}

/// Adds the changes without evidence to the violations, and the time since the evidence to the promotions.
pub(super) fn check(history: &History, out: &mut Checked) {
    let mut pass = Pass::default();
    for change in &history.changes {
        match &change.state {
            Some(Object::Pod(pod)) => pass.pod(change, pod),
            Some(Object::Group(group)) => pass.group(change, group, history.baseline),
            None if change.id.kind == Kind::Pod => pass.gone(change),
            _ => {}
        }
    }
    for replaced in &pass.replaced {
        let promoted = out
            .promotions
            .iter_mut()
            .find(|promotion| promotion.group == replaced.group && promotion.token == replaced.token);
        if let (Some(promotion), Some((_, first))) = (promoted, replaced.against.first()) {
            promotion.evidence_ms = u64::try_from(promotion.seen.since(*first).as_millis()).ok();
        }
        let reason = pass.reasons.get(&(replaced.group.clone(), replaced.token)).map(String::as_str);
        let caused = history.faults.as_ref().is_none_or(|faults| faults.contains(&replaced.former.uid));
        if !fits(reason, &replaced.against, caused) {
            let shown: Vec<Evidence> = replaced.against.iter().map(|(evidence, _)| *evidence).collect();
            out.violations.push(Violation {
                invariant: Invariant::Evidence,
                revision: replaced.revision,
                object: replaced.object.clone(),
                text: format!(
                    "{} lost the lock to token {} with the reason {reason:?}; there is this evidence: {shown:?}",
                    replaced.former.name, replaced.token
                ),
            });
        }
    }
}

/// Whether the evidence fits the reason that the operator gave, if it gave one.
fn fits(reason: Option<&str>, against: &[(Evidence, Moment)], caused: bool) -> bool {
    let shows = |wanted: &[Evidence]| against.iter().any(|(evidence, _)| wanted.contains(evidence));
    match reason {
        Some("PodDeleted") => shows(&[Evidence::Deleted]),
        Some("PodFinished" | "DisruptionTarget") => shows(&[Evidence::Ended, Evidence::Deleted]),
        Some("ContainerTerminated" | "ContainerRestarted") => shows(&[Evidence::Container]),
        Some("PodNotReady") => shows(&[Evidence::NotReady]),
        // The probes' reasons, and changes that another replica completed.
        _ => caused || !against.is_empty(),
    }
}

impl Pass {
    fn pod(&mut self, change: &Change, now: &PodView) {
        let name = (change.id.namespace.clone(), change.id.name.clone());
        self.names.insert(name, now.uid.clone());
        let pod = self.pods.entry(now.uid.clone()).or_default();
        let before = pod.view.replace(now.clone());
        let stamp: Option<Stamp> = now.stamp.as_deref().and_then(|stamp| stamp.parse().ok());
        let term = stamp.map(|stamp| (stamp.group.clone(), stamp.token));
        if let Some((uid, token)) = term
            && let Some(group) = self.groups.get(&uid)
            && now.is_active(&group.routing)
            && pod.term.as_ref() != Some(&(uid.clone(), token))
        {
            pod.term = Some((uid, token));
            pod.against.clear();
        }
        let Some(before) = before else { return };
        let routing = self.groups.values().map(|group| group.routing.role_label.as_str());
        let roles: Vec<&str> = routing.collect();
        let labels = |pod: &PodView| {
            let own = pod.labels.iter().filter(|(key, _)| !roles.contains(&key.as_str()));
            own.map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        let found = [
            (now.deleting || labels(&before) != labels(now), Evidence::Deleted),
            (now.ended, Evidence::Ended),
            (now.unready, Evidence::NotReady),
            (now.down || now.restarts > before.restarts, Evidence::Container),
        ];
        pod.against.extend(found.into_iter().filter(|(is, _)| *is).map(|(_, what)| (what, change.seen)));
    }

    fn gone(&mut self, change: &Change) {
        let name = (change.id.namespace.clone(), change.id.name.clone());
        if let Some(pod) = self.names.remove(&name).and_then(|uid| self.pods.get_mut(&uid)) {
            pod.against.push((Evidence::Deleted, change.seen));
        }
    }

    fn group(&mut self, change: &Change, group: &GroupView, baseline: i64) {
        for (token, reason) in &group.reasons {
            self.reasons.insert((group.uid.clone(), *token), reason.clone());
        }
        let before = self.groups.insert(group.uid.clone(), group.clone());
        let Some(before) = before.map(|before| before.declaration) else { return };
        let next = &group.declaration;
        let Some(former) = before.holder.filter(|_| next.token > before.token) else { return };
        let pod = self.pods.get(&former.uid);
        let was_active = pod.filter(|pod| pod.term == Some((group.uid.clone(), before.token)));
        if let Some(pod) = was_active
            && next.holder.as_ref() != Some(&former)
            && change.revision > baseline
        {
            self.replaced.push(Replaced {
                group: group.uid.clone(),
                object: change.id.to_string(),
                revision: change.revision,
                token: next.token,
                former,
                against: pod.against.clone(),
            });
        }
    }
}
