//! What the contract says of locks that programs hold themselves, in memory: the model that the real ones are compared with.

use std::time::Duration;

use leadergroup_lock::{AcquireRequest, Acquired, GrantId, Holder, Refusal, SessionId, TOKEN_JUMP, Token};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Lives,
    Killed,
    Closed,
}

/// A wish in the queue, or that was granted.
#[derive(Debug, Clone)]
pub struct Asked {
    pub session: SessionId,
    pub request: GrantId,
    pub holder: Holder,
    pub delay: Duration,
}

/// A term in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub token: i64,
    pub holder: Holder,
    /// It was given up or taken away. That of a session that ended is ended by the next one alone.
    pub ended: bool,
}

/// One key.
#[derive(Debug, Default)]
pub struct Lock {
    /// There is a row once somebody has asked.
    pub row: bool,
    pub token: i64,
    /// Of its last term.
    era: i64,
    pub holder: Option<Asked>,
    pub queue: Vec<Asked>,
    pub terms: Vec<Ran>,
    /// A fenced transaction is under way.
    pub fenced: bool,
}

/// All of it.
#[derive(Debug)]
pub struct Contract {
    lives: Vec<(SessionId, Life)>,
    pub locks: Vec<Lock>,
    pub era: i64,
    pub settled: bool,
}

impl Contract {
    pub fn new(keys: usize) -> Self {
        let locks = std::iter::repeat_with(Lock::default).take(keys).collect();
        Self { lives: Vec::new(), locks, era: 0, settled: true }
    }

    fn life(&self, session: SessionId) -> Life {
        self.lives.iter().find(|(id, _)| *id == session).map_or(Life::Killed, |(_, life)| *life)
    }

    pub fn lives(&self, session: SessionId) -> bool {
        self.life(session) == Life::Lives
    }

    pub fn begin(&mut self, session: SessionId) {
        self.lives.push((session, Life::Lives));
    }

    pub fn end(&mut self, session: SessionId, how: Life) {
        for (id, life) in &mut self.lives {
            if *id == session && *life == Life::Lives {
                *life = how;
            }
        }
    }

    fn install(&mut self, key: usize, next: Asked) -> i64 {
        let era = self.era;
        let lock = &mut self.locks[key];
        let jump = if lock.era == era { 0 } else { TOKEN_JUMP };
        lock.token = 1 + (lock.token + jump).max(era * TOKEN_JUMP);
        lock.era = era;
        lock.terms.push(Ran { token: lock.token, holder: next.holder.clone(), ended: false });
        lock.holder = Some(next);
        lock.token
    }

    pub fn ask(&mut self, own: SessionId, key: usize, wish: &AcquireRequest, queue: bool) -> Acquired {
        if !self.lives(own) {
            return Acquired::Refused(Refusal::SessionDead);
        }
        self.locks[key].row = true;
        let lock = &self.locks[key];
        let asked =
            Asked { session: own, request: wish.grant, holder: wish.holder.clone(), delay: wish.lock_delay };
        let holder = lock.holder.as_ref().filter(|holder| self.lives(holder.session));
        if holder.is_some_and(|holder| holder.session == own && holder.grant == wish.grant) {
            return Acquired::Granted { token: Token::new(lock.token) };
        }
        // It may be held by one that the database has forgotten.
        let held = holder.is_some() || !self.settled;
        if held && !queue {
            return Acquired::Held;
        }
        let token = Token::new(lock.token);
        let unclean = lock.holder.as_ref().filter(|holder| self.life(holder.session) == Life::Killed);
        let delay = unclean.map_or(Duration::ZERO, |holder| holder.delay);
        let delayed = !held && !delay.is_zero() && wish.sat_out != Some(token);
        let told = if delayed { Acquired::Delayed { token, delay } } else { Acquired::Waiting };
        if delayed && !queue {
            return told;
        }
        let place = lock.queue.iter().position(|waiter| waiter.grant == wish.grant);
        let before = &lock.queue[..place.unwrap_or(lock.queue.len())];
        let first = !before.iter().any(|waiter| self.lives(waiter.session));
        if !held && !delayed && first {
            if lock.fenced {
                return Acquired::Refused(Refusal::Busy);
            }
            if let Some(place) = place {
                self.locks[key].queue.drain(..=place);
            }
            return Acquired::Granted { token: Token::new(self.install(key, asked)) };
        }
        if !queue {
            return Acquired::Held;
        }
        if place.is_none() {
            self.locks[key].queue.push(asked);
        }
        told
    }

    /// Whether somebody may follow the holder at once.
    fn passes(&self, key: usize) -> bool {
        self.settled && !self.locks[key].fenced
    }

    /// The key is free, or goes to the first one that waits.
    pub fn let_go(&mut self, key: usize) {
        let first = self.locks[key].queue.iter().position(|waiter| self.lives(waiter.session));
        let next = first.filter(|_| self.passes(key));
        let lock = &mut self.locks[key];
        if let Some(term) = lock.terms.last_mut() {
            term.ended = true;
        }
        lock.holder = None;
        if let Some(next) = next.and_then(|place| lock.queue.drain(..=place).next_back()) {
            self.install(key, next);
        }
    }

    /// The key goes to the one of this name; nothing changes if it does not wait.
    pub fn hand_over(&mut self, key: usize, heir: &str) -> Result<bool, &'static str> {
        if !self.passes(key) {
            return Err("busy");
        }
        let lock = &self.locks[key];
        let fits = |waiter: &Asked| self.lives(waiter.session) && waiter.holder.name == heir;
        let Some(place) = lock.queue.iter().position(fits) else { return Ok(false) };
        let lock = &mut self.locks[key];
        if let Some(term) = lock.terms.last_mut() {
            term.ended = true;
        }
        let next = lock.queue.remove(place);
        self.install(key, next);
        Ok(true)
    }

    /// What whoever wants to give it up is told if that is not to be.
    pub fn check(&self, own: SessionId, key: usize, token: i64) -> Result<(), &'static str> {
        let lock = &self.locks[key];
        let holds = token == lock.token && lock.holder.as_ref().is_some_and(|holder| holder.session == own);
        match () {
            () if !self.lives(own) => Err("dead"),
            () if !lock.row => Err("missing"),
            () if !holds => Err("changed"),
            () => Ok(()),
        }
    }

    /// What is left once the history was cut down to one term a key, and places in queues to those of the living.
    pub fn prune(&mut self) {
        let lives = self.lives.clone();
        for lock in &mut self.locks {
            lock.queue.retain(|waiter| lives.contains(&(waiter.session, Life::Lives)));
            lock.terms.drain(..lock.terms.len().saturating_sub(1));
        }
    }
}
