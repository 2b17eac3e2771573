//! Turning the election's effects into calls, and what comes of them into outcomes.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};
use tokio::time::sleep;

use super::{
    events::{lock_operation, lock_outcome},
    message::{Done, GroupName, Trouble},
};
use crate::{
    api::{FINALIZER, LeaderGroup, PodRef, Reason, Sighting},
    election::{Effect, Grant, Outcome, Refusal, Row, Ticket},
    health::{PodFacts, Readiness},
    routing::{Declared, GroupRef, Promoted, Router, RoutingError, Stripped},
    telemetry::Metrics,
};
use leadergroup_lock::{
    self, Changed, Granted, Holder, Key, LockError, LockRow, SessionId, Store, Token, Tombstone, Vacate,
};

/// Between the last strip and the promotion, so that the EndpointSlice controller has seen the one when the other comes:
/// otherwise it finds its own cache out of date and waits a second.
const SETTLE: Duration = Duration::from_millis(5);

/// All that an effect of one group needs.
#[derive(Clone)]
pub(super) struct Performer {
    pub(super) router: Router,
    pub(super) store: Store,
    pub(super) session: Option<SessionId>,
    pub(super) name: GroupName,
    pub(super) group: GroupRef,
    pub(super) object: Arc<LeaderGroup>,
    pub(super) key: Key,
    /// How the lock's row names the group: cluster, namespace, name and UID.
    pub(super) tag: String,
    pub(super) metrics: Arc<Metrics>,
}

/// What was learned on the way to an outcome.
#[derive(Default)]
struct Learned {
    pods: Vec<Pod>,
    object: Option<Box<Sighting>>,
}

/// Why there is no proper outcome.
enum Failure {
    Refused(Refusal),
    Uncleared(Trouble),
    Unknown(Trouble),
    Trouble(Trouble),
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        match error {
            LockError::SessionDead => Self::Refused(Refusal::NotOwner),
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

impl From<&RoutingError> for Trouble {
    fn from(error: &RoutingError) -> Self {
        if error.is_refusal() || matches!(error, RoutingError::Contended { .. }) {
            Self::Refused(error.to_string())
        } else {
            Self::Unreachable(error.to_string())
        }
    }
}

impl From<leadergroup_lock::Refusal> for Failure {
    fn from(refusal: leadergroup_lock::Refusal) -> Self {
        use leadergroup_lock::Refusal as R;
        match refusal {
            R::TokenChanged { .. } => Self::Refused(Refusal::Outdated),
            R::Busy => Self::Trouble(Trouble::Lock("the lock's row is busy; trying again".to_owned())),
            R::Unclaimed { .. }
            | R::SessionDead
            | R::Tombstone
            | R::Foreign { .. }
            | R::ProtocolNewer { .. }
            | R::Missing => Self::Refused(Refusal::NotOwner),
        }
    }
}

impl Performer {
    /// Carries one effect out. Ends within the time-outs of the calls it makes.
    pub(super) async fn perform(self, ticket: Ticket, effect: Effect) -> Done {
        let mut learned = Learned::default();
        let counted = lock_operation(&effect);
        let (outcome, trouble) = match self.attempt(effect, &mut learned).await {
            Ok(outcome) => (outcome, None),
            Err(Failure::Refused(refusal)) => (Outcome::Refused(refusal), None),
            Err(Failure::Uncleared(trouble)) => (Outcome::ClearRefused, Some(trouble)),
            Err(Failure::Trouble(trouble)) => (Outcome::Failed, Some(trouble)),
            Err(Failure::Unknown(trouble)) => (Outcome::Unknown, Some(trouble)),
        };
        if let Some(operation) = counted {
            self.metrics.lock_operation(operation, lock_outcome(&outcome));
        }
        let Learned { pods, object } = learned;
        let uid = self.group.uid.as_str().into();
        Done { group: self.name, uid, ticket, outcome, pods, object, trouble }
    }

    async fn attempt(&self, effect: Effect, learned: &mut Learned) -> Result<Outcome, Failure> {
        Ok(match effect {
            Effect::Read => self.read(learned).await?,
            Effect::Verify(pod) => Outcome::Verified(self.verify(&pod, learned).await?),
            Effect::Grant(grant) => self.grant(grant).await?,
            Effect::Vacate { token } => {
                let vacate = Vacate {
                    key: self.key.clone(),
                    token: Token::new(token),
                    grant: leadergroup_lock::GrantId::new(),
                    reason: "no successor".to_owned(),
                };
                changed(self.store.vacate_one(self.session()?, vacate).await?)?;
                Outcome::Vacated
            }
            Effect::Declare { previous, next } => {
                match self.router.declare(&self.group, &previous, &next).await? {
                    Declared::Done => Outcome::Declared,
                    Declared::Outdated => Outcome::Refused(Refusal::Outdated),
                    Declared::GroupGone => Outcome::Refused(Refusal::GroupGone),
                }
            }
            Effect::Strip { token, pods } => match self.router.strip(&self.group, token, &pods).await? {
                Stripped::Outdated => Outcome::Refused(Refusal::Outdated),
                Stripped::Done(pods, changed) => {
                    learned.pods = pods;
                    if changed {
                        sleep(SETTLE).await;
                    }
                    Outcome::Stripped
                }
            },
            Effect::Promote { token, pod, version } => {
                match self.router.promote(&self.group, token, &pod, &version).await? {
                    Promoted::Done(pod) => {
                        learned.pods.push(*pod);
                        Outcome::Promoted
                    }
                    Promoted::Conflict => Outcome::Conflict,
                }
            }
            Effect::Recheck(pod) => self.recheck(&pod, learned).await?,
            Effect::Confirm { token } => {
                let confirm = self.store.confirm_one(self.session()?, self.key.clone(), Token::new(token));
                changed(confirm.await?)?;
                Outcome::Confirmed
            }
            Effect::Stamp { token, pods } => {
                let (pods, failed) = self.router.stamp(&self.group, token, &pods).await;
                learned.pods = pods;
                if let Some(error) = failed {
                    return Err(error.into());
                }
                Outcome::Stamped
            }
            Effect::Tombstone => self.bury().await?,
            Effect::Clear { on_delete, pods } => {
                let cleared = self.router.clear(&self.group, on_delete, &pods).await;
                cleared.map_err(|error| {
                    let trouble = Trouble::from(&error);
                    if error.is_refusal() { Failure::Uncleared(trouble) } else { Failure::Trouble(trouble) }
                })?;
                Outcome::Cleared
            }
            Effect::Unfinalize => {
                self.router.set_finalizer(&self.group, false).await?;
                Outcome::Unfinalized
            }
            // For the loop itself; it is not sent here.
            Effect::Finished(_) => Outcome::Failed,
        })
    }

    fn session(&self) -> Result<SessionId, Failure> {
        self.session.ok_or(Failure::Refused(Refusal::NotOwner))
    }

    async fn read(&self, learned: &mut Learned) -> Result<Outcome, Failure> {
        let row = self.row().await?;
        let object = self.router.sight(&self.group).await?;
        if let Some(object) = &object
            && object.meta().deletion_timestamp.is_none()
        {
            if let Err(unreadable) = &object.0 {
                return Err(Failure::Trouble(Trouble::Unreachable(unreadable.problem.clone())));
            }
            if !object.finalizers().iter().any(|name| name == FINALIZER) {
                // Without it the group could go away and leave its labels behind.
                self.router.set_finalizer(&self.group, true).await?;
            }
        }
        let declared = object.as_ref().map(Sighting::declaration);
        learned.object = object.map(Box::new);
        Ok(Outcome::Read { row: Some(row), declared })
    }

    /// The row, if this replica is in charge of it.
    async fn row(&self) -> Result<Row, Failure> {
        let session = self.session()?;
        let rows = self.store.read(std::slice::from_ref(&self.key)).await?;
        let ours = rows
            .into_iter()
            .find(|row| row.session == Some(session) && row.group == self.tag && !row.tombstone);
        ours.map(row_of).ok_or(Failure::Refused(Refusal::NotOwner))
    }

    /// What a quorum read of the pod says against it.
    async fn verify(&self, pod: &PodRef, learned: &mut Learned) -> Result<Option<Reason>, Failure> {
        let Some(found) = self.router.pod(&self.group, pod).await? else {
            return Ok(Some(Reason::PodDeleted));
        };
        let spec = &self.object.spec;
        if !spec.selector.matches(found.labels()) {
            return Ok(Some(Reason::PodDeleted));
        }
        let facts = PodFacts::from_pod(&found, spec);
        learned.pods.push(found);
        Ok(if facts.deleting {
            Some(Reason::PodDeleted)
        } else if facts.finished() {
            Some(Reason::PodFinished)
        } else if facts.disruption_target {
            Some(Reason::DisruptionTarget)
        } else if facts.container_problem.is_some() {
            Some(Reason::ContainerTerminated)
        } else {
            matches!(facts.readiness, Readiness::NotReady | Readiness::NodeUnheard)
                .then_some(Reason::PodNotReady)
        })
    }

    async fn grant(&self, grant: Grant) -> Result<Outcome, Failure> {
        let request = leadergroup_lock::Grant {
            key: self.key.clone(),
            expected: Token::new(grant.expected),
            floor: Token::new(grant.floor),
            holder: Holder {
                uid: grant.holder.uid,
                namespace: self.group.namespace.clone(),
                name: grant.holder.name,
            },
            grant: grant.id.into(),
            reason: grant.reason.to_string(),
        };
        match self.store.grant_one(self.session()?, request).await? {
            Granted::Granted { token } => Ok(Outcome::Granted { token: token.get() }),
            Granted::Refused(refusal) => Err(refusal.into()),
        }
    }

    /// The pod first, then what would speak against writing to it.
    async fn recheck(&self, pod: &PodRef, learned: &mut Learned) -> Result<Outcome, Failure> {
        let found = self.router.pod(&self.group, pod).await?;
        let version = found.as_ref().and_then(kube::ResourceExt::resource_version);
        learned.pods.extend(found);
        let object = self.router.group(&self.group).await?;
        let declared = object.map(|object| object.status.unwrap_or_default().declaration);
        let row = self.row().await?;
        Ok(Outcome::Rechecked { version, declared, row: Some(row) })
    }

    async fn bury(&self) -> Result<Outcome, Failure> {
        let status = self.object.status.as_ref();
        let tombstone = Tombstone {
            key: self.key.clone(),
            group: self.tag.clone(),
            floor: Token::new(status.map_or(0, |status| status.declaration.token)),
        };
        let answers = self.store.tombstone(self.session()?, &[tombstone]).await?;
        answers.into_iter().try_for_each(changed)?;
        Ok(Outcome::Tombstoned)
    }
}

fn changed(answer: Changed) -> Result<(), Failure> {
    match answer {
        Changed::Done => Ok(()),
        Changed::Refused(refusal) => Err(refusal.into()),
    }
}

/// The lock's row in the election's terms.
fn row_of(row: LockRow) -> Row {
    let pod = |holder: Holder| PodRef { name: holder.name, uid: holder.uid };
    Row {
        token: row.token.get(),
        grant: row.grant.map(leadergroup_lock::GrantId::as_uuid),
        owner: row.holder.map(pod),
        confirmed: row.confirmed,
        pending: row.pending.into_iter().map(|term| pod(term.holder)).collect(),
    }
}
