//! Trying for a key and waiting for it; a try is a wait with a time limit of zero. This covers how often a waiter asks,
//! what wakes it, how it deals with lock delays and silent holders, and how it gives up its place.

use std::mem;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::db::stats;
use crate::jitter::portion;
use crate::program::applicant::Applicant;
use crate::program::guard::Guard;
use crate::program::unfinished::Unfinished;
use crate::session::process::Process;
use crate::session::turns::Turn;
use crate::{
    ClientError, Key, LockError, Reason, Refusal, SessionId,
    protocol::{AcquireRequest, Acquired, Attempt, Wait},
};

/// After a failure, a waiter asks again after a tenth of its interval, then after twice as long each time, up to this
/// many intervals.
const LONGEST_PAUSE_INTERVALS: u32 = 5;

/// The longest time over which requests are spread that were woken together.
const LONGEST_SPREAD: Duration = Duration::from_millis(100);

/// One wait for a key.
pub(crate) struct Waiter<'a> {
    pub(crate) applicant: &'a Applicant,
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
        let process = &self.applicant.process;
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
        let process = &self.applicant.process;
        if process.lease.borrow().closed {
            return Err(LockError::SessionDead.into());
        }
        let mut request = self.applicant.request(self.key);
        let turn = Turn::new(&process.turns, request.grant, self.wait == Wait::InQueue);
        let mut unfinished = Unfinished::new(process, session, self.key, request.grant);
        let mut pauses = Pauses::new(process.config.retry_interval);
        let mut observed = Observed::default();
        while process.lease.borrow().serves(session) {
            if let Some(guard) = self.applicant.again(self.key) {
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
                    let delay = self.delay_left(&attempt);
                    self.reason = Reason::of(&attempt, delay);
                    turn.is_behind(attempt.holder.map(|holder| holder.session));
                    if self.confirm_death {
                        observed.see(process, &attempt, delay);
                    }
                    match self.decide(&mut unfinished, &attempt, delay, &request, &mut pauses)? {
                        Next::Got(guard) => return Ok(Part::Got(guard)),
                        Next::Again => return Ok(Part::Again),
                        Next::Pause(pause) => pause,
                    }
                }
                Err(error) if error.is_temporary() => {
                    if self.wait == Wait::No {
                        return Err(error.into());
                    }
                    let pause = pauses.after_failure(self.key, &error);
                    self.reason = Reason::Database(error);
                    pause
                }
                Err(error) => return Err(error.into()),
            };
            let left = self.left(observed.until());
            if left.is_zero() {
                return Ok(Part::Over);
            }
            if timeout(pause.min(left), turn.alarm.woken()).await == Ok(true) {
                // Those that were woken together do not ask all at once.
                let _ = timeout(pauses.spread().min(left), turn.alarm.woken()).await;
            }
        }
        Ok(Part::Again)
    }

    /// How much is left of a lock delay, if the answer reports one.
    fn delay_left(&self, attempt: &Attempt) -> Option<Duration> {
        let Acquired::Delayed { token, delay } = attempt.outcome else { return None };
        let process = &self.applicant.process;
        Some(process.delays.learn(self.key, token, delay, process.now()))
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
        delay: Option<Duration>,
        request: &AcquireRequest,
        pauses: &mut Pauses,
    ) -> Result<Next, ClientError> {
        let key = || self.key.to_string();
        let refused = |why: String| Err(ClientError::Refused { key: key(), why });
        let process = &self.applicant.process;
        // A place in the queue, and a grant, must be given up; a refusal leaves nothing behind.
        unfinished.armed = self.wait == Wait::InQueue || matches!(attempt.outcome, Acquired::Granted { .. });
        Ok(match &attempt.outcome {
            Acquired::Granted { token } => {
                process.delays.forget(self.key);
                match self.applicant.hold(unfinished, attempt.era, request, *token) {
                    Some(guard) => Next::Got(guard),
                    // It does not count, because the lease has ended or another server answered, and is given up.
                    None => Next::Again,
                }
            }
            Acquired::Waiting | Acquired::Held | Acquired::Quarantine => {
                self.count_wait();
                Next::Pause(pauses.regular())
            }
            Acquired::Delayed { .. } => {
                self.count_wait();
                Next::Pause(delay.unwrap_or_default().min(pauses.regular()) + pauses.jitter())
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
        deadline.max(observed.unwrap_or_default()).saturating_sub(self.applicant.process.now())
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

/// What has to be observed for some time before anyone can get the key: a silent holder, a lock delay, or a quarantine.
/// If all programs only tried once and ended, no program would observe it.
#[derive(Default)]
struct Observed<'a> {
    holder: Option<(&'a Process, SessionId)>,
    /// When it is certain at the latest whether the holder is dead. Set once for each holder.
    death: Option<Duration>,
    /// When the lock delay is over.
    delay: Option<Duration>,
    /// Since when the database has been in quarantine, and when that is over at the latest.
    quarantine: Option<(Duration, Duration)>,
}

impl<'a> Observed<'a> {
    fn see(&mut self, process: &'a Process, attempt: &Attempt, delay: Option<Duration>) {
        let now = process.now();
        // A few heartbeats: the first one that observes it, the one that decides it, and the statement that records it;
        // or, when a delay is over, the pause until the next request, and its answer.
        let heartbeats = process.config.retry_interval * 4;
        self.delay = delay.map(|left| now + left + heartbeats);
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
        self.death.max(self.delay).max(self.quarantine.map(|(_, until)| until))
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

/// How long a waiter pauses between two requests.
#[derive(Debug)]
struct Pauses {
    interval: Duration,
    next: Duration,
    /// Whether a warning was logged.
    warned: bool,
}

impl Pauses {
    fn new(interval: Duration) -> Self {
        Self { interval, next: interval / 10, warned: false }
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

    /// The pause after this failure. If requests fail for a while, one warning is logged.
    fn after_failure(&mut self, key: &Key, error: &LockError) -> Duration {
        let most = self.interval * LONGEST_PAUSE_INTERVALS;
        if self.next == most && !mem::replace(&mut self.warned, true) {
            tracing::warn!(%key, %error, "a waiter has had no answer for a while; trying again");
        } else {
            tracing::debug!(%key, %error, "no answer to a waiter; trying again");
        }
        self.growing(most)
    }

    fn jitter(&self) -> Duration {
        (self.interval / 10).mul_f64(portion())
    }

    /// The pause of one of many that were woken for the same reason.
    fn spread(&self) -> Duration {
        self.jitter().min(LONGEST_SPREAD.mul_f64(portion()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
