//! What a holder publishes of itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::db::statement::{Bind, Statement, get};
use crate::program::held_term::HeldTerm;
use crate::{ClientError, Guard, Key, LockError, SessionId, Store, Token};

const PUBLISH: Statement =
    Statement { name: "publish", sql: "select leadergroup.publish($1, $2, $3, $4, $5) as holds" };

/// The most that can be published. The table has the same limit.
const MOST_BYTES: usize = 4_096;

impl Store {
    /// Publishes data of a holder, as [`Guard::publish`], in place of those with a smaller `change` in the same term.
    /// Returns whether the session holds the key under this token; if not, nothing was changed.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn publish(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        change: i64,
        data: &str,
    ) -> Result<bool, LockError> {
        let problem = if data.len() > MOST_BYTES {
            format!("is {} bytes long; at most {MOST_BYTES} are allowed", data.len())
        } else if data.contains('\0') {
            "contains the character NUL".to_owned()
        } else {
            let bind = Bind::new().with(own.as_uuid())?.with(key.as_str())?.with(token.get())?;
            let bind = bind.with(change)?.with(data)?;
            return get(&self.database.row(PUBLISH, bind).await?, "holds");
        };
        Err(LockError::Invalid { what: "data", problem })
    }
}

impl HeldTerm {
    pub(crate) async fn publish(&self, data: &str) -> Result<(), ClientError> {
        if let Some(loss) = self.loss() {
            return Err(loss);
        }
        // A statement without an answer may be carried out later than the next one.
        let change = self.published.fetch_add(1, Ordering::Relaxed);
        if self.process.store.publish(self.session, &self.key, self.token, change, data).await? {
            return Ok(());
        }
        // The next heartbeat notices the loss.
        Err(self.lost_ago(Duration::ZERO))
    }
}

impl Guard {
    /// Publishes data of this holder, such as its address, in place of what it published before: at most 4,096 bytes.
    /// [`Store::leader`] and [`Store::observe`] show it until the term ends. May be repeated.
    ///
    /// ```no_run
    /// # async fn example(guard: leadergroup_lock::Guard) -> Result<(), leadergroup_lock::ClientError> {
    /// guard.publish("http://10.0.0.7:8080").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn publish(&self, data: &str) -> Result<(), ClientError> {
        self.term().publish(data).await
    }
}
