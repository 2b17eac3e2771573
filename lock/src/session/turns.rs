//! What a process knows of its waits: whom to wake, and the lock delays that it waits out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::{GrantId, Key, SessionId, Token};

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
    all: Mutex<HashMap<GrantId, Waiting>>,
    /// Notified when a wait begins or ends.
    changed: Notify,
}

/// One of them.
#[derive(Debug)]
struct Waiting {
    /// Whether it has a place in a queue. A try has none.
    queued: bool,
    /// The session in the way, according to the last answer.
    behind: Option<SessionId>,
    alarm: Arc<Alarm>,
}

/// Where a wait learns that it has to ask again.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    notify: Notify,
    /// Others were woken for the same reason.
    together: AtomicBool,
}

impl Alarm {
    fn wake(&self, together: bool) {
        self.together.store(together, Ordering::Relaxed);
        self.notify.notify_one();
    }

    /// Completes when it is woken. Returns whether others may ask at the same moment.
    pub(crate) async fn woken(&self) -> bool {
        self.notify.notified().await;
        self.together.swap(false, Ordering::Relaxed)
    }
}

impl Turns {
    /// Makes all of them ask again, but not at the same moment.
    pub(crate) fn wake_all(&self) {
        self.all.lock().values().for_each(|waiting| waiting.alarm.wake(true));
    }

    /// Makes all of them ask at once.
    pub(crate) fn wake_all_at_once(&self) {
        self.all.lock().values().for_each(|waiting| waiting.alarm.wake(false));
    }

    /// The same for those that this session was in the way of.
    pub(crate) fn wake_those_behind(&self, session: SessionId) {
        let all = self.all.lock();
        let behind = all.values().filter(|waiting| waiting.behind == Some(session));
        behind.for_each(|waiting| waiting.alarm.wake(true));
    }

    pub(crate) fn wake(&self, grant: GrantId) {
        if let Some(waiting) = self.all.lock().get(&grant) {
            waiting.alarm.wake(false);
        }
    }

    /// Whether there is no wait in a queue. A try is over before a notification could reach it.
    pub(crate) fn nobody_waits(&self) -> bool {
        !self.all.lock().values().any(|waiting| waiting.queued)
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
    pub(crate) alarm: Arc<Alarm>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(turns: &'a Turns, grant: GrantId, queued: bool) -> Self {
        let alarm = Arc::new(Alarm::default());
        turns.all.lock().insert(grant, Waiting { queued, behind: None, alarm: Arc::clone(&alarm) });
        turns.changed.notify_one();
        Self { turns, grant, alarm }
    }

    /// This session is in the way, if one is.
    pub(crate) fn is_behind(&self, session: Option<SessionId>) {
        if let Some(waiting) = self.turns.all.lock().get_mut(&self.grant) {
            waiting.behind = session;
        }
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
    use futures::FutureExt as _;

    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).expect("short, and without control characters")
    }

    #[test]
    fn those_behind_a_session_are_woken_together_and_no_others() {
        let woken = |turn: &Turn<'_>| turn.alarm.woken().now_or_never();
        let (turns, gone) = (Turns::default(), SessionId::new());
        let turn = || Turn::new(&turns, GrantId::new(), true);
        let (first, second, third) = (turn(), turn(), turn());
        first.is_behind(Some(gone));
        second.is_behind(Some(SessionId::new()));
        turns.wake_those_behind(gone);
        assert_eq!([&first, &second, &third].map(woken), [Some(true), None, None]);
        turns.wake_all();
        assert_eq!([&first, &second, &third].map(woken), [Some(true); 3]);
        turns.wake(third.grant);
        assert_eq!([&first, &second, &third].map(woken), [None, None, Some(false)], "alone");
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
