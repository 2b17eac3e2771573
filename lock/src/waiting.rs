//! Waiting for a key: how often a waiter asks, who tells it that it is its turn, what it does about delays, and how its
//! place is given up when it is not wanted any more.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::client::{Client, ClientError, Shared};
use super::hints::Word;
use super::stats::Attempt;
use super::{Acquired, GrantId, Guard, Key, LockError, Obstacle, Refusal, SessionId, Token, monotonic};

/// After a failure a waiter asks again after a tenth of its interval, then after twice as long each time, up to so many
/// intervals.
const LONGEST_PAUSE_INTERVALS: u32 = 5;

/// For so many keys a client remembers since when it sits out a delay. One that it forgets is sat out anew.
const MOST_DELAYS: usize = 1_000;

impl Client {
    /// Until there is a guard, or an error that does not pass. `met`: what it was that passes, each time.
    pub(super) async fn wait_for(
        &self,
        key: &Key,
        attempt: &mut Attempt<'_>,
        met: &mut Obstacle,
    ) -> Result<Guard, ClientError> {
        let shared = &self.shared;
        let interval = shared.config.retry_interval;
        let mut backoff = Backoff::new(interval);
        let mut sits_out = Countdown::default();
        loop {
            // Once for each session: a place in the queue is lost with it.
            let lease = *shared.lease.borrow();
            let session = lease.session;
            if lease.closed {
                return Err(LockError::SessionDead.into());
            }
            let mut wish = self.wish(key);
            let turn = Turn::new(&shared.turns, wish.request);
            let mut asked = false;
            {
                let mut unfinished = Unfinished::new(shared, session, key, wish.request);
                while shared.lease.borrow().serves(session) {
                    if let Some(guard) = self.again(key) {
                        return Ok(guard);
                    }
                    wish.delay_over = sits_out.over().or_else(|| shared.delays.over(key));
                    let asked_in = shared.lease.borrow().epoch;
                    let question = async {
                        if asked {
                            shared.store.queue_again(session, &wish).await
                        } else {
                            shared.store.queue_for(session, &wish).await
                        }
                    };
                    let answer = unfinished.ask(question).await;
                    asked = true;
                    if let Ok(answer) = &answer {
                        *met = Obstacle::of(answer, shared.store.settled.load(Ordering::Relaxed));
                    }
                    let pause = match answer {
                        Ok(Acquired::Waiting | Acquired::Held) => {
                            attempt.waits();
                            backoff = Backoff::new(interval);
                            // Not all at the same moment.
                            interval.mul_f64(1.0 + portion() / 4.0)
                        }
                        Ok(Acquired::Delayed { token, delay }) => {
                            attempt.waits();
                            backoff = Backoff::new(interval);
                            let left = sits_out.learn(token, || shared.delays.learn(key, token, delay));
                            interval.min(left) + (interval / 10).mul_f64(portion())
                        }
                        Ok(Acquired::Refused(Refusal::Busy | Refusal::SessionDead)) => backoff.next(interval),
                        Ok(acquired) => {
                            let Some(guard) = self.settle(unfinished, asked_in, acquired)? else { break };
                            return Ok(guard);
                        }
                        Err(error) if passes(&error) => {
                            tracing::debug!(%key, %error, "no answer to a waiter; trying again");
                            *met = Obstacle::Database(error);
                            backoff.next(interval * LONGEST_PAUSE_INTERVALS)
                        }
                        Err(error) => return Err(error.into()),
                    };
                    let _ = timeout(pause, turn.notify.notified()).await;
                }
            }
            // If the session is gone the background task makes another one. Or it lives, and only what was granted was not
            // worth anything. The sender lives as long as this.
            let mut renewed = shared.lease.subscribe();
            let _ = renewed.wait_for(|now| !now.serves(session) || now.covers(session)).await;
        }
    }
}

/// Whether it may be over before a waiter's time is up: besides what ends by itself, a failover, during which the database
/// takes no writes; a lack of resources; and a transaction that had to give way.
fn passes(error: &LockError) -> bool {
    match error {
        LockError::ReadOnly => true,
        LockError::Database { code, .. } => code.starts_with("53") || code.starts_with("40"),
        error => error.is_temporary(),
    }
}

/// The delay that one waiter sits out, whatever becomes of the list of [`Delays`].
#[derive(Debug, Default)]
struct Countdown(Option<(Token, Duration)>);

impl Countdown {
    /// An answer just received says so. Returns how much is left; of the first answer for a term `first` says it.
    fn learn(&mut self, token: Token, first: impl FnOnce() -> Duration) -> Duration {
        let now = monotonic();
        match self.0 {
            Some((known, until)) if known == token => until.saturating_sub(now),
            _ => {
                let left = first();
                // Not from `now`: what is left was measured after that.
                self.0 = Some((token, monotonic() + left));
                left
            }
        }
    }

    /// The token of the term whose delay is over.
    fn over(&self) -> Option<Token> {
        self.0.filter(|(_, until)| *until <= monotonic()).map(|(token, _)| token)
    }
}

/// Growing pauses, no two of them alike.
#[derive(Debug)]
struct Backoff(Duration);

impl Backoff {
    fn new(interval: Duration) -> Self {
        Self(interval / 10)
    }

    fn next(&mut self, most: Duration) -> Duration {
        let pause = self.0.min(most);
        self.0 = (pause * 2).min(most);
        pause.mul_f64(0.5 + portion() / 2.0)
    }
}

/// Somewhere between 0 and 1.
pub(super) fn portion() -> f64 {
    // The first 32 bits of such a UUID are all random.
    let (random, ..) = uuid::Uuid::new_v4().as_fields();
    f64::from(random) / f64::from(u32::MAX)
}

/// Terms that ended uncleanly and whose delay this process sits out, by key.
#[derive(Debug, Default)]
pub(super) struct Delays(Mutex<HashMap<Key, (Token, Duration)>>);

impl Delays {
    /// An answer just received says so. Returns how much of the delay is left.
    pub(super) fn learn(&self, key: &Key, token: Token, delay: Duration) -> Duration {
        let now = monotonic();
        let mut all = self.all();
        if let Some((known, until)) = all.get(key)
            && *known == token
        {
            return until.saturating_sub(now);
        }
        if all.len() >= MOST_DELAYS
            && !all.contains_key(key)
            && let Some(any) = all.keys().next().cloned()
        {
            all.remove(&any);
        }
        all.insert(key.clone(), (token, now + delay));
        delay
    }

    /// The token of the term whose delay is over.
    pub(super) fn over(&self, key: &Key) -> Option<Token> {
        let now = monotonic();
        self.all().get(key).filter(|(_, until)| *until <= now).map(|(token, _)| *token)
    }

    /// The key has a holder.
    pub(super) fn forget(&self, key: &Key) {
        self.all().remove(key);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, (Token, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wish that may have been granted without anybody knowing: when this is dropped it is taken back.
pub(super) struct Unfinished {
    pub(super) shared: Arc<Shared>,
    pub(super) session: SessionId,
    pub(super) key: Key,
    pub(super) request: GrantId,
    armed: bool,
    /// A statement may still be under way.
    unclear: bool,
}

impl Unfinished {
    pub(super) fn new(shared: &Arc<Shared>, session: SessionId, key: &Key, request: GrantId) -> Self {
        // Known before anything can come of it.
        shared.wishes.asks(request);
        Self { shared: Arc::clone(shared), session, key: key.clone(), request, armed: true, unclear: false }
    }

    /// Asks for it. Without an answer, nobody knows from then on what is still to come.
    pub(super) async fn ask<T>(
        &mut self,
        question: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let before = std::mem::replace(&mut self.unclear, true);
        self.shared.wishes.asks(self.request);
        let answer = question.await?;
        self.unclear = before;
        Ok(answer)
    }

    /// There is nothing to take back.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.shared.wishes.leave(self.request, self.unclear);
        if !self.armed {
            return;
        }
        let (shared, session) = (Arc::clone(&self.shared), self.session);
        let (key, request) = (self.key.clone(), self.request);
        self.shared.runtime.spawn(async move {
            shared.insist(session, async || shared.store.give_up(session, &key, request).await).await;
        });
    }
}

/// Those who wait for their turn, by request.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<uuid::Uuid, Arc<Notify>>>);

impl Turns {
    /// All had better look for themselves.
    pub(super) fn wake_all(&self) {
        self.all().values().for_each(|turn| turn.notify_one());
    }

    fn wake(&self, request: uuid::Uuid) {
        if let Some(turn) = self.all().get(&request) {
            turn.notify_one();
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<uuid::Uuid, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place where the word that it is one's turn is left.
struct Turn<'a> {
    turns: &'a Turns,
    request: uuid::Uuid,
    notify: Arc<Notify>,
}

impl<'a> Turn<'a> {
    fn new(turns: &'a Turns, request: GrantId) -> Self {
        let notify = Arc::new(Notify::new());
        turns.all().insert(request.as_uuid(), Arc::clone(&notify));
        Self { turns, request: request.as_uuid(), notify }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.all().remove(&self.request);
    }
}

/// Passes on whose turn it is, and whose term was ended by others.
pub(super) async fn listen(shared: Arc<Shared>) {
    let mut lease = shared.lease.subscribe();
    loop {
        let session = lease.borrow_and_update().session;
        let mut words = std::pin::pin!(shared.store.listen_for_turns(session));
        let heard = async {
            while let Some(word) = words.next().await {
                match word {
                    Word::About(request) => {
                        shared.turns.wake(request);
                        shared.wishes.heard_of(request);
                        shared.terms.heard_of(request);
                    }
                    Word::Freed => shared.turns.wake_all(),
                    Word::Missed => {
                        shared.turns.wake_all();
                        shared.terms.doubt();
                        shared.wishes.may_have_crashed();
                    }
                }
            }
        };
        // Neither ends by itself: the words go on for ever, and the sender lives as long as this.
        tokio::select! {
            () = heard => {}
            _ = lease.wait_for(|now| now.session != session) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).expect("short, and without control characters")
    }

    #[test]
    fn pauses_grow_up_to_their_limit_and_differ() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second);
        let mut most = Duration::from_millis(100);
        for _ in 0..20 {
            let pause = backoff.next(second * LONGEST_PAUSE_INTERVALS);
            assert!(pause <= most && pause >= most / 2, "{pause:?}, at most {most:?}");
            most = (most * 2).min(second * LONGEST_PAUSE_INTERVALS);
        }
        let all: std::collections::BTreeSet<_> = (0..20).map(|_| backoff.next(second)).collect();
        assert!(all.len() > 10, "waiters would ask all at once");
        assert!(all.iter().all(|pause| *pause <= second));
    }

    #[test]
    fn a_delay_counts_from_the_first_word_of_it() {
        let (delays, a) = (Delays::default(), key("a"));
        let hour = Duration::from_hours(1);
        assert_eq!(delays.learn(&a, Token::new(1), hour), hour);
        assert!(delays.learn(&a, Token::new(1), hour * 2) <= hour, "not anew with each answer");
        assert_eq!(delays.over(&a), None);
        delays.learn(&a, Token::new(2), Duration::ZERO);
        assert_eq!(delays.over(&a), Some(Token::new(2)), "another term, another delay");
        delays.forget(&a);
        assert_eq!(delays.over(&a), None);
        for number in 0..MOST_DELAYS * 2 {
            delays.learn(&key(&number.to_string()), Token::new(1), hour);
        }
        assert_eq!(delays.all().len(), MOST_DELAYS);
        let known = delays.all().keys().next().cloned().expect("it is full");
        delays.learn(&known, Token::new(2), hour);
        assert_eq!(delays.all().len(), MOST_DELAYS, "one that is there already needs no other's place");
    }

    #[test]
    fn a_waiter_counts_by_itself() {
        let mut waiter = Countdown::default();
        let hour = Duration::from_hours(1);
        assert_eq!(waiter.learn(Token::new(1), || hour), hour);
        assert!(waiter.learn(Token::new(1), || hour * 2) <= hour, "from the first word on");
        assert_eq!(waiter.over(), None);
        assert_eq!(waiter.learn(Token::new(2), || Duration::ZERO), Duration::ZERO);
        assert_eq!(waiter.over(), Some(Token::new(2)));
    }

    #[test]
    fn what_passes_is_waited_for() {
        let database = |code: &str| LockError::Database {
            statement: "acquire",
            code: code.to_owned(),
            message: String::new(),
        };
        for error in [LockError::ReadOnly, database("53100"), database("40001"), database("40P01")] {
            assert!(passes(&error), "{error}");
        }
        for error in [database("42601"), LockError::SessionDead] {
            assert!(!passes(&error), "{error}");
        }
    }
}
