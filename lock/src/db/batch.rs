//! Requests that many tasks make at the same time go to the server together, in one statement with one commit, as a
//! database does with the commits of many clients (group commit). No request waits for others to join it: if a slot is
//! free, it goes at once, with those that are made at the same moment; requests that find no free slot go together when
//! one becomes free. A single request is a batch of one.
//!
//! Statements run in their own tasks: a caller that is not polled for a while, or goes away, does not delay the answers
//! to others.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::db::database::Database;
use crate::{LockError, SessionId};

/// How many statements of one kind may be under way. With two, the server works on one while the answer to the other
/// travels. More would make the batches smaller, and take connections from other work.
const SLOTS: usize = 2;

/// A request that may go to the server together with others of its kind, including others about the same key.
pub(crate) trait Request: Debug + Sized + Send + Sync + 'static {
    /// The type of its answer.
    type Answer: Debug + Send + 'static;

    /// The name of the statement in errors and logs.
    const NAME: &'static str;

    /// Most requests in one statement.
    const MOST: usize;

    /// The session that makes the request. Only requests of one session go together.
    fn session(&self) -> SessionId;

    /// Sends the requests to the database, in bounded time. Answers come in the order of the requests.
    fn send(
        database: &Database,
        own: SessionId,
        requests: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, LockError>> + Send;
}

/// The requests that wait, and the number of free slots. Clones share them.
#[derive(Debug)]
pub(crate) struct Batcher<R: Request>(Arc<Mutex<State<R>>>);

impl<R: Request> Clone for Batcher<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct State<R: Request> {
    waiting: VecDeque<Waiting<R>>,
    free: usize,
    /// At this length, requests whose callers went away are removed. So the queue is never longer than twice the number
    /// of requests that still wait, plus one batch.
    sweep_at: usize,
}

#[derive(Debug)]
struct Waiting<R: Request> {
    request: R,
    answer: oneshot::Sender<Result<R::Answer, LockError>>,
}

impl<R: Request> Default for Batcher<R> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { waiting: VecDeque::new(), free: SLOTS, sweep_at: R::MOST })))
    }
}

impl<R: Request> Batcher<R> {
    /// Sends a request, at once or together with others. May be dropped: a request that still waits is then not sent,
    /// and a statement that no caller waits for is given up. A statement that others wait for runs on, and may take
    /// effect.
    pub(crate) async fn ask(&self, database: &Database, request: R) -> Result<R::Answer, LockError> {
        let runtime = Handle::current();
        let (answer, answered) = oneshot::channel();
        let has_slot = self.0.lock().enter(Waiting { request, answer });
        if has_slot {
            let slot = Slot { state: Arc::clone(&self.0), taken: true };
            runtime.spawn(slot.run(database.clone()));
        }
        answered.await.unwrap_or_else(|_| {
            let detail = "the program's runtime is shutting down".to_owned();
            Err(LockError::Interrupted { statement: R::NAME, detail })
        })
    }
}

impl<R: Request> State<R> {
    /// Adds a request. Takes a slot if one is free, and returns whether it did.
    fn enter(&mut self, waiting: Waiting<R>) -> bool {
        if self.waiting.len() >= self.sweep_at {
            self.waiting.retain(|waiting| !waiting.answer.is_closed());
            self.sweep_at = R::MOST + 2 * self.waiting.len();
        }
        self.waiting.push_back(waiting);
        let enters = self.free > 0;
        self.free -= usize::from(enters);
        enters
    }

    /// The next batch: the first requests that still wait, all of one session.
    fn next(&mut self) -> Vec<Waiting<R>> {
        let mut next: Vec<Waiting<R>> = Vec::new();
        let mut others = VecDeque::new();
        while next.len() < R::MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if waiting.answer.is_closed() {
                continue;
            }
            match next.first() {
                Some(first) if first.request.session() != waiting.request.session() => {
                    others.push_back(waiting);
                }
                _ => next.push(waiting),
            }
        }
        others.append(&mut self.waiting);
        self.waiting = others;
        next
    }
}

/// The right to have one statement under way.
struct Slot<R: Request> {
    state: Arc<Mutex<State<R>>>,
    taken: bool,
}

/// Matters only if the task ends early, with its runtime: those that wait get an error, so that they do not wait for
/// ever.
impl<R: Request> Drop for Slot<R> {
    fn drop(&mut self) {
        if self.taken {
            let mut state = self.state.lock();
            state.free += 1;
            state.waiting.clear();
        }
    }
}

impl<R: Request> Slot<R> {
    /// Sends batches until no request waits.
    async fn run(mut self, database: Database) {
        loop {
            // Lets other tasks add their requests first: for instance, an answer to a batch has just woken many tasks.
            yield_now().await;
            let Some(next) = self.next() else { return };
            let own = next[0].request.session();
            let (requests, mut asking): (Vec<_>, Vec<_>) =
                next.into_iter().map(|waiting| (waiting.request, waiting.answer)).unzip();
            let answers = tokio::select! {
                biased;
                answers = R::send(&database, own, &requests) => answers,
                _ = join_all(asking.iter_mut().map(oneshot::Sender::closed)) => continue,
            };
            match answers {
                Ok(answers) => {
                    for (asking, answer) in asking.into_iter().zip(answers) {
                        // The caller may have gone away.
                        let _ = asking.send(Ok(answer));
                    }
                }
                Err(error) => {
                    for asking in asking {
                        let _ = asking.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    /// The next batch. If no request waits, frees the slot and returns `None`.
    fn next(&mut self) -> Option<Vec<Waiting<R>>> {
        let mut state = self.state.lock();
        let next = state.next();
        if next.is_empty() {
            state.free += 1;
            self.taken = false;
            return None;
        }
        Some(next)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::DatabaseConfig;
    use crate::db::pool::Pool;

    /// A batch as it was sent, and how to answer it: each request with its number of characters, or all with an error.
    type Sent = (Vec<String>, oneshot::Sender<Result<(), LockError>>);

    #[derive(Debug, Clone)]
    struct Word {
        text: String,
        session: SessionId,
        server: UnboundedSender<Sent>,
    }

    impl Request for Word {
        type Answer = usize;

        const NAME: &'static str = "word";
        const MOST: usize = 100;

        fn session(&self) -> SessionId {
            self.session
        }

        async fn send(_: &Database, _: SessionId, requests: &[Self]) -> Result<Vec<usize>, LockError> {
            let (answer, answered) = oneshot::channel();
            let texts = requests.iter().map(|word| word.text.clone()).collect();
            requests[0].server.send((texts, answer)).unwrap();
            answered.await.unwrap()?;
            Ok(requests.iter().map(|word| word.text.len()).collect())
        }
    }

    struct Scene {
        batcher: Batcher<Word>,
        database: Database,
        server: UnboundedSender<Sent>,
        sent: UnboundedReceiver<Sent>,
    }

    impl Scene {
        fn new() -> Self {
            let (server, sent) = unbounded_channel();
            let config = DatabaseConfig { url: "postgres://nowhere/db".into(), ..DatabaseConfig::default() };
            let database = Database::on(Pool::new(&config).unwrap());
            Self { batcher: Batcher::default(), database, server, sent }
        }

        /// Makes a request in its own task, and waits until it is under way or in the queue.
        async fn ask(&self, text: &str) -> JoinHandle<Result<usize, LockError>> {
            let (batcher, database, word) = (self.batcher.clone(), self.database.clone(), self.word(text));
            let before = self.state();
            let asking = tokio::spawn(async move { batcher.ask(&database, word).await });
            while self.state() == before {
                tokio::task::yield_now().await;
            }
            asking
        }

        fn word(&self, text: &str) -> Word {
            Word { text: text.to_owned(), session: uuid::Uuid::nil().into(), server: self.server.clone() }
        }

        fn state(&self) -> (usize, usize) {
            let state = self.batcher.0.lock();
            (state.waiting.len(), state.free)
        }

        async fn next(&mut self) -> Sent {
            tokio::time::timeout(Duration::from_mins(1), self.sent.recv()).await.unwrap().unwrap()
        }

        /// Two requests that occupy the slots until they are answered.
        async fn busy(&mut self) -> ([Sent; SLOTS], Vec<JoinHandle<Result<usize, LockError>>>) {
            let asking = vec![self.ask("slot-1").await, self.ask("slot-2").await];
            ([self.next().await, self.next().await], asking)
        }

        async fn all_slots_are_free(&self) {
            while self.state() != (0, SLOTS) {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_finds_a_slot_free_goes_at_once_and_alone() {
        let mut scene = Scene::new();
        for text in ["a", "bb"] {
            let asking = scene.ask(text).await;
            let (texts, answer) = scene.next().await;
            assert_eq!(texts, [text]);
            answer.send(Ok(())).unwrap();
            assert_eq!(asking.await.unwrap(), Ok(text.len()));
            scene.all_slots_are_free().await;
        }
    }

    /// As on a worker of a program's runtime: the task that was spawned last runs next.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn those_that_ask_at_the_same_moment_go_together() {
        let mut scene = Scene::new();
        let words =
            ["1", "22", "333"].map(|text| (scene.batcher.clone(), scene.database.clone(), scene.word(text)));
        let spawn_all = async move {
            words.map(|(batcher, database, word)| {
                tokio::spawn(async move { batcher.ask(&database, word).await })
            })
        };
        let asking = tokio::spawn(spawn_all).await.unwrap();
        let (texts, answer) = scene.next().await;
        assert_eq!(texts.len(), 3, "{texts:?}");
        answer.send(Ok(())).unwrap();
        for (asking, length) in asking.into_iter().zip(1..) {
            assert_eq!(asking.await.unwrap(), Ok(length));
        }
    }

    #[tokio::test]
    async fn those_that_wait_go_together_and_each_gets_its_own_answer() {
        let mut scene = Scene::new();
        let ([(_, first), (_, second)], _busy) = scene.busy().await;
        let asked = ["1", "22", "333"];
        let mut asking = Vec::new();
        for text in asked {
            asking.push(scene.ask(text).await);
        }
        first.send(Ok(())).unwrap();
        let (texts, answer) = scene.next().await;
        assert_eq!(texts, asked);
        answer.send(Ok(())).unwrap();
        for (asking, text) in asking.into_iter().zip(asked) {
            assert_eq!(asking.await.unwrap(), Ok(text.len()));
        }
        second.send(Ok(())).unwrap();
        scene.all_slots_are_free().await;
    }

    #[tokio::test]
    async fn an_error_is_for_all_of_a_batch_and_for_nobody_else() {
        let mut scene = Scene::new();
        let ([(_, first), _second], _busy) = scene.busy().await;
        let (one, two) = (scene.ask("1").await, scene.ask("2").await);
        first.send(Ok(())).unwrap();
        let (_, answer) = scene.next().await;
        let later = scene.ask("3").await;
        answer.send(Err(LockError::ReadOnly)).unwrap();
        let answers = (one.await.unwrap(), two.await.unwrap());
        assert_eq!(answers, (Err(LockError::ReadOnly), Err(LockError::ReadOnly)));
        scene.next().await.1.send(Ok(())).unwrap();
        assert_eq!(later.await.unwrap(), Ok(1));
    }

    /// Two futures that the program does not poll for a while, like those of a buffered stream.
    #[tokio::test]
    async fn callers_that_are_not_polled_keep_nobody_waiting() {
        let mut scene = Scene::new();
        let words = ["1", "2"].map(|text| scene.word(text));
        let (batcher, database) = (scene.batcher.clone(), scene.database.clone());
        let mut unread = words.map(|word| Box::pin(batcher.ask(&database, word)));
        let mut sent = Vec::new();
        for asking in &mut unread {
            assert!(futures::poll!(asking).is_pending());
            sent.push(scene.next().await);
        }
        let asking = tokio::spawn({
            let (batcher, database, word) =
                (scene.batcher.clone(), scene.database.clone(), scene.word("333"));
            async move { batcher.ask(&database, word).await }
        });
        for (_, answer) in sent {
            answer.send(Ok(())).unwrap();
        }
        scene.next().await.1.send(Ok(())).unwrap();
        assert_eq!(asking.await.unwrap(), Ok(3));
        for asking in unread {
            assert_eq!(asking.await, Ok(1));
        }
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_takes_its_request_along_and_nobody_elses_answer() {
        let mut scene = Scene::new();
        let ([(_, mut first), _second], mut busy) = scene.busy().await;
        let (gone, stays) = (scene.ask("gone").await, scene.ask("stays").await);
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        // No caller waits for this statement any more: it is given up, and the next batch gets its slot.
        busy.remove(0).abort();
        first.closed().await;
        let (texts, answer) = scene.next().await;
        assert_eq!(texts, ["stays"]);
        answer.send(Ok(())).unwrap();
        assert_eq!(stays.await.unwrap(), Ok(5));
    }

    #[tokio::test]
    async fn a_batch_is_bounded_and_so_is_what_callers_that_went_away_leave() {
        let mut scene = Scene::new();
        let ([(_, first), _second], _busy) = scene.busy().await;
        for _ in 0..10 * Word::MOST {
            scene.ask("gone").await.abort();
            assert!(scene.state().0 <= Word::MOST + 1);
        }
        let mut asking = Vec::new();
        for _ in 0..=Word::MOST {
            let (batcher, database, word) = (scene.batcher.clone(), scene.database.clone(), scene.word("x"));
            asking.push(tokio::spawn(async move { batcher.ask(&database, word).await }));
            tokio::task::yield_now().await;
        }
        first.send(Ok(())).unwrap();
        for expected in [Word::MOST, 1] {
            let (texts, answer) = scene.next().await;
            assert_eq!(texts.len(), expected);
            answer.send(Ok(())).unwrap();
        }
        for asking in asking {
            assert_eq!(asking.await.unwrap(), Ok(1));
        }
    }

    #[test]
    fn a_runtime_that_ends_takes_no_slot_with_it() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = runtime();
        let (mut scene, waiting) = first.block_on(async {
            let mut scene = Scene::new();
            let (_sent, _busy) = scene.busy().await;
            let waiting = scene.ask("x").await;
            (scene, waiting)
        });
        drop(first);
        assert_eq!(scene.state(), (0, SLOTS));
        runtime().block_on(async {
            assert!(waiting.await.is_err(), "it ended with its runtime");
            let asking = scene.ask("22").await;
            scene.next().await.1.send(Ok(())).unwrap();
            assert_eq!(asking.await.unwrap(), Ok(2));
        });
    }

    /// A session was lost while one of its requests still waited.
    #[tokio::test]
    async fn requests_of_two_sessions_go_in_two_statements() {
        let mut scene = Scene::new();
        let ([(_, first), _second], _busy) = scene.busy().await;
        let mut asking = Vec::new();
        for (text, session) in [("lost", 1), ("next-1", 2), ("lost too", 1), ("next-2", 2)] {
            let word = Word { session: uuid::Uuid::from_u128(session).into(), ..scene.word(text) };
            let (batcher, database, before) = (scene.batcher.clone(), scene.database.clone(), scene.state());
            asking.push(tokio::spawn(async move { batcher.ask(&database, word).await }));
            while scene.state() == before {
                tokio::task::yield_now().await;
            }
        }
        first.send(Ok(())).unwrap();
        for expected in [["lost", "lost too"], ["next-1", "next-2"]] {
            let (texts, answer) = scene.next().await;
            assert_eq!(texts, expected);
            let answers = if expected[0] == "lost" { Err(LockError::SessionDead) } else { Ok(()) };
            answer.send(answers).unwrap();
        }
        let answers: Vec<_> =
            futures::future::join_all(asking).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, [Err(LockError::SessionDead), Ok(6), Err(LockError::SessionDead), Ok(6)]);
    }
}
