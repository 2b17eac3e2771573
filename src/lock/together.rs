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
        key: Key,
        text: String,
        server: UnboundedSender<Sent>,
    }

    impl Question for Word {
        type Answer = usize;

        const NAME: &'static str = "word";

        fn key(&self) -> &Key {
            &self.key
        }

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
        async fn ask(&self, key: &str, text: &str) -> JoinHandle<Result<usize, LockError>> {
            let (together, store) = (self.together.clone(), self.store.clone());
            let key = Key::new(key).unwrap();
            let word = Word { key, text: text.to_owned(), server: self.server.clone() };
            let before = self.state();
            let asking = tokio::spawn(async move { together.ask(&store, word).await });
            while self.state() == before {
                tokio::task::yield_now().await;
            }
            asking
        }

        fn state(&self) -> (usize, usize) {
            let state = lock(&self.together.0);
            (state.waiting.len(), state.free)
        }

        async fn next(&mut self) -> Sent {
            tokio::time::timeout(Duration::from_mins(1), self.sent.recv()).await.unwrap().unwrap()
        }

        /// Two that occupy the ways.
        async fn busy(&mut self) -> [Sent; WAYS] {
            for way in ["way-1", "way-2"] {
                drop(self.ask(way, way).await);
            }
            [self.next().await, self.next().await]
        }
    }

    #[tokio::test]
    async fn whoever_finds_a_way_free_goes_at_once_and_alone() {
        let mut scene = Scene::new();
        for text in ["a", "bb"] {
            let asking = scene.ask(text, text).await;
            let (texts, answer) = scene.next().await;
            assert_eq!(texts, [text]);
            answer.send(Ok(())).unwrap();
            assert_eq!(asking.await.unwrap(), Ok(text.len()));
        }
        assert_eq!(scene.state(), (0, WAYS));
    }

    #[tokio::test]
    async fn those_that_wait_go_together_but_never_two_for_the_same_key() {
        let mut scene = Scene::new();
        let [(_, first), (_, second)] = scene.busy().await;
        let asked = [("a", "1"), ("b", "22"), ("a", "333"), ("c", "4444")];
        let mut asking = Vec::new();
        for (key, text) in asked {
            asking.push(scene.ask(key, text).await);
        }
        first.send(Ok(())).unwrap();
        let (texts, answer) = scene.next().await;
        assert_eq!(texts, ["1", "22", "4444"]);
        answer.send(Ok(())).unwrap();
        let (texts, answer) = scene.next().await;
        assert_eq!(texts, ["333"]);
        answer.send(Ok(())).unwrap();
        for (asking, (_, text)) in asking.into_iter().zip(asked) {
            assert_eq!(asking.await.unwrap(), Ok(text.len()), "its own answer");
        }
        second.send(Ok(())).unwrap();
        while scene.state() != (0, WAYS) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_error_is_for_all_that_went_together_and_for_nobody_else() {
        let mut scene = Scene::new();
        let [(_, first), (_, second)] = scene.busy().await;
        let (one, two) = (scene.ask("a", "1").await, scene.ask("b", "2").await);
        first.send(Ok(())).unwrap();
        let (_, answer) = scene.next().await;
        let later = scene.ask("c", "3").await;
        answer.send(Err(LockError::ReadOnly)).unwrap();
        assert_eq!(
            (one.await.unwrap(), two.await.unwrap()),
            (Err(LockError::ReadOnly), Err(LockError::ReadOnly))
        );
        scene.next().await.1.send(Ok(())).unwrap();
        assert_eq!(later.await.unwrap(), Ok(1));
        second.send(Ok(())).unwrap();
    }

    #[tokio::test]
    async fn whoever_goes_away_takes_its_question_along_and_nobody_elses_answer() {
        let mut scene = Scene::new();
        let leader = scene.ask("way-1", "1").await;
        let _first = scene.next().await;
        drop(scene.ask("way-2", "2").await);
        let (_, second) = scene.next().await;
        let (gone, stays) = (scene.ask("a", "gone").await, scene.ask("b", "stays").await);
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        // The one on its way gives its way to the next ones even though nobody hears its answer.
        leader.abort();
        let (texts, answer) = scene.next().await;
        assert_eq!(texts, ["stays"]);
        answer.send(Ok(())).unwrap();
        assert_eq!(stays.await.unwrap(), Ok(5));
        second.send(Ok(())).unwrap();
    }

    #[tokio::test]
    async fn a_batch_is_bounded() {
        let mut scene = Scene::new();
        let [(_, first), (_, second)] = scene.busy().await;
        let mut asking = Vec::new();
        for number in 0..=MOST {
            asking.push(scene.ask(&format!("key-{number}"), "x").await);
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
        second.send(Ok(())).unwrap();
    }
}
