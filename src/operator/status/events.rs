//! Kubernetes Events: on the groups one for each change of holder, for what a user should mend, and for labels that
//! others have set; on the pods one for each role that they got or lost.
//!
//! Each change of holder is an Event of its own. Events of the same kind that are collected into a series keep the text
//! of the first, which names the pod and the token of another change.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta},
};
use kube::{Api, Client, Resource as _, ResourceExt as _, api::PostParams};
use tokio::{sync::mpsc, time::timeout};

use super::WallClock;
use crate::{
    api::{Cause, FIELD_MANAGER, LeaderGroup, PodRef, Reason},
    election::{Finished, Refusal},
    telemetry::{ApiOutcome, ChangeKind, Metrics},
};

/// Events waiting to be sent. Further ones are dropped, and counted.
const QUEUE: usize = 256;
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The least time between two Events about the labels that others set in a group: another controller may set one again
/// and again.
const FOREIGN_LABEL_INTERVAL: Duration = Duration::from_mins(1);
/// The API server refuses longer texts.
const LONGEST_NOTE: usize = 1_024;
/// The reason of these Events.
const FOREIGN_LABEL: &str = "ForeignLabel";
/// The reasons of the Events on the pods of a change.
const PROMOTED: &str = "Promoted";
const DEMOTED: &str = "Demoted";
/// The reason of the Event about a switchover that is not carried out.
const SWITCHOVER_REFUSED: &str = "SwitchoverRefused";

/// Sends Events from a queue of its own, so that nothing waits for them.
pub(in crate::operator) struct Events {
    metrics: Arc<Metrics>,
    queue: mpsc::Sender<Event>,
    replica: String,
    wall_clock: WallClock,
    /// When the last Event about foreign labels of each group was written, by the group's UID.
    foreign_labels: HashMap<String, Duration>,
}

/// What an Event says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct News {
    is_normal: bool,
    reason: String,
    action: &'static str,
    note: String,
    pod: Option<PodRef>,
}

impl Events {
    pub(in crate::operator) fn new(
        client: Client,
        replica: &str,
        metrics: Arc<Metrics>,
        wall_clock: WallClock,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(send(client, waiting, metrics.clone()));
        Self { metrics, queue, replica: replica.to_owned(), wall_clock, foreign_labels: HashMap::new() }
    }

    /// A change of holder has ended.
    pub(in crate::operator) fn finished(&self, group: &LeaderGroup, finished: &Finished) {
        if is_failover(finished) {
            self.metrics.failover(finished.reason, finished.took);
        }
        let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
        self.metrics.holder_changed(&namespace, &name, change_kind(finished));
        self.publish(group, change_of_holder(finished));
        for (pod, news) in changes_of_role(&name, finished) {
            self.publish_on(&pod, group, news);
        }
    }

    /// A condition says what a user should mend although the group is Ready.
    pub(in crate::operator) fn warned(&self, group: &LeaderGroup, condition: &Condition) {
        let (reason, note) = (condition.reason.clone(), condition.message.clone());
        self.publish(group, News { is_normal: false, reason, action: "Inspect", note, pod: None });
    }

    /// A requested switchover is refused.
    pub(in crate::operator) fn switchover_refused(&self, group: &LeaderGroup, message: &str) {
        let reason = SWITCHOVER_REFUSED.to_owned();
        let note = format!("the requested switchover is refused: {message}");
        self.publish(group, News { is_normal: false, reason, action: "Refuse", note, pod: None });
    }

    /// The active label was taken off pods that are not the holder.
    pub(in crate::operator) fn stripped(&mut self, group: &LeaderGroup, pods: &[PodRef], now: Duration) {
        let Some(uid) = group.metadata.uid.clone() else { return };
        self.foreign_labels.retain(|_, at| now.saturating_sub(*at) < FOREIGN_LABEL_INTERVAL);
        if !pods.is_empty() && !self.foreign_labels.contains_key(&uid) {
            self.foreign_labels.insert(uid, now);
            self.publish(group, foreign_label(pods));
        }
    }

    /// A pod cannot get or lose a role, and is therefore passed over.
    pub(in crate::operator) fn refused(&self, group: &LeaderGroup, pod: &PodRef, refusal: &Refusal) {
        let note = format!("{} cannot change its role: {}", pod.name, refusal.message);
        let reason = refusal.reason.to_string();
        let on_pod = News { is_normal: false, reason, action: "PassOver", note, pod: None };
        self.publish(group, News { pod: Some(pod.clone()), ..on_pod.clone() });
        self.publish_on(pod, group, on_pod);
    }

    /// An Event on the group.
    fn publish(&self, group: &LeaderGroup, news: News) {
        let related = news.pod.clone().map(|pod| reference(group, pod));
        self.enqueue(self.event(group, group.object_ref(&()), related, news));
    }

    /// An Event on a pod. The group has one that says the same, so it is left out in a burst, in which even those of
    /// groups may be dropped.
    fn publish_on(&self, pod: &PodRef, group: &LeaderGroup, news: News) {
        if self.queue.capacity() > QUEUE / 2 {
            let regarding = reference(group, pod.clone());
            self.enqueue(self.event(group, regarding, Some(group.object_ref(&())), news));
        }
    }

    fn event(
        &self,
        group: &LeaderGroup,
        regarding: ObjectReference,
        related: Option<ObjectReference>,
        news: News,
    ) -> Event {
        let mut note = news.note;
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        Event {
            metadata: ObjectMeta {
                generate_name: regarding.name.as_ref().map(|name| format!("{name}-")),
                namespace: group.namespace(),
                ..ObjectMeta::default()
            },
            action: Some(news.action.to_owned()),
            event_time: Some(MicroTime((self.wall_clock)())),
            note: Some(note),
            reason: Some(news.reason),
            regarding: Some(regarding),
            related,
            reporting_controller: Some(FIELD_MANAGER.to_owned()),
            reporting_instance: Some(self.replica.clone()),
            type_: Some(if news.is_normal { "Normal" } else { "Warning" }.to_owned()),
            ..Event::default()
        }
    }

    fn enqueue(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            self.metrics.event_dropped();
        }
    }
}

fn change_of_holder(finished: &Finished) -> News {
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
        (None, Some(to)) => ("Promote", format!("{} is active with token {token}; took {took} ms", to.name)),
        (from, None) => {
            let former = from.as_ref().map_or("nobody", |pod| pod.name.as_str());
            ("Release", format!("the lock is free: {former} ended, and no pod could follow"))
        }
    };
    News {
        is_normal: is_expected(finished),
        reason: finished.reason.to_string(),
        action,
        note,
        pod: finished.to.clone().or_else(|| finished.from.clone()),
    }
}

/// Whether nothing failed.
fn is_expected(finished: &Finished) -> bool {
    finished.reason.is_planned()
        || matches!(finished.reason, Reason::FirstHolder | Reason::PodDeleted | Reason::Resumed)
}

/// What the change means for the pods, without one that is deleted.
fn changes_of_role(group: &str, finished: &Finished) -> Vec<(PodRef, News)> {
    let (from, to) = (finished.from.as_ref(), finished.to.as_ref());
    if from.map(|pod| &pod.uid) == to.map(|pod| &pod.uid) {
        return Vec::new();
    }
    let cause = finished.reason;
    let news = |reason: &str, action, note| {
        let is_normal = reason == PROMOTED || is_expected(finished);
        News { is_normal, reason: reason.to_owned(), action, note, pod: None }
    };
    let promoted = to.map(|pod| {
        let note = format!("active for the LeaderGroup {group} with token {} ({cause})", finished.token);
        (pod.clone(), news(PROMOTED, "Promote", note))
    });
    let remains = from.filter(|_| !matches!(cause, Reason::PodDeleted | Reason::PodFinished));
    let demoted = remains.map(|pod| {
        let note = format!("no longer active for the LeaderGroup {group} ({cause})");
        (pod.clone(), news(DEMOTED, "Demote", note))
    });
    promoted.into_iter().chain(demoted).collect()
}

fn foreign_label(pods: &[PodRef]) -> News {
    let names: Vec<_> = pods.iter().map(|pod| pod.name.as_str()).collect();
    News {
        is_normal: false,
        reason: FOREIGN_LABEL.to_owned(),
        action: "Strip",
        note: format!(
            "took the active label off {}, which another client had set; the chart's admission policies prevent that",
            names.join(", ")
        ),
        pod: pods.first().cloned(),
    }
}

/// A pod of the group.
fn reference(group: &LeaderGroup, pod: PodRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name),
        uid: Some(pod.uid),
        namespace: group.namespace(),
        ..ObjectReference::default()
    }
}

/// What the change means for the former holder.
pub(in crate::operator) fn change_kind(finished: &Finished) -> ChangeKind {
    match finished.reason.cause() {
        Some(Cause::Planned) => ChangeKind::Planned,
        Some(Cause::Failure) => ChangeKind::Failure,
        Some(Cause::End) => ChangeKind::End,
        Some(Cause::Other) | None => ChangeKind::Other,
    }
}

/// Whether the change was a failover: an unplanned change from one pod to another.
fn is_failover(finished: &Finished) -> bool {
    let another = matches!((&finished.from, &finished.to), (Some(from), Some(to)) if from.uid != to.uid);
    another
        && !finished.reason.is_planned()
        && !matches!(finished.reason, Reason::FirstHolder | Reason::Resumed | Reason::LostCommits)
}

async fn send(client: Client, mut queue: mpsc::Receiver<Event>, metrics: Arc<Metrics>) {
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    while let Some(event) = queue.recv().await {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let outcome = match timeout(EVENT_TIMEOUT, events.create(&params, &event)).await {
            Ok(Ok(_)) => ApiOutcome::Done,
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
    fn pods_hear_of_the_roles_that_they_get_and_lose() {
        let pod = |uid: &str| Some(PodRef { name: format!("web-{uid}"), uid: uid.to_owned() });
        let told = |from, to, reason| -> Vec<(String, String, bool, String)> {
            let finished = Finished { token: 7, from, to, reason, took: Duration::ZERO };
            let all = changes_of_role("web", &finished).into_iter();
            all.map(|(pod, news)| (pod.name, news.reason, news.is_normal, news.note)).collect()
        };
        let promoted = |name: &str, why: &str| {
            let note = format!("active for the LeaderGroup web with token 7 ({why})");
            (name.to_owned(), "Promoted".to_owned(), true, note)
        };
        let demoted = |name: &str, normal, why: &str| {
            let note = format!("no longer active for the LeaderGroup web ({why})");
            (name.to_owned(), "Demoted".to_owned(), normal, note)
        };
        assert_eq!(
            told(pod("a"), pod("b"), Reason::Silent),
            [promoted("web-b", "Silent"), demoted("web-a", false, "Silent")]
        );
        assert_eq!(
            told(pod("a"), pod("b"), Reason::Switchover),
            [promoted("web-b", "Switchover"), demoted("web-a", true, "Switchover")]
        );
        assert_eq!(told(pod("a"), pod("b"), Reason::PodDeleted), [promoted("web-b", "PodDeleted")]);
        assert_eq!(told(pod("a"), pod("a"), Reason::LostCommits), []);
        assert_eq!(told(pod("a"), None, Reason::ProbeRefused), [demoted("web-a", false, "ProbeRefused")]);
    }

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
