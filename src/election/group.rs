//! The state of one group: its phase, the world as last seen, and what outlasts a phase, by subject.

use std::time::Duration;

use super::{
    event::Ticket,
    former::Programs,
    knowledge::Knowledge,
    lapses::Lapses,
    pacing::{Delays, Deleting, Pacing, Stamping},
    phase::Phase,
    refusal::{Refusals, Refused},
    request::LastRequest,
    told::Hooks,
    unused::UnusedTerms,
    world::{Member, Row, World},
};
use crate::api::{Declaration, PodAt, PodRef, Role, Verdict};

/// The state of one group, advanced by [`Group::step`].
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) world: World,
    pub(super) known: Knowledge,
    pub(super) phase: Phase,
    pub(super) calls: Calls,
    pub(super) delays: Delays,
    pub(super) pacing: Pacing,
    pub(super) trials: Trials,
    /// The stamps of standbys, in the background.
    pub(super) stamping: Stamping,
    /// The deletion of pods that were active, in the background.
    pub(super) deleting: Deleting,
    /// What the pods were told.
    pub(super) hooks: Hooks,
    /// What became of the last request for a switchover.
    pub(super) last_request: LastRequest,
    /// What the API server refused to write.
    pub(super) refusals: Refusals,
    /// The pods that failed lately. Kept while other replicas own the group.
    pub(super) lapses: Lapses,
    /// The terms under which no pod can have become active.
    pub(super) unused: UnusedTerms,
    /// The programs of former terms.
    pub(super) programs: Programs,
    /// When [`Group::step`] must be called again at the latest.
    pub(super) wake: Option<Duration>,
}

/// The effects that were asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// Source of grant ids: counts up from a random seed that comes with the ownership.
    pub(super) seed: u128,
    /// The ticket of the last effect.
    pub(super) last: Ticket,
    /// The ticket of the effect whose outcome is awaited.
    pub(super) awaiting: Option<Ticket>,
    /// Consecutive failures, for the back-off.
    pub(super) failures: u32,
    /// Terms that were granted since the last one that was confirmed, for the back-off, too: if two databases act as
    /// primary, another replica may declare a term of its own before each of them is complete.
    pub(super) in_vain: u32,
}

/// The dry runs before a change.
#[derive(Clone, Debug, Default)]
pub(super) struct Trials {
    /// The UID of the pod that passed the last one, and until when that counts: the API server would let it be labelled
    /// active.
    pub(super) accepted: Option<(String, Duration)>,
    /// The UIDs of the pods whose dry runs for the present change had no definite answer.
    pub(super) unanswered: Vec<String>,
}

impl Calls {
    /// What was begun is complete.
    pub(super) fn succeeded(&mut self) {
        (self.failures, self.in_vain) = (0, 0);
    }
}

impl Group {
    /// A group that this replica does not own yet.
    pub fn new(world: World) -> Self {
        Self {
            known: Knowledge::unread(world.declared.clone()),
            world,
            phase: Phase::Observing,
            calls: Calls::default(),
            delays: Delays::default(),
            pacing: Pacing::default(),
            trials: Trials::default(),
            stamping: Stamping::default(),
            deleting: Deleting::default(),
            hooks: Hooks::default(),
            last_request: LastRequest::default(),
            refusals: Refusals::default(),
            lapses: Lapses::default(),
            unused: UnusedTerms::default(),
            programs: Programs::default(),
            wake: None,
        }
    }

    /// Forgets what an earlier ownership of this replica has left, but for the phase.
    pub(super) fn forget(&mut self) {
        self.calls.awaiting = None;
        self.calls.succeeded();
        self.known.suspect = None;
        self.delays = Delays::default();
        self.trials = Trials::default();
        self.stamping.forget();
        self.deleting.forget();
        self.hooks.forget();
        self.last_request = LastRequest::default();
        self.unused.forget();
    }

    /// The position in the protocol.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The world as last given.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The lock's row as last read or changed by this replica; meaningful only while it is the owner.
    pub fn row(&self) -> &Row {
        &self.known.row
    }

    /// The declaration as last read or made by this replica, or the one that it is making.
    pub fn declared(&self) -> &Declaration {
        self.phase.declaring().unwrap_or(&self.known.declared)
    }

    /// Whether the election is at work: this replica became the owner, and no outcome has shown since that another one
    /// is, or that the group is gone. The labels of a deleted group may be cleared without an owner.
    pub fn is_at_work(&self) -> bool {
        self.phase.is_at_work()
    }

    /// Whether a change of holder is in progress: decided, but not complete.
    pub(crate) fn is_changing(&self) -> bool {
        self.phase.is_changing()
    }

    /// Whether a term was declared and its holder is not known to be active yet.
    pub(crate) fn is_past_declaration(&self) -> bool {
        self.phase.is_past_declaration()
    }

    /// Whether several steps in a row have failed, so that the next one may well fail too.
    pub(crate) fn fails_repeatedly(&self) -> bool {
        self.calls.failures > 2
    }

    /// The declared holder, if it is a member.
    fn declared_holder(&self) -> Option<&Member> {
        let holder = self.world.declared.holder.as_ref()?;
        self.member(&holder.uid)
    }

    /// Whether the declared holder is labelled active, and nothing is known against it.
    pub(crate) fn has_healthy_active(&self) -> bool {
        self.declared_holder()
            .is_some_and(|member| member.role == Role::Active && member.verdict.against().is_none())
    }

    /// Whether another replica hears the declared holder, and this one does not.
    pub(crate) fn is_heard_elsewhere(&self) -> bool {
        self.declared_holder().is_some_and(|member| member.verdict == Verdict::HeardElsewhere)
    }

    /// Whether this replica has probed the declared holder, and does not hear it.
    pub(crate) fn is_deaf_to_holder(&self) -> bool {
        self.declared_holder()
            .is_some_and(|member| matches!(member.verdict, Verdict::HeardElsewhere | Verdict::Silent))
    }

    /// Whether this is the ticket of the background stamping, or of a dry run in its place.
    pub(crate) fn is_stamping(&self, ticket: Ticket) -> bool {
        self.stamping.is(ticket)
    }

    /// Whether this is the ticket of a strip of pods that are labelled active without being the holder.
    pub(crate) fn is_repairing(&self, ticket: Ticket) -> bool {
        self.calls.awaiting == Some(ticket) && self.phase == Phase::Repairing
    }

    /// The pods that cannot get or lose a role, each with the last refusal.
    pub fn refused(&self) -> impl Iterator<Item = (&Member, &Refused)> {
        let members = self.world.members.iter();
        members.filter_map(|member| Some((member, self.refusals.of(member)?)))
    }

    /// Whether the pod could be labelled active now, as far as is known.
    pub fn is_available(&self, member: &Member) -> bool {
        let refused = member.role != Role::Active && self.refusals.has(&member.pod.uid);
        member.verdict == Verdict::Eligible && !refused
    }

    /// Whether an outcome is awaited. A replica that shuts down waits for it.
    pub fn busy(&self) -> bool {
        self.calls.awaiting.is_some()
    }

    /// The latest time to call [`Group::step`] with [`super::Event::Tick`].
    pub fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// The member with this UID.
    pub fn member(&self, uid: &str) -> Option<&Member> {
        self.world.members.iter().find(|member| member.pod.uid == uid)
    }

    /// A pod to be written, as `known` makes it of the member. A pod that the watch does not show has to be read.
    pub(super) fn seen(&self, pod: PodRef, known: impl Fn(&Member) -> PodAt) -> PodAt {
        self.member(&pod.uid).map_or_else(|| pod.into(), known)
    }

    /// The holder according to the row.
    pub fn holder(&self) -> Option<&PodRef> {
        self.known.row.holder.as_ref()
    }

    /// The holder, if it is labelled active.
    pub fn active(&self) -> Option<&Member> {
        self.holder().and_then(|pod| self.member(&pod.uid)).filter(|member| member.role == Role::Active)
    }

    /// The members that are labelled active without being the holder.
    pub(crate) fn strays(&self, holder: &str) -> impl Iterator<Item = &Member> {
        self.world
            .members
            .iter()
            .filter(move |member| member.role == Role::Active && member.pod.uid != holder)
    }
}
