//! Requests whose answer is lost, or no longer wanted.

use std::sync::Arc;

use tokio::time::sleep;

use crate::session::process::Process;
use crate::{GrantId, Key, LockError, SessionId};

/// A request that may have been granted although its answer was lost. Dropping this gives it up.
pub(crate) struct Unfinished {
    pub(crate) process: Arc<Process>,
    pub(crate) session: SessionId,
    pub(crate) key: Key,
    pub(crate) grant: GrantId,
    /// Whether it has to be given up.
    pub(crate) armed: bool,
    /// Set if a statement may still be under way; it is void after this heartbeat.
    unclear: Option<u64>,
}

impl Unfinished {
    pub(crate) fn new(process: &Arc<Process>, session: SessionId, key: &Key, grant: GrantId) -> Self {
        Self { process: Arc::clone(process), session, key: key.clone(), grant, armed: false, unclear: None }
    }

    /// Sends a request. If it is not answered, it may still take effect later.
    pub(crate) async fn ask<T>(
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
