//! The operator's side: what a replica may write into the declaration, and when.
//!
//! A replica acts on what it has received, and each of its writes may arrive late. What it knows of the past it has
//! measured on its own clock.

use std::{collections::BTreeMap, time::Duration};

use leadergroup_agent::contract::{Boot, Former, FormerRun, KILL_MARGIN, Promise, Run, outlasts};

use crate::{
    agent::Clock,
    broken::Rule,
    declaration::{Declaration, Object},
};

/// The longest lease of the model. The product's own is longer than a schedule lasts.
pub const LONGEST: Duration = Duration::from_secs(6);

/// What a replica has received.
pub struct Replica {
    pub clock: Clock,
    /// The group as it was received last.
    pub seen: Option<Object>,
    /// When a declaration with this token or a larger one was first received, by the UID of the group.
    shown: BTreeMap<(u64, i64), u64>,
    /// When each hold was first received.
    holds: BTreeMap<String, u64>,
    /// What the agents have promised. It stays true for ever.
    promises: BTreeMap<Boot, Vec<Promise>>,
    /// The boots that terminated containers have named.
    terminated: Vec<Boot>,
    /// The boots whose pods are gone, or have another container now: no evidence.
    replaced: Vec<Boot>,
}

impl Replica {
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            seen: None,
            shown: BTreeMap::new(),
            holds: BTreeMap::new(),
            promises: BTreeMap::new(),
            terminated: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// A read or the answer to a write was received. `at` is the time that counts.
    pub fn receive(&mut self, object: Option<Object>, at: u64) {
        if let Some(object) = &object {
            let token = object.declaration.as_ref().map_or(0, |declared| declared.token);
            self.shown.entry((object.uid, token)).or_insert(at);
            let hold = object.declaration.as_ref().and_then(|declared| declared.run.as_ref()?.hold.clone());
            if let Some(hold) = hold {
                self.holds.entry(hold).or_insert(at);
            }
        }
        self.seen = object;
    }

    pub fn promised(&mut self, promise: Promise) {
        self.promises.entry(promise.boot).or_default().push(promise);
    }

    pub fn terminated(&mut self, boots: impl IntoIterator<Item = Boot>) {
        self.terminated.extend(boots);
    }

    pub fn replaced(&mut self, boots: impl IntoIterator<Item = Boot>) {
        self.replaced.extend(boots);
    }

    /// Whether the program of this boot and token is over, by its agent's own word or its kubelet's.
    fn is_said_to_be_over(&self, boot: Boot, token: i64, broken: Option<Rule>) -> bool {
        let least = if broken == Some(Rule::FloorAboveToken) { token } else { token + 1 };
        let promises = self.promises.get(&boot);
        promises.is_some_and(|all| all.iter().any(|promise| promise.idle && promise.floor >= least))
            || self.terminated.contains(&boot)
            || (broken == Some(Rule::VanishedPod) && self.replaced.contains(&boot))
    }

    /// Since when this replica has known of a term after this one.
    fn known_since(&self, uid: u64, after: i64) -> Option<u64> {
        self.shown.range((uid, after + 1)..(uid + 1, i64::MIN)).map(|(_, at)| *at).min()
    }

    /// When the lease of the former program is over, whatever became of it, if that is known (O2, c). In true time.
    fn lapses_at(&self, uid: u64, former: &Former, broken: Option<Rule>) -> Option<u64> {
        let (since, lease) = match former {
            Former::Over => return None,
            Former::Anyone => (self.known_since(uid, i64::MIN), LONGEST),
            Former::One(FormerRun { token, lease, hold, .. }) => {
                let held = match broken {
                    Some(Rule::SameHold) => self.holds.values().copied().min(),
                    _ => hold.as_ref().and_then(|hold| self.holds.get(hold).copied()),
                };
                (self.known_since(uid, *token).into_iter().chain(held).min(), *lease)
            }
        };
        let wait = match broken {
            Some(Rule::Margin) => lease + KILL_MARGIN,
            Some(Rule::KillMargin) => outlasts(lease).saturating_sub(KILL_MARGIN),
            _ => outlasts(lease),
        };
        Some(since? + self.clock.true_time(wait))
    }

    /// Whether the former program is over (O2).
    fn is_over(&self, uid: u64, former: &Former, now: u64, broken: Option<Rule>) -> bool {
        let said = match former {
            Former::Over => true,
            Former::One(run) => self.is_said_to_be_over(run.boot, run.token, broken),
            Former::Anyone => false,
        };
        said || self.lapses_at(uid, former, broken).is_some_and(|at| now >= at)
    }

    /// When it may let the program of the declared term start without anyone's word.
    pub fn clears_at(&self, broken: Option<Rule>) -> Option<u64> {
        let seen = self.seen.as_ref()?;
        let declared = seen.declaration.as_ref()?;
        declared.run.as_ref().filter(|run| !run.cleared)?;
        self.lapses_at(seen.uid, &declared.former(), broken)
    }

    /// What the next term carries on: the program that may still run.
    fn former(declared: Option<&Declaration>, broken: Option<Rule>) -> Former {
        let (run, former) =
            declared.map_or((None, None), |declared| (declared.run.as_ref(), declared.former.as_ref()));
        match run {
            None if declared.is_none() && broken == Some(Rule::NewGroupWaits) => Former::Over,
            None if declared.is_some() && broken == Some(Rule::OffCarries) => Former::Over,
            Some(run) if broken == Some(Rule::FormerCarried) => Former::One(run.into()),
            run => Former::after(run, former),
        }
    }

    /// A new term for this agent (O1), with a token at least this much larger.
    pub fn change(
        &self,
        boot: Boot,
        lease: Duration,
        more: i64,
        broken: Option<Rule>,
    ) -> Option<(Object, Object)> {
        let seen = self.seen.clone()?;
        let floor = self.promises.get(&boot)?.iter().map(|promise| promise.floor).max()?;
        let declared = seen.declaration.as_ref();
        // Below the floor of its agent, the term would never start.
        let token = floor.max(declared.map_or(0, |declared| declared.token) + 1 + more);
        let former = Self::former(declared, broken);
        let run = Run { cleared: former == Former::Over, ..Run::uncleared(token, boot, lease) };
        let next = Declaration { token, run: Some(run), former: former.into_field() };
        Some(with(seen, next))
    }

    /// A term without supervision (O5).
    pub fn off(&self, broken: Option<Rule>) -> Option<(Object, Object)> {
        let seen = self.seen.clone()?;
        let declared = seen.declaration.as_ref()?;
        let former = Self::former(Some(declared), broken).into_field();
        let next = Declaration { token: declared.token + 1, run: None, former };
        Some(with(seen, next))
    }

    /// Lets the program start, if the former one is over (O2).
    pub fn clear(&self, now: u64, broken: Option<Rule>) -> Option<(Object, Object)> {
        let seen = self.seen.clone()?;
        let declared = seen.declaration.clone()?;
        let run = declared.run.clone().filter(|run| !run.cleared)?;
        let over = self.is_over(seen.uid, &declared.former(), now, broken);
        over.then(|| with(seen, Declaration { run: Some(Run { cleared: true, ..run }), ..declared }))
    }

    /// Asks the running program to end, because another pod is to take over (O3).
    pub fn stop(&self) -> Option<(Object, Object)> {
        let seen = self.seen.clone()?;
        let declared = seen.declaration.clone()?;
        let run = declared.run.clone().filter(|run| run.cleared && !run.stop)?;
        Some(with(seen, Declaration { run: Some(Run { stop: true, ..run }), ..declared }))
    }

    /// After the program was asked to end, and is over: the next one starts at once (O3).
    pub fn switch(&self, boot: Boot, lease: Duration, broken: Option<Rule>) -> Option<(Object, Object)> {
        let seen = self.seen.clone()?;
        let declared = seen.declaration.clone()?;
        let run = declared.run.as_ref().filter(|run| run.cleared && run.stop)?;
        let is_over = self.is_said_to_be_over(run.boot, declared.token, broken);
        if !is_over && broken != Some(Rule::PlannedWaits) {
            return None;
        }
        let floor = self.promises.get(&boot)?.iter().map(|promise| promise.floor).max()?;
        let token = floor.max(declared.token + 1);
        let run = Run { cleared: true, ..Run::uncleared(token, boot, lease) };
        Some(with(seen, Declaration { token, run: Some(run), former: None }))
    }

    /// Sets a hold, or takes it back (O4).
    pub fn hold(&self, hold: Option<String>) -> Option<(Object, Object)> {
        let seen = self.seen.clone()?;
        let declared = seen.declaration.clone()?;
        let run = declared.run.clone().filter(|run| run.cleared && run.hold.is_some() != hold.is_some())?;
        Some(with(seen, Declaration { run: Some(Run { hold, ..run }), ..declared }))
    }
}

/// The object that is expected, and the one with this declaration.
fn with(seen: Object, next: Declaration) -> (Object, Object) {
    let uid = seen.uid;
    (seen, Object { uid, declaration: Some(next) })
}
