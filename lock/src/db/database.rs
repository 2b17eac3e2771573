//! The database as the requests use it: statements on the shared connections, and what is counted and limited there.

use std::collections::HashSet;
use std::sync::Arc;

use crate::db::fence::{Fence, Passing};
use crate::db::pool::{Lane, Pool};
use crate::db::statement::{Bind, Row, Statement, unexpected};
use crate::db::stats::{Counters, Timer};
use crate::{FencePolicy, Key, LockError, SessionId};

/// Most keys in one statement. Few enough that the answer fits into socket buffers: rows must not stay locked because
/// the server cannot send its answer to a frozen client.
pub(crate) const CHUNK: usize = 1_000;

/// How many such statements of one operation are under way at a time. Few, because other work needs connections as
/// well.
const CHUNKS_AT_ONCE: usize = 2;

const WAKE: Statement = Statement { name: "wake", sql: "select leadergroup.wake($1, $2)" };
const WAKE_ALL: Statement = Statement {
    name: "wake all",
    sql: "select leadergroup.wake_all(word) from unnest($1::text[]) as word \
          where not $2 or exists (select from leadergroup.waiter)",
};
const PRESENT_ERA: Statement = Statement { name: "era", sql: "select * from leadergroup.present_era()" };

/// The payload of a notification to all when something may be free.
const FREED: &str = "";
/// How it begins when a session has ended. Its id follows.
pub(crate) const ENDED: &str = "ended ";
/// How it begins when a session that lives gave up its claim to a key. The key follows.
pub(crate) const YIELDED: &str = "yielded ";

/// A session that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub(crate) session: SessionId,
    pub(crate) has_peers: bool,
}

/// What a [`Store`](crate::Store) and its requests share. Clones share it, too.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    pub(crate) pool: Pool,
    /// The policy for the old holder's fenced transactions, and the permits to wait for them.
    pub(crate) fence: Arc<Fence>,
    pub(crate) counters: Arc<Counters>,
}

impl Database {
    pub(crate) fn on(pool: Pool) -> Self {
        let fence = Fence::new(FencePolicy::default(), pool.work_connections());
        Self { pool, fence: Arc::new(fence), counters: Arc::default() }
    }

    /// The same database on separate connections.
    pub(crate) fn with_own_connections(&self) -> Self {
        Self { pool: self.pool.another(), ..self.clone() }
    }

    /// The same connections with another policy.
    pub(crate) fn with_fence_policy(self, policy: FencePolicy) -> Self {
        let fence = Fence::new(policy, self.pool.work_connections());
        Self { fence: Arc::new(fence), ..self }
    }

    /// The policy, fitted into the statements' time limit.
    pub(crate) fn passing(&self) -> Passing {
        self.fence.passing(self.pool.limit())
    }

    /// How many statements of one operation are sent at once: an operation must not wait for its own connections.
    pub(crate) fn chunks_at_once(&self) -> usize {
        CHUNKS_AT_ONCE.min(self.pool.work_connections())
    }

    /// Runs a statement on the shared connections.
    pub(crate) async fn rows(&self, statement: Statement, bind: Bind) -> Result<Vec<Row>, LockError> {
        let _timer = Timer::start(&self.counters);
        self.pool.rows(Lane::Work, statement, bind).await
    }

    /// Runs a statement that answers with exactly one row.
    pub(crate) async fn row(&self, statement: Statement, bind: Bind) -> Result<Row, LockError> {
        self.rows(statement, bind).await?.pop().ok_or_else(|| unexpected(statement.name, "no rows"))
    }

    /// Begins a new era if the database's past has changed. A heartbeat does so as well.
    pub(crate) async fn begin_era(&self) -> Result<(), LockError> {
        self.rows(PRESENT_ERA, Bind::new()).await.map(drop)
    }

    /// Notifies a session to look at one of its requests. Sent after the commit, in a transaction of its own: inside
    /// that transaction, NOTIFY would make the commits of the whole server queue up. It is only a hint: a failure costs
    /// the time until the next poll.
    pub(crate) async fn wake(&self, session: SessionId, grant: crate::GrantId) {
        let bind = Bind::new().with(session.as_uuid()).and_then(|bind| bind.with(grant.as_uuid()));
        self.hint(WAKE, bind).await;
    }

    /// Notifies all listeners that something may be free.
    pub(crate) async fn wake_all(&self) {
        self.notify_all(vec![FREED.to_owned()], false).await;
    }

    /// Notifies all waiters that the quarantine is over, if there are any.
    pub(crate) async fn wake_waiters(&self) {
        self.notify_all(vec![FREED.to_owned()], true).await;
    }

    /// Notifies listeners that these sessions have ended. Does nothing if no request waits for a key, unless one of the
    /// sessions may have claimed some: controllers wait without a place in a queue.
    pub(crate) async fn sessions_ended(&self, sessions: &[Ending]) {
        let claims = sessions.iter().any(|session| session.has_peers);
        self.notify_all(sessions.iter().map(|ended| format!("{ENDED}{}", ended.session)).collect(), !claims)
            .await;
    }

    /// Notifies controllers that sessions that live have given up their claims to these keys.
    pub(crate) async fn claims_given_up(&self, keys: impl Iterator<Item = &Key>) {
        self.notify_all(keys.map(|key| format!("{YIELDED}{key}")).collect(), false).await;
    }

    async fn notify_all(&self, words: Vec<String>, if_awaited: bool) {
        if !words.is_empty() {
            self.hint(WAKE_ALL, Bind::new().with(words).and_then(|bind| bind.with(if_awaited))).await;
        }
    }

    async fn hint(&self, statement: Statement, bind: Result<Bind, LockError>) {
        let sent = match bind {
            Ok(bind) => self.rows(statement, bind).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "no notification was sent; others notice at their next poll");
        }
    }
}

/// Refuses a batch that names a key twice, because it is undefined which of the two would win.
pub(crate) fn check_distinct<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<(), LockError> {
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(LockError::Invalid { what: "batch", problem: format!("names the key {key} twice") });
        }
    }
    Ok(())
}
