//! Terms of keys that a controller grants to others: granting under a new token, confirming, ending.

use crate::controller::claim::CREATE_CHUNK;
use crate::controller::grant::{Confirming, Granting, Vacating, check_token};
use crate::db::database::check_distinct;
use crate::db::refusal::changed;
use crate::db::statement::{Bind, Statement, all_in_order};
use crate::db::stats::Attempt;
use crate::types::check_text;
use crate::{
    Changed, Key, LockError, Refusal, SessionId, Store, Token,
    controller::{Grant, Granted, Vacate},
    protocol::PROTOCOL,
};

const TOMBSTONE: Statement = Statement { name: "tombstone", sql: include_str!("../sql/tombstone.sql") };

/// The end of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// The key.
    pub key: Key,
    /// The group that was deleted.
    pub group: String,
    /// The largest token known from elsewhere: the next user of the key continues above it, even if the row was lost.
    pub floor: Token,
}

/// Calls about one key go to the server together with those that other tasks make at the same time.
impl Store {
    /// Changes the holder. Returns the new token, or why nothing was changed. The new token is above the row's, above
    /// `floor` and above every token in the history.
    ///
    /// Repeating a grant with the same id returns the same answer as the first time, as long as no other change
    /// followed it; while the first try may still be under way, the answer is [`Refusal::Busy`].
    ///
    /// Fenced transactions of the old holder (`leadergroup.fence`) have to end first. They are waited for as the
    /// [`FencePolicy`](crate::FencePolicy) says, without delaying the grants of other keys.
    pub async fn grant(&self, own: SessionId, grant: Grant) -> Result<Granted, LockError> {
        grant.check()?;
        let mut attempt = Attempt::begin(&self.database.counters);
        let granting = Granting { own, grant };
        let mut answer = self.batches.grant.ask(&self.database, granting.clone()).await?;
        if answer == Granted::Refused(Refusal::Busy) {
            // The old holder's transactions may be in the way. It waits in a statement of its own: no key waits for
            // another one's transactions, and no two are waited for in one transaction (an application may fence both).
            answer = granting.past_fence(&self.database).await?;
        }
        match &answer {
            Granted::Granted { .. } => attempt.won(),
            Granted::Refused(Refusal::Busy | Refusal::TokenChanged) => self.database.counters.contended(),
            Granted::Refused(_) => {}
        }
        Ok(answer)
    }

    /// Marks the term confirmed: everything has been done so that the holder acts under this token, and no other holder
    /// acts. From then on, earlier terms are no longer pending.
    pub async fn confirm(&self, own: SessionId, key: &Key, token: Token) -> Result<Changed, LockError> {
        self.batches.confirm.ask(&self.database, Confirming { own, key: key.clone(), token }).await
    }

    /// Removes the holder without naming a new one. The token stays, and the terms stay pending as before: the old
    /// holder may still act until the next term is confirmed.
    pub async fn vacate(&self, own: SessionId, vacate: Vacate) -> Result<Changed, LockError> {
        check_text("reason", &vacate.reason)?;
        self.batches.vacate.ask(&self.database, Vacating { own, vacate }).await
    }

    /// Leaves tombstones for groups that were deleted: holder and claim are removed, the row and its token stay, and
    /// this group can never claim the key again. Another group that claims the key continues its tokens. This applies
    /// to rows that the own session or no living session has claimed, and creates a row that was lost.
    pub async fn tombstone(
        &self,
        own: SessionId,
        tombstones: &[Tombstone],
    ) -> Result<Vec<Changed>, LockError> {
        check_distinct(tombstones.iter().map(|tombstone| &tombstone.key))?;
        for tombstone in tombstones {
            check_text("group", &tombstone.group)?;
            check_token(tombstone.floor)?;
        }
        let mut all = Vec::with_capacity(tombstones.len());
        for chunk in tombstones.chunks(CREATE_CHUNK) {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(PROTOCOL.cast_signed())?
                .with(chunk.iter().map(|tombstone| tombstone.key.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|tombstone| tombstone.group.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|tombstone| tombstone.floor.get()).collect::<Vec<_>>())?;
            all.extend(all_in_order(chunk.len(), &self.database.rows(TOMBSTONE, bind).await?, changed)?);
        }
        Ok(all)
    }
}
