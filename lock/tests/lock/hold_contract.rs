//! The contract of locks that programs hold directly, in memory: the model that the real ones are compared with.

use std::time::Duration;

use leadergroup_lock::{
    GrantId, Holder, Refusal, SessionId, Token,
    protocol::{AcquireRequest, Acquired},
};

use crate::cast::TOKEN_JUMP;

/// Why terms end, besides the reasons that holders and people give.
pub const SESSION_ENDED: &str = "its session ended";
pub const NOT_WANTED: &str = "no longer wanted";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Lives,
    Killed,
    Closed,
}

/// A request in the queue, or a granted one.
#[derive(Debug, Clone)]
pub struct Asked {
    pub session: SessionId,
    pub grant: GrantId,
    pub holder: Holder,
    pub delay: Duration,
}

/// A term in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub token: i64,
    pub session: SessionId,
    pub holder: Holder,
    /// Why it ended. The term of a session that ended lasts until the next term begins.
    pub ended: Option<String>,
}

/// One key.
#[derive(Debug, Default)]
pub struct Lock {
    /// Whether there is a row: it is created by the first request.
    pub row: bool,
    pub token: i64,
    /// The era of its last term.
    era: i64,
    pub holder: Option<Asked>,
    pub queue: Vec<Asked>,
    pub terms: Vec<Ran>,
    /// Whether a fenced transaction is under way.
    pub fenced: bool,
}

impl Lock {
    /// Ends the present term, if any.
    fn end_term(&mut self, reason: &str) {
        if let Some(term) = self.terms.last_mut() {
            term.ended.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Whether the term ended for this reason according to the history; only terms of this session, if one is given.
    fn ended_so(&self, token: i64, session: Option<SessionId>, reason: &str) -> bool {
        self.terms.iter().any(|term| {
            term.token == token
                && term.ended.as_deref() == Some(reason)
                && session.is_none_or(|session| term.session == session)
        })
    }
}

/// The outcome of an attempt to end a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivingUp {
    Now,
    /// It has been done already.
    Before,
    Refused(&'static str),
}

/// The whole model.
#[derive(Debug)]
pub struct Contract {
    lives: Vec<(SessionId, Life)>,
    pub locks: Vec<Lock>,
    pub era: i64,
    pub quarantine: bool,
}

impl Contract {
    pub fn new(keys: usize) -> Self {
        let locks = std::iter::repeat_with(Lock::default).take(keys).collect();
        Self { lives: Vec::new(), locks, era: 0, quarantine: false }
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
        lock.end_term(SESSION_ENDED);
        lock.token = 1 + (lock.token + (era - lock.era) * TOKEN_JUMP).max(era * TOKEN_JUMP);
        lock.era = era;
        lock.terms.push(Ran {
            token: lock.token,
            session: next.session,
            holder: next.holder.clone(),
            ended: None,
        });
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
            Asked { session: own, grant: wish.grant, holder: wish.holder.clone(), delay: wish.lock_delay };
        let holder = lock.holder.as_ref().filter(|holder| self.lives(holder.session));
        if holder.is_some_and(|holder| holder.session == own && holder.grant == wish.grant) {
            return Acquired::Granted { token: Token::new(lock.token) };
        }
        let held = holder.is_some();
        let token = Token::new(lock.token);
        let unclean = lock.holder.as_ref().filter(|holder| self.life(holder.session) == Life::Killed);
        let delay = unclean.map_or(Duration::ZERO, |holder| holder.delay);
        let delayed = !delay.is_zero() && wish.sat_out != Some(token);
        let told = match () {
            () if held => Acquired::Waiting,
            // It may be held by a grant that the database has lost.
            () if self.quarantine => Acquired::Quarantine,
            () if delayed => Acquired::Delayed { token, delay },
            () => Acquired::Waiting,
        };
        let place = lock.queue.iter().position(|waiter| waiter.grant == wish.grant);
        let before = &lock.queue[..place.unwrap_or(lock.queue.len())];
        let first = !before.iter().any(|waiter| self.lives(waiter.session));
        if !held && told == Acquired::Waiting && first {
            if lock.fenced {
                return Acquired::Refused(Refusal::Busy);
            }
            if let Some(place) = place {
                self.locks[key].queue.drain(..=place);
            }
            return Acquired::Granted { token: Token::new(self.install(key, asked)) };
        }
        if !queue {
            return if told == Acquired::Waiting { Acquired::Held } else { told };
        }
        if place.is_none() {
            self.locks[key].queue.push(asked);
        }
        told
    }

    /// The key becomes free, or goes to the first waiter.
    pub fn let_go(&mut self, key: usize, reason: &str) {
        let first = self.locks[key].queue.iter().position(|waiter| self.lives(waiter.session));
        let next = first.filter(|_| !self.quarantine && !self.locks[key].fenced);
        let lock = &mut self.locks[key];
        lock.end_term(reason);
        lock.holder = None;
        if let Some(next) = next.and_then(|place| lock.queue.drain(..=place).next_back()) {
            self.install(key, next);
        }
    }

    /// The key goes to the waiter of this name; nothing changes if there is none.
    pub fn transfer(&mut self, key: usize, to: &str, reason: &str) -> Result<bool, &'static str> {
        let lock = &self.locks[key];
        if lock.fenced {
            return Err("busy");
        }
        let fits = |waiter: &Asked| self.lives(waiter.session) && waiter.holder.name == to;
        let Some(place) = lock.queue.iter().position(fits) else { return Ok(false) };
        if self.quarantine {
            return Err("busy");
        }
        let lock = &mut self.locks[key];
        lock.end_term(reason);
        let next = lock.queue.remove(place);
        self.install(key, next);
        Ok(true)
    }

    /// The answer to a session that releases the key.
    pub fn check(&self, own: SessionId, key: usize, token: i64, reason: &str) -> GivingUp {
        let lock = &self.locks[key];
        let holds = token == lock.token && lock.holder.as_ref().is_some_and(|holder| holder.session == own);
        match () {
            () if !self.lives(own) => GivingUp::Refused("dead"),
            () if !lock.row => GivingUp::Refused("missing"),
            () if holds => GivingUp::Now,
            () if lock.ended_so(token, Some(own), reason) => GivingUp::Before,
            () => GivingUp::Refused("changed"),
        }
    }

    /// The answer to a person who releases the key by force.
    pub fn check_force(&self, key: usize, token: i64, reason: &str) -> GivingUp {
        let lock = &self.locks[key];
        match () {
            () if !lock.row => GivingUp::Refused("missing"),
            () if token == lock.token && lock.holder.is_some() => GivingUp::Now,
            () if token == lock.token || lock.ended_so(token, None, reason) => GivingUp::Before,
            () => GivingUp::Refused("changed"),
        }
    }

    /// Prunes the history to one ended term for each key, and sessions and places in queues to the living ones. For a
    /// session that was removed, it is no longer known that it ended in order.
    pub fn prune(&mut self) {
        self.lives.retain(|(_, life)| *life == Life::Lives);
        let lives = self.lives.clone();
        for lock in &mut self.locks {
            lock.queue.retain(|waiter| lives.contains(&(waiter.session, Life::Lives)));
            let ended = lock.terms.iter().filter(|term| term.ended.is_some()).count();
            lock.terms.drain(..ended.saturating_sub(1));
        }
    }
}
