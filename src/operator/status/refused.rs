//! What the status says of pods that cannot get or lose a role. A missing right concerns many groups, so names stand in
//! double quotes: without them, these groups have the same words, and the log has one line for all.

use crate::{
    api::{Reason, Role, Verdict},
    election::{Group, Member, Refused},
};

/// Pods with nothing against them that the API server or their hook keeps from the active role.
pub(super) struct Barred {
    /// How many there are.
    pub(super) pods: u32,
    /// A refusal by the API server comes first: it is mended elsewhere than in the pods.
    pub(super) reason: Reason,
    /// Which, for the end of a message.
    pub(super) words: String,
}

/// The pods that cannot get or lose a role, and why, for the end of a message.
pub(super) fn refusals(election: &Group) -> String {
    told(&election.refused().collect::<Vec<_>>())
}

/// The same of a change to the pod of this name, or to any: of that pod, and of those that could not lose the role.
pub(super) fn refusals_of_change(election: &Group, to: Option<&str>) -> String {
    let concerns = |member: &Member| to.is_none_or(|to| member.pod.name == to) || member.role == Role::Active;
    told(&election.refused().filter(|(member, _)| concerns(member)).collect::<Vec<_>>())
}

/// The pods that could be active if they were not refused.
pub(super) fn barred(election: &Group) -> Option<Barred> {
    let refused = election.refused();
    let is_well = |member: &Member| member.role != Role::Active && member.verdict == Verdict::Eligible;
    let barred: Vec<_> = refused.filter(|(member, _)| is_well(member)).collect();
    let reasons = barred.iter().map(|(_, refused)| refused.refusal.reason);
    let reason = reasons.min_by_key(|reason| *reason != Reason::WriteRefused)?;
    Some(Barred { pods: u32::try_from(barred.len()).unwrap_or(u32::MAX), reason, words: told(&barred) })
}

/// A clause for what is refused, and by whom: it names the first pod, and counts the others.
fn told(refused: &[(&Member, &Refused)]) -> String {
    let clause = |keeps: bool, reason: Reason| {
        let is_so = |member: &Member, it: &Refused| {
            (member.role == Role::Active) == keeps && it.refusal.reason == reason
        };
        let mut pods = refused.iter().filter(|(member, it)| is_so(member, it));
        let (member, first) = pods.next()?;
        let more = match pods.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let what = if keeps { "cannot lose the active label" } else { "cannot become active" };
        Some(format!("; \"{}\"{more} {what}: {}", member.pod.name, first.refusal.message))
    };
    let reasons = [Reason::WriteRefused, Reason::HookFailed];
    let clauses = [true, false].into_iter().flat_map(|keeps| reasons.map(|reason| (keeps, reason)));
    clauses.filter_map(|(keeps, reason)| clause(keeps, reason)).collect()
}
