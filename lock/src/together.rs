//! What many tasks of a program ask at the same time goes to the server together: one statement and one commit for all of it,
//! as a database does it with the commits of many clients. Nobody waits for company. A question goes at once if there is a way
//! free, with those that are asked at the same moment; those that find none go together when there is one again.
//!
//! Statements run in tasks of their own: an asker that is not polled for a while, or goes away, keeps nobody else from an answer.
//!
//! Owns who goes with whom, and knows nothing of what is asked.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::{LockError, Store};

/// How many statements of one kind may be under way. Two, so that the server is at work on one while the answer to the other
/// travels. More would make the batches smaller, and take connections from other work.
const WAYS: usize = 2;

/// Most questions in one statement: for each of them it may take a lock from the server's table.
const MOST: usize = 100;

/// Something that may be asked together with others of its kind, those about the same among them.
pub(super) trait Question: Debug + Sized + Send + Sync + 'static {
    /// What it is answered.
    type Answer: Debug + Send + 'static;

    /// What the log calls the statement.
    const NAME: &'static str;

    /// Asks the database, in bounded time. Answers come in the order of the questions.
    fn send(
        store: &Store,
        questions: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, LockError>> + Send;
}

/// Those that wait, and the ways that are free.
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
    /// At this length those that went away are taken out: there are never more than twice as many as wait, and a batch.
    sweep_at: usize,
}

#[derive(Debug)]
struct Waiting<Q: Question> {
    question: Q,
    answer: oneshot::Sender<Result<Q::Answer, LockError>>,
}

impl<Q: Question> Default for Together<Q> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { waiting: VecDeque::new(), free: WAYS, sweep_at: MOST })))
    }
}

impl<Q: Question> Together<Q> {
    /// Asks it, at once or together with others. May be dropped: what waits is then not asked any more, and a statement that
    /// nobody waits for is given up. One that others wait for as well goes on, and may take effect.
    pub(super) async fn ask(&self, store: &Store, question: Q) -> Result<Q::Answer, LockError> {
        let runtime = Handle::current();
        let (answer, answered) = oneshot::channel();
        let enters = lock(&self.0).enter(Waiting { question, answer });
        if enters {
            let way = Way { state: Arc::clone(&self.0), taken: true };
            runtime.spawn(way.go(store.clone()));
        }
        answered.await.unwrap_or_else(|_| {
            let detail = "the program's runtime is shutting down".to_owned();
            Err(LockError::Interrupted { statement: Q::NAME, detail })
        })
    }
}

fn lock<Q: Question>(state: &Mutex<State<Q>>) -> MutexGuard<'_, State<Q>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<Q: Question> State<Q> {
    /// True if there is a way free, which is taken then.
    fn enter(&mut self, waiting: Waiting<Q>) -> bool {
        if self.waiting.len() >= self.sweep_at {
            self.waiting.retain(|waiting| !waiting.answer.is_closed());
            self.sweep_at = MOST + 2 * self.waiting.len();
        }
        self.waiting.push_back(waiting);
        let enters = self.free > 0;
        self.free -= usize::from(enters);
        enters
    }

    /// The first of those that wait for an answer still.
    fn next(&mut self) -> Vec<Waiting<Q>> {
        let mut next = Vec::new();
        while next.len() < MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if !waiting.answer.is_closed() {
                next.push(waiting);
            }
        }
        next
    }
}

/// The right to have one statement under way.
struct Way<Q: Question> {
    state: Arc<Mutex<State<Q>>>,
    taken: bool,
}

/// Only if it ends before its time, with the runtime: whoever waits is told so, lest it wait for ever.
impl<Q: Question> Drop for Way<Q> {
    fn drop(&mut self) {
        if self.taken {
            let mut state = lock(&self.state);
            state.free += 1;
            state.waiting.clear();
        }
    }
}

impl<Q: Question> Way<Q> {
    /// Asks what waits, until nothing does.
    async fn go(mut self, store: Store) {
        loop {
            // Those who are about to ask at this moment do: an answer to many has just woken many, for one.
            yield_now().await;
            let Some(next) = self.next() else { return };
            let (questions, mut asking): (Vec<_>, Vec<_>) =
                next.into_iter().map(|waiting| (waiting.question, waiting.answer)).unzip();
            let answers = tokio::select! {
                biased;
                answers = Q::send(&store, &questions) => answers,
                _ = join_all(asking.iter_mut().map(oneshot::Sender::closed)) => continue,
            };
            match answers {
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
        }
    }

    /// None, and the way is free, when nobody waits.
    fn next(&mut self) -> Option<Vec<Waiting<Q>>> {
        let mut state = lock(&self.state);
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

    use super::super::DatabaseConfig;
    use super::*;

    /// What was sent at once, and how it is answered: each question with its number of characters, or all with an error.
    type Sent = (Vec<String>, oneshot::Sender<Result<(), LockError>>);

    #[derive(Debug, Clone)]
    struct Word {
        text: String,
        server: UnboundedSender<Sent>,
    }

    impl Question for Word {
        type Answer = usize;

        const NAME: &'static str = "word";

        async fn send(_: &Store, questions: &[Self]) -> Result<Vec<usize>, LockError> {
            let (answer, answered) = oneshot::channel();
            let texts = questions.iter().map(|word| word.text.clone()).collect();
            questions[0].server.send((texts, answer)).unwrap();
            answered.await.unwrap()?;
            Ok(questions.iter().map(|word| word.text.len()).collect())
        }
    }

    struct Scene {
        together: Together<Word>,
        store: Store,
        server: UnboundedSender<Sent>,
        sent: UnboundedReceiver<Sent>,
    }

    impl Scene {
        fn new() -> Self {
            let (server, sent) = unbounded_channel();
            let config = DatabaseConfig { url: "postgres://nowhere/db".into(), ..DatabaseConfig::default() };
            Self { together: Together::default(), store: Store::new(&config).unwrap(), server, sent }
        }

        /// Asks in a task of its own, and waits until it is under way or in the queue.
        async fn ask(&self, text: &str) -> JoinHandle<Result<usize, LockError>> {
            let (together, store, word) = (self.together.clone(), self.store.clone(), self.word(text));
            let before = self.state();
            let asking = tokio::spawn(async move { together.ask(&store, word).await });
            while self.state() == before {
                tokio::task::yield_now().await;
            }
            asking
        }

        fn word(&self, text: &str) -> Word {
            Word { text: text.to_owned(), server: self.server.clone() }
        }

        fn state(&self) -> (usize, usize) {
            let state = lock(&self.together.0);
            (state.waiting.len(), state.free)
        }

        async fn next(&mut self) -> Sent {
            tokio::time::timeout(Duration::from_mins(1), self.sent.recv()).await.unwrap().unwrap()
        }

        /// Two that occupy the ways, and hear their answers one day.
        async fn busy(&mut self) -> ([Sent; WAYS], Vec<JoinHandle<Result<usize, LockError>>>) {
            let asking = vec![self.ask("way-1").await, self.ask("way-2").await];
            ([self.next().await, self.next().await], asking)
        }

        async fn all_ways_are_free(&self) {
            while self.state() != (0, WAYS) {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn whoever_finds_a_way_free_goes_at_once_and_alone() {
        let mut scene = Scene::new();
        for text in ["a", "bb"] {
            let asking = scene.ask(text).await;
            let (texts, answer) = scene.next().await;
            assert_eq!(texts, [text]);
            answer.send(Ok(())).unwrap();
            assert_eq!(asking.await.unwrap(), Ok(text.len()));
            scene.all_ways_are_free().await;
        }
    }

    /// As on a worker of a program's runtime: what a task spawns last is what runs next.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn those_that_ask_at_the_same_moment_go_together() {
        let mut scene = Scene::new();
        let words =
            ["1", "22", "333"].map(|text| (scene.together.clone(), scene.store.clone(), scene.word(text)));
        let spawn_all = async move {
            words.map(|(together, store, word)| tokio::spawn(async move { together.ask(&store, word).await }))
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
        scene.all_ways_are_free().await;
    }

    #[tokio::test]
    async fn an_error_is_for_all_that_went_together_and_for_nobody_else() {
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

    /// Two of a program's futures that it does not look at for a while, as those of a buffered stream.
    #[tokio::test]
    async fn askers_that_do_not_look_keep_nobody_waiting() {
        let mut scene = Scene::new();
        let words = ["1", "2"].map(|text| scene.word(text));
        let (together, store) = (scene.together.clone(), scene.store.clone());
        let mut unread = words.map(|word| Box::pin(together.ask(&store, word)));
        let mut sent = Vec::new();
        for asking in &mut unread {
            assert!(futures::poll!(asking).is_pending());
            sent.push(scene.next().await);
        }
        let asking = tokio::spawn({
            let (together, store, word) = (scene.together.clone(), scene.store.clone(), scene.word("333"));
            async move { together.ask(&store, word).await }
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
    async fn whoever_goes_away_takes_its_question_along_and_nobody_elses_answer() {
        let mut scene = Scene::new();
        let ([(_, mut first), _second], mut busy) = scene.busy().await;
        let (gone, stays) = (scene.ask("gone").await, scene.ask("stays").await);
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        // Nobody waits for this statement any more: it is given up, and the next ones have its way.
        busy.remove(0).abort();
        first.closed().await;
        let (texts, answer) = scene.next().await;
        assert_eq!(texts, ["stays"]);
        answer.send(Ok(())).unwrap();
        assert_eq!(stays.await.unwrap(), Ok(5));
    }

    #[tokio::test]
    async fn a_batch_is_bounded_and_so_is_what_those_who_went_away_leave() {
        let mut scene = Scene::new();
        let ([(_, first), _second], _busy) = scene.busy().await;
        for _ in 0..10 * MOST {
            scene.ask("gone").await.abort();
            assert!(scene.state().0 <= MOST + 1);
        }
        let mut asking = Vec::new();
        for _ in 0..=MOST {
            let (together, store, word) = (scene.together.clone(), scene.store.clone(), scene.word("x"));
            asking.push(tokio::spawn(async move { together.ask(&store, word).await }));
            tokio::task::yield_now().await;
        }
        first.send(Ok(())).unwrap();
        for expected in [MOST, 1] {
            let (texts, answer) = scene.next().await;
            assert_eq!(texts.len(), expected);
            answer.send(Ok(())).unwrap();
        }
        for asking in asking {
            assert_eq!(asking.await.unwrap(), Ok(1));
        }
    }

    #[test]
    fn a_runtime_that_ends_takes_no_way_with_it() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = runtime();
        let (mut scene, waiting) = first.block_on(async {
            let mut scene = Scene::new();
            let (_sent, _busy) = scene.busy().await;
            let waiting = scene.ask("x").await;
            (scene, waiting)
        });
        drop(first);
        assert_eq!(scene.state(), (0, WAYS));
        runtime().block_on(async {
            assert!(waiting.await.is_err(), "it went with its runtime");
            let asking = scene.ask("22").await;
            scene.next().await.1.send(Ok(())).unwrap();
            assert_eq!(asking.await.unwrap(), Ok(2));
        });
    }
}
