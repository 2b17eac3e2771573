//! What the tasks of the controller share, and in which order they are started.
//!
//! A burst, such as a thousand groups that are created together, asks for more calls than the API server can answer in
//! time. So only a bounded number of tasks is under way, and the others wait here, the more urgent ones first. A call's
//! time limit begins when the call does, so a task that waits does not time out. What waits is bounded by the number of
//! groups: each has at most one step, one stamping, one deletion, one hook, one report, and one write for each slice of
//! its Services.
//!
//! A write that a webhook holds up gives its task's place to others ([`Place::give_way`]). Hooks of pods have places of
//! their own (`hook_places`).

pub(super) mod effect;
#[cfg(test)]
pub(super) mod fake_api;
pub(super) mod hook_places;
pub(super) mod queue;
mod steps;

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::{sync::mpsc, task::JoinSet};

use super::{lock::keys::KeyRule, message::Message};
use crate::{
    health::Network,
    routing::{OnWrite, Router},
    telemetry::{ApiOutcome, Metrics, Traces},
};
use hook_places::HookPlaces;
use leadergroup_lock::Store;
use queue::{Place, Queue, Urgency};

/// What the tasks of the controller share.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) router: Router,
    pub(super) store: Store,
    pub(super) metrics: Arc<Metrics>,
    pub(super) traces: Traces,
    /// The controller's own queue.
    pub(super) messages: mpsc::Sender<Message>,
    /// Whether `EndpointSlices` are written for the groups that ask for it.
    pub(super) manages_endpoints: bool,
    /// Whether the Services of the other groups are looked at.
    pub(super) observes_services: bool,
    pub(super) keys: KeyRule,
    /// For the hooks of pods.
    pub(super) pods: Arc<dyn Network>,
    pub(super) hook_places: HookPlaces,
    /// Leaves the task's place to others for good; does nothing outside a task.
    pub(super) leave_place: Arc<dyn Fn() + Send + Sync>,
}

impl Context {
    /// The same for a task with this place.
    fn at(&self, place: Place) -> Self {
        let place = Arc::new(place);
        let leave_place = {
            let place = place.clone();
            Arc::new(move || place.leave())
        };
        let give_way = Arc::new(move || place.give_way().map(|late| Box::new(late) as Box<dyn Send>));
        Self { router: self.router.clone().patient(give_way), leave_place, ..self.clone() }
    }
}

type Task = Box<dyn FnOnce(Place) -> BoxFuture<'static, ()> + Send>;

/// Starts the controller's tasks. Each task makes its calls and sends at most one message.
pub(super) struct Executor {
    context: Arc<Context>,
    tasks: JoinSet<()>,
    waiting: Queue<Task>,
}

impl Executor {
    pub(super) fn new(context: Context) -> Self {
        Self { context: Arc::new(context), tasks: JoinSet::new(), waiting: Queue::new() }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.context.metrics
    }

    pub(super) fn traces(&self) -> &Traces {
        &self.context.traces
    }

    /// Whether `EndpointSlices` are written for the groups that ask for it.
    pub(super) fn manages_endpoints(&self) -> bool {
        self.context.manages_endpoints
    }

    /// Whether the Services of the other groups are looked at.
    pub(super) fn observes_services(&self) -> bool {
        self.context.observes_services
    }

    /// Starts a task that sends what `call` returns to the controller, as soon as there is a place.
    pub(super) fn start<C, F>(&mut self, urgency: Urgency, call: C)
    where
        C: FnOnce(Arc<Context>) -> F + Send + 'static,
        F: Future<Output = Message> + Send,
    {
        self.put(urgency, None, |context| answer(context, call));
    }

    /// The same, for a task that writes objects of this namespace.
    pub(super) fn start_in<C, F>(&mut self, namespace: &str, urgency: Urgency, call: C)
    where
        C: FnOnce(Arc<Context>) -> F + Send + 'static,
        F: Future<Output = Message> + Send,
    {
        self.put(urgency, Some(namespace), |context| answer(context, call));
    }

    /// Starts a task that sends nothing to the controller, as soon as there is a place.
    pub(super) fn start_silent<C, F>(&mut self, urgency: Urgency, call: C)
    where
        C: FnOnce(Arc<Context>) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        self.put(urgency, None, call);
    }

    fn put<C, F>(&mut self, urgency: Urgency, namespace: Option<&str>, call: C)
    where
        C: FnOnce(Arc<Context>) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let context = self.context.clone();
        let task = move |place| -> BoxFuture<'static, ()> {
            let context = Arc::new(context.at(place));
            Box::pin(async move { call(context).await })
        };
        self.waiting.put(urgency, namespace, Box::new(task));
        self.fill();
    }

    /// Whether a task of this urgency would start at once. The controller computes a status only then, so that one
    /// report covers everything that happened while it waited.
    pub(super) fn has_room(&self, urgency: Urgency) -> bool {
        self.waiting.has_room(urgency)
    }

    /// Waits until a task ends or gives way, and starts others in its place. Never returns if none is under way.
    pub(super) async fn task_ended(&mut self) {
        let given_way = self.waiting.given_way();
        tokio::select! {
            biased;
            Some(_) = self.tasks.join_next() => {}
            () = given_way.notified() => {}
        }
        self.fill();
    }

    /// Frees the places and the memory of all tasks that have ended.
    pub(super) fn clear(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.fill();
    }

    /// Starts waiting tasks while there are places.
    fn fill(&mut self) {
        while let Some((task, place)) = self.waiting.take() {
            self.tasks.spawn(task(place));
        }
    }
}

/// Sends what `call` returns to the controller.
async fn answer<C, F>(context: Arc<Context>, call: C)
where
    C: FnOnce(Arc<Context>) -> F,
    F: Future<Output = Message>,
{
    let message = call(context.clone()).await;
    // The controller is gone only when the process ends.
    let _ = context.messages.send(message).await;
}

/// What is written to the API server, as the metrics count it: by the router, and Events.
pub(super) const KINDS_OF_WRITES: [&str; 9] =
    ["active", "standby", "clear", "delete", "declaration", "status", "finalizer", "endpoints", "event"];

/// A callback that counts the writes to the API server.
pub(super) fn count_writes(metrics: Arc<Metrics>) -> OnWrite {
    Arc::new(move |kind, error| {
        debug_assert!(KINDS_OF_WRITES.contains(&kind), "writes of the kind {kind} do not begin at zero");
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
