//! The store: the handle to the database that all operations use, and what they share.

#[cfg(feature = "controller")]
use crate::controller::grant::{Confirming, Granting, Vacating};
use crate::db::batch::Batcher;
use crate::db::database::Database;
use crate::db::pool::Pool;
#[cfg(feature = "memory")]
use crate::memory::{MemoryClient, MemoryDatabase};
use crate::program::acquire::{Acquiring, Releasing};
use crate::{Clock, DatabaseConfig, FencePolicy, LockError, LockStats};

/// The database. Cheap to clone; connects when first used.
///
/// Each operation is one statement per thousand keys, in a transaction of its own. Every operation may be repeated
/// without harm: repeat it after [`LockError::Timeout`] or [`LockError::Interrupted`], which leave open whether it took
/// effect. All futures may be dropped at any time: the connection is then closed, and the server cancels the statement.
/// A statement that several callers wait for continues for the others.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) database: Database,
    pub(crate) batches: Batches,
}

/// Requests of the same kind that tasks make at the same time go to the server together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batches {
    pub(crate) acquire: Batcher<Acquiring>,
    pub(crate) release: Batcher<Releasing>,
    #[cfg(feature = "controller")]
    pub(crate) grant: Batcher<Granting>,
    #[cfg(feature = "controller")]
    pub(crate) confirm: Batcher<Confirming>,
    #[cfg(feature = "controller")]
    pub(crate) vacate: Batcher<Vacating>,
}

impl Store {
    /// Checks the settings; an error names the setting and the remedy. No I/O.
    pub fn new(config: &DatabaseConfig) -> Result<Self, LockError> {
        Ok(Self::on(Pool::new(config)?))
    }

    /// A store without a database, for a program that keeps running although its settings are unusable: every operation
    /// fails with this error.
    pub fn refusing(error: LockError) -> Self {
        Self::on(Pool::refusing(error))
    }

    /// The clock by which the sessions on this store judge time.
    pub fn clock(&self) -> Clock {
        self.database.pool.clock()
    }

    /// A new random UUID. With a database in memory, its seed determines it.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) fn new_uuid(&self) -> uuid::Uuid {
        self.database.pool.new_uuid()
    }

    /// A store for a database in memory, as one more program that uses it. See [`MemoryClient`] for a program with its
    /// own clock, settings or faults.
    #[cfg(feature = "memory")]
    pub fn in_memory(database: &MemoryDatabase) -> Self {
        MemoryClient::new(database, "program").store().unwrap_or_else(Self::refusing)
    }

    pub(crate) fn on(pool: Pool) -> Self {
        Self { database: Database::on(pool), batches: Batches::default() }
    }

    /// The same database on separate connections, for a thread with its own runtime.
    pub(crate) fn with_own_connections(&self) -> Self {
        Self { database: self.database.with_own_connections(), batches: Batches::default() }
    }

    /// The same store with another policy. The default is to terminate fenced transactions after half a second.
    #[must_use]
    pub fn with_fence_policy(self, policy: FencePolicy) -> Self {
        Self { database: self.database.with_fence_policy(policy), batches: Batches::default() }
    }

    /// The counts of this store, its clones and its clients so far.
    pub fn stats(&self) -> LockStats {
        self.database.counters.snapshot(self.database.pool.state())
    }
}

#[cfg(feature = "memory")]
impl MemoryClient {
    /// A store for the program. An error names a setting that is wrong.
    pub fn store(&self) -> Result<Store, LockError> {
        Ok(Store::on(Pool::in_memory(self)?))
    }
}
