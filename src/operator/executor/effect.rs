//! Carrying out one effect of an election: its calls to the lock and the API server, and the outcome.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod telling;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};
use tokio::time::sleep;

use super::{Context, steps};
use crate::{
    api::{DeletionPolicy, Endpoints, PodAt, PodRef, Reason, Role, RoleChange, Sighting},
    election::{Effect, GrantRequest, Outcome, Rejection, Row, Ticket},
    health::PodFacts,
    hooks,
    operator::{message::Done, object::record::Record, trouble::Trouble},
    routing::{Declared, Promoted, RoutingError, Stamped, Stripped, Trial},
    telemetry::{LockOperation, LockOutcome, Trace},
};
use leadergroup_lock::{
    self, Changed, Holder, LockError, SessionId, Token,
    controller::{Granted, LockRow, Tombstone, Vacate},
};

/// The pause between the last strip and the promotion, if Services select the role label. It lets the EndpointSlice
/// controller see the one before the other; otherwise it finds its cache out of date and waits for a second.
const SLICES_FOLLOW: Duration = Duration::from_millis(5);

/// One effect to carry out.
#[derive(Debug)]
pub(in crate::operator) struct Order {
    pub(in crate::operator) record: Arc<Record>,
    /// This replica's session at the time when the effect was emitted.
    pub(in crate::operator) session: Option<SessionId>,
    pub(in crate::operator) ticket: Ticket,
    pub(in crate::operator) effect: Effect,
    /// The trace of the group's deletion, with its last step.
    pub(in crate::operator) trace: Option<Box<Trace>>,
}

/// Objects that were read on the way to an outcome.
#[derive(Default)]
struct Learned {
    pods: Vec<Pod>,
    stripped: bool,
    object: Option<Box<Sighting>>,
}

/// Why the calls of an effect ended early.
enum Failure {
    Rejected(Rejection),
    Uncleared(Trouble),
    /// The API server refuses to let the pod be active.
    Refused(Trouble, String),
    Unknown(Trouble),
    Trouble(Trouble),
}

impl Failure {
    fn refused(error: &RoutingError) -> Self {
        Self::Refused(Trouble::from(error), error.to_string())
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        match error {
            LockError::SessionDead => Self::Rejected(Rejection::NotOwner),
            LockError::Timeout { .. } | LockError::Interrupted { .. } => {
                Self::Unknown(Trouble::Lock(error.to_string()))
            }
            other => Self::Trouble(Trouble::Lock(other.to_string())),
        }
    }
}

impl From<RoutingError> for Failure {
    fn from(error: RoutingError) -> Self {
        Self::Trouble(Trouble::from(&error))
    }
}

impl From<leadergroup_lock::Refusal> for Failure {
    fn from(refusal: leadergroup_lock::Refusal) -> Self {
        use leadergroup_lock::Refusal as R;
        match refusal {
            R::TokenChanged => Self::Rejected(Rejection::Outdated),
            R::Busy => Self::Trouble(Trouble::Lock("the lock's row is busy; trying again".to_owned())),
            R::Unclaimed { .. }
            | R::SessionDead
            | R::Tombstone
            | R::Foreign { .. }
            | R::ProtocolNewer { .. }
            | R::Missing => Self::Rejected(Rejection::NotOwner),
        }
    }
}

/// Carries one effect out. Ends within the timeouts of the calls it makes.
pub(in crate::operator) async fn carry_out(context: &Context, order: Order) -> Done {
    let Order { record, session, ticket, effect, mut trace } = order;
    let mut learned = Learned::default();
    let counted = lock_operation(&effect);
    let timer = context.traces.begin(steps::name(&effect));
    let call = Call { context, record: &record, session };
    let (outcome, trouble) = match call.attempt(effect, &mut learned).await {
        Ok(Outcome::Stamped(refused)) => {
            let trouble = refused.first().map(|(_, message)| Trouble::Refused(message.clone()));
            (Outcome::Stamped(refused), trouble)
        }
        Ok(Outcome::Deleted(Some(refused))) => {
            let trouble = Trouble::Refused(refused.clone());
            (Outcome::Deleted(Some(refused)), Some(trouble))
        }
        Ok(outcome) => (outcome, None),
        Err(Failure::Rejected(refusal)) => (Outcome::Rejected(refusal), None),
        Err(Failure::Refused(trouble, message)) => (Outcome::Refused(message), Some(trouble)),
        Err(Failure::Uncleared(trouble)) => (Outcome::ClearRefused, Some(trouble)),
        Err(Failure::Trouble(trouble)) => (Outcome::Failed, Some(trouble)),
        Err(Failure::Unknown(trouble)) => (Outcome::Unknown, Some(trouble)),
    };
    if let Some(operation) = counted {
        context.metrics.lock_operation(operation, lock_outcome(&outcome));
    }
    let step = timer.map(|timer| timer.end(steps::problem(&outcome, trouble.as_ref())));
    let step = if matches!(outcome, Outcome::Unfinalized) {
        steps::deleted(&context.traces, &record, trace.take(), step);
        None
    } else {
        step
    };
    let Learned { pods, stripped, object } = learned;
    let (group, uid) = (record.name.clone(), record.uid.clone());
    Done { group, uid, ticket, outcome, pods, stripped, object, trouble, step, trace }
}

/// The calls of one effect.
struct Call<'a> {
    context: &'a Context,
    record: &'a Record,
    session: Option<SessionId>,
}

impl Call<'_> {
    async fn attempt(&self, effect: Effect, learned: &mut Learned) -> Result<Outcome, Failure> {
        let (router, group) = (&self.context.router, &self.record.reference);
        let key = self.record.key.as_str();
        Ok(match effect {
            Effect::Read => self.read(learned).await?,
            Effect::Verify(pod) => Outcome::Verified(self.verify(&pod, learned).await?),
            Effect::Try { token, pod, from } => {
                match router.try_change(group, key, token, &pod, from.as_ref()).await? {
                    Trial::Accepted => Outcome::Accepted,
                    Trial::Refused(refused) => return Err(Failure::refused(&refused)),
                    Trial::HolderRefused(refused) => Outcome::HolderRefused(refused.to_string()),
                    Trial::Gone => Outcome::Conflict,
                }
            }
            Effect::Grant(grant) => self.grant(grant).await?,
            Effect::Vacate { token } => self.vacate(Token::new(token)).await?,
            Effect::Declare { previous, next } => match router.declare(group, &previous, &next).await? {
                Declared::Done => Outcome::Declared,
                Declared::Outdated => Outcome::Rejected(Rejection::Outdated),
                Declared::GroupGone => Outcome::Rejected(Rejection::GroupGone),
            },
            Effect::Strip { token, pods } => match router.strip(group, token, &pods).await? {
                Stripped::Outdated => Outcome::Rejected(Rejection::Outdated),
                Stripped::Done(pods, changed) => {
                    (learned.pods, learned.stripped) = (pods, changed);
                    if changed && self.record.object.spec.routing.endpoints == Endpoints::Selector {
                        sleep(SLICES_FOLLOW).await;
                    }
                    Outcome::Stripped
                }
            },
            Effect::Promote { token, pod, version } => {
                match router.promote(group, key, token, &pod, &version).await? {
                    Promoted::Done(pod) => {
                        learned.pods.push(*pod);
                        Outcome::Promoted
                    }
                    Promoted::Conflict => Outcome::Conflict,
                    Promoted::Refused(refused) => return Err(Failure::refused(&refused)),
                }
            }
            Effect::Recheck(pod) => self.recheck(&pod, learned).await?,
            Effect::Confirm { token } => self.confirm(Token::new(token)).await?,
            Effect::Stamp { token, pods } => {
                let mut stamped = router.stamp(group, token, &pods).await;
                learned.pods = std::mem::take(&mut stamped.pods);
                outcome_of(stamped)?
            }
            Effect::Tell { role, token, reason, pods } => self.tell(role, token, reason, pods).await?,
            Effect::Delete(pods) => deleted(router.delete_pods(group, &pods).await)?,
            Effect::Tombstone => self.bury().await?,
            Effect::Clear { deletion_policy, pods } => self.clear(deletion_policy, &pods).await?,
            Effect::Unfinalize => {
                let seen = Sighting(Ok(self.record.object.clone()));
                router.set_finalizer_of(group, seen, false).await?;
                Outcome::Unfinalized
            }
            // The controller handles it itself.
            Effect::Finished(_) => Outcome::Failed,
        })
    }

    async fn vacate(&self, token: Token) -> Result<Outcome, Failure> {
        let vacate = Vacate {
            key: self.record.key.clone(),
            token,
            grant: leadergroup_lock::GrantId::new(),
            reason: "no successor".to_owned(),
        };
        changed(self.context.store.vacate(self.session()?, vacate).await?)?;
        Ok(Outcome::Vacated)
    }

    async fn confirm(&self, token: Token) -> Result<Outcome, Failure> {
        changed(self.context.store.confirm(self.session()?, &self.record.key, token).await?)?;
        Ok(Outcome::Confirmed)
    }

    async fn clear(&self, deletion_policy: DeletionPolicy, pods: &[PodAt]) -> Result<Outcome, Failure> {
        let (router, group) = (&self.context.router, &self.record.reference);
        let mut cleared = router.clear(group, deletion_policy, pods).await;
        // Whatever the spec says now: slices may be left of a time when it said something else.
        if self.context.manages_endpoints && deletion_policy == DeletionPolicy::RemoveLabels {
            cleared = cleared.and(router.withdraw(group).await);
        }
        cleared.map_err(|error| {
            let trouble = Trouble::from(&error);
            if error.is_refusal() { Failure::Uncleared(trouble) } else { Failure::Trouble(trouble) }
        })?;
        Ok(Outcome::Cleared)
    }

    fn session(&self) -> Result<SessionId, Failure> {
        self.session.ok_or(Failure::Rejected(Rejection::NotOwner))
    }

    async fn read(&self, learned: &mut Learned) -> Result<Outcome, Failure> {
        let row = self.row().await?;
        let mut object = self.context.router.sight(&self.record.reference).await?;
        if let Some(found) = &object
            && found.meta().deletion_timestamp.is_none()
        {
            if let Err(unreadable) = &found.0 {
                return Err(Failure::Trouble(Trouble::Unreachable(unreadable.problem.clone())));
            }
            // Without a finalizer the group could be deleted and leave its labels behind.
            let (router, group) = (&self.context.router, &self.record.reference);
            object = router.set_finalizer_of(group, found.clone(), true).await?;
        }
        let declared = object.as_ref().map(Sighting::declaration);
        learned.object = object.map(Box::new);
        Ok(Outcome::Read { row: Some(row), declared })
    }

    /// The row, if this replica owns it.
    async fn row(&self) -> Result<Row, Failure> {
        let session = self.session()?;
        let rows = self.context.store.read(std::slice::from_ref(&self.record.key)).await?;
        let ours = rows
            .into_iter()
            .find(|row| row.session == Some(session) && row.group == self.record.tag && !row.tombstone);
        ours.map(row_of).ok_or(Failure::Rejected(Rejection::NotOwner))
    }

    /// Reads the pod by a quorum read. Returns why it cannot stay active, if that is so.
    async fn verify(&self, pod: &PodRef, learned: &mut Learned) -> Result<Option<Reason>, Failure> {
        let Some(found) = self.context.router.pod(&self.record.reference, pod).await? else {
            return Ok(Some(Reason::PodDeleted));
        };
        let spec = &self.record.object.spec;
        if !spec.selector.matches(found.labels()) {
            return Ok(Some(Reason::PodDeleted));
        }
        let against = PodFacts::from_pod(&found, spec).against();
        learned.pods.push(found);
        Ok(against)
    }

    async fn grant(&self, grant: GrantRequest) -> Result<Outcome, Failure> {
        let request = leadergroup_lock::controller::Grant {
            key: self.record.key.clone(),
            group: self.record.tag.clone(),
            expected: Token::new(grant.expected),
            floor: Token::new(grant.floor),
            holder: Holder {
                uid: grant.holder.uid,
                namespace: self.record.reference.namespace.clone(),
                name: grant.holder.name,
            },
            grant: grant.id.into(),
            reason: grant.reason.to_string(),
        };
        match self.context.store.grant(self.session()?, request).await? {
            Granted::Granted { token } => Ok(Outcome::Granted { token: token.get() }),
            Granted::Refused(refusal) => Err(refusal.into()),
        }
    }

    /// Reads the pod first, and then what could forbid writing to it.
    async fn recheck(&self, pod: &PodRef, learned: &mut Learned) -> Result<Outcome, Failure> {
        let found = self.context.router.pod(&self.record.reference, pod).await?;
        let version = found.as_ref().and_then(kube::ResourceExt::resource_version);
        learned.pods.extend(found);
        let object = self.context.router.group(&self.record.reference).await?;
        let declared = object.map(|object| object.status.unwrap_or_default().declaration);
        let row = self.row().await?;
        Ok(Outcome::Rechecked { version, declared, row: Some(row) })
    }

    /// Tells all pods at once. None of them must hold up the others, and all together must not hold up other groups.
    async fn tell(
        &self,
        role: Role,
        token: i64,
        reason: Reason,
        pods: Vec<PodRef>,
    ) -> Result<Outcome, Failure> {
        (self.context.leave_place)();
        let told = pods.iter().map(|pod| self.tell_one(role, token, reason, pod));
        let told = futures::future::try_join_all(told).await?;
        let failed = pods.into_iter().zip(told);
        Ok(Outcome::Told(failed.filter_map(|(pod, why)| Some((pod, why?))).collect()))
    }

    /// Returns why the pod could not be told. The address comes from a quorum read: another pod may have the one that
    /// this pod had before. A pod that has ended has none any more, and need not be told.
    async fn tell_one(
        &self,
        role: Role,
        token: i64,
        reason: Reason,
        pod: &PodRef,
    ) -> Result<Option<String>, Failure> {
        let (group, spec) = (&self.record.reference, &self.record.object.spec);
        let Some(hook) = spec.hooks.as_ref().and_then(|hooks| hooks.of(role)) else { return Ok(None) };
        let _place = self.context.hook_places.take(&group.namespace).await;
        let found = self.context.router.pod(group, pod).await?;
        let Some(found) = found.filter(|found| !PodFacts::from_pod(found, spec).finished()) else {
            return Ok(None);
        };
        let change = RoleChange {
            role,
            namespace: &group.namespace,
            group: &group.name,
            pod: &pod.name,
            uid: &pod.uid,
            key: self.record.key.as_str(),
            token,
            reason,
        };
        let told = hooks::tell(&*self.context.pods, &found, spec, hook, &change).await;
        self.context
            .metrics
            .hook_request(if role == Role::Active { "promote" } else { "demote" }, told.is_ok());
        match told {
            Ok(()) => Ok(None),
            Err(error) if error.is_our_own() => {
                Err(Failure::Trouble(Trouble::Unreachable(error.to_string())))
            }
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    async fn bury(&self) -> Result<Outcome, Failure> {
        let status = self.record.object.status.as_ref();
        let tombstone = Tombstone {
            key: self.record.key.clone(),
            group: self.record.tag.clone(),
            floor: Token::new(status.map_or(0, |status| status.declaration.token)),
        };
        let answers = self.context.store.tombstone(self.session()?, &[tombstone]).await?;
        answers.into_iter().try_for_each(changed)?;
        Ok(Outcome::Tombstoned)
    }
}

/// A failed write of one pod does not hide the refusals of others. Its pod does not show the stamp, and is stamped
/// again.
fn outcome_of(stamped: Stamped) -> Result<Outcome, Failure> {
    match stamped.failed {
        Some(error) if stamped.refused.is_empty() => Err(error.into()),
        _ => {
            let refused = stamped.refused.into_iter().map(|(pod, error)| (pod, error.to_string()));
            Ok(Outcome::Stamped(refused.collect()))
        }
    }
}

fn deleted(result: Result<(), RoutingError>) -> Result<Outcome, Failure> {
    match result {
        Ok(()) => Ok(Outcome::Deleted(None)),
        Err(refused) if refused.is_definite() => Ok(Outcome::Deleted(Some(refused.to_string()))),
        Err(error) => Err(error.into()),
    }
}

fn changed(answer: Changed) -> Result<(), Failure> {
    match answer {
        Changed::Done => Ok(()),
        Changed::Refused(refusal) => Err(refusal.into()),
    }
}

/// The lock's row as the election sees it.
pub(in crate::operator) fn row_of(row: LockRow) -> Row {
    let pod = |holder: Holder| PodRef { name: holder.name, uid: holder.uid };
    let present = row.pending.last().filter(|term| term.token == row.token);
    Row {
        reason: present.and_then(|term| Reason::of_change(&term.reason)),
        token: row.token.get(),
        grant: row.grant.map(leadergroup_lock::GrantId::as_uuid),
        holder: row.holder.map(pod),
        confirmed: row.confirmed,
        pending: row.pending.into_iter().map(|term| pod(term.holder)).collect(),
    }
}

/// The name under which a change of the lock is counted; `None` for other effects.
fn lock_operation(effect: &Effect) -> Option<LockOperation> {
    match effect {
        Effect::Grant(_) => Some(LockOperation::Grant),
        Effect::Vacate { .. } => Some(LockOperation::Vacate),
        Effect::Confirm { .. } => Some(LockOperation::Confirm),
        Effect::Tombstone => Some(LockOperation::Tombstone),
        _ => None,
    }
}

/// How a change of the lock ended.
fn lock_outcome(outcome: &Outcome) -> LockOutcome {
    match outcome {
        Outcome::Failed | Outcome::Unknown => LockOutcome::Failed,
        Outcome::Rejected(_) => LockOutcome::Refused,
        _ => LockOutcome::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusals_of_a_batch_of_stamps_are_kept_if_another_stamp_of_it_fails() {
        let error =
            |code| RoutingError::Refused { what: "label a pod standby", code, message: "no".to_owned() };
        let pod = PodRef { name: "web-1".to_owned(), uid: "uid-1".to_owned() };
        let both = Stamped {
            refused: vec![(pod.clone(), error(403))],
            failed: Some(error(500)),
            ..Stamped::default()
        };
        match outcome_of(both) {
            Ok(Outcome::Stamped(refused)) => assert_eq!((refused.len(), &refused[0].0), (1, &pod)),
            _ => panic!("the refusal is lost"),
        }
        let failed = Stamped { failed: Some(error(500)), ..Stamped::default() };
        assert!(matches!(outcome_of(failed), Err(Failure::Trouble(Trouble::Unreachable(_)))));
    }
}
