//! What the operator says about itself: metrics, readiness, and Kubernetes Events on the groups.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource as _,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::timeout};

use super::group::{Charge, Entry};
use crate::{
    api::{LeaderGroup, Reason},
    election::{Effect, Finished, Outcome, Phase, Standing},
    health::ProbeOutcome,
    routing::OnWrite,
    telemetry::{ApiOutcome, Check, GroupReading, GroupState, Liveness, LockOutcome, Metrics, Readiness},
};

/// Events waiting to be sent; more are dropped, and counted.
const QUEUE: usize = 256;
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The handles that the loop speaks through.
pub(super) struct Voice {
    pub(super) metrics: Arc<Metrics>,
    pub(super) liveness: Liveness,
    pub(super) lock: Check,
    pub(super) watches: Check,
    events: mpsc::Sender<(Event, ObjectReference)>,
}

impl Voice {
    pub(super) fn new(
        client: Client,
        replica: &str,
        metrics: Arc<Metrics>,
        liveness: Liveness,
        readiness: &Readiness,
    ) -> Self {
        let (events, queue) = mpsc::channel(QUEUE);
        let reporter = Reporter { controller: "leadergroup".to_owned(), instance: Some(replica.to_owned()) };
        tokio::spawn(send(Recorder::new(client, reporter), queue, metrics.clone()));
        Self {
            metrics,
            liveness,
            lock: readiness.check("lock-store", "no session with the lock's database yet"),
            watches: readiness.check("api-server", "the first lists of groups and pods are not complete yet"),
            events,
        }
    }

    /// A change of holder came to its end.
    pub(super) fn finished(&self, group: &LeaderGroup, finished: &Finished) {
        if is_failover(finished) {
            self.metrics.failover(finished.reason, finished.took);
        }
        let token = finished.token;
        let took = finished.took.as_millis();
        let (action, note) = match (&finished.from, &finished.to) {
            (Some(from), Some(to)) if from.uid == to.uid => {
                ("Confirm", format!("{} stays active, with token {token}", to.name))
            }
            (Some(from), Some(to)) => (
                "Promote",
                format!("{} is active with token {token}, after {}; took {took} ms", to.name, from.name),
            ),
            (None, Some(to)) => {
                ("Promote", format!("{} is active with token {token}; took {took} ms", to.name))
            }
            (from, None) => {
                let former = from.as_ref().map_or("nobody", |pod| pod.name.as_str());
                ("Release", format!("the lock is free: {former} ended, and no pod could follow"))
            }
        };
        let planned = matches!(finished.reason, Reason::FirstHolder | Reason::PodDeleted | Reason::Resumed);
        let type_ = if planned { EventType::Normal } else { EventType::Warning };
        let event = Event {
            type_,
            reason: finished.reason.to_string(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        if self.events.try_send((event, group.object_ref(&()))).is_err() {
            self.metrics.event_dropped();
        }
    }

    pub(super) fn probe(&self, outcome: ProbeOutcome) {
        self.metrics.probe(match outcome {
            ProbeOutcome::Success => "success",
            ProbeOutcome::Refused(_) => "refused",
            ProbeOutcome::Unanswered => "unanswered",
            ProbeOutcome::Void => "void",
        });
    }

    /// The gauges, from everything that is known.
    pub(super) fn gauges<'a>(&self, entries: impl Iterator<Item = &'a Entry>) {
        let kinds = [
            GroupState::Active,
            GroupState::Changing,
            GroupState::Vacant,
            GroupState::Paused,
            GroupState::Stalled,
            GroupState::Deleting,
        ];
        let mut counts = [0_usize; 6];
        for entry in entries {
            let (namespace, name) = (&entry.name.namespace, &entry.name.name);
            if entry.charge != Charge::Ours {
                self.metrics.forget_group(namespace, name);
                continue;
            }
            let active = entry.machine.active().is_some();
            let members = entry.machine.world().members.iter();
            let eligible = members.filter(|member| member.standing == Standing::Eligible);
            let eligible = u32::try_from(eligible.count()).unwrap_or(u32::MAX);
            self.metrics.set_group(namespace, name, GroupReading { active, eligible });
            let state = state_of(entry, active);
            if let Some(index) = kinds.iter().position(|known| *known == state) {
                counts[index] += 1;
            }
        }
        kinds.into_iter().zip(counts).for_each(|(state, count)| self.metrics.set_groups(state, count));
    }
}

fn state_of(entry: &Entry, active: bool) -> GroupState {
    if entry.object.metadata.deletion_timestamp.is_some() {
        GroupState::Deleting
    } else if entry.obstacle().is_some() {
        GroupState::Stalled
    } else if entry.object.spec.paused {
        GroupState::Paused
    } else if !matches!(entry.machine.phase(), Phase::Stable) {
        GroupState::Changing
    } else if active {
        GroupState::Active
    } else {
        GroupState::Vacant
    }
}

/// What a change of the lock is counted as; none for other effects.
pub(super) fn lock_operation(effect: &Effect) -> Option<&'static str> {
    match effect {
        Effect::Grant(_) => Some("grant"),
        Effect::Vacate { .. } => Some("vacate"),
        Effect::Confirm { .. } => Some("confirm"),
        Effect::Tombstone => Some("tombstone"),
        _ => None,
    }
}

/// How a change of the lock ended.
pub(super) fn lock_outcome(outcome: &Outcome) -> LockOutcome {
    match outcome {
        Outcome::Failed | Outcome::Unknown => LockOutcome::Failed,
        Outcome::Refused(_) => LockOutcome::Refused,
        _ => LockOutcome::Done,
    }
}

/// Counts the writes to the API server.
pub(super) fn count_writes(metrics: Arc<Metrics>) -> OnWrite {
    Arc::new(move |kind, error| {
        metrics.api_write(
            kind,
            match error {
                None => ApiOutcome::Done,
                Some(error) if matches!(error.code(), Some(404 | 409 | 422)) => ApiOutcome::Conflict,
                Some(error) if error.is_refusal() => ApiOutcome::Refused,
                Some(_) => ApiOutcome::Failed,
            },
        );
    })
}

/// Whether the change was a failover: one pod followed another, and nobody had asked for that.
fn is_failover(finished: &Finished) -> bool {
    let another = matches!((&finished.from, &finished.to), (Some(from), Some(to)) if from.uid != to.uid);
    another && !matches!(finished.reason, Reason::FirstHolder | Reason::Resumed | Reason::LostCommits)
}

async fn send(
    recorder: Recorder,
    mut queue: mpsc::Receiver<(Event, ObjectReference)>,
    metrics: Arc<Metrics>,
) {
    while let Some((event, group)) = queue.recv().await {
        let outcome = match timeout(EVENT_TIMEOUT, recorder.publish(&event, &group)).await {
            Ok(Ok(())) => ApiOutcome::Done,
            Ok(Err(error)) => {
                tracing::debug!(%error, "could not write an Event");
                let refused = matches!(&error, kube::Error::Api(status) if status.code < 500);
                if refused { ApiOutcome::Refused } else { ApiOutcome::Failed }
            }
            Err(_) => {
                tracing::debug!("an Event took too long");
                ApiOutcome::Failed
            }
        };
        metrics.api_write("event", outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PodRef;

    #[test]
    fn a_failover_is_one_pod_after_another_that_nobody_asked_for() {
        let pod = |uid: &str| Some(PodRef { name: "web".to_owned(), uid: uid.to_owned() });
        let change = |from, to, reason| Finished { token: 2, from, to, reason, took: Duration::ZERO };
        for reason in [Reason::PodDeleted, Reason::ContainerTerminated, Reason::ProbeRefused, Reason::Silent]
        {
            assert!(is_failover(&change(pod("a"), pod("b"), reason)), "{reason}");
            assert!(!is_failover(&change(pod("a"), None, reason)), "{reason}: a release");
        }
        assert!(!is_failover(&change(None, pod("a"), Reason::FirstHolder)));
        assert!(!is_failover(&change(pod("a"), pod("b"), Reason::FirstHolder)));
        for reason in [Reason::Resumed, Reason::LostCommits] {
            assert!(!is_failover(&change(pod("a"), pod("a"), reason)), "{reason}");
        }
    }
}
