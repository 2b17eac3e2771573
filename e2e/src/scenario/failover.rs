//! Changes of holder: what a scenario does to the active pod, how soon another one must follow, and what a client of
//! the Service sees of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;

use super::{Active, Measured, STARTED, Scenario, TAKEOVER, eventually, ms};
use crate::{
    client::Client,
    history::{
        Deadline, Fault, Promotion, RoleChange, check, role_changes, role_changes_except_of_lost_nodes,
        unready_before_change,
    },
    moment::Moment,
};

/// The reasons for which a deleted pod is replaced. Its program may end before the watch shows the deletion, and
/// refuses probes then.
pub const DELETED: [&str; 2] = ["PodDeleted", "ProbeRefused"];

/// The reasons for which a pod is replaced whose program ends.
pub const CRASHED: [&str; 4] = ["ContainerTerminated", "ContainerRestarted", "ProbeRefused", "PodNotReady"];

impl Scenario {
    /// Waits after a fault until another pod has taken over from `before` and answers through the Service, and
    /// measures this. The reason of the change must be one of `reasons`, and it has the usual deadline of its reason
    /// ([`Deadline::usual`]).
    pub async fn failover(
        &mut self,
        fault: &str,
        before: &Active,
        at: Moment,
        client: Option<&Client>,
        reasons: &[&str],
    ) -> Result<Active> {
        self.failover_within(fault, before, at, client, reasons, None).await
    }

    /// The same with a longer deadline than usual, from the fault and from the evidence. The caller says why.
    pub async fn failover_within(
        &mut self,
        fault: &str,
        before: &Active,
        at: Moment,
        client: Option<&Client>,
        reasons: &[&str],
        within: Option<Duration>,
    ) -> Result<Active> {
        self.fails_from(at, [before.uid.clone()], reasons);
        let wait = within.unwrap_or_default().max(TAKEOVER);
        let after = eventually("another pod to take over", wait, async || {
            let after = self.active().await?;
            ensure!(after.uid != before.uid, "{} is still active", before.pod);
            Ok(after)
        });
        let after = after.await?;
        let promotion = self.promotion_of(&after).await?;
        // The entry is written when the change is confirmed, which is after the label was set.
        let reason = eventually("the change in the status' history", STARTED, async || {
            let status = self.group().await?.status.unwrap_or_default();
            let entry = status.history.iter().find(|entry| entry.token == after.token);
            Ok(entry.context("it is not in there")?.reason.clone())
        });
        let reason = reason.await?;
        ensure!(
            reasons.contains(&reason.as_str()),
            "{fault}: the reason given is {reason}, not of {reasons:?}"
        );
        ensure!(after.token > before.token, "token {} follows {}", after.token, before.token);
        let spec = self.workload.group("x")?.spec;
        let refused = spec.health.interval.0 * spec.health.failure_threshold;
        let mut deadline = Deadline::usual(&before.uid, at, &reason, spec.health.silence_timeout.0, refused);
        if let Some(within) = within {
            deadline = Deadline { within, from_evidence: within, ..deadline };
        }
        let deadline = self.due(deadline);
        let mut measured = Measured {
            fault: fault.to_owned(),
            token: after.token,
            reason,
            failover_ms: ms(promotion.seen.since(at)),
            evidence_ms: promotion.evidence_ms,
            silence_timeout_ms: ms(spec.health.silence_timeout.0),
            deadline_ms: ms(deadline.within),
            ..Measured::default()
        };
        self.deadlines.push(deadline);
        if let Some(client) = client {
            self.is_routed(client, before, &after, &promotion, at, &mut measured).await?;
        }
        self.changes.push(measured);
        // The fault may last, but this change was its consequence.
        self.recovers(|fault| fault.uid == before.uid);
        Ok(after)
    }

    /// Adds to the measured change with this token how long two pods served: for calls that open a
    /// connection, and for those through kept ones.
    pub fn two_served(&mut self, token: i64, opened: Duration, kept: Duration) {
        for change in self.changes.iter_mut().filter(|change| change.token == token) {
            change.overlap_ms = Some(ms(opened));
            change.kept_overlap_ms = Some(ms(kept));
        }
    }

    /// Waits for the client's first answer of the new pod, which must come soon after its label.
    async fn is_routed(
        &self,
        client: &Client,
        before: &Active,
        after: &Active,
        promotion: &Promotion,
        at: Moment,
        measured: &mut Measured,
    ) -> Result<()> {
        let answered = |calls: &crate::client::Calls| calls.from(at).answered_by(&after.pod) > 0;
        let calls = client.until(&format!("an answer of {}", after.pod), TAKEOVER, answered).await?;
        let switch = calls.switch(&before.pod, &after.pod, at).context("the new pod never answered")?;
        measured.gap_ms = switch.gap.map(ms);
        measured.lost = Some(switch.lost);
        measured.stale = Some(switch.stale);
        // Clocks of other machines cannot be compared.
        if self.stage.recorder.is_some() {
            let late = switch.first_new.since(promotion.seen);
            let routed = self.routed();
            ensure!(
                late <= routed,
                "{} answers {late:?} after it got the label, not within {routed:?}",
                after.pod
            );
        }
        // kube-proxy replaces its rules in one transaction: on one node no new connection goes back.
        ensure!(switch.stale == 0, "{} answered {} calls after {} did", before.pod, switch.stale, after.pod);
        Ok(())
    }

    /// Notes pods that a fault of the scenario makes fail from now on, so that the checker accepts that they are
    /// replaced for one of these reasons. Call it before the fault.
    pub fn fails_for(&mut self, uids: impl IntoIterator<Item = String>, reasons: &[&str]) {
        self.fails_from(Moment::now(), uids, reasons);
    }

    fn fails_from(&mut self, from: Moment, uids: impl IntoIterator<Item = String>, reasons: &[&str]) {
        let reasons: Vec<String> = reasons.iter().map(|&reason| reason.to_owned()).collect();
        for uid in uids {
            let lasts = |fault: &Fault| fault.uid == uid && fault.until.is_none() && fault.reasons == reasons;
            if !self.faults.iter().any(lasts) {
                self.faults.push(Fault { uid, reasons: reasons.clone(), from, until: None });
            }
        }
    }

    /// Notes that all faults were undone, and that the operator has had time to notice. Soon after this the checker no
    /// longer accepts that a pod is replaced because of them. Without this call they last until the scenario's end.
    pub fn all_recover(&mut self) {
        self.recovers(|_| true);
    }

    pub(super) fn recovers(&mut self, which: impl Fn(&Fault) -> bool) {
        let now = Moment::now();
        for fault in self.faults.iter_mut().filter(|fault| fault.until.is_none() && which(fault)) {
            fault.until = Some(now);
        }
    }

    /// Fails if any pod's role changed after a revision.
    pub async fn no_role_changed(&self, after: i64) -> Result<()> {
        ensure_none(&role_changes(&self.objects().await?, &self.routing(), after))
    }

    /// Like [`no_role_changed`](Self::no_role_changed), but Kubernetes may have replaced standbys because their node
    /// was lost.
    pub async fn no_role_changed_except_of_lost_nodes(&self, after: i64) -> Result<()> {
        ensure_none(&role_changes_except_of_lost_nodes(&self.objects().await?, &self.routing(), after))
    }

    /// For how long the API server had said that a pod is not ready when it lost its role after a revision.
    pub async fn unready_before_change(&self, pod: &str, after: i64) -> Result<Option<Duration>> {
        Ok(unready_before_change(&self.objects().await?, &self.routing(), pod, after))
    }

    /// Deletes the active pod to check that failover works, and waits until the group is settled.
    pub async fn still_fails_over(&mut self, after: &str) -> Result<Active> {
        let before = self.settled(STARTED).await?;
        let at = Moment::now();
        self.pods().delete(&before.pod, &DeleteParams::default()).await?;
        self.failover(&format!("deleted after {after}"), &before, at, None, &DELETED).await?;
        self.settled(STARTED).await
    }

    /// Adds deadlines of pods, except of those that had been replaced before their fault began. Returns how many were
    /// added.
    pub async fn are_replaced(&mut self, deadlines: Vec<Deadline>) -> Result<usize> {
        let due = Deadline::of_holders(deadlines, &check(&self.objects().await?).promotions);
        let due: Vec<_> = due.into_iter().map(|deadline| self.due(deadline)).collect();
        let count = due.len();
        self.deadlines.extend(due);
        Ok(count)
    }

    /// The deadline, with more time beside other scenarios.
    fn due(&self, deadline: Deadline) -> Deadline {
        if self.stage.together.is_going_on() { deadline.on_a_busy_machine() } else { deadline }
    }

    async fn promotion_of(&self, active: &Active) -> Result<Promotion> {
        let checked = check(&self.objects().await?);
        let found =
            checked.promotions.into_iter().rev().find(|p| p.uid == active.uid && p.token == active.token);
        found.with_context(|| {
            format!("the history has no promotion of {} with token {}", active.pod, active.token)
        })
    }
}

fn ensure_none(changes: &[RoleChange]) -> Result<()> {
    ensure!(changes.is_empty(), "roles changed that should not: {changes:?}");
    Ok(())
}
