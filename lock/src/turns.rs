//! What a process knows of its waits: whom to wake, and the lock delays that it waits out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::{GrantId, Key, Token, Wait};

/// For how many keys a process remembers a lock delay that it waits out. A delay that it forgets is waited out from the
/// beginning.
const MOST_DELAYS: usize = 10_000;

/// Terms that ended uncleanly and whose lock delay this process waits out, by key.
#[derive(Debug, Default)]
pub(crate) struct Delays(Mutex<HashMap<Key, (Token, Duration)>>);

impl Delays {
    /// Records a delay that an answer reported just now. Returns how much of it is left.
    pub(crate) fn learn(&self, key: &Key, token: Token, delay: Duration, now: Duration) -> Duration {
        let mut all = self.0.lock();
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
    pub(crate) fn over(&self, key: &Key, now: Duration) -> Option<Token> {
        self.0.lock().get(key).filter(|(_, until)| *until <= now).map(|(token, _)| *token)
    }

    /// Forgets the delay of a key that has a holder again.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// The waits of this process, by grant.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    all: Mutex<HashMap<GrantId, (Wait, Arc<Notify>)>>,
    /// Notified when a wait begins or ends.
    changed: Notify,
}

impl Turns {
    /// Makes all of them ask again.
    pub(crate) fn wake_all(&self) {
        self.all.lock().values().for_each(|(_, turn)| turn.notify_one());
    }

    pub(crate) fn wake(&self, grant: GrantId) {
        if let Some((_, turn)) = self.all.lock().get(&grant) {
            turn.notify_one();
        }
    }

    /// Whether there is no wait in a queue. A try is over before a notification could reach it.
    fn nobody_waits(&self) -> bool {
        !self.all.lock().values().any(|(wait, _)| *wait == Wait::InQueue)
    }

    /// Completes as soon as there is a wait in a queue.
    pub(crate) async fn somebody_waits(&self) {
        while self.nobody_waits() {
            self.changed.notified().await;
        }
    }

    /// Completes when there has been no wait in a queue for this long.
    pub(crate) async fn nobody_waits_for(&self, time: Duration) {
        loop {
            let nobody = self.nobody_waits();
            let change = self.changed.notified();
            if !nobody {
                change.await;
            } else if timeout(time, change).await.is_err() {
                return;
            }
        }
    }
}

/// Where one wait is notified that it is its turn.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    grant: GrantId,
    pub(crate) notify: Arc<Notify>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(turns: &'a Turns, grant: GrantId, wait: Wait) -> Self {
        let notify = Arc::new(Notify::new());
        turns.all.lock().insert(grant, (wait, Arc::clone(&notify)));
        turns.changed.notify_one();
        Self { turns, grant, notify }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.all.lock().remove(&self.grant);
        self.turns.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).expect("short, and without control characters")
    }

    #[test]
    fn a_delay_counts_from_the_first_word_of_it() {
        let (delays, a, now) = (Delays::default(), key("a"), Duration::from_secs(7));
        let hour = Duration::from_hours(1);
        assert_eq!(delays.learn(&a, Token::new(1), hour, now), hour);
        assert!(delays.learn(&a, Token::new(1), hour * 2, now) <= hour, "not again with each answer");
        assert_eq!(delays.over(&a, now), None);
        delays.learn(&a, Token::new(2), Duration::ZERO, now);
        assert_eq!(delays.over(&a, now), Some(Token::new(2)), "another term, another delay");
        delays.forget(&a);
        assert_eq!(delays.over(&a, now), None);
        for number in 0..MOST_DELAYS + 10 {
            delays.learn(&key(&number.to_string()), Token::new(1), hour, now);
        }
        assert_eq!(delays.0.lock().len(), MOST_DELAYS);
        let known = delays.0.lock().keys().next().cloned().expect("it is full");
        delays.learn(&known, Token::new(2), hour, now);
        assert_eq!(delays.0.lock().len(), MOST_DELAYS, "one that is there already needs no other's place");
    }
}
