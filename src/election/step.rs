//! One event in, effects out: what each phase does with it, and how the next one begins.

use std::time::Duration;

use super::{
    event::{Effect, Event, Outcome, Ticket},
    group::Group,
    pacing::{FIRST_BACKOFF, LONGEST_BACKOFF, growing},
    phase::{Phase, Removal, Retirement},
};

/// The effects of one step, each with the ticket that its outcome must carry.
pub(super) type Effects = Vec<(Ticket, Effect)>;

impl Group {
    /// Processes one event at the monotonic time `now`.
    ///
    /// At most one protocol effect is outstanding at a time. In addition there may be one [`Effect::Stamp`], one
    /// [`Effect::Delete`] and an [`Effect::Tell`] in the background, and an [`Effect::Finished`], which has no
    /// outcome.
    pub fn step(&mut self, event: Event, now: Duration) -> Effects {
        let mut effects = Effects::new();
        self.wake = None;
        self.refusals.set_time(now);
        self.lapses.set_time(now);
        self.trials.accepted.take_if(|(_, until)| now >= *until);
        match event {
            Event::World(world) => self.refresh(world),
            Event::Owned { seed, row, world } => {
                self.refresh(world);
                self.forget();
                self.calls.seed = seed.as_u128();
                // An effect of an earlier election of this group, which was forgotten, may still be under way.
                self.calls.last = seed.as_u64_pair().1 >> 1;
                self.phase = self.adopt(row, now, &mut effects);
            }
            Event::Disowned => {
                self.forget();
                self.phase = Phase::Observing;
            }
            Event::Buried if self.phase == Phase::Observing && self.world.deleting => {
                self.phase = self.retire(Retirement::at(Removal::Labels), &mut effects);
            }
            // During a change the doubt is only recorded: the row is read when the group is stable.
            Event::Doubt => self.known.doubted = self.is_at_work(),
            Event::Outcome(ticket, outcome, world) => {
                self.refresh(world);
                self.answered(ticket, outcome, now, &mut effects);
            }
            Event::Buried | Event::Tick => {}
        }
        self.see_programs(now);
        self.cut_trial_short(now);
        if self.calls.awaiting.is_none() {
            let phase = self.leave_phase();
            self.phase = self.advance(phase, now, &mut effects);
        }
        if let Some(at) = self.refusals.wake().filter(|_| self.is_at_work()) {
            self.wake_at(at);
        }
        effects
    }

    fn answered(&mut self, ticket: Ticket, outcome: Outcome, now: Duration, effects: &mut Effects) {
        if self.stamping.is(ticket) {
            self.stamped(outcome, now);
        } else if self.deleting.is(ticket) {
            self.deleted(outcome, now);
        } else if self.hooks.is(ticket) {
            self.told_later(outcome, now);
        } else if self.calls.awaiting == Some(ticket) {
            self.calls.awaiting = None;
            let phase = self.leave_phase();
            self.phase = self.conclude(phase, outcome, now, effects);
        }
    }

    /// Takes the phase, to be followed at once by the one that results. What stands in its place is never seen.
    fn leave_phase(&mut self) -> Phase {
        std::mem::replace(&mut self.phase, Phase::Reading)
    }

    /// The turn of a phase that awaits no outcome: what follows it by now. It stays if it has to wait longer.
    pub(super) fn advance(&mut self, phase: Phase, now: Duration, effects: &mut Effects) -> Phase {
        if phase.needs_the_lock() && self.world.deleting && self.world.lock_away {
            // No grant is possible while the database is unavailable, so the labels may be cleared without ownership.
            return self.retire(Retirement::at(Removal::Labels), effects);
        }
        if let Some(at) = phase.wakes_at().filter(|at| now < *at) {
            self.wake_at(at);
            return phase;
        }
        match phase {
            Phase::BackingOff { .. } => self.read(effects),
            Phase::Resuming { holder, until } => self.resume(holder, until, now, effects),
            Phase::Stable if self.world.stopping => phase,
            Phase::Stable if self.known.doubted => self.read(effects),
            Phase::Stable => self.evaluate(now, effects),
            Phase::Stopping { declaring: None, .. } | Phase::Clearing { declaring: None, .. }
                if self.is_overtaken() =>
            {
                self.read(effects)
            }
            Phase::Stopping { change, declaring: None, until } => self.stopping(change, until, now, effects),
            Phase::Clearing { change, witness, declaring: None } => self.clear(change, witness, now, effects),
            Phase::Granting { change, request, attempt } => {
                self.ask(change, request, attempt.in_doubt, effects)
            }
            Phase::Confirming { change, .. } => self.confirm(change, effects),
            Phase::Vacating(attempt) => self.vacate(attempt.in_doubt, effects),
            Phase::Retiring(retirement) => self.retire(retirement, effects),
            // Nothing is asked for in the first two. In the others there is always an outcome to come.
            Phase::Observing
            | Phase::Retired
            | Phase::Reading
            | Phase::Regaining
            | Phase::Verifying { .. }
            | Phase::Relabelling { .. }
            | Phase::Trying(_)
            | Phase::Stopping { .. }
            | Phase::Fencing(_)
            | Phase::Declaring { .. }
            | Phase::Stripping { .. }
            | Phase::Clearing { .. }
            | Phase::Telling { .. }
            | Phase::Promoting { .. }
            | Phase::Rechecking { .. }
            | Phase::Repairing => phase,
        }
    }

    pub(super) fn emit(&mut self, effect: Effect, effects: &mut Effects) -> Ticket {
        self.calls.last += 1;
        effects.push((self.calls.last, effect));
        self.calls.last
    }

    /// Emits the next effect of the protocol, whose outcome is awaited in `phase`.
    pub(super) fn go(&mut self, phase: Phase, effect: Effect, effects: &mut Effects) -> Phase {
        self.calls.awaiting = Some(self.emit(effect, effects));
        phase
    }

    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn read(&mut self, effects: &mut Effects) -> Phase {
        self.known.doubted = false;
        self.go(Phase::Reading, Effect::Read, effects)
    }

    pub(super) fn back_off(&mut self, now: Duration) -> Phase {
        Phase::BackingOff { until: now + self.next_pause() }
    }

    pub(super) fn next_pause(&mut self) -> Duration {
        self.calls.failures += 1;
        growing(FIRST_BACKOFF, LONGEST_BACKOFF, self.calls.failures.max(self.calls.in_vain))
    }
}
