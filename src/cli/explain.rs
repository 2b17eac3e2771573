//! `leadergroup explain`: what the election of a group sees, and what it would do next.

use clap::Args;
use serde_json::{Value, json};

use super::group_name::split;
use super::print::{Answer, OutputFormat, lines, pretty, table};
use crate::{
    api::{HumanDuration, PodAt, Role, Verdict},
    config::{Settings, SettingsArgs},
    election::{Effect, Plan, Rest},
    health::{ProbeFailure, ProbeKind, ProbeOutcome, Readiness},
    operator::{self, ExplainError, ExplainedPod, Explanation, hears_no_pod},
};
use leadergroup_lock::admin::{LockInfo, SessionInfo};

/// Arguments of `explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The group: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// The group's namespace; default: the one of the kubeconfig's context
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// How long to observe the pods at the longest. It ends earlier once there is evidence about each of them
    #[arg(long, value_name = "TIME", default_value = "15s")]
    pub patience: HumanDuration,
    /// The settings; only those of the database are used.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Explains a group. Without the database the plan is missing, and the answer says why.
pub async fn explain(args: &ExplainArgs, settings: &Settings) -> Result<Answer, ExplainError> {
    let store = match &settings.database_problem {
        Some(problem) => Err(problem.to_string()),
        None => settings.store().map_err(|error| error.to_string()),
    };
    let (namespace, name) = split(&args.group, args.namespace.as_deref());
    let found = operator::explain(namespace, name, store, args.patience.0).await?;
    let text = match args.output {
        OutputFormat::Json => pretty(&as_json(&found)),
        OutputFormat::Table => as_text(&found),
    };
    Ok(Answer { text, status: 0 })
}

fn as_text(found: &Explanation) -> String {
    let declared = &found.declared;
    let holder = declared.holder.as_ref().map_or("(none)", |pod| pod.name.as_str());
    let lock = match &found.lock {
        Ok(None) => "no row yet: no replica has claimed the group".to_owned(),
        Ok(Some(row)) => lock_words(row),
        Err(problem) => format!("not read: {problem}"),
    };
    let owner = found.lock.as_ref().ok().and_then(Option::as_ref).and_then(|row| row.session.as_ref());
    let mut facts = vec![
        ("group", found.group.clone()),
        ("key", found.key.clone()),
        ("owner", owner.map_or_else(|| "(none)".to_owned(), owner_words)),
        ("lock", lock),
        ("declared", format!("token {}, holder {holder}", declared.token)),
        ("obstacle", found.obstacle.clone().unwrap_or_else(|| "(none)".to_owned())),
        ("observed for", format!("{:.1} s", found.observed.as_secs_f64())),
    ];
    facts.extend(found.contested.clone().map(|words| ("contested", words)));
    let mut text = lines(&facts);
    text.push('\n');
    let rows = found.pods.iter().map(|pod| {
        let member = &pod.member;
        let stamp = member.stamp.map_or_else(String::new, |token| token.to_string());
        let node = member.node.clone().unwrap_or_default();
        let role = format!("{:?}", member.role).to_lowercase();
        [member.pod.name.clone(), node, role, stamp, verdict_words(member.verdict), evidence_words(pod)]
    });
    text += &table(["POD", "NODE", "ROLE", "STAMP", "VERDICT", "EVIDENCE"], rows);
    if hears_no_pod(&found.pods) {
        text += "\nNo pod answered a probe. This machine may not reach the pods; run the command in a pod of the operator: \
                 kubectl exec deployment/leadergroup -- leadergroup explain ...\n";
    }
    text.push('\n');
    text + &plan_words(found)
}

fn plan_words(found: &Explanation) -> String {
    let Some(plan) = &found.plan else { return "next: unknown without the lock's row\n".to_owned() };
    let rest = rest_words(plan.rest);
    if plan.steps.is_empty() {
        return format!("next: nothing. {rest}\n");
    }
    let steps = plan.steps.iter().enumerate();
    let steps: String =
        steps.map(|(number, step)| format!("  {}. {}\n", number + 1, step_words(step))).collect();
    let then = match plan.rest {
        Rest::HolderWorks => "done; the active pod is healthy".to_owned(),
        _ => format!("nothing. {rest}"),
    };
    format!("next:\n{steps}then: {then}\n")
}

fn lock_words(row: &LockInfo) -> String {
    let token = row.token.get();
    match &row.holder {
        _ if row.tombstone => format!("token {token}; the group was deleted"),
        Some(holder) if row.confirmed => format!("token {token}, held by {}", holder.name),
        Some(holder) => format!("token {token}, granted to {}, not confirmed", holder.name),
        None => format!("token {token}, free"),
    }
}

fn owner_words(session: &SessionInfo) -> String {
    let state = if session.dead {
        ", dead"
    } else if session.is_silent() {
        ", silent"
    } else {
        ""
    };
    format!("{} (session {}{state})", session.name, session.id)
}

fn verdict_words(verdict: Verdict) -> String {
    match verdict {
        Verdict::Eligible => "eligible".to_owned(),
        Verdict::Contested => "also selected by another group".to_owned(),
        Verdict::Unknown => "unknown".to_owned(),
        Verdict::HeardElsewhere => "heard by another replica".to_owned(),
        Verdict::Failing(reason) => format!("failing: {reason}"),
        Verdict::Silent => "silent".to_owned(),
        Verdict::Ended(reason) => format!("ended: {reason}"),
    }
}

fn evidence_words(pod: &ExplainedPod) -> String {
    let facts = &pod.facts;
    let probe = match &facts.probe {
        Err(refusal) => format!("not probed: {refusal}"),
        Ok(None) => "not probed: judged by the kubelet and the node's lease".to_owned(),
        Ok(Some(probe)) => {
            let kind = match probe.kind {
                ProbeKind::Agent => "agent",
                ProbeKind::TcpSocket => "TCP",
                ProbeKind::HttpGet { .. } => "HTTP",
                ProbeKind::Grpc { .. } => "gRPC",
            };
            let counts: Vec<_> =
                pod.probes.iter().map(|(outcome, n)| format!("{n} {}", outcome_words(*outcome))).collect();
            let counts = if counts.is_empty() { "none ended".to_owned() } else { counts.join(", ") };
            format!("{kind} probes of port {}: {counts}", probe.port)
        }
    };
    let kubelet = match facts.readiness {
        Readiness::Ready => "ready",
        Readiness::NotReady => "not ready",
        Readiness::NodeUnheard => "the node does not report",
        Readiness::Unknown => "unknown",
    };
    let container = facts.container_problem.as_ref().map(|problem| {
        let exit = problem.exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
        format!("; container {}: {}{exit}", problem.container, problem.reason)
    });
    format!("{probe}; kubelet: {kubelet}{}", container.unwrap_or_default())
}

fn outcome_words(outcome: ProbeOutcome) -> String {
    match outcome {
        ProbeOutcome::Success => "succeeded".to_owned(),
        ProbeOutcome::Refused(ProbeFailure::HttpStatus(code)) => format!("with HTTP {code}"),
        ProbeOutcome::Refused(ProbeFailure::ConnectionRefused) => "refused".to_owned(),
        ProbeOutcome::Refused(ProbeFailure::Reset) => "reset".to_owned(),
        ProbeOutcome::Refused(ProbeFailure::NotServing) => "not serving".to_owned(),
        ProbeOutcome::Refused(ProbeFailure::GrpcStatus(code)) => format!("with gRPC status {code}"),
        ProbeOutcome::Refused(ProbeFailure::NoAgent) => "by something that is not an agent".to_owned(),
        ProbeOutcome::Refused(ProbeFailure::Protocol) => "with an invalid answer".to_owned(),
        ProbeOutcome::Unanswered => "unanswered".to_owned(),
        ProbeOutcome::Void(_) => "without a result".to_owned(),
    }
}

fn names(pods: &[PodAt]) -> String {
    pods.iter().map(|at| at.pod.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn step_words(step: &Effect) -> String {
    match step {
        Effect::Read => "read the lock's row and the group".to_owned(),
        Effect::Verify(pod) => format!("read {} again, to confirm the evidence", pod.name),
        Effect::Try { pod, from, .. } => {
            let strip = from.iter().map(|from| format!("{} may lose the active label and ", from.name));
            let strip = strip.collect::<String>();
            format!("ask the API server whether {strip}{} may be labelled active (a dry run)", pod.name)
        }
        Effect::Grant(grant) => {
            let token = grant.expected.max(grant.floor) + 1;
            format!("grant token {token} to {}: {}", grant.holder.name, grant.reason)
        }
        Effect::Vacate { .. } => "free the lock, because no pod can take over".to_owned(),
        Effect::Declare { previous, next } if previous.token == next.token => {
            let stops = next.program().is_some_and(|run| run.stop);
            if stops { "ask the program to end" } else { "let the program start" }.to_owned()
        }
        Effect::Declare { next, .. } => {
            let holder = next.holder.as_ref().map_or("no pod", |pod| pod.name.as_str());
            format!("declare token {} and the holder {holder} in the status", next.token)
        }
        Effect::Strip { pods, .. } => format!("take the active label off: {}", names(pods)),
        Effect::Promote { pod, .. } => format!("label {} active", pod.name),
        Effect::Recheck(pod) => format!("read {}, the status and the lock's row again", pod.name),
        Effect::Confirm { .. } => "confirm the term in the lock's row".to_owned(),
        Effect::Stamp { pods, .. } => format!("label and stamp as standby: {}", names(pods)),
        Effect::Tell { role, pods, .. } => {
            let hook = if *role == Role::Active { "promote" } else { "demote" };
            let pods = pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(", ");
            format!("send the {hook} hook to: {pods}")
        }
        Effect::Delete(pods) => format!("delete, because it was active before: {}", names(pods)),
        Effect::Tombstone => "leave a tombstone in the lock's row".to_owned(),
        Effect::Clear { pods, .. } => format!("remove labels and stamps: {}", names(pods)),
        Effect::Unfinalize => "remove the finalizer".to_owned(),
        Effect::Finished(_) => "report the change".to_owned(),
    }
}

fn rest_words(rest: Rest) -> String {
    let evidence = |against: Option<crate::api::Reason>| {
        against.map_or_else(
            || "There is no holder".to_owned(),
            |reason| format!("The holder must be replaced ({reason})"),
        )
    };
    match rest {
        Rest::HolderWorks => "The active pod is healthy".to_owned(),
        Rest::HolderUnproven => {
            "There is no fresh proof that the holder works, and no evidence against it: it stays".to_owned()
        }
        Rest::Blocked(reason) => format!("No pod of this group may be promoted: {reason}"),
        Rest::Paused { against: None } => "The group is paused".to_owned(),
        Rest::Paused { against } => format!("{}, but the group is paused", evidence(against)),
        Rest::NoCandidate { against } => format!("{}, but no pod is eligible", evidence(against)),
        Rest::Waiting { remaining } => {
            format!("The holder can be replaced in {:.1} s at the earliest", remaining.as_secs_f64())
        }
        Rest::Unfinished { remaining } => format!(
            "A change is not finished. The owner waits at most {:.1} s for evidence about its holder",
            remaining.as_secs_f64()
        ),
        Rest::FormerProgram { limit } => format!(
            "A program that may still run has to be over first, which takes at most {:.1} s",
            limit.as_secs_f64()
        ),
        Rest::ReadAgain => "What was read is not consistent yet: the owner reads it again".to_owned(),
        Rest::NotOwned => "The group is deleted".to_owned(),
    }
}

fn as_json(found: &Explanation) -> Value {
    let row = found.lock.as_ref().ok().and_then(Option::as_ref);
    let pods: Vec<Value> = found
        .pods
        .iter()
        .map(|pod| {
            json!({
                "name": pod.member.pod.name,
                "uid": pod.member.pod.uid,
                "node": pod.member.node,
                "role": format!("{:?}", pod.member.role).to_lowercase(),
                "stamp": pod.member.stamp,
                "eligible": pod.member.verdict == Verdict::Eligible,
                "verdict": verdict_words(pod.member.verdict),
                "evidence": evidence_words(pod),
            })
        })
        .collect();
    let plan = found.plan.as_ref().map(|Plan { steps, rest, .. }| {
        json!({
            "steps": steps.iter().map(step_words).collect::<Vec<_>>(),
            "rest": rest_words(*rest),
        })
    });
    json!({
        "group": found.group,
        "key": found.key,
        "lock": row.map(|row| json!({
            "token": row.token.get(),
            "holder": row.holder.as_ref().map(|holder| &holder.name),
            "confirmed": row.confirmed,
            "owner": row.session.as_ref().map(|session| &session.name),
        })),
        "lockProblem": found.lock.as_ref().err(),
        "declared": found.declared,
        "obstacle": found.obstacle,
        "contested": found.contested,
        "observedSeconds": found.observed.as_secs_f64(),
        "pods": pods,
        "plan": plan,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::Reason;

    #[test]
    fn each_verdict_has_words_of_its_own() {
        let all = [
            Verdict::Eligible,
            Verdict::Contested,
            Verdict::Unknown,
            Verdict::HeardElsewhere,
            Verdict::Failing(Reason::ProbeRefused),
            Verdict::Silent,
            Verdict::Ended(Reason::PodDeleted),
        ];
        let words: BTreeSet<String> = all.into_iter().map(verdict_words).collect();
        assert_eq!(words.len(), all.len(), "{words:?}");
    }
}
