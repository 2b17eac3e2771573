//! The five steps of a change of holder, in this order.

use std::time::Duration;

use uuid::Uuid;

use super::{
    event::{Effect, Finished, GrantRequest},
    group::Group,
    phase::{Attempt, Change, Phase},
    request::MOVE_PAUSE,
    resume::REGAIN_INTERVAL,
    step::Effects,
};
use crate::api::{Declaration, LARGEST_TOKEN, PodAt, PodRef, Reason};

impl Group {
    /// Begins a change of holder: with step 1, or with a dry run of step 4 if the new holder may turn out to be a pod
    /// that the API server refuses to change.
    pub(super) fn begin(&mut self, change: Change, effects: &mut Effects) -> Phase {
        if self.needs_trial(&change.holder, change.reason) {
            let (token, pod) = (self.known.declared.token + 1, change.holder.clone());
            let planned =
                change.from.as_ref().filter(|_| change.reason.is_planned() && self.known.is_finished());
            let from = planned.cloned();
            return self.go(Phase::Trying(change), Effect::Try { token, pod, from }, effects);
        }
        self.ask_for_grant(change, effects)
    }

    /// Before step 1 of a planned change the program of the former holder ends, if it has one.
    pub(super) fn ask_for_grant(&mut self, change: Change, effects: &mut Effects) -> Phase {
        match self.stop_program(change, effects) {
            Ok(stopping) => stopping,
            Err(change) => self.grant(change, effects),
        }
    }

    /// Step 1. The new token must exceed that of the row, the declared one and every stamp. If lost commits or a
    /// restored backup set one of these back, the others still have it.
    pub(super) fn grant(&mut self, change: Change, effects: &mut Effects) -> Phase {
        self.trials.accepted = None;
        self.trials.unanswered.clear();
        let stamps = self.world.members.iter().filter_map(|member| member.stamp);
        let floor = stamps.filter(|stamp| *stamp <= LARGEST_TOKEN).fold(self.known.declared.token, i64::max);
        let started = self.least_token_for(&change.holder).saturating_sub(1);
        let request = GrantRequest {
            expected: self.known.row.token,
            floor: floor.max(self.world.declared.token).max(started),
            holder: change.holder.clone(),
            id: Uuid::from_u128(self.calls.seed.wrapping_add(u128::from(self.calls.last))),
            reason: change.reason,
        };
        self.ask(change, request, false, effects)
    }

    /// Makes the request of step 1, or repeats it.
    pub(super) fn ask(
        &mut self,
        change: Change,
        request: GrantRequest,
        in_doubt: bool,
        effects: &mut Effects,
    ) -> Phase {
        let effect = Effect::Grant(request.clone());
        let attempt = Attempt { in_doubt, retry_at: None };
        self.go(Phase::Granting { change, request, attempt }, effect, effects)
    }

    pub(super) fn granted(
        &mut self,
        change: Change,
        request: &GrantRequest,
        token: i64,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        self.calls.failures = 0;
        self.calls.in_vain += 1;
        match change.reason {
            Reason::Switchover => self.last_request.grants += 1,
            reason if reason.is_planned() => {
                (self.pacing.moves, self.delays.preferred) = (now + MOVE_PAUSE, None);
            }
            _ => {}
        }
        if self.known.is_behind() {
            self.pacing.regains = now + REGAIN_INTERVAL;
        }
        let confirmed = self.known.is_confirmed();
        let fresh = self.cannot_be_active(&change.holder, confirmed);
        self.unused.granted(request.id.to_string(), &change.holder.uid, fresh);
        let row = &mut self.known.row;
        let former = row.holder.replace(change.holder.clone());
        row.pending.extend(former);
        (row.token, row.grant, row.confirmed) = (token, Some(request.id), false);
        row.reason = Some(change.reason);
        // The answer was late, and the evidence has changed.
        if self.is_heard_again(&change) {
            return self.stay(change, now, effects);
        }
        if !self.is_fit(&change.holder) {
            return self.pass_over(change, now, effects);
        }
        if self.lacks_agent(&change.holder) {
            // Its agent was started again, or has seen a larger token.
            return self.back_off(now);
        }
        self.fence(change, confirmed, now, effects)
    }

    /// Step 2, for the term in the row. `confirmed` means that the current declaration is of a confirmed term.
    pub(super) fn declare(&mut self, change: Change, confirmed: bool, effects: &mut Effects) -> Phase {
        let (row, declared) = (&self.known.row, &self.known.declared);
        // The pods that may still carry the active label: the holders of all terms since the last confirmed one. A
        // row that lost commits may lack some, so those in the declaration count, too.
        let mut former = row.pending.clone();
        if !confirmed {
            former.extend(declared.holder.clone());
            former.extend(declared.strip.iter().cloned());
        }
        if self.world.policy.deletes_demoted {
            // Those that are still to be deleted.
            former.extend(declared.strip.iter().filter(|pod| self.member(&pod.uid).is_some()).cloned());
        }
        let stripped = |pod: &PodRef| {
            pod.uid != change.holder.uid && (!self.unused.spare(&pod.uid) || self.reads_as_active(pod))
        };
        let strip = distinct(former).into_iter().filter(stripped).collect();
        let (run, former) = self.program_for(&change.holder);
        let next = Declaration {
            token: row.token,
            grant: row.grant.map(|id| id.to_string()),
            holder: Some(change.holder.clone()),
            strip,
            run,
            former,
            switchover: self.fulfilled(&change.holder),
            unknown: declared.unknown.clone(),
        };
        // This version was read before the declaration. A write bound to it cannot arrive late, because a replica
        // that declares a larger token writes to this pod before it promotes another one.
        let witness = self.member(&change.holder.uid).map(|member| member.version.clone());
        let effect = Effect::Declare { previous: declared.clone(), next: next.clone() };
        self.go(Phase::Declaring { change, next, witness }, effect, effects)
    }

    /// Step 3, for the declared term.
    pub(super) fn strip(&mut self, change: Change, witness: Option<String>, effects: &mut Effects) -> Phase {
        self.note_strays(&change.holder.uid);
        let pods = self.to_strip(&change.holder.uid);
        let token = self.known.declared.token;
        self.go(Phase::Stripping { change, witness }, Effect::Strip { token, pods }, effects)
    }

    /// The pods that may be active, but for the holder of the declared term.
    pub(super) fn to_strip(&self, holder: &str) -> Vec<PodAt> {
        let declared = &self.known.declared;
        let strays = self.strays(holder).map(|member| member.pod.clone());
        let mut pods = distinct(declared.strip.iter().cloned().chain(strays).collect());
        pods.retain(|pod| pod.uid != holder);
        pods.into_iter().map(|pod| self.seen(pod, |member| member.to_strip(declared.token))).collect()
    }

    /// Step 4.
    pub(super) fn promote(
        &mut self,
        change: Change,
        version: String,
        conflicts: u32,
        effects: &mut Effects,
    ) -> Phase {
        let declared = &self.known.declared;
        self.unused.promoting(declared.grant.as_deref());
        let effect = Effect::Promote { token: declared.token, pod: change.holder.clone(), version };
        self.go(Phase::Promoting { change, conflicts }, effect, effects)
    }

    pub(super) fn recheck(&mut self, change: Change, conflicts: u32, effects: &mut Effects) -> Phase {
        let effect = Effect::Recheck(change.holder.clone());
        self.go(Phase::Rechecking { change, conflicts }, effect, effects)
    }

    /// Step 5.
    pub(super) fn confirm(&mut self, change: Change, effects: &mut Effects) -> Phase {
        let effect = Effect::Confirm { token: self.known.row.token };
        self.go(Phase::Confirming { change, retry_at: None }, effect, effects)
    }

    pub(super) fn confirmed(&mut self, change: Change, now: Duration, effects: &mut Effects) -> Phase {
        self.known.row.confirmed = true;
        self.known.row.pending = vec![change.holder.clone()];
        self.calls.succeeded();
        self.unused.forget();
        self.delays.lost = None;
        self.stamping.after = now;
        let token = self.known.row.token;
        let replaced = change.from.as_ref().filter(|former| **former != change.holder);
        if replaced.is_some() {
            // The last grant was not in vain.
            self.pacing.moves = now;
        }
        let failed = replaced.filter(|_| change.reason.is_failure()).map(|former| former.uid.as_str());
        self.lapses.changed(token, failed);
        let finished = Finished {
            token,
            from: change.from,
            to: Some(change.holder),
            reason: change.reason,
            took: now.saturating_sub(change.began),
        };
        self.emit(Effect::Finished(finished), effects);
        Phase::Stable
    }
}

/// Each pod once, in order.
pub(super) fn distinct(pods: Vec<PodRef>) -> Vec<PodRef> {
    let mut seen = std::collections::BTreeSet::new();
    pods.into_iter().filter(|pod| seen.insert(pod.uid.clone())).collect()
}
