//! Kubernetes Events on the groups, one for each change of holder.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource as _,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    api::{LeaderGroup, Reason},
    election::Finished,
    telemetry::{ApiOutcome, Metrics},
};

/// Events waiting to be sent. Further ones are dropped, and counted.
const QUEUE: usize = 256;
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends Events from a queue of its own, so that nothing waits for them.
pub(super) struct Events {
    metrics: Arc<Metrics>,
    queue: mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    pub(super) fn new(client: Client, replica: &str, metrics: Arc<Metrics>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let reporter = Reporter { controller: "leadergroup".to_owned(), instance: Some(replica.to_owned()) };
        tokio::spawn(send(Recorder::new(client, reporter), waiting, metrics.clone()));
        Self { metrics, queue }
    }

    /// A change of holder has ended.
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
        if self.queue.try_send((event, group.object_ref(&()))).is_err() {
            self.metrics.event_dropped();
        }
    }
}

/// Whether the change was a failover: an unplanned change from one pod to another.
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
