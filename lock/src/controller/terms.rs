//! Terms of keys that a controller grants to others: granting under a new token, confirming, ending.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::controller::claim::CREATE_CHUNK;
use crate::controller::grant::{Confirming, Granting, Vacating, check_token};
use crate::db::database::check_distinct;
use crate::db::refusal::changed;
use crate::db::statement::{Bind, Statement, all_in_order};
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

impl Store {
    /// Changes holders. Returns one answer for each grant, in their order: the new token, or why nothing was changed.
    /// The new token is above the row's, above `floor` and above every token in the history.
    ///
    /// Repeating a grant with the same id returns the same answer as the first time, as long as no other change
    /// followed it; while the first try may still be under way, the answer is [`Refusal::Busy`].
    ///
    /// Fenced transactions of the old holder (`leadergroup.fence`) have to end first. After all other grants have been
    /// carried out, they are waited for, key by key, as the [`FencePolicy`](crate::FencePolicy) says.
    pub async fn grant(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Granted>, LockError> {
        let mut answers = self.database.grant_at_once(own, grants).await?;
        // Each key waits alone, so that none waits for another one's transactions, and no two are waited for in one
        // transaction (an application may fence both).
        let busy = (0..grants.len()).filter(|index| answers[*index] == Granted::Refused(Refusal::Busy));
        let waiting =
            busy.map(async |index| Ok((index, self.database.grant_past_fence(own, &grants[index]).await?)));
        let waiting: Vec<_> = waiting.collect();
        let late: Vec<_> =
            stream::iter(waiting).buffer_unordered(self.database.fence.places()).try_collect().await?;
        for (index, answer) in late {
            answers[index] = answer;
        }
        self.database.count(&answers);
        Ok(answers)
    }

    /// Like [`grant`](Self::grant), but never waits for fenced transactions: if one is under way, the answer is
    /// [`Refusal::Busy`].
    pub async fn try_grant(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Granted>, LockError> {
        self.database.try_grant(own, grants).await
    }

    /// Like [`grant`](Self::grant) for one key, in one statement with the grants that other tasks ask for at the same
    /// time.
    pub async fn grant_one(&self, own: SessionId, grant: Grant) -> Result<Granted, LockError> {
        match self.batches.grant.ask(&self.database, Granting { own, grant: grant.clone() }).await? {
            // The old holder's transactions may be in the way. Only this key waits for them.
            Granted::Refused(Refusal::Busy) => {
                let answer = self.database.grant_past_fence(own, &grant).await?;
                self.database.count(std::slice::from_ref(&answer));
                Ok(answer)
            }
            answer => Ok(answer),
        }
    }

    /// Marks terms confirmed: everything has been done so that the holder acts under this token, and no other holder
    /// acts. From then on, earlier terms are no longer pending.
    pub async fn confirm(&self, own: SessionId, terms: &[(Key, Token)]) -> Result<Vec<Changed>, LockError> {
        self.database.confirm(own, terms).await
    }

    /// Like [`confirm`](Self::confirm) for one key, in one statement with those of other tasks.
    pub async fn confirm_one(&self, own: SessionId, key: Key, token: Token) -> Result<Changed, LockError> {
        self.batches.confirm.ask(&self.database, Confirming { own, term: (key, token) }).await
    }

    /// Removes holders without naming new ones. The tokens stay, and the terms stay pending as before: the old holder
    /// may still act until the next term is confirmed.
    pub async fn vacate(&self, own: SessionId, vacates: &[Vacate]) -> Result<Vec<Changed>, LockError> {
        self.database.vacate(own, vacates).await
    }

    /// Like [`vacate`](Self::vacate) for one key, in one statement with those of other tasks.
    pub async fn vacate_one(&self, own: SessionId, vacate: Vacate) -> Result<Changed, LockError> {
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
