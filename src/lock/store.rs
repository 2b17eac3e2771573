//! The store: the handle on the database that all operations go through.

use std::time::Duration;

use futures::Stream;

use super::{
    Beat, Changed, Claim, Claimed, DatabaseConfig, Grant, Granted, Health, Hint, Key, LockError, LockRow,
    Pruned, SessionId, Token, Tombstone, Unclaimed, Vacate,
};

/// The database. Cheap to clone; connects when first used.
#[derive(Debug, Clone)]
pub struct Store {}

#[allow(unused_variables, clippy::unused_async)]
impl Store {
    /// Checks the settings; an error names the setting and the remedy. No I/O.
    pub fn new(config: &DatabaseConfig) -> Result<Self, LockError> {
        config.connect_options()?;
        Ok(Self {})
    }
    /// Looks whether the database can be reached and used. See [`Health::verdict`].
    pub async fn check(&self) -> Result<Health, LockError> {
        Err(LockError::SessionDead)
    }
    /// Brings the schema up to this program's version.
    pub async fn migrate(&self) -> Result<(), LockError> {
        Err(LockError::SessionDead)
    }
    /// Makes a new session.
    pub async fn register(&self, name: &str, ttl: Duration) -> Result<SessionId, LockError> {
        Err(LockError::SessionDead)
    }
    /// One heartbeat.
    pub async fn beat(&self, own: SessionId) -> Result<Beat, LockError> {
        Err(LockError::SessionDead)
    }
    /// Marks sessions dead whose counter still is as observed. Returns those that are dead now.
    pub async fn mark_dead(&self, observed: &[(SessionId, u64)]) -> Result<Vec<SessionId>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Normal exit. Returns how many keys became free to be taken charge of.
    pub async fn close(&self, own: SessionId) -> Result<u64, LockError> {
        Err(LockError::SessionDead)
    }
    /// Takes charge of keys.
    pub async fn claim(&self, own: SessionId, claims: &[Claim]) -> Result<Vec<Claimed>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Gives charge of keys up; holders and tokens stay.
    pub async fn yield_charge(&self, own: SessionId, keys: &[Key]) -> Result<Vec<Changed>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Changes holders.
    pub async fn grant(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Granted>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Marks terms confirmed: the promotion was seen through.
    pub async fn confirm(&self, own: SessionId, terms: &[(Key, Token)]) -> Result<Vec<Changed>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Removes holders.
    pub async fn vacate(&self, own: SessionId, vacates: &[Vacate]) -> Result<Vec<Changed>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Leaves tombstones for deleted groups.
    pub async fn tombstone(
        &self,
        own: SessionId,
        tombstones: &[Tombstone],
    ) -> Result<Vec<Changed>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Reads rows; keys without a row are left out.
    pub async fn read(&self, keys: &[Key]) -> Result<Vec<LockRow>, LockError> {
        Err(LockError::SessionDead)
    }
    /// The keys and tokens that the session is in charge of.
    pub async fn rows_of(&self, own: SessionId) -> Result<Vec<(Key, Token)>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Keys of which no living session is in charge.
    pub async fn unclaimed(&self, limit: u32) -> Result<Vec<Unclaimed>, LockError> {
        Err(LockError::SessionDead)
    }
    /// Shortens the history to `keep_terms` terms a key and removes sessions dead for longer than `dead_for`.
    pub async fn prune(&self, keep_terms: u32, dead_for: Duration) -> Result<Pruned, LockError> {
        Err(LockError::SessionDead)
    }
    /// Hints that something changed, for ever.
    pub fn listen(&self) -> impl Stream<Item = Hint> + Send + 'static {
        futures::stream::pending()
    }
}
