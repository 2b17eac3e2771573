//! Trying for a key and waiting for it; a try is a wait with a time limit of zero. This covers how often a waiter asks,
//! what wakes it, how it deals with lock delays and silent holders, and how it gives up its place.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::client::{Client, ClientError};
use crate::guard::Guard;
use crate::jitter::portion;
use crate::process::Process;
use crate::stats;
use crate::{
    AcquireRequest, Acquired, Attempt, GrantId, Key, LockError, Reason, Refusal, SessionId, Token, Wait,
};

/// After a failure, a waiter asks again after a tenth of its interval, then after twice as long each time, up to this
/// many intervals.
const LONGEST_PAUSE_INTERVALS: u32 = 5;

/// For how many keys a process remembers a lock delay that it waits out. A delay that it forgets is waited out from the
/// beginning.
const MOST_DELAYS: usize = 10_000;

/// One wait for a key.
pub(crate) struct Waiter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) key: &'a Key,
    pub(crate) wait: Wait,
    /// When the wait is over; `None` if it has no limit.
    pub(crate) deadline: Option<Duration>,
    /// See [`ClientConfig::confirm_death`](crate::ClientConfig::confirm_death).
    pub(crate) confirm_death: bool,
    pub(crate) counted: stats::Attempt<'a>,
    pub(crate) reason: Reason,
}

/// How one session's part of a wait ended.
enum Part {
    Got(Guard),
    /// The wait is over.
    Over,
    /// The session is dead, or the grant did not count.
    Again,
}

impl Waiter<'_> {
    /// Runs until there is a guard, the wait is over, or there is a permanent error.
    pub(crate) async fn run(mut self) -> Result<Result<Guard, Reason>, ClientError> {
        let process = &self.client.process;
        let mut pauses = Pauses::new(process.config.retry_interval);
        loop {
            // Once per session, because a place in the queue is lost with its session.
            let session = process.lease.borrow().session;
            match self.with_session(session).await? {
                Part::Got(guard) => {
                    self.counted.won();
                    return Ok(Ok(guard));
                }
                Part::Over => return Ok(Err(self.reason)),
                Part::Again => {}
            }
            // If the session is dead, the heartbeat registers another one. Or it is alive, and only the grant did not
            // count.
            let mut lease = process.lease.subscribe();
            let renewed = lease.wait_for(|now| !now.serves(session) || now.covers(session, process.now()));
            if timeout(self.left(None), renewed).await.is_err() {
                return Ok(Err(self.reason));
            }
            if process.lease.borrow().serves(session) {
                // The grant may have come from another server than the one that answers the heartbeats: pause before
                // the next try, and do not repeat it without limit.
                let left = self.left(None);
                if left.is_zero() {
                    return Ok(Err(self.reason));
                }
                let pause = pauses.growing(process.config.retry_interval * LONGEST_PAUSE_INTERVALS);
                sleep(pause.min(left)).await;
            }
        }
    }

    async fn with_session(&mut self, session: SessionId) -> Result<Part, ClientError> {
        let process = &self.client.process;
        if process.lease.borrow().closed {
            return Err(LockError::SessionDead.into());
        }
        let mut request = self.client.request(self.key);
        let turn = Turn::new(&process.turns, request.grant, self.wait);
        let mut unfinished = Unfinished::new(process, session, self.key, request.grant);
        let mut pauses = Pauses::new(process.config.retry_interval);
        let mut observed = Observed::default();
        while process.lease.borrow().serves(session) {
            if let Some(guard) = self.client.again(self.key) {
                return Ok(Part::Got(guard));
            }
            let lease = *process.lease.borrow();
            request.sat_out = process.delays.over(self.key, process.now());
            request.void_after = Some(void_after(process, lease.beat));
            let question = process.store.acquire(session, &request, self.wait);
            // A try waits for one answer, however long that takes.
            let limit = if self.wait == Wait::No { Duration::MAX } else { self.left(observed.until()) };
            let Ok(answer) = timeout(limit, unfinished.ask(request.void_after, question)).await else {
                return Ok(Part::Over);
            };
            let pause = match answer {
                Ok(attempt) => {
                    self.reason = Reason::of(&attempt);
                    if self.confirm_death {
                        observed.see(process, &attempt);
                    }
                    match self.decide(&mut unfinished, &attempt, &request, &mut pauses)? {
                        Next::Got(guard) => return Ok(Part::Got(guard)),
                        Next::Again => return Ok(Part::Again),
                        Next::Pause(pause) => pause,
                    }
                }
                Err(error) if passes(&error) => {
                    tracing::debug!(key = %self.key, %error, "no answer to a waiter; trying again");
                    if self.wait == Wait::No {
                        return Err(error.into());
                    }
                    self.reason = Reason::Database(error);
                    pauses.growing(process.config.retry_interval * LONGEST_PAUSE_INTERVALS)
                }
                Err(error) => return Err(error.into()),
            };
            let left = self.left(observed.until());
            if left.is_zero() {
                return Ok(Part::Over);
            }
            let _ = timeout(pause.min(left), turn.notify.notified()).await;
        }
        Ok(Part::Again)
    }

    /// The request is in the queue, if it asked for that.
    fn count_wait(&mut self) {
        if self.wait == Wait::InQueue {
            self.counted.queues();
        }
    }

    /// Decides the next step from an answer.
    fn decide(
        &mut self,
        unfinished: &mut Unfinished,
        attempt: &Attempt,
        request: &AcquireRequest,
        pauses: &mut Pauses,
    ) -> Result<Next, ClientError> {
        let key = || self.key.to_string();
        let refused = |why: String| Err(ClientError::Refused { key: key(), why });
        let process = &self.client.process;
        // A place in the queue, and a grant, must be given up; a refusal leaves nothing behind.
        unfinished.armed = self.wait == Wait::InQueue || matches!(attempt.outcome, Acquired::Granted { .. });
        Ok(match &attempt.outcome {
            Acquired::Granted { token } => {
                process.delays.forget(self.key);
                match self.client.hold(unfinished, attempt.era, request, *token) {
                    Some(guard) => Next::Got(guard),
                    // It does not count, because the lease has ended or another server answered, and is given up.
                    None => Next::Again,
                }
            }
            Acquired::Waiting | Acquired::Held | Acquired::Quarantine => {
                self.count_wait();
                Next::Pause(pauses.regular())
            }
            Acquired::Delayed { token, delay } => {
                self.count_wait();
                let left = process.delays.learn(self.key, *token, *delay, process.now());
                Next::Pause(left.min(pauses.regular()) + pauses.jitter())
            }
            Acquired::Refused(Refusal::Busy | Refusal::SessionDead) => {
                Next::Pause(pauses.growing(process.config.retry_interval))
            }
            Acquired::QueueFull => {
                unfinished.armed = false;
                return Err(ClientError::QueueFull { key: key() });
            }
            Acquired::Refused(refusal) => {
                unfinished.armed = false;
                return refused(match refusal {
                    Refusal::Foreign { group } => {
                        format!("it belongs to the group {group}; choose another key")
                    }
                    Refusal::Tombstone => {
                        "it belonged to a group that was deleted; choose another key".to_owned()
                    }
                    Refusal::ProtocolNewer { .. } => {
                        "a newer version of this library wrote it; use that version".to_owned()
                    }
                    other => format!("unexpected answer: {other:?}"),
                });
            }
        })
    }

    /// The time that is left: until the deadline, or until the observation is complete, if that is later.
    fn left(&self, observed: Option<Duration>) -> Duration {
        let Some(deadline) = self.deadline else { return Duration::MAX };
        deadline.max(observed.unwrap_or_default()).saturating_sub(self.client.process.now())
    }
}

enum Next {
    Got(Guard),
    Again,
    Pause(Duration),
}

/// The heartbeat count after which a request that is sent now has no effect: by then the server has received it, or
/// never will.
fn void_after(process: &Process, beat: u64) -> u64 {
    let interval = process.config.retry_interval.as_micros().max(1);
    let beats = process.store.database.pool.limit().as_micros().div_ceil(interval);
    beat.saturating_add(u64::try_from(beats).unwrap_or(u64::MAX)).saturating_add(2)
}

/// What has to be observed for some time before anyone can get the key: a silent holder, or a quarantine. If all
/// programs only tried once and ended, no program would observe it.
#[derive(Default)]
struct Observed<'a> {
    holder: Option<(&'a Process, SessionId)>,
    /// When it is certain at the latest whether the holder is dead. Set once for each holder.
    death: Option<Duration>,
    /// Since when the database has been in quarantine, and when that is over at the latest.
    quarantine: Option<(Duration, Duration)>,
}

impl<'a> Observed<'a> {
    fn see(&mut self, process: &'a Process, attempt: &Attempt) {
        let now = process.now();
        // A few heartbeats: the first one that observes it, the one that decides it, and the statement that records it.
        let heartbeats = process.config.retry_interval * 4;
        self.quarantine = (attempt.outcome == Acquired::Quarantine).then(|| {
            let since = self.quarantine.map_or(now, |(since, _)| since);
            // The heartbeat that returns the longest ttl may not have been answered yet.
            let lasts = process.lease.borrow().quarantine.unwrap_or(process.config.ttl);
            (since, since + lasts + heartbeats)
        });
        let Some(holder) = attempt.holder else { return };
        if self.holder.is_none_or(|(_, session)| session != holder.session) {
            self.unwatch();
            process.watched.add(holder.session);
            self.holder = Some((process, holder.session));
        }
        if !holder.is_suspect() {
            self.death = None;
        } else if self.death.is_none() {
            // The heartbeat watches it, and marks it dead after its ttl.
            self.death = Some(now + holder.ttl + heartbeats);
        }
    }

    /// When all observations are complete.
    fn until(&self) -> Option<Duration> {
        self.death.max(self.quarantine.map(|(_, until)| until))
    }

    fn unwatch(&mut self) {
        self.death = None;
        if let Some((process, session)) = self.holder.take() {
            process.watched.remove(session);
        }
    }
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        self.unwatch();
    }
}

/// Whether the error may pass while a waiter still has time. Besides temporary errors, this includes a failover, during
/// which the database accepts no writes; a lack of resources; and a transaction that was chosen as a victim.
fn passes(error: &LockError) -> bool {
    match error {
        LockError::ReadOnly => true,
        LockError::Database { code, .. } => code.starts_with("53") || code.starts_with("40"),
        error => error.is_temporary(),
    }
}

/// How long a waiter pauses between two requests.
#[derive(Debug)]
struct Pauses {
    interval: Duration,
    next: Duration,
}

impl Pauses {
    fn new(interval: Duration) -> Self {
        Self { interval, next: interval / 10 }
    }

    /// The pause after an answer. It varies, so that not all waiters ask at the same moment.
    fn regular(&mut self) -> Duration {
        self.next = self.interval / 10;
        self.interval.mul_f64(1.0 + portion() / 4.0)
    }

    /// The pause after a failure: longer each time, with a random part.
    fn growing(&mut self, most: Duration) -> Duration {
        let pause = self.next.min(most);
        self.next = (pause * 2).min(most);
        pause.mul_f64(0.5 + portion() / 2.0)
    }

    fn jitter(&self) -> Duration {
        (self.interval / 10).mul_f64(portion())
    }
}

/// Terms that ended uncleanly and whose lock delay this process waits out, by key.
#[derive(Debug, Default)]
pub(crate) struct Delays(Mutex<HashMap<Key, (Token, Duration)>>);

impl Delays {
    /// Records a delay that an answer reported just now. Returns how much of it is left.
    fn learn(&self, key: &Key, token: Token, delay: Duration, now: Duration) -> Duration {
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
    fn over(&self, key: &Key, now: Duration) -> Option<Token> {
        self.0.lock().get(key).filter(|(_, until)| *until <= now).map(|(token, _)| *token)
    }

    /// Forgets the delay of a key that has a holder again.
    fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// A request that may have been granted although its answer was lost. Dropping this gives it up.
pub(crate) struct Unfinished {
    pub(crate) process: Arc<Process>,
    pub(crate) session: SessionId,
    pub(crate) key: Key,
    pub(crate) grant: GrantId,
    armed: bool,
    /// Set if a statement may still be under way; it is void after this heartbeat.
    unclear: Option<u64>,
}

impl Unfinished {
    fn new(process: &Arc<Process>, session: SessionId, key: &Key, grant: GrantId) -> Self {
        Self { process: Arc::clone(process), session, key: key.clone(), grant, armed: false, unclear: None }
    }

    /// Sends a request. If it is not answered, it may still take effect later.
    async fn ask<T>(
        &mut self,
        void_after: Option<u64>,
        question: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        self.armed = true;
        let before = std::mem::replace(&mut self.unclear, void_after);
        let answer = question.await?;
        self.unclear = before;
        Ok(answer)
    }

    /// Nothing is given up when this is dropped, because the request has become a term. A statement of it that is still
    /// under way can do nothing while the term lasts; after that, it must be [given up](give_up_once_void).
    pub(crate) fn disarm(&mut self) -> Option<u64> {
        self.armed = false;
        self.unclear.take()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.armed && self.unclear.is_none() {
            return;
        }
        let (process, session, unclear) = (Arc::clone(&self.process), self.session, self.unclear);
        let (key, grant) = (self.key.clone(), self.grant);
        self.process.runtime.spawn(async move {
            process.insist(session, async || process.store.give_up(session, &key, grant).await).await;
            if let Some(void_after) = unclear {
                give_up_once_void(&process, session, &key, grant, void_after).await;
            }
        });
    }
}

/// Gives up a request again once it is void, in case a statement takes effect late. A statement that was sent on a
/// connection that is now closed may still take effect: a packet may have been held up, or a commit may take its time.
/// After the request is void and the row of its key could be locked, it can no longer take effect.
pub(crate) async fn give_up_once_void(
    process: &Process,
    session: SessionId,
    key: &Key,
    grant: GrantId,
    void_after: u64,
) {
    let mut lease = process.lease.subscribe();
    let _ = lease.wait_for(|lease| !lease.serves(session) || lease.beat > void_after).await;
    sleep(process.store.database.pool.limit()).await;
    process.insist(session, async || process.store.give_up(session, key, grant).await).await;
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
struct Turn<'a> {
    turns: &'a Turns,
    grant: GrantId,
    notify: Arc<Notify>,
}

impl<'a> Turn<'a> {
    fn new(turns: &'a Turns, grant: GrantId, wait: Wait) -> Self {
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
    fn pauses_grow_up_to_their_limit_and_differ() {
        let second = Duration::from_secs(1);
        let mut pauses = Pauses::new(second);
        let mut most = Duration::from_millis(100);
        for _ in 0..20 {
            let pause = pauses.growing(second * LONGEST_PAUSE_INTERVALS);
            assert!(pause <= most && pause >= most / 2, "{pause:?}, at most {most:?}");
            most = (most * 2).min(second * LONGEST_PAUSE_INTERVALS);
        }
        let all: std::collections::BTreeSet<_> = (0..20).map(|_| pauses.growing(second)).collect();
        assert!(all.len() > 10, "waiters would ask all at once");
        assert!(all.iter().all(|pause| *pause <= second));
        assert!(pauses.regular() >= second);
        assert!(pauses.growing(second) <= second / 10, "an answer starts them again");
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
