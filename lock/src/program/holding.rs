//! Keys that a program holds directly: acquiring, releasing and transferring them.

use crate::db::batch::Request as _;
use crate::db::refusal::refusal;
use crate::db::statement::{Bind, Row, Statement, get};
use crate::program::acquire::{Acquiring, Releasing, alone, next};
use crate::types::check_text;
use crate::{
    Changed, GrantId, Key, LockError, Refusal, SessionId, Store, Successor, Token,
    protocol::{AcquireRequest, Acquired, Attempt, Transfer, Wait},
};

const END_HOLD: Statement = Statement {
    name: "transfer",
    sql: "select e.*, null::uuid as session from leadergroup.end_hold($1, $2, $3, $4, $5, $6) as e",
};
const GIVE_UP: Statement =
    Statement { name: "give up", sql: "select * from leadergroup.give_up($1, $2, $3)" };

impl Store {
    /// Acquires the key if possible, or queues up for it if the request asks to wait.
    ///
    /// Never waits for another holder, nor for a request that is being granted: then the answer is [`Refusal::Busy`].
    /// That request may be the first try of this one, whose answer was lost: repeat it until there is another answer,
    /// or [give it up](Self::give_up). Waits only for fenced transactions of the last holder, as the
    /// [`FencePolicy`](crate::FencePolicy) says.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn acquire(
        &self,
        own: SessionId,
        request: &AcquireRequest,
        wait: Wait,
    ) -> Result<Attempt, LockError> {
        check_text("holder's uid", &request.holder.uid)?;
        check_text("holder's namespace", &request.holder.namespace)?;
        check_text("holder's name", &request.holder.name)?;
        check_text("reason", &request.reason)?;
        if i64::try_from(request.lock_delay.as_millis()).is_err() {
            return Err(LockError::Invalid { what: "lock delay", problem: "is too long".to_owned() });
        }
        let acquiring = Acquiring { own, request: request.clone(), wait };
        let repeats = self.database.pool.repeats();
        let mut attempt = match self.batches.acquire.ask(&self.database, acquiring.clone()).await? {
            Some(attempt) => attempt,
            // It could not be answered in a batch, because it has to wait for something.
            None => alone(&self.database, acquiring.clone()).await?,
        };
        if attempt.outcome == Acquired::Quarantine && attempt.era.is_none() {
            // This is the first call to notice a new history.
            self.database.begin_era().await?;
            attempt = alone(&self.database, acquiring).await?;
        }
        if attempt.outcome == Acquired::Refused(Refusal::Busy) && self.database.pool.repeats() != repeats {
            let detail = "the connection broke, and the first attempt may still be under way".to_owned();
            return Err(LockError::Interrupted { statement: Acquiring::NAME, detail });
        }
        if !matches!(attempt.outcome, Acquired::Granted { .. }) {
            self.database.counters.contended();
        }
        Ok(attempt)
    }

    /// Releases the key. The first living waiter becomes the holder at once, and is woken (after a failover only once
    /// the [quarantine](crate::protocol::Quarantine) is over; while a fenced transaction of this term is under way,
    /// once that has ended). Applies only to the term with this token: after the key went to another holder, the answer
    /// is [`Refusal::TokenChanged`]. May be repeated with the same reason.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn release(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        reason: &str,
    ) -> Result<Changed, LockError> {
        check_text("reason", reason)?;
        let releasing = Releasing { own, key: key.clone(), token, reason: reason.to_owned() };
        let ended = match self.batches.release.ask(&self.database, releasing.clone()).await? {
            Some(ended) => ended,
            None => alone(&self.database, releasing).await?,
        };
        if let Some((session, grant)) = ended.next {
            self.database.wake(session, grant).await;
        }
        Ok(ended.answer)
    }

    /// Gives the key to a waiter, ahead of the queue; the others keep their places. Otherwise like
    /// [`release`](Self::release), except that nothing is changed unless the answer is [`Transfer::Done`]. While a
    /// fenced transaction of the present term is under way, or in quarantine, the answer is [`Refusal::Busy`].
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn transfer(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        successor: Successor<'_>,
        reason: &str,
    ) -> Result<Transfer, LockError> {
        let row = self.end_hold(Some(own), key, token, reason, Some(successor)).await?;
        Ok(match get::<&str>(&row, "verdict")? {
            "no-successor" => Transfer::NotWaiting,
            verdict => match refusal(&row, verdict)? {
                None => Transfer::Done,
                Some(refusal) => {
                    if refusal == Refusal::Busy {
                        // This may be the first call to notice a new history.
                        self.database.begin_era().await?;
                    }
                    Transfer::Refused(refusal)
                }
            },
        })
    }

    /// Ends a hold (by force if there is no session), and wakes the next holder.
    pub(crate) async fn end_hold(
        &self,
        own: Option<SessionId>,
        key: &Key,
        token: Token,
        reason: &str,
        successor: Option<Successor<'_>>,
    ) -> Result<Row, LockError> {
        check_text("reason", reason)?;
        let (uid, name) = match successor {
            Some(Successor::Uid(uid)) => (Some(uid), None),
            Some(Successor::Name(name)) => (None, Some(name)),
            None => (None, None),
        };
        let bind = Bind::new()
            .with(own.map(SessionId::as_uuid))?
            .with(key.as_str())?
            .with(token.get())?
            .with(reason)?
            .with(uid)?
            .with(name)?;
        let row = self.database.row(END_HOLD, bind).await?;
        if let Some((session, grant)) = next(&row)? {
            self.database.wake(session, grant).await;
        }
        Ok(row)
    }

    /// Gives the request up: leaves the queue, and releases the key if it has been granted meanwhile.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn give_up(&self, own: SessionId, key: &Key, grant: GrantId) -> Result<(), LockError> {
        let bind = Bind::new().with(own.as_uuid())?.with(key.as_str())?.with(grant.as_uuid())?;
        if let Some((session, grant)) = next(&self.database.row(GIVE_UP, bind).await?)? {
            self.database.wake(session, grant).await;
        }
        Ok(())
    }
}
