//! Effects as steps of a trace.

use std::time::Duration;

use crate::{
    api::Role,
    election::{Effect, Outcome},
    operator::{object::record::Record, trouble::Trouble},
    telemetry::{Step, Trace, Traced, Traces},
};

/// The name of an effect's span.
pub(super) fn name(effect: &Effect) -> &'static str {
    match effect {
        Effect::Read => "read",
        Effect::Verify(_) => "verify",
        Effect::Try { .. } => "dry run",
        Effect::Grant(_) => "grant",
        Effect::Vacate { .. } => "vacate",
        Effect::Declare { .. } => "declare",
        Effect::Strip { .. } => "strip",
        Effect::Promote { .. } => "promote",
        Effect::Recheck(_) => "recheck",
        Effect::Confirm { .. } => "confirm",
        Effect::Stamp { .. } => "stamp",
        Effect::Tell { role: Role::Active, .. } => "promote hook",
        Effect::Tell { .. } => "demote hook",
        Effect::Delete(_) => "delete",
        Effect::Tombstone => "tombstone",
        Effect::Clear { .. } => "clear labels",
        Effect::Unfinalize => "remove finalizer",
        Effect::Finished(_) => "finished",
    }
}

/// Why a step did not do what it was to do.
pub(super) fn problem(outcome: &Outcome, trouble: Option<&Trouble>) -> Option<String> {
    let known = trouble.map(|trouble| match trouble {
        Trouble::Lock(problem) | Trouble::Refused(problem) | Trouble::Unreachable(problem) => problem.clone(),
    });
    known.or_else(|| match outcome {
        Outcome::Rejected(rejection) => Some(format!("rejected: {rejection:?}")),
        Outcome::Conflict => Some("the pod has changed since it was read".to_owned()),
        Outcome::HolderRefused(problem) => Some(problem.clone()),
        Outcome::Told(failed) => failed.first().map(|(pod, problem)| format!("{}: {problem}", pod.name)),
        _ => None,
    })
}

/// The finalizer is removed, which ends the deletion of a group. This cannot wait for the controller: the group may
/// be gone from the watch by the time when it hears of it.
pub(super) fn deleted(traces: &Traces, record: &Record, trace: Option<Box<Trace>>, step: Option<Step>) {
    let Some(step) = step else { return };
    let mut trace = trace.unwrap_or_default();
    trace.add(step);
    let declaration = record.status().map(|status| &status.declaration);
    trace.end(Traced {
        name: "deletion of the group",
        namespace: record.reference.namespace.clone(),
        group: record.reference.name.clone(),
        why: None,
        token: declaration.map_or(0, |declaration| declaration.token),
        from: declaration.and_then(|declaration| Some(declaration.holder.as_ref()?.name.clone())),
        to: None,
        took: Duration::ZERO,
    });
    traces.export(*trace);
}
