//! Terms: granting a key to an owner under a new token, confirming it, and ending it. Each is a compare-and-set on the
//! key, its token and the own living session.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::fence::{self, Passing, Tried};
use super::model::check_text;
use super::pool::Statement;
use super::store::{Answers, Bind, CHUNK, CREATE_CHUNK, check_distinct, get, unexpected};
use super::verdict::{changed, refusal};
use super::{
    Changed, Grant, Granted, Key, LockError, PROTOCOL, Refusal, SessionId, Store, TOKEN_JUMP, Token,
    Tombstone, Vacate,
};

const GRANT: Statement = Statement { name: "grant", sql: include_str!("sql/grant.sql") };
const CONFIRM: Statement = Statement { name: "confirm", sql: include_str!("sql/confirm.sql") };
const VACATE: Statement = Statement { name: "vacate", sql: include_str!("sql/vacate.sql") };
const TOMBSTONE: Statement = Statement { name: "tombstone", sql: include_str!("sql/tombstone.sql") };

/// How often a batch is tried again because the database's history changed. A second change in between would be two
/// failovers within milliseconds.
const ERA_ATTEMPTS: usize = 3;

/// So many fenced keys are granted at once where a larger batch has no room.
const PART: usize = 50;

impl Store {
    /// Changes holders. One answer for each grant, in their order: the new token, or why nothing was changed. The new
    /// token is above the row's, above `floor` and above every token in the history.
    ///
    /// Repeating a grant with the same id answers as the first time as long as no other change came after it; when the
    /// first try may still be under way, the answer is [`Refusal::Busy`].
    ///
    /// Fenced transactions of the old holder (`leadergroup.fence`) have to end first. They are waited for, key by key, for
    /// as long as the [`FencePolicy`](super::FencePolicy) says, after all other grants were carried out.
    pub async fn grant(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Granted>, LockError> {
        let tried = self.grant_all(own, grants).await?;
        let fenced: Vec<_> = tried
            .iter()
            .zip(grants.iter().enumerate())
            .filter(|(tried, _)| matches!(tried, Tried::Fenced))
            .map(|(_, (place, grant))| (place, grant.clone()))
            .collect();
        let mut late = self.grant_fenced(own, fenced).await?;
        late.sort_unstable_by_key(|(place, _)| *place);
        let mut late = late.into_iter().map(|(_, granted)| granted);
        let settled = tried.into_iter().map(|tried| match tried {
            Tried::Settled(granted) => Some(granted),
            Tried::Fenced => late.next(),
        });
        let all: Option<Vec<_>> = settled.collect();
        self.with_rows(all.ok_or_else(|| unexpected("grant", "an answer is missing"))?, grants).await
    }

    /// As [`grant`](Self::grant), but never waits for fenced transactions: where one is under way, the answer is
    /// [`Refusal::Busy`].
    pub async fn try_grant(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Granted>, LockError> {
        let tried = self.grant_all(own, grants).await?.into_iter().map(|tried| match tried {
            Tried::Settled(granted) => granted,
            Tried::Fenced => Granted::Refused(Refusal::Busy),
        });
        self.with_rows(tried.collect(), grants).await
    }

    async fn grant_all(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Tried>, LockError> {
        check_distinct(grants.iter().map(|grant| &grant.key))?;
        for grant in grants {
            check_text("owner's uid", &grant.owner.uid)?;
            check_text("owner's namespace", &grant.owner.namespace)?;
            check_text("owner's name", &grant.owner.name)?;
            check_text("reason", &grant.reason)?;
            check_token(grant.floor)?;
        }
        let chunks: Vec<_> = grants.chunks(CHUNK).map(|chunk| self.grant_or_by_parts(own, chunk)).collect();
        stream::iter(chunks).buffered(self.chunks_at_once()).try_concat().await
    }

    /// In one statement, unless the server has not got a lock for each of the fenced keys: then by and by.
    async fn grant_or_by_parts(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Tried>, LockError> {
        match self.grant_chunk(own, grants, None).await {
            Err(error) if error.is_out_of_locks() && grants.len() > PART => {}
            tried => return tried,
        }
        tracing::debug!("the server has no lock left for each of the fenced keys; granting them by parts");
        let mut tried = Vec::with_capacity(grants.len());
        for part in grants.chunks(PART) {
            match self.grant_chunk(own, part, None).await {
                // Another batch has taken all that there are.
                Err(error) if error.is_out_of_locks() => tried.extend(part.iter().map(|_| Tried::Fenced)),
                answers => tried.extend(answers?),
            }
        }
        Ok(tried)
    }

    async fn with_rows(&self, mut all: Vec<Granted>, grants: &[Grant]) -> Result<Vec<Granted>, LockError> {
        let count = |kind: fn(&Granted) -> bool| all.iter().filter(|granted| kind(granted)).count();
        let won = count(|granted| matches!(granted, Granted::Granted { .. }));
        let contended = count(|granted| {
            matches!(granted, Granted::Refused(Refusal::Busy | Refusal::TokenChanged { .. }))
        });
        self.counters.granted(all.len(), won, contended);
        let refusals = all.iter_mut().zip(grants).filter_map(|(granted, grant)| match granted {
            Granted::Refused(refusal) => Some((&grant.key, refusal)),
            Granted::Granted { .. } => None,
        });
        self.add_rows(refusals).await?;
        Ok(all)
    }

    /// One statement, which waits for fenced transactions if told so.
    pub(super) async fn grant_chunk(
        &self,
        own: SessionId,
        grants: &[Grant],
        passing: Option<Passing>,
    ) -> Result<Vec<Tried>, LockError> {
        for _ in 0..ERA_ATTEMPTS {
            let texts = |text: fn(&Grant) -> &str| grants.iter().map(text).collect::<Vec<_>>();
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
                .with(TOKEN_JUMP)?
                .with(texts(|grant| grant.key.as_str()))?
                .with(grants.iter().map(|grant| grant.expected.get()).collect::<Vec<_>>())?
                .with(grants.iter().map(|grant| grant.floor.get()).collect::<Vec<_>>())?
                .with(texts(|grant| &grant.owner.uid))?
                .with(texts(|grant| &grant.owner.namespace))?
                .with(texts(|grant| &grant.owner.name))?
                .with(grants.iter().map(|grant| grant.grant.as_uuid()).collect::<Vec<_>>())?
                .with(texts(|grant| &grant.reason))?
                .with(passing.map(|passing| passing.patience_ms))?
                .with(passing.and_then(|passing| passing.force_ms))?;
            let rows = self.rows(GRANT, bind).await?;
            let mut answers = Answers::new(grants.len());
            let mut other_history = false;
            for (row, grant) in rows.iter().zip(grants) {
                let answer = match get::<&str>(row, "verdict")? {
                    // The row may have been busy because of a fenced transaction that has ended since.
                    "fenced" | "busy" => {
                        fence::report(row, grant)?;
                        Tried::Fenced
                    }
                    "history" => {
                        other_history = true;
                        break;
                    }
                    "grant" | "granted" => {
                        Tried::Settled(Granted::Granted { token: Token::new(get(row, "token")?) })
                    }
                    verdict => Tried::Settled(Granted::Refused(
                        refusal(row, verdict)?.ok_or_else(|| unexpected("grant", "done without a token"))?,
                    )),
                };
                answers.put(row, answer)?;
            }
            if !other_history {
                return answers.finish();
            }
            self.begin_era().await?;
        }
        Err(unexpected("grant", "the database's history changes again and again"))
    }

    /// Marks terms confirmed: everything was done to make the holder act under this token and nobody else. From then on
    /// earlier terms are no longer pending.
    pub async fn confirm(&self, own: SessionId, terms: &[(Key, Token)]) -> Result<Vec<Changed>, LockError> {
        check_distinct(terms.iter().map(|(key, _)| key))?;
        let mut all = Vec::with_capacity(terms.len());
        for chunk in terms.chunks(CHUNK) {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
                .with(chunk.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|(_, token)| token.get()).collect::<Vec<_>>())?;
            all.extend(self.changes(CONFIRM, bind, chunk.len()).await?);
        }
        self.add_rows(refused(&mut all, terms.iter().map(|(key, _)| key))).await?;
        Ok(all)
    }

    /// Removes holders without naming new ones. The tokens stay, and the terms stay pending as before: the old holder may
    /// still act until the next term is confirmed.
    pub async fn vacate(&self, own: SessionId, vacates: &[Vacate]) -> Result<Vec<Changed>, LockError> {
        check_distinct(vacates.iter().map(|vacate| &vacate.key))?;
        for vacate in vacates {
            check_text("reason", &vacate.reason)?;
        }
        let mut all = Vec::with_capacity(vacates.len());
        for chunk in vacates.chunks(CHUNK) {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
                .with(chunk.iter().map(|vacate| vacate.key.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|vacate| vacate.token.get()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|vacate| vacate.grant.as_uuid()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|vacate| vacate.reason.as_str()).collect::<Vec<_>>())?;
            all.extend(self.changes(VACATE, bind, chunk.len()).await?);
        }
        self.add_rows(refused(&mut all, vacates.iter().map(|vacate| &vacate.key))).await?;
        Ok(all)
    }

    /// Leaves tombstones for groups that were deleted: holder and charge go, the row and its token stay, and this group
    /// can never claim the key again. Another group that claims it continues with its tokens. Works on rows in the own
    /// session's charge or in nobody living's, and makes a row that was lost.
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
                .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
                .with(chunk.iter().map(|tombstone| tombstone.key.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|tombstone| tombstone.group.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|tombstone| tombstone.floor.get()).collect::<Vec<_>>())?;
            all.extend(self.changes(TOMBSTONE, bind, chunk.len()).await?);
        }
        Ok(all)
    }

    async fn changes(
        &self,
        statement: Statement,
        bind: Bind,
        count: usize,
    ) -> Result<Vec<Changed>, LockError> {
        let mut answers = Answers::new(count);
        for row in &self.rows(statement, bind).await? {
            answers.put(row, changed(row)?)?;
        }
        answers.finish()
    }

    /// Reads the rows of the keys whose token was another one, so that the caller can decide anew at once.
    async fn add_rows<'a>(
        &self,
        refusals: impl Iterator<Item = (&'a Key, &'a mut Refusal)>,
    ) -> Result<(), LockError> {
        let changed: Vec<_> =
            refusals.filter(|(_, refusal)| matches!(refusal, Refusal::TokenChanged { .. })).collect();
        let keys: Vec<Key> = changed.iter().map(|(key, _)| (*key).clone()).collect();
        let mut rows = self.read_map(&keys).await?;
        for (key, refusal) in changed {
            *refusal = Refusal::TokenChanged { row: rows.remove(key).map(Box::new) };
        }
        Ok(())
    }
}

fn refused<'a>(
    all: &'a mut [Changed],
    keys: impl Iterator<Item = &'a Key>,
) -> impl Iterator<Item = (&'a Key, &'a mut Refusal)> {
    all.iter_mut().zip(keys).filter_map(|(changed, key)| match changed {
        Changed::Refused(refusal) => Some((key, refusal)),
        Changed::Done => None,
    })
}

/// Tokens must never run out; a number from outside that is absurdly large would use them up.
fn check_token(token: Token) -> Result<(), LockError> {
    const LARGEST: i64 = i64::MAX / 2;
    if (0..=LARGEST).contains(&token.get()) {
        return Ok(());
    }
    Err(LockError::Invalid { what: "token", problem: format!("{token} is out of range (0 to {LARGEST})") })
}
