//! The lock's front desk: what many groups ask at the same time becomes one statement.
//!
//! A node that dies takes the active pods of many groups with it. While one statement is on its way the next requests
//! gather, and go together: no timer, no delay for a single one.

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};

use leadergroup_lock::{Changed, Grant, Granted, Key, LockError, Refusal, SessionId, Store, Token, Vacate};

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

/// Requests of one kind.
struct Batches<R, A>(Vec<Batch<R, A>>);

/// Those of them that are of one session, and go together. Few are of another than the present one: a session that was
/// lost meanwhile.
struct Batch<R, A> {
    session: SessionId,
    requests: Vec<R>,
    replies: Vec<Reply<A>>,
}

impl<R, A> Batches<R, A> {
    fn push(&mut self, session: SessionId, request: R, reply: Reply<A>) {
        if let Some(batch) = self.0.iter_mut().find(|batch| batch.session == session) {
            batch.requests.push(request);
            batch.replies.push(reply);
        } else {
            self.0.push(Batch { session, requests: vec![request], replies: vec![reply] });
        }
    }

    async fn run<F>(self, statement: impl Fn(SessionId, Vec<R>) -> F)
    where
        F: Future<Output = Result<Vec<A>, LockError>>,
    {
        join_all(self.0.into_iter().map(|batch| batch.run(&statement))).await;
    }
}

impl<R, A> Batch<R, A> {
    async fn run<F>(self, statement: impl Fn(SessionId, Vec<R>) -> F)
    where
        F: Future<Output = Result<Vec<A>, LockError>>,
    {
        // Whoever asked may have given up meanwhile: then there is nobody to tell.
        match statement(self.session, self.requests).await {
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
        let (mut grants, mut confirms, mut vacates) =
            (Batches(Vec::new()), Batches(Vec::new()), Batches(Vec::new()));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A session was lost while a request of it still waited.
    #[tokio::test]
    async fn a_request_of_a_lost_session_does_not_speak_for_those_of_the_next() {
        let (lost, next) = (SessionId::new(), SessionId::new());
        let mut batches = Batches(Vec::new());
        let mut ask = |session, request: u32| {
            let (reply, answer) = oneshot::channel();
            batches.push(session, request, reply);
            answer
        };
        let (late, one, two) = (ask(lost, 1), ask(next, 2), ask(next, 3));
        let statement = |session, requests: Vec<u32>| async move {
            if session == lost { Err(LockError::SessionDead) } else { Ok(requests) }
        };
        batches.run(statement).await;
        assert!(matches!(late.await, Ok(Err(LockError::SessionDead))));
        assert!(matches!((one.await, two.await), (Ok(Ok(2)), Ok(Ok(3)))));
    }
}
