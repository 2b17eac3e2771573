//! Who holds a key, for programs that want to know and do not want it themselves.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::{Holder, Key, LockError, Store, Token};

/// The shortest time between two questions.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest. Some clocks cannot show a time that is very far away.
const LONGEST: Duration = Duration::from_hours(24);

/// The holder of a key, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The holder.
    pub holder: Holder,
    /// The fencing token of its term.
    pub token: Token,
    /// What it has [published](crate::Guard::publish), such as its address.
    pub data: Option<String>,
    /// Since when it has held the key, by the database's clock.
    pub since: Timestamp,
}

/// What was seen: a leader, or that there is none.
pub(crate) struct Seen(pub(crate) Option<Leader>);

/// Observes who holds a key. See [`Store::observe`].
#[derive(Debug)]
pub struct Observer {
    store: Store,
    key: Key,
    every: Duration,
    next: Option<Instant>,
    /// Whether `seen` has been returned.
    told: bool,
    seen: Option<Leader>,
}

impl Store {
    /// Who holds a key, and what it has published. `None` if no one does, or only a program that is dead. For a key of
    /// a controller, the holder is the one in the row, whether a controller lives or not.
    ///
    /// The answer may be outdated before it arrives: a holder that was replaced may still answer under the address that
    /// it published. Send the token along, and let the receiver compare it with its own.
    pub async fn leader(&self, key: &Key) -> Result<Option<Leader>, LockError> {
        let Some(info) = self.info(key).await? else { return Ok(None) };
        let leader = |holder| Leader { holder, token: info.token, data: info.data, since: info.since };
        Ok(info.holder.filter(|_| !info.abandoned).map(leader))
    }

    /// Observes who holds a key. Polls at the interval `every`, and needs no session.
    ///
    /// ```no_run
    /// # async fn example(store: leadergroup_lock::Store) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use leadergroup_lock::Key;
    ///
    /// let mut observer = store.observe(&Key::new("scheduler")?, Duration::from_secs(1));
    /// loop {
    ///     match observer.changed().await {
    ///         Ok(Some(leader)) => println!("{} at {:?}", leader.holder.name, leader.data),
    ///         Ok(None) => println!("nobody"),
    ///         Err(error) => println!("unknown: {error}"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn observe(&self, key: &Key, every: Duration) -> Observer {
        Observer {
            store: self.clone(),
            key: key.clone(),
            every: every.clamp(SHORTEST, LONGEST),
            next: None,
            told: false,
            seen: None,
        }
    }
}

impl Observer {
    /// The first call returns who holds the key now. Each further one waits until that changes: another holder, another
    /// term, other data. A change that is undone between two questions is not seen.
    ///
    /// After an error, who holds the key is not known; the next call that succeeds returns it, whether it has changed
    /// or not. The future may be dropped at any time.
    pub async fn changed(&mut self) -> Result<Option<Leader>, LockError> {
        loop {
            if let Some(leader) = self.changed_before(None).await? {
                return Ok(leader.0);
            }
        }
    }

    /// The same, but asks no more after the deadline. None if nothing has changed until then.
    pub(crate) async fn changed_before(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<Seen>, LockError> {
        loop {
            if let Some(next) = self.next {
                if let Some(deadline) = deadline.filter(|deadline| *deadline < next) {
                    sleep_until(deadline).await;
                    return Ok(None);
                }
                sleep_until(next).await;
            }
            self.next = Some(Instant::now() + self.every);
            let told = std::mem::take(&mut self.told);
            let leader = self.store.leader(&self.key).await?;
            self.told = true;
            if !told || self.seen != leader {
                self.seen.clone_from(&leader);
                return Ok(Some(Seen(leader)));
            }
        }
    }
}
