//! I5: an active pod loses the lock only after evidence against it.
//!
//! The API server's history shows what Kubernetes reports of a pod. What only the operator's probes see, the test must
//! have caused itself ([`History::faults`]). Both count while they last, and then for as long as a change of holder may
//! be late: [`ACTS`], and where the evidence is silence also its timeout.

use std::{collections::BTreeMap, time::Duration};

use leadergroup::api::{PodRef, Stamp};

use super::deadline::{ACTS, PLANNED};
use super::outcome::{Checked, Invariant, Violation};
use super::{Change, Fault, GroupView, History, Kind, Object, PodView};
use crate::moment::Moment;

/// The reasons that only probes find.
const PROBED: [&str; 3] = ["Silent", "ProbeRefused", "ProgramEnded"];

/// What Kubernetes reports against a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// Gone, being deleted, or no longer selected by the group. It counts for the rest of the term.
    Deleted,
    /// It counts for the rest of the term.
    Ended,
    /// It counts until the pod is Ready again.
    NotReady,
    /// A container has ended or was restarted. It counts until all run and the pod is Ready.
    Container,
}

/// Evidence against a pod.
#[derive(Clone, Copy, Debug)]
struct Report {
    what: Evidence,
    since: Moment,
    /// When it was over; `None` while it lasts.
    until: Option<Moment>,
}

#[derive(Default)]
struct Pod {
    view: Option<PodView>,
    /// The term under which it was promoted last.
    term: Option<(String, i64)>,
    /// The evidence since then.
    against: Vec<Report>,
    /// When the operator wrote it last, by its managed fields.
    written: Option<String>,
    /// When the operator took the active label off it, if that is the last change of its role.
    stripped: Option<Moment>,
}

/// An active pod lost the lock.
struct Replaced {
    group: String,
    object: String,
    revision: i64,
    token: i64,
    former: PodRef,
    /// When the next term was declared; or when the operator took the label off it, if that came before: a change that
    /// was begun may be declared late.
    at: Moment,
    /// When the declaration may have been sent. The test may let it take effect much later.
    sent: Moment,
    /// How long the active pod may be silent.
    silence_timeout: Duration,
    against: Vec<Report>,
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
            Some(Object::Group(group)) => pass.group(change, group, history),
            None if change.id.kind == Kind::Pod => pass.gone(change),
            _ => {}
        }
    }
    for replaced in &pass.replaced {
        let promoted = out
            .promotions
            .iter_mut()
            .find(|promotion| promotion.group == replaced.group && promotion.token == replaced.token);
        let reason = pass.reasons.get(&(replaced.group.clone(), replaced.token)).map(String::as_str);
        let faults = history.faults.as_ref();
        let caused = faults.is_none_or(|all| all.iter().any(|fault| replaced.may_be_due_to(fault, reason)));
        let against = replaced.that_counts(caused);
        if let (Some(promotion), Some(first)) = (promoted, replaced.that_counts(false).first()) {
            promotion.evidence_ms = u64::try_from(promotion.seen.since(first.since).as_millis()).ok();
        }
        if !fits(reason, &against, caused) {
            let shown: Vec<Evidence> = against.iter().map(|report| report.what).collect();
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
fn fits(reason: Option<&str>, against: &[Report], caused: bool) -> bool {
    let shows = |wanted: &[Evidence]| against.iter().any(|report| wanted.contains(&report.what));
    match reason {
        Some("PodDeleted") => shows(&[Evidence::Deleted]),
        Some("PodFinished" | "DisruptionTarget") => shows(&[Evidence::Ended, Evidence::Deleted]),
        Some("ContainerTerminated" | "ContainerRestarted") => shows(&[Evidence::Container]),
        Some("PodNotReady") => shows(&[Evidence::NotReady]),
        Some(reason) if PLANNED.contains(&reason) => caused,
        // The probes' reasons, and changes that another replica completed.
        _ => caused || !against.is_empty(),
    }
}

impl Replaced {
    /// Whether something that ended at `until`, and was noticed `unnoticed` later at the latest, may be why the pod
    /// lost the lock.
    fn is_in_time(&self, until: Option<Moment>, unnoticed: Duration) -> bool {
        until.is_none_or(|until| self.sent <= until.plus(unnoticed + ACTS))
    }

    /// Whether a fault of the test explains a change for this reason.
    fn may_be_due_to(&self, fault: &Fault, reason: Option<&str>) -> bool {
        let explains = |wanted: &str| fault.reasons.iter().any(|one| one == wanted);
        // A change that another replica completed has no reason of its own. A fault explains evidence that the API
        // server shows only as far as that is shown, so there it is enough that the times fit.
        let is_told = |reason: &&str| PLANNED.contains(reason) || PROBED.contains(reason);
        let fits = reason.filter(is_told).is_none_or(explains);
        // Of a network that comes back, the first answers may be lost, too: a silence may still become complete. A
        // request that was carried out, and a pod that answers again, give no reason from then on.
        let unnoticed = if explains("Silent") { self.silence_timeout } else { Duration::ZERO };
        fits && fault.uid == self.former.uid
            && fault.from <= self.at
            && self.is_in_time(fault.until, unnoticed)
    }

    /// The evidence that is not too old. A pod that was reported as well again may not have answered a probe since, so
    /// the report counts for one more such time. During a fault of the test all of the term counts: the same round of
    /// random faults may take away the database, so that the change comes late.
    fn that_counts(&self, caused: bool) -> Vec<Report> {
        let counts = |report: &&Report| caused || self.is_in_time(report.until, self.silence_timeout);
        self.against.iter().filter(counts).copied().collect()
    }
}

impl Pod {
    /// Adds evidence that begins with this change, and ends what is over.
    fn reported(&mut self, what: Evidence, begins: bool, lasts: bool, now: Moment) {
        let lasting = self.against.iter_mut().find(|report| report.what == what && report.until.is_none());
        match lasting {
            Some(report) if !lasts => report.until = Some(now),
            None if begins => {
                self.against.push(Report { what, since: now, until: (!lasts).then_some(now) });
            }
            _ => {}
        }
    }
}

impl Pass {
    fn pod(&mut self, change: &Change, now: &PodView) {
        let name = (change.id.namespace.clone(), change.id.name.clone());
        self.names.insert(name, now.uid.clone());
        let pod = self.pods.entry(now.uid.clone()).or_default();
        let before = pod.view.replace(now.clone());
        let is_operators = pod.written != change.operator;
        pod.written.clone_from(&change.operator);
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
        let group = pod.term.as_ref().and_then(|(uid, _)| self.groups.get(uid));
        let is_active = |pod: &PodView| group.is_some_and(|group| pod.is_active(&group.routing));
        if is_active(now) {
            pod.stripped = None;
        } else if is_active(&before) && is_operators {
            pod.stripped = Some(change.seen);
        }
        let left = group.is_some_and(|group| group.selects(&before.labels) && !group.selects(&now.labels));
        let restarted = now.restarts > before.restarts;
        pod.reported(Evidence::Deleted, now.deleting || left, true, change.seen);
        pod.reported(Evidence::Ended, now.ended, true, change.seen);
        pod.reported(Evidence::NotReady, now.unready, now.unready, change.seen);
        pod.reported(Evidence::Container, now.down || restarted, now.down || now.unready, change.seen);
    }

    fn gone(&mut self, change: &Change) {
        let name = (change.id.namespace.clone(), change.id.name.clone());
        if let Some(pod) = self.names.remove(&name).and_then(|uid| self.pods.get_mut(&uid)) {
            pod.reported(Evidence::Deleted, true, true, change.seen);
        }
    }

    fn group(&mut self, change: &Change, group: &GroupView, history: &History) {
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
            && change.revision > history.baseline
        {
            let at = pod.stripped.unwrap_or(change.seen);
            self.replaced.push(Replaced {
                group: group.uid.clone(),
                object: change.id.to_string(),
                revision: change.revision,
                token: next.token,
                former,
                at,
                sent: history.sent(change).min(at),
                silence_timeout: group.silence_timeout,
                against: pod.against.clone(),
            });
        }
    }
}
