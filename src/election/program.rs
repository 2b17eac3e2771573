//! The programs that agents run: when the former one is over, and when the next one may start.
//!
//! An agent runs the program of its pod only while the declaration names its boot, and for at most one lease after its
//! last read of that. So a program is over when
//!
//! - its agent has promised so, or the kubelet says that this start of the agent has ended; or
//! - its lease has passed since this replica saw a declaration of a later term. From then on no read shows the former
//!   one.
//!
//! A new term is declared without its program being *cleared*, that is, allowed to start. Once the former program is
//! over, a second compare-and-set clears it. If the former program is over before the term is declared, as after a
//! planned stop, the declaration clears it at once.

use std::time::Duration;

use super::{
    evaluate::RELABEL_INTERVAL,
    event::Effect,
    group::Group,
    phase::{Change, Phase},
    step::Effects,
    world::Member,
};
use crate::api::{Declaration, Former, FormerRun, PodRef, Promised, Reason, Run, Verdict};

/// How often the agent is asked whose answer is awaited.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// How often it is looked whether an agent has answered that seems not to read the declaration.
const ANSWER_INTERVAL: Duration = Duration::from_millis(250);
/// How much larger than the declared token one may be that an agent has seen: in a group that was created again, or
/// whose status was restored from a backup. There is room for a million such leaps.
const MOST_AHEAD: i64 = 1 << 32;

impl Group {
    /// Takes in the declarations that are known by now.
    pub(super) fn see_programs(&mut self, now: Duration) {
        self.programs.now = now;
        self.programs.see(&self.world.declared);
        self.programs.see(&self.known.declared);
        let declared = [&self.world.declared, &self.known.declared];
        let present = declared.iter().filter_map(|declared| declared.program().map(FormerRun::from));
        let former = declared.iter().filter_map(|declared| declared.former.clone());
        let over = present.chain(former).filter(|run| self.is_said_to_be_over(run)).collect();
        self.programs.over = over;
    }

    /// Whether this program is over, by the word of its agent or the kubelet.
    fn is_said_to_be_over(&self, run: &FormerRun) -> bool {
        let says = |member: &Member| {
            member.ended.contains(&run.boot) || member.agent.is_some_and(|agent| agent.is_over(run))
        };
        self.programs.over.contains(run) || self.world.members.iter().any(says)
    }

    fn is_over(&self, former: &Former) -> bool {
        let said = match former {
            Former::Over => true,
            Former::One(run) => self.is_said_to_be_over(run),
            Former::Anyone => false,
        };
        said || self.programs.lapses_at(former).is_some_and(|at| self.programs.now >= at)
    }

    /// The program of a new term for this pod, and what may run beside it. Without an answer of the pod's agent there
    /// is none.
    pub(super) fn program_for(&self, pod: &PodRef) -> (Option<Run>, Option<FormerRun>) {
        let former = self.known.declared.former_of_next();
        let Some((policy, agent)) = self.world.policy.agent.zip(self.agent_of(pod)) else {
            return (None, former.into_field());
        };
        let run = Run::uncleared(self.known.row.token, agent.boot, policy.lease);
        if self.is_over(&former) {
            return (Some(Run { cleared: true, ..run }), None);
        }
        (Some(run), former.into_field())
    }

    fn agent_of(&self, pod: &PodRef) -> Option<Promised> {
        self.member(&pod.uid)?.agent
    }

    /// Whether a term for this pod could not start its program: its agent has not answered, or starts nothing below a
    /// larger token.
    pub(super) fn lacks_agent(&self, pod: &PodRef) -> bool {
        self.world.policy.agent.is_some()
            && self.agent_of(pod).is_none_or(|agent| agent.floor > self.known.row.token)
    }

    /// Whether the agent of this pod has answered.
    pub(super) fn has_answered(&self, pod: &PodRef) -> bool {
        self.agent_of(pod).is_some()
    }

    /// The least token under which the agent of this pod starts a program.
    pub(super) fn least_token_for(&self, pod: &PodRef) -> i64 {
        self.agent_of(pod).map_or(0, |agent| agent.floor)
    }

    /// Whether the agent of this pod claims to have seen a token so large that a term above it would use up the group's
    /// tokens. A pod may claim anything.
    pub(super) fn is_far_ahead(&self, member: &Member) -> bool {
        let most = self.known.declared.token.saturating_add(MOST_AHEAD);
        member.agent.is_some_and(|agent| agent.floor > most)
    }

    /// Whether the declared term is this pod's, and its program may run.
    pub(super) fn may_run(&self, pod: &PodRef) -> bool {
        let is_declared = self.known.declared.holder.as_ref() == Some(pod);
        is_declared && self.known.declared.program().is_some_and(|run| run.cleared)
    }

    /// What the program of the declared term says against its holder: it is over, and the pod is not known to be able
    /// to start another one; or it has not started within a lease, because the agent cannot read the declaration. The
    /// agent must have said so after that lease: if this replica has not heard it since, it may have started long ago.
    pub(super) fn case_against_program(&self, member: &Member) -> Option<Reason> {
        let run = self.known.declared.program().filter(|_| self.may_run(&member.pod))?;
        let agent = member.agent.filter(|agent| agent.boot == run.boot)?;
        let is_over = member.verdict != Verdict::Eligible && self.is_said_to_be_over(&run.into());
        let late_at = self.programs.late_at(run);
        let is_late = agent.floor < run.token && late_at.is_some_and(|at| member.asked_at >= Some(at));
        (is_over || is_late).then_some(Reason::ProgramEnded)
    }

    /// Whether the holder, which is active and works, needs a new term now: the present one cannot run a program in it
    /// any more, or runs one although the group has no agents. The holder stays the same, so this happens in a group
    /// that is paused, too.
    pub(super) fn lacks_program(&self, holder: &PodRef) -> bool {
        if !self.is_proven(&holder.uid) || !self.keeps_its_label() {
            return false;
        }
        let program = self.known.declared.program();
        match (self.world.policy.agent, program) {
            (None, program) => program.is_some(),
            (Some(_), None) => self.agent_of(holder).is_some(),
            (Some(_), Some(run)) => !run.cleared || run.stop || self.has_lost_program(holder, run),
        }
    }

    fn has_lost_program(&self, holder: &PodRef, run: &Run) -> bool {
        let restarted = self.agent_of(holder).is_some_and(|agent| agent.boot != run.boot);
        restarted || self.is_said_to_be_over(&run.into())
    }

    /// Looks again when the program of the declared term should have started, if it has not yet, and then until the
    /// agent has answered.
    pub(super) fn wake_if_late(&mut self, holder: &PodRef) {
        let run = self.known.declared.program().filter(|run| run.cleared);
        let waits = |run: &&Run| self.agent_of(holder).is_some_and(|agent| agent.floor < run.token);
        if let Some(at) = run.filter(waits).and_then(|run| self.programs.late_at(run)) {
            self.wake_at(at.max(self.programs.now + ANSWER_INTERVAL));
        }
    }

    /// Begins a new term for the holder, whose declared term cannot run a program. If nothing but the declaration says
    /// so, that is read again before: the one that is known may be from a watch that is behind.
    pub(super) fn start_program(&mut self, holder: &PodRef, now: Duration, effects: &mut Effects) -> Phase {
        if now < self.pacing.relabels {
            self.wake_at(self.pacing.relabels);
            return Phase::Stable;
        }
        let program = self.known.declared.program();
        let is_known = program.is_some_and(|run| self.has_lost_program(holder, run));
        let token = self.known.declared.token;
        if !is_known && self.programs.read_for != Some(token) {
            self.programs.read_for = Some(token);
            return self.read(effects);
        }
        self.pacing.relabels = now + RELABEL_INTERVAL;
        self.change(holder.clone(), Reason::ProgramEnded, now, effects)
    }

    /// The program that has to end before this planned change.
    fn program_to_stop(&self, change: &Change) -> Option<&Run> {
        let planned = change.reason.is_planned() && self.known.is_finished();
        let program = self.known.declared.program().filter(|run| planned && run.cleared)?;
        (!self.is_said_to_be_over(&program.into())).then_some(program)
    }

    /// Before step 1 of a planned change: asks the former program to end, and waits for that. Returns the change if
    /// there is nothing to wait for.
    pub(super) fn stop_program(&mut self, change: Change, effects: &mut Effects) -> Result<Phase, Change> {
        let policy = self.world.policy.agent;
        let Some((run, policy)) = self.program_to_stop(&change).zip(policy) else { return Err(change) };
        let previous = self.known.declared.clone();
        let run = Run { stop: true, ..run.clone() };
        let next = Declaration { run: Some(run), ..previous.clone() };
        let until = self.programs.now + policy.stop_timeout;
        if next == previous {
            return Ok(Phase::Stopping { change, declaring: None, until });
        }
        let effect = Effect::Declare { previous, next: next.clone() };
        Ok(self.go(Phase::Stopping { change, declaring: Some(next), until }, effect, effects))
    }

    /// Goes on with a planned change as soon as the former program has ended. If it has not ended in time, or its pod
    /// fails, the change goes on as a failover does, and waits for the lease.
    pub(super) fn stopping(
        &mut self,
        change: Change,
        until: Duration,
        now: Duration,
        effects: &mut Effects,
    ) -> Phase {
        // A pause does not stop it: the program may have ended.
        if self.world.obstacle.is_some() || self.world.deleting {
            return self.settle(now);
        }
        let former_fails = change.from.as_ref().is_none_or(|from| self.case_against(from).is_some());
        if self.program_to_stop(&change).is_some() && now < until && !former_fails {
            self.wake_at(until.min(now + ASK_INTERVAL));
            return Phase::Stopping { change, declaring: None, until };
        }
        if self.is_fit(&change.holder) {
            return self.grant(change, effects);
        }
        // No term starts twice, so the former holder needs a new one, too.
        let stays = |former: &&PodRef| self.reads_as_active(former) && self.works(former);
        if let Some(holder) = change.from.as_ref().filter(stays).cloned() {
            let from = Some(holder.clone());
            return self.grant(Change { holder, from, reason: Reason::Resumed, began: now }, effects);
        }
        match self.best(change.from.as_ref(), |member| member.pod != change.holder) {
            Some(holder) => self.grant(Change { holder, ..change }, effects),
            None => self.settle(now),
        }
    }

    /// After step 3: lets the program of the declared term start once the former one is over. `None` if that is so
    /// already, or if there is no program.
    pub(super) fn clear_program(
        &mut self,
        change: &Change,
        witness: Option<&String>,
        now: Duration,
        effects: &mut Effects,
    ) -> Option<Phase> {
        let run = self.known.declared.program().filter(|run| !run.cleared)?;
        let (change, witness) = (change.clone(), witness.cloned());
        let former = self.known.declared.former();
        if !self.is_over(&former) {
            if self.world.deleting {
                return Some(self.settle(now));
            }
            let lapses = self.programs.lapses_at(&former).unwrap_or(now + ASK_INTERVAL);
            self.wake_at(lapses.min(now + ASK_INTERVAL));
            return Some(Phase::Clearing { change, witness, declaring: None });
        }
        let previous = self.known.declared.clone();
        let run = Some(Run { cleared: true, ..run.clone() });
        let next = Declaration { run, former: None, ..previous.clone() };
        let effect = Effect::Declare { previous, next: next.clone() };
        Some(self.go(Phase::Clearing { change, witness, declaring: Some(next) }, effect, effects))
    }

    /// The pod whose agent may say at any moment that the former program is over. It is asked out of turn.
    pub(crate) fn awaits_answer_of(&self) -> Option<&str> {
        let run: FormerRun = match &self.phase {
            Phase::Stopping { declaring: None, .. } => self.known.declared.program()?.into(),
            Phase::Clearing { declaring: None, .. } => match self.known.declared.former() {
                Former::One(run) => run,
                Former::Over | Former::Anyone => return None,
            },
            _ => return None,
        };
        let runs = |agent: &Promised| agent.boot == run.boot;
        let mut members = self.world.members.iter();
        members.find(|member| member.agent.as_ref().is_some_and(runs)).map(|member| member.pod.uid.as_str())
    }

    /// For how long in all the present change waits for the end of the former program at most, if it does.
    pub(crate) fn waits_for_program(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Stopping { .. } => self.world.policy.agent.map(|policy| policy.stop_timeout),
            Phase::Clearing { declaring: None, .. } => Some(self.known.declared.former().wait()),
            _ => None,
        }
    }
}
