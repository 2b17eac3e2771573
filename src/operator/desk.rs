//! The lock's front desk: what many groups ask at the same time becomes one statement.
//!
//! A node that dies takes the active pods of many groups with it. While one statement is on its way the next requests
//! gather, and go together: no timer, no delay for a single one.

use tokio::sync::{mpsc, oneshot};

use crate::lock::{Changed, Grant, Granted, Key, LockError, Refusal, SessionId, Store, Token, Vacate};

/// How many requests may wait. More than that wait in their own tasks.
const QUEUE: usize = 1_024;
/// The most that go in one statement.
const BATCH: usize = 1_000;

/// Where an answer goes.
type Reply<A> = oneshot::Sender<Result<A, LockError>>;

enum Job {
    Grant(SessionId, Grant, Reply<Granted>),
    Confirm(SessionId, (Key, Token), Reply<Changed>),
    Vacate(SessionId, Vacate, Reply<Changed>),
}

/// A handle on the desk. Cheap to clone.
#[derive(Clone)]
pub(super) struct Desk {
    jobs: mpsc::Sender<Job>,
    store: Store,
}

/// Requests of one kind and session that go together.
struct Batch<R, A> {
    session: Option<SessionId>,
    requests: Vec<R>,
    replies: Vec<Reply<A>>,
}

impl<R, A> Default for Batch<R, A> {
    fn default() -> Self {
        Self { session: None, requests: Vec::new(), replies: Vec::new() }
    }
}

impl<R, A> Batch<R, A> {
    /// Takes the request in; hands it back when it is of another session, which can only be an outdated one.
    fn push(&mut self, session: SessionId, request: R, reply: Reply<A>) {
        if *self.session.get_or_insert(session) == session {
            self.requests.push(request);
            self.replies.push(reply);
        } else {
            let _ = reply.send(Err(LockError::SessionDead));
        }
    }

    async fn run<F>(self, statement: impl FnOnce(SessionId, Vec<R>) -> F)
    where
        F: Future<Output = Result<Vec<A>, LockError>>,
    {
        let Some(session) = self.session else { return };
        // Whoever asked may have given up meanwhile: then there is nobody to tell.
        match statement(session, self.requests).await {
            Ok(answers) => self.replies.into_iter().zip(answers).for_each(|(reply, answer)| {
                let _ = reply.send(Ok(answer));
            }),
            Err(error) => self.replies.into_iter().for_each(|reply| {
                let _ = reply.send(Err(error.clone()));
            }),
        }
    }
}

impl Desk {
    /// Opens the desk; it closes when the last handle is dropped.
    pub(super) fn open(store: Store) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        tokio::spawn(serve(store.clone(), queue));
        Self { jobs, store }
    }

    pub(super) async fn grant(&self, session: SessionId, grant: Grant) -> Result<Granted, LockError> {
        let again = grant.clone();
        match self.ask(|reply| Job::Grant(session, grant, reply)).await? {
            // Perhaps the old holder's transactions are in the way. They are waited for here, where only this group waits.
            Granted::Refused(Refusal::Busy) => {
                let mut answers = self.store.grant(session, &[again]).await?;
                Ok(answers.pop().unwrap_or(Granted::Refused(Refusal::Busy)))
            }
            answer => Ok(answer),
        }
    }

    pub(super) async fn confirm(
        &self,
        session: SessionId,
        key: Key,
        token: Token,
    ) -> Result<Changed, LockError> {
        self.ask(|reply| Job::Confirm(session, (key, token), reply)).await
    }

    pub(super) async fn vacate(&self, session: SessionId, vacate: Vacate) -> Result<Changed, LockError> {
        self.ask(|reply| Job::Vacate(session, vacate, reply)).await
    }

    async fn ask<A>(&self, job: impl FnOnce(Reply<A>) -> Job) -> Result<A, LockError> {
        let (reply, answer) = oneshot::channel();
        let closed = LockError::SessionDead;
        self.jobs.send(job(reply)).await.map_err(|_| closed.clone())?;
        answer.await.map_err(|_| closed)?
    }
}

async fn serve(store: Store, mut queue: mpsc::Receiver<Job>) {
    let mut jobs = Vec::with_capacity(BATCH);
    while queue.recv_many(&mut jobs, BATCH).await > 0 {
        let (mut grants, mut confirms, mut vacates) = (Batch::default(), Batch::default(), Batch::default());
        for job in jobs.drain(..) {
            match job {
                Job::Grant(session, request, reply) => grants.push(session, request, reply),
                Job::Confirm(session, request, reply) => confirms.push(session, request, reply),
                Job::Vacate(session, request, reply) => vacates.push(session, request, reply),
            }
        }
        let store = &store;
        tokio::join!(
            grants.run(|session, requests| async move { store.try_grant(session, &requests).await }),
            confirms.run(|session, requests| async move { store.confirm(session, &requests).await }),
            vacates.run(|session, requests| async move { store.vacate(session, &requests).await }),
        );
    }
}
