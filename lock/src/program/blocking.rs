//! Locks for programs without an async runtime. The calls are those of [`crate::Client`] and [`crate::Guard`]; each one
//! blocks until it is done.
//!
//! A client has a background thread that sends the heartbeats, whatever the threads of the program do.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use leadergroup_lock::{ClientConfig, DatabaseConfig, Key, Store, blocking};
//!
//! let url = "postgres://app@db.example/app".into();
//! let store = Store::new(&DatabaseConfig { url, ..DatabaseConfig::default() })?;
//! blocking::migrate(&store)?;
//! let client = blocking::Client::connect(store, ClientConfig { name: "worker-1".into(), ..ClientConfig::default() })?;
//! client.run_while_held(&Key::new("nightly-report")?, Duration::from_secs(60), |guard| work(guard.token().get()))?;
//! client.shutdown()?;
//! # Ok(())
//! # }
//! # fn work(token: i64) {}
//! ```
//!
//! # In async programs
//!
//! Use the async [`Client`](crate::Client) there. The calls of this module also work on a thread of an async runtime,
//! and do not panic, but they block that thread and the tasks on it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout};

use crate::{
    ClientConfig, ClientError, Key, Leader, LockError, Released, Store, Successor, Token, Transferred, Tried,
    Watcher,
};

/// A runtime on its own thread.
#[derive(Debug, Clone)]
struct Background {
    runtime: Handle,
    /// The thread ends when the last client and the last guard have dropped this.
    _alive: Arc<oneshot::Sender<()>>,
}

impl Background {
    fn start() -> Result<Self, LockError> {
        let problem = |error: std::io::Error| LockError::Invalid {
            what: "thread in the background",
            problem: format!("cannot be started: {error}"),
        };
        let own = Builder::new_current_thread().enable_all().build().map_err(problem)?;
        let runtime = own.handle().clone();
        let (alive, end) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("leadergroup-lock".to_owned());
        thread.spawn(move || own.block_on(end)).map_err(problem)?;
        Ok(Self { runtime, _alive: Arc::new(alive) })
    }

    /// Runs the work in the background and blocks until it is done. `block_on` would panic on a thread of another
    /// runtime.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (done, answer) = sync_channel(1);
        self.runtime.spawn(async move {
            let result = work.await;
            let _ = done.send(result);
        });
        answer
            .recv()
            .expect("the thread runs as long as this value lives, so the work ends, unless it panics")
    }
}

/// Brings the schema up to this program's version, as [`Store::migrate`] does.
pub fn migrate(store: &Store) -> Result<(), LockError> {
    // These connections end with the runtime.
    let store = store.with_own_connections();
    Background::start()?.wait(async move { store.migrate().await })
}

/// A program that holds locks, as [`crate::Client`]. Cheap to clone; a clone is the same holder. After the last one is
/// dropped without a [`shutdown`](Self::shutdown), others get its keys after the ttl.
#[derive(Debug, Clone)]
pub struct Client {
    client: crate::Client,
    background: Background,
}

impl Client {
    /// Registers a session and starts its heartbeat in the background.
    pub fn connect(store: Store, config: ClientConfig) -> Result<Self, LockError> {
        let background = Background::start()?;
        let client = background.wait(crate::Client::connect(store, config))?;
        Ok(Self { client, background })
    }

    /// Takes the key if it is free, as [`crate::Client::try_lock`].
    pub fn try_lock(&self, key: &Key) -> Result<Option<Guard>, ClientError> {
        let (client, key) = (self.client.clone(), key.clone());
        let guard = self.background.wait(async move { client.try_lock(&key).await })?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// The same, with the reason if the key was not acquired, as [`crate::Client::try_lock_or_why`].
    pub fn try_lock_or_why(&self, key: &Key) -> Result<Tried<Guard>, ClientError> {
        let (client, key) = (self.client.clone(), key.clone());
        let tried = self.background.wait(async move { client.try_lock_or_why(&key).await })?;
        Ok(match tried {
            Tried::Held(guard) => Tried::Held(self.guard(guard)),
            Tried::NotHeld(reason) => Tried::NotHeld(reason),
        })
    }

    /// Waits in the queue for the key, as [`crate::Client::lock`].
    pub fn lock(&self, key: &Key, wait: Duration) -> Result<Guard, ClientError> {
        let (client, key) = (self.client.clone(), key.clone());
        let guard = self.background.wait(async move { client.lock(&key, wait).await })?;
        Ok(self.guard(guard))
    }

    /// Waits for the key, works, and releases the key. Unlike the work of [`crate::Client::run_while_held`], a closure
    /// cannot be stopped in the middle. Long work must look at [`Guard::is_lost`] now and then, and return when it is
    /// true. If the key was lost before it was released, the result is dropped and the answer is
    /// [`ClientError::Lost`].
    pub fn run_while_held<T>(
        &self,
        key: &Key,
        wait: Duration,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<T, ClientError> {
        self.lock(key, wait)?.run(work)
    }

    /// Campaigns for the key, works while it holds the key, and campaigns again, in an endless loop, as
    /// [`crate::Client::campaign`]. As in [`run_while_held`](Self::run_while_held), the work is not stopped.
    pub fn campaign(&self, key: &Key, mut work: impl FnMut(&Guard)) -> Result<Infallible, ClientError> {
        loop {
            let (client, wanted) = (self.client.clone(), key.clone());
            let acquired = self.background.wait(async move { client.lock_whenever(&wanted).await });
            let term = acquired.and_then(|guard| self.guard(guard).run(&mut work));
            let (client, key) = (self.client.clone(), key.clone());
            self.background.wait(async move { client.after_term(&key, term).await })?;
        }
    }

    /// Who holds a key, as [`Store::leader`].
    pub fn leader(&self, key: &Key) -> Result<Option<Leader>, LockError> {
        let (store, key) = (self.client.store().clone(), key.clone());
        self.background.wait(async move { store.leader(&key).await })
    }

    /// Observes who holds a key, as [`Store::observe`].
    pub fn observe(&self, key: &Key, every: Duration) -> Observer {
        let observer = Arc::new(Mutex::new(self.client.store().observe(key, every)));
        Observer { observer, background: self.background.clone() }
    }

    /// Ends the session: everything that it holds is free at once, as [`crate::Client::shutdown`].
    pub fn shutdown(self) -> Result<(), LockError> {
        self.background.wait(self.client.shutdown())
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard { guard, background: self.background.clone() }
    }
}

/// Proof that a key is held, as [`crate::Guard`]. Dropping it releases the key in the background, while the client
/// lives; [`release`](Self::release) waits until that is done.
#[derive(Debug)]
#[must_use = "dropping the guard releases the key"]
pub struct Guard {
    guard: crate::Guard,
    background: Background,
}

impl Guard {
    /// The key.
    pub fn key(&self) -> &Key {
        self.guard.key()
    }

    /// The fencing token of the term. Pass it to every store that the work writes to.
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// Whether others may hold the key, as [`crate::Guard::is_lost`]. Cheap: it only reads the clock.
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Until when the key is certainly held, as [`crate::Guard::held_until`].
    pub fn held_until(&self) -> Option<Duration> {
        self.guard.held_until()
    }

    /// For how long the key is certainly held, as [`crate::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// An observer of the key for other threads, as [`crate::Guard::watcher`].
    pub fn watcher(&self) -> Watcher {
        self.guard.watcher()
    }

    /// Waits until the key is lost, but not for longer than `limit`. Returns whether it is lost.
    pub fn wait_lost(&self, limit: Duration) -> bool {
        let term = self.guard.term();
        self.background.wait(async move { timeout(limit, term.lost()).await.is_ok() })
    }

    /// Waits until the key is about to be lost, as [`crate::Guard::in_jeopardy`], but not for longer than `limit`.
    /// Returns whether it is.
    pub fn wait_in_jeopardy(&self, limit: Duration) -> bool {
        let term = self.guard.term();
        self.background.wait(async move { timeout(limit, term.in_jeopardy()).await.is_ok() })
    }

    /// Publishes data of this holder, as [`crate::Guard::publish`].
    pub fn publish(&self, data: &str) -> Result<(), ClientError> {
        let (term, data) = (self.guard.term(), data.to_owned());
        self.background.wait(async move { term.publish(&data).await })
    }

    /// Releases the key and waits until it is done, as [`crate::Guard::release`].
    pub fn release(self) -> Result<Released, LockError> {
        self.background.wait(self.guard.release())
    }

    /// Gives the key to a waiter, as [`crate::Guard::transfer_to`].
    pub fn transfer_to(self, successor: Successor<'_>) -> Result<Transferred<Self>, LockError> {
        let Self { guard, background } = self;
        let (Successor::Uid(text) | Successor::Name(text)) = successor;
        let (text, by_name) = (text.to_owned(), matches!(successor, Successor::Name(_)));
        let transferred = background.wait(async move {
            let successor = if by_name { Successor::Name(&text) } else { Successor::Uid(&text) };
            guard.transfer_to(successor).await
        })?;
        Ok(transferred.map(|guard| Self { guard, background }))
    }

    fn run<T>(self, work: impl FnOnce(&Self) -> T) -> Result<T, ClientError> {
        let done = work(&self);
        let Self { guard, background } = self;
        background.wait(guard.finish())?;
        Ok(done)
    }
}

/// What an [`Observer`] has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seen {
    /// The holder, or what it has published, is another one than before.
    Leader(Leader),
    /// No one holds the key any more.
    Nobody,
    /// Nothing has changed within the limit.
    Unchanged,
}

/// Observes who holds a key, as [`crate::Observer`].
#[derive(Debug)]
pub struct Observer {
    observer: Arc<Mutex<crate::Observer>>,
    background: Background,
}

impl Observer {
    /// The first call returns who holds the key now; each further one blocks until that changes, as
    /// [`crate::Observer::changed`]. If nothing has changed within `limit`, the answer is [`Seen::Unchanged`]. A
    /// question that is under way then is waited for.
    pub fn changed(&mut self, limit: Duration) -> Result<Seen, LockError> {
        let observer = Arc::clone(&self.observer);
        let answer = self.background.wait(async move {
            observer.lock().await.changed_before(Instant::now().checked_add(limit)).await
        });
        Ok(match answer? {
            Some(seen) => seen.0.map_or(Seen::Nobody, Seen::Leader),
            None => Seen::Unchanged,
        })
    }
}
