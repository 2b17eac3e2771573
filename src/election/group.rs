//! The state of one group: the world as last seen, the lock's row, and the current step.

use std::time::Duration;

use uuid::Uuid;

use super::{
    event::{GrantRequest, Ticket},
    lapses::Lapses,
    refusal::{Refusals, Refused},
    request::LastRequest,
    unused::UnusedTerms,
    world::{Member, Row, Standing, World},
};
use crate::api::{Declaration, PodAt, PodRef, Reason, Role};

/// A change of holder in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The pod to make active.
    pub holder: PodRef,
    /// The reason of the change.
    pub reason: Reason,
    /// The pod that was active before.
    pub from: Option<PodRef>,
    /// When the change was decided.
    pub began: Duration,
}

/// The position of a group in the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Another replica is the owner, or none.
    Observing,
    /// The row and the declaration are being read.
    Reading,
    /// Waiting to read them again after a failure.
    BackingOff {
        /// When to read.
        until: Duration,
    },
    /// An unfinished term was found; there is no evidence about its holder yet.
    Resuming {
        /// When to stop waiting and decide again.
        until: Duration,
    },
    /// The row lost commits, and the declared holder is not labelled active. It is being read again before another
    /// pod is chosen.
    Regaining,
    /// Row, declaration and labels agree.
    Stable,
    /// The holder's end is being confirmed by a quorum read.
    Verifying {
        /// The reason to replace the holder.
        reason: Reason,
        /// Whether there has been evidence since then that no read can refute, even if its cause is over: a container
        /// that ended may be running again by the time the pod is read.
        certain: bool,
    },
    /// The holder of a confirmed term is not labelled active. It is being read again before its label is restored.
    Relabelling,
    /// Before step 1, if it is not known whether the API server lets the new holder be changed: a dry run of step 4.
    Trying(Change),
    /// Step 1.
    Granting(Change),
    /// Before step 2, if the declared term was not confirmed: a promotion under it may still be in flight. Its holder
    /// gets that term's stamp as a standby; after that no such promotion can take effect.
    Fencing(Change),
    /// Step 2.
    Declaring(Change),
    /// Step 3.
    Stripping(Change),
    /// Step 4.
    Promoting(Change),
    /// Before step 4, unless the holder was read before the declaration: the pod, the declaration and the row are
    /// being read, in this order.
    Rechecking(Change),
    /// Step 5.
    Confirming(Change),
    /// The lock is being freed: its holder has ended and there is no successor.
    Vacating,
    /// Pods that are labelled active without being the holder are being stripped.
    Repairing,
    /// The group is being deleted: first the row, then the labels, then the finalizer.
    Retiring(Retirement),
    /// The group is gone.
    Retired,
}

/// The steps of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    /// The row becomes a tombstone.
    Tombstone,
    /// The labels are settled.
    Labels,
    /// The finalizer is removed.
    Finalizer,
}

/// The state of one group, advanced by [`Group::step`].
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) world: World,
    pub(super) row: Row,
    pub(super) declared: Declaration,
    pub(super) phase: Phase,
    /// The resourceVersion of the new holder, read before the declaration.
    pub(super) witness: Option<String>,
    /// Source of grant ids: counts up from a random seed that comes with the ownership.
    pub(super) seed: u128,
    pub(super) tickets: u64,
    /// The ticket of the effect whose outcome is awaited.
    pub(super) awaiting: Option<u64>,
    /// The ticket of the background stamping in progress, or of a dry run in its place, if any.
    pub(super) stamping: Option<u64>,
    /// The earliest time of the next background stamping.
    pub(super) stamp_after: Duration,
    /// Consecutive failures of background stampings, for the pauses between them.
    pub(super) stamp_failures: u32,
    /// What the API server refused to write.
    pub(super) refusals: Refusals,
    /// The UID of the standby for which a dry run in the background asks again.
    pub(super) retried: Option<String>,
    /// The UID of the pod that passed the last dry run: the API server would let it be labelled active.
    pub(super) accepted: Option<String>,
    /// The UIDs of the pods whose dry runs for the present change had no definite answer.
    pub(super) unanswered: Vec<String>,
    /// What became of the last request for a switchover.
    pub(super) last_request: LastRequest,
    /// The pods that failed lately. Kept while other replicas own the group.
    pub(super) lapses: Lapses,
    /// The earliest time of the next change that nobody requested and no failure calls for.
    pub(super) move_after: Duration,
    /// The pod that the role would go back to, and since when it could have.
    pub(super) preferred: Option<(String, Duration)>,
    /// The terms under which no pod can have become active.
    pub(super) unused: UnusedTerms,
    /// The earliest time at which a lost label may be restored again.
    pub(super) relabel_after: Duration,
    /// The earliest time at which the group may continue under a larger token again because its row is behind.
    pub(super) regain_after: Duration,
    /// The grant of the row's term before step 1 was requested.
    pub(super) former_grant: Option<Uuid>,
    /// The request of step 1, until its result is known.
    pub(super) grant: Option<GrantRequest>,
    /// Whether an attempt of that request, or of a release, failed but may have taken effect or still may.
    pub(super) in_doubt: bool,
    /// A stamp above the declared token, seen before the declaration was read last.
    pub(super) suspect: Option<i64>,
    /// Consecutive failures, for the back-off.
    pub(super) failures: u32,
    /// Consecutive conflicts while the new holder is being labelled.
    pub(super) conflicts: u32,
    /// The UID of the holder against which there is evidence, and since when, for the lock delay.
    pub(super) lost: Option<(String, Duration)>,
    /// When a deletion stops waiting for the database, or for rights to the pods.
    pub(super) retire_by: Option<Duration>,
    /// When a deletion leaves labels that could not be settled as they are, whatever the reason.
    pub(super) labels_by: Option<Duration>,
    /// When the failed step of a deletion, a failed confirmation, or the grant or release with an unknown result, is
    /// tried again.
    pub(super) retry_at: Option<Duration>,
    /// Whether the row may have changed without our doing since it was last read.
    pub(super) doubted: bool,
    /// When [`Group::step`] must be called again at the latest.
    pub(super) wake: Option<Duration>,
}

impl Group {
    /// A group that this replica does not own yet.
    pub fn new(world: World) -> Self {
        Self {
            declared: world.declared.clone(),
            world,
            row: Row::default(),
            phase: Phase::Observing,
            witness: None,
            seed: 0,
            tickets: 0,
            awaiting: None,
            stamping: None,
            stamp_after: Duration::ZERO,
            stamp_failures: 0,
            refusals: Refusals::default(),
            retried: None,
            accepted: None,
            unanswered: Vec::new(),
            last_request: LastRequest::default(),
            lapses: Lapses::default(),
            move_after: Duration::ZERO,
            preferred: None,
            unused: UnusedTerms::default(),
            relabel_after: Duration::ZERO,
            regain_after: Duration::ZERO,
            former_grant: None,
            grant: None,
            in_doubt: false,
            suspect: None,
            failures: 0,
            conflicts: 0,
            lost: None,
            retire_by: None,
            labels_by: None,
            retry_at: None,
            doubted: false,
            wake: None,
        }
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
        &self.row
    }

    /// The declaration as last read or made by this replica.
    pub fn declared(&self) -> &Declaration {
        &self.declared
    }

    /// Whether the election is at work: this replica became the owner, and no outcome has shown since that another one
    /// is, or that the group is gone. The labels of a deleted group may be settled without an owner.
    pub fn is_at_work(&self) -> bool {
        !matches!(self.phase, Phase::Observing | Phase::Retired)
    }

    /// Whether a change of holder is in progress: decided, but not complete.
    pub(crate) fn is_changing(&self) -> bool {
        matches!(
            self.phase,
            Phase::Verifying { .. }
                | Phase::Relabelling
                | Phase::Trying(_)
                | Phase::Granting(_)
                | Phase::Fencing(_)
                | Phase::Declaring(_)
                | Phase::Stripping(_)
                | Phase::Promoting(_)
                | Phase::Rechecking(_)
                | Phase::Confirming(_)
                | Phase::Vacating
        )
    }

    /// Whether a term was declared and its holder is not known to be active yet.
    pub(crate) fn is_past_declaration(&self) -> bool {
        matches!(self.phase, Phase::Stripping(_) | Phase::Promoting(_) | Phase::Rechecking(_))
    }

    /// Whether several steps in a row have failed, so that the next one may well fail too.
    pub(crate) fn fails_repeatedly(&self) -> bool {
        self.failures > 2
    }

    /// The declared holder, if it is a member.
    fn declared_holder(&self) -> Option<&Member> {
        let holder = self.world.declared.holder.as_ref()?;
        self.member(&holder.uid)
    }

    /// Whether the declared holder is labelled active, and nothing is known against it.
    pub(crate) fn has_healthy_active(&self) -> bool {
        self.declared_holder()
            .is_some_and(|member| member.role == Role::Active && member.standing.against().is_none())
    }

    /// Whether another replica hears the declared holder, and this one does not.
    pub(crate) fn is_heard_elsewhere(&self) -> bool {
        self.declared_holder().is_some_and(|member| member.standing == Standing::HeardElsewhere)
    }

    /// Whether this replica has probed the declared holder, and does not hear it.
    pub(crate) fn is_deaf_to_holder(&self) -> bool {
        self.declared_holder()
            .is_some_and(|member| matches!(member.standing, Standing::HeardElsewhere | Standing::Silent))
    }

    /// Whether this is the ticket of the background stamping, or of a dry run in its place.
    pub(crate) fn is_stamping(&self, ticket: Ticket) -> bool {
        self.stamping == Some(ticket)
    }

    /// Whether this is the ticket of a strip of pods that are labelled active without being the holder.
    pub(crate) fn is_repairing(&self, ticket: Ticket) -> bool {
        self.awaiting == Some(ticket) && self.phase == Phase::Repairing
    }

    /// The pods that the API server refuses to change, each with the last refusal.
    pub fn refused(&self) -> impl Iterator<Item = (&Member, &Refused)> {
        let members = self.world.members.iter();
        members.filter_map(|member| Some((member, self.refusals.of(&member.pod.uid)?)))
    }

    /// Whether the pod could be labelled active now, as far as is known.
    pub fn is_available(&self, member: &Member) -> bool {
        let refused = member.role != Role::Active && self.refusals.has(&member.pod.uid);
        member.standing == Standing::Eligible && !refused
    }

    /// Whether an outcome is awaited. A replica that shuts down waits for it.
    pub fn busy(&self) -> bool {
        self.awaiting.is_some()
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
        self.row.holder.as_ref()
    }

    /// The holder, if it is labelled active.
    pub fn active(&self) -> Option<&Member> {
        self.holder().and_then(|pod| self.member(&pod.uid)).filter(|member| member.role == Role::Active)
    }
}
