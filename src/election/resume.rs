//! Decides how to continue after the row and the declaration were read.
//!
//! This is how a replica takes over from another one, and how it recovers from its own failures: an unfinished term
//! is found here and completed, or replaced by a new term.

use std::time::Duration;

use super::{
    event::Effect,
    group::Group,
    phase::{Change, Phase, Removal, Retirement},
    step::Effects,
    world::{Member, Row},
};
use crate::api::{Declaration, PodRef, Reason, Role, Verdict};

/// The least time between two larger tokens for a group whose row is behind, whichever pod they are granted to. If
/// replicas use two databases at once, these would outbid each other endlessly.
pub(super) const REGAIN_INTERVAL: Duration = Duration::from_secs(5);
/// How long an unfinished term waits for evidence about its holder before another pod is chosen.
const RESUME_PATIENCE: Duration = Duration::from_secs(5);

impl Group {
    /// Begins to work for a group that this replica has just become the owner of.
    pub(super) fn adopt(&mut self, row: Option<Row>, now: Duration, effects: &mut Effects) -> Phase {
        let declared = &self.world.declared;
        let same_term = |row: &Row| {
            let grant = row.grant.map(|grant| grant.to_string());
            row.token == declared.token
                && match row.holder {
                    // Without a grant it is no term that has ended: somebody has set the token of the row.
                    None => row.grant.is_some() || row.token == 0,
                    Some(_) => row.confirmed && grant == declared.grant,
                }
        };
        match row.filter(same_term) {
            Some(row) => {
                (self.known.row, self.known.declared) = (row, self.world.declared.clone());
                self.known.doubted = false;
                self.settle(now)
            }
            None => self.read(effects),
        }
    }

    pub(super) fn take_stock(
        &mut self,
        row: Option<Row>,
        declared: Option<Declaration>,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let Some(row) = row else { return Phase::Observing };
        self.known.row = row;
        let Some(declared) = declared else {
            return self.retire(Retirement::at(Removal::Tombstone), effects);
        };
        self.unused.read(&declared);
        self.known.declared = declared;
        if self.known.row.token > self.known.declared.token {
            self.programs.missed_one(now);
        }
        if self.known.is_behind() {
            return self.regain(now, effects);
        }
        self.settle(now)
    }

    /// The phase that waits for events: stable, or resuming if the row's term is unfinished.
    pub(super) fn settle(&self, now: Duration) -> Phase {
        match self.known.unfinished_holder() {
            Some(holder) => Phase::Resuming { holder: holder.clone(), until: now + RESUME_PATIENCE },
            None => Phase::Stable,
        }
    }

    /// The database lost commits: the declaration is of a later term than the row. The active pod keeps its role
    /// under a token that was never used.
    fn regain(&mut self, now: Duration, effects: &mut Effects) -> Phase {
        self.known.forget_term();
        if self.world.deleting {
            return Phase::Stable;
        }
        if now < self.pacing.regains {
            self.wake_at(self.pacing.regains);
            return Phase::BackingOff { until: self.pacing.regains };
        }
        match self.known.declared.holder.clone() {
            // The watch may not have shown its label yet, and a pod that is not the holder would lose the label.
            Some(holder) if !self.declared_holder_is_labelled() => {
                self.go(Phase::Regaining, Effect::Verify(holder), effects)
            }
            _ => self.regained(now, effects),
        }
    }

    /// Handles the quorum read of the declared holder. If it is a pod of the group, and the watch does not show it, the
    /// watch is behind, and may show the label of a pod that has lost it.
    pub(super) fn regained_as_read(
        &mut self,
        against: Option<Reason>,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let declared = self.known.declared.holder.as_ref();
        if against.is_none() && declared.is_some_and(|holder| self.member(&holder.uid).is_none()) {
            return self.back_off(now);
        }
        self.regained(now, effects)
    }

    /// Continues when the label of the declared holder is known. If the declared term was not carried out, the pod of
    /// the previous term may still be active. It is preferred if there is fresh evidence for it, because then no
    /// label has to change.
    pub(super) fn regained(&mut self, now: Duration, effects: &mut Effects) -> Phase {
        let declared = self.known.declared.holder.clone().filter(|_| self.declared_holder_is_labelled());
        let working = |member: &&Member| member.verdict == Verdict::Eligible;
        let active = declared.or_else(|| self.strays("").find(working).map(|member| member.pod.clone()));
        match active.filter(|_| !self.world.deleting) {
            Some(holder) => self.keep_after_lost_commits(holder, now, effects),
            None => Phase::Stable,
        }
    }

    /// The holder that keeps its role gets a term of its own.
    pub(super) fn keep_after_lost_commits(
        &mut self,
        holder: PodRef,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        let from = Some(holder.clone());
        self.begin(Change { holder, reason: Reason::LostCommits, from, began: now }, effects)
    }

    pub(super) fn declared_holder_is_labelled(&self) -> bool {
        let declared = self.known.declared.holder.as_ref().and_then(|holder| self.member(&holder.uid));
        declared
            .is_some_and(|member| member.role == Role::Active && !matches!(member.verdict, Verdict::Ended(_)))
    }

    /// Whether the row's term was granted to this replica since it last became the owner.
    fn is_own_term(&self) -> bool {
        // Grant ids count up from the seed.
        let number = self.known.row.grant.map(|grant| grant.as_u128().wrapping_sub(self.calls.seed));
        number.is_some_and(|number| number <= u128::from(self.calls.last))
    }

    /// Continues a term that was granted, and perhaps declared, but not confirmed.
    pub(super) fn resume(
        &mut self,
        holder: PodRef,
        until: Duration,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        if self.world.deleting {
            return self.retire(Retirement::at(Removal::Tombstone), effects);
        }
        let declared = self.known.declared.token == self.known.row.token;
        let member = self.member(&holder.uid);
        let promoted = declared
            && member.is_some_and(|m| {
                m.role == Role::Active && m.stamped_by_us && m.stamp == Some(self.known.row.token)
            });
        if self.world.obstacle.is_some() && !promoted {
            return Phase::Resuming { holder, until };
        }
        if promoted || self.is_fit(&holder) {
            // The holder of a confirmed term was active, and stays so: only its declaration was removed.
            let (reason, from) = if self.known.row.confirmed {
                (Reason::Resumed, Some(holder.clone()))
            } else {
                (self.reason_of_term(), self.former_holder(&holder))
            };
            let change = Change { holder, reason, from, began: now };
            return match (promoted, declared) {
                (true, _) => self.confirm(change, effects),
                // Only the replica that was granted a term promotes a pod under it, and nobody once it is confirmed.
                (false, _) if self.known.row.confirmed || !self.is_own_term() => self.begin(change, effects),
                (false, true) if self.is_spent(&change.holder) || self.refusals.has(&change.holder.uid) => {
                    self.begin(change, effects)
                }
                // A term below what its agent has seen never starts a program.
                (false, false) if self.lacks_agent(&change.holder) => {
                    if self.has_answered(&change.holder) {
                        return self.begin(change, effects);
                    }
                    if now < until {
                        self.wake_at(until);
                        return Phase::Resuming { holder: change.holder, until };
                    }
                    self.fence(change, false, now, effects)
                }
                (false, true) if self.is_heard_again(&change) => self.stay(change, now, effects),
                (false, true) => self.strip(change, None, effects),
                (false, false) => self.fence(change, false, now, effects),
            };
        }
        match self.case_against(&holder) {
            None if now < until && !self.refusals.bars(&holder.uid) => {
                self.wake_at(until);
                Phase::Resuming { holder, until }
            }
            case => self.overtake(&holder, case, now, effects).unwrap_or(Phase::Resuming { holder, until }),
        }
    }

    /// Whether the row's holder was active, under its own term or the last one that was confirmed. The watch cannot
    /// show this for a pod that is gone. A term may be confirmed even though somebody has removed its declaration.
    pub(super) fn may_have_been_active(&self, holder: &PodRef) -> bool {
        let gone = self.known.declared.token == self.known.row.token && self.member(&holder.uid).is_none();
        // A single one is the unfinished term itself.
        let confirmed = self.known.row.pending.first().filter(|_| self.known.row.pending.len() > 1);
        let was_active = confirmed.is_some_and(|first| first.uid == holder.uid);
        self.known.row.confirmed || was_active || gone || self.reads_as_active(holder)
    }

    /// Why the unfinished term was begun.
    pub(super) fn reason_of_term(&self) -> Reason {
        self.known.row.reason.unwrap_or(Reason::Resumed)
    }

    /// The pod that the unfinished term takes the role from: the one that is labelled active, else the last earlier
    /// holder that may have been active.
    pub(super) fn former_holder(&self, holder: &PodRef) -> Option<PodRef> {
        let earlier = || self.known.row.pending.iter().rev().filter(|pod| pod.uid != holder.uid);
        let labelled = earlier().find(|pod| self.reads_as_active(pod));
        labelled.or_else(|| earlier().find(|pod| !self.unused.spare(&pod.uid))).cloned()
    }

    /// The holder of the unfinished term cannot be promoted: another pod replaces it under a new term, if there is one.
    fn overtake(
        &mut self,
        holder: &PodRef,
        case: Option<Reason>,
        now: Duration,
        effects: &mut Effects,
    ) -> Option<Phase> {
        Some(match (self.successor(Some(holder)), case) {
            (Some(_), None) => {
                // It may be active: the watch may show a list from before its promotion.
                self.read_holder(holder, self.reason_of_term(), true, effects)
            }
            (Some(successor), Some(reason)) if self.is_certain(holder) => {
                self.change(successor, reason, now, effects)
            }
            (successor, Some(reason)) if successor.is_some() || self.has_ended(holder) => {
                // The watches may be stale, and the holder may be active. Without a successor, the quorum read
                // decides whether the lock is freed.
                self.verify(holder, reason, effects)
            }
            (None, _) | (_, Some(_)) => return None,
        })
    }
}
