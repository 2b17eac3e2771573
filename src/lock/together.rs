//! What many tasks of a program ask at the same time goes to the server together: one statement and one commit for all of it,
//! as a database does it with the commits of many clients. Nobody waits for company. A question goes at once, and alone, if
//! there is a way free; those that find none go together when there is one again.
//!
//! Owns who goes with whom, and knows nothing of what is asked.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{Key, LockError, Store};

/// How many statements of one kind may be under way. Two, so that the server is at work on one while the answer to the other
/// travels. More would make the batches smaller, and take connections from other work.
const WAYS: usize = 2;

/// Most questions in one statement: for each of them it may take a lock from the server's table.
const MOST: usize = 100;

/// Something that may be asked together with others of its kind.
pub(super) trait Question: Debug + Sized + Send + Sync + 'static {
    /// What it is answered.
    type Answer: Debug + Send + 'static;

    /// What the log calls the statement.
    const NAME: &'static str;

    /// What it is about. Two questions about the same never go together.
    fn key(&self) -> &Key;

    /// Asks the database. Answers come in the order of the questions.
    fn send(
        store: &Store,
        questions: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, LockError>> + Send;
}

/// Those that wait, and the ways that are free. The callers bound the queue: each has one question in it.
#[derive(Debug)]
pub(super) struct Together<Q: Question>(Arc<Mutex<State<Q>>>);

/// The same queue.
impl<Q: Question> Clone for Together<Q> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct State<Q: Question> {
    waiting: VecDeque<Waiting<Q>>,
    free: usize,
}

#[derive(Debug)]
struct Waiting<Q: Question> {
    question: Q,
    answer: oneshot::Sender<Result<Q::Answer, LockError>>,
}

impl<Q: Question> Default for Together<Q> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { waiting: VecDeque::new(), free: WAYS })))
    }
}

impl<Q: Question> Together<Q> {
    /// Asks it, at once or together with others. May be dropped: what waits is then not asked any more; what is on its way
    /// may still take effect.
    pub(super) async fn ask(&self, store: &Store, question: Q) -> Result<Q::Answer, LockError> {
        let lost = || LockError::Interrupted {
            statement: Q::NAME,
            detail: "the program's runtime is shutting down".to_owned(),
        };
        let waiting = {
            let mut state = lock(&self.0);
            if state.free > 0 {
                state.free -= 1;
                Err(question)
            } else {
                let (answer, answered) = oneshot::channel();
                state.waiting.push_back(Waiting { question, answer });
                Ok(answered)
            }
        };
        match waiting {
            Ok(answered) => answered.await.unwrap_or_else(|_| Err(lost())),
            Err(question) => {
                let _way =
                    Way { state: Arc::clone(&self.0), store: store.clone(), runtime: Handle::current() };
                let mut answers = Q::send(store, std::slice::from_ref(&question)).await?;
                answers.pop().ok_or_else(lost)
            }
        }
    }
}

fn lock<Q: Question>(state: &Mutex<State<Q>>) -> MutexGuard<'_, State<Q>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<Q: Question> State<Q> {
    /// The first of those that wait for an answer still, and all that may go with them.
    fn next(&mut self) -> Vec<Waiting<Q>> {
        let mut keys = HashSet::new();
        let mut chosen = Vec::new();
        let mut left = VecDeque::new();
        for waiting in self.waiting.drain(..) {
            if waiting.answer.is_closed() {
                continue;
            }
            if chosen.len() < MOST && keys.insert(waiting.question.key().clone()) {
                chosen.push(waiting);
            } else {
                left.push_back(waiting);
            }
        }
        self.waiting = left;
        chosen
    }
}

/// The right to have one statement under way. Whoever gives it back, by an answer or by being dropped, sends the next ones.
struct Way<Q: Question> {
    state: Arc<Mutex<State<Q>>>,
    store: Store,
    runtime: Handle,
}

impl<Q: Question> Drop for Way<Q> {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let next = state.next();
        if next.is_empty() {
            state.free += 1;
            return;
        }
        drop(state);
        let way =
            Self { state: Arc::clone(&self.state), store: self.store.clone(), runtime: self.runtime.clone() };
        // In a task of its own: none of those whom it concerns may keep the others from their answers by going away.
        self.runtime.spawn(async move {
            let (questions, asking): (Vec<_>, Vec<_>) =
                next.into_iter().map(|waiting| (waiting.question, waiting.answer)).unzip();
            match Q::send(&way.store, &questions).await {
                Ok(answers) => {
                    for (asking, answer) in asking.into_iter().zip(answers) {
                        // Whoever does not listen any more does not need it.
                        let _ = asking.send(Ok(answer));
                    }
                }
                Err(error) => {
                    for asking in asking {
                        let _ = asking.send(Err(error.clone()));
                    }
                }
            }
            drop(way);
        });
    }
}
