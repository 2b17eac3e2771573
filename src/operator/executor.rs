//! What the tasks of the controller share, and how they are started.

use std::sync::Arc;

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::message::Message;
use crate::{
    routing::{OnWrite, Router},
    telemetry::{ApiOutcome, Metrics},
};
use leadergroup_lock::Store;

/// What the tasks of the controller share.
pub(super) struct Context {
    pub(super) router: Router,
    pub(super) store: Store,
    pub(super) metrics: Arc<Metrics>,
    /// The controller's own queue.
    pub(super) messages: mpsc::Sender<Message>,
    /// Places for calls to the API server that no change of holder waits for, so that changes of holder do not wait
    /// behind thousands of reports.
    pub(super) background: Semaphore,
}

/// In which order calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// At once.
    Now,
    /// When there is a place in the background.
    Background,
}

/// Starts the tasks of the controller, each of which makes its calls and sends one message.
pub(super) struct Executor {
    pub(super) context: Arc<Context>,
    tasks: JoinSet<()>,
}

impl Executor {
    pub(super) fn new(context: Context) -> Self {
        Self { context: Arc::new(context), tasks: JoinSet::new() }
    }

    /// Starts a task that sends what `call` returns to the controller.
    pub(super) fn start<C, F>(&mut self, urgency: Urgency, call: C)
    where
        C: FnOnce(Arc<Context>) -> F + Send + 'static,
        F: Future<Output = Message> + Send,
    {
        let context = self.context.clone();
        self.tasks.spawn(async move {
            let _place = match urgency {
                Urgency::Now => None,
                // The semaphore is never closed.
                Urgency::Background => context.background.acquire().await.ok(),
            };
            let message = call(context.clone()).await;
            // The controller is gone only when the process ends.
            let _ = context.messages.send(message).await;
        });
    }

    /// Starts a task that sends nothing to the controller.
    pub(super) fn start_silent<C, F>(&mut self, call: C)
    where
        C: FnOnce(Arc<Context>) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let context = self.context.clone();
        self.tasks.spawn(async move { call(context).await });
    }

    /// Frees the memory of tasks that have ended.
    pub(super) fn clear(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }
}

/// A callback that counts the writes to the API server.
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
