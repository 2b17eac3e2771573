//! What the status says of pods that cannot get or lose a role. A missing right concerns many groups, so names stand in
//! double quotes: without them, these groups have the same words, and the log has one line for all.

use super::conditions::View;
use crate::{
    api::{Reason, Role, Verdict},
    election::{Member, Refused},
};

/// Pods with nothing against them that the API server or their hook keeps from the active role.
pub(super) struct Fit {
    /// How many there are.
    pub(super) pods: u32,
    /// A refusal by the API server comes first: it is mended elsewhere than in the pods.
    pub(super) reason: Reason,
    /// The pods of this reason, for the end of a message.
    pub(super) words: String,
}

/// The pods that cannot get or lose a role, or the one of this name, and why, for the end of a message.
pub(super) fn refusals(view: View, name: Option<&str>) -> String {
    let concerns = |member: &Member| name.is_none_or(|name| member.pod.name == name);
    told(view.group.election().refused().filter(|(member, _)| concerns(member)))
}

/// The pods that could be active if they were not refused.
pub(super) fn fit(view: View) -> Option<Fit> {
    let fit = || {
        let refused = view.group.election().refused();
        refused.filter(|(member, _)| member.role != Role::Active && member.verdict == Verdict::Eligible)
    };
    let reasons = fit().map(|(_, refused)| refused.refusal.reason);
    let reason = reasons.min_by_key(|reason| *reason != Reason::WriteRefused)?;
    let words = told(fit().filter(|(_, refused)| refused.refusal.reason == reason));
    Some(Fit { pods: u32::try_from(fit().count()).unwrap_or(u32::MAX), reason, words })
}

/// Names the first pod, and counts those that are refused the same: to get the role, or to lose it.
fn told<'a>(mut refused: impl Iterator<Item = (&'a Member, &'a Refused)>) -> String {
    let Some((member, first)) = refused.next() else { return String::new() };
    let keeps = member.role == Role::Active;
    let more = match refused.filter(|(other, _)| (other.role == Role::Active) == keeps).count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let what = if keeps { "cannot lose the active label" } else { "cannot become active" };
    format!("; \"{}\"{more} {what}: {}", member.pod.name, first.refusal.message)
}
