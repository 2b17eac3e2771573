//! Giving a key to another group by hand: recovery after the cluster of its group, or the database, was lost.

use std::time::Duration;

use tokio::time::sleep;

use crate::controller::grant::check_token;
use crate::db::refusal::refusal;
use crate::db::statement::{Bind, Statement, get};
use crate::types::check_text;
use crate::{
    Key, LockError, Refusal, SessionId, Store, Token,
    protocol::{FailureDetector, PROTOCOL},
};

const REASSIGN: Statement = Statement { name: "reassignment", sql: include_str!("../sql/reassign.sql") };

/// How often a session is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// The ttl of the observer's own session.
const OBSERVER_TTL: Duration = Duration::from_secs(10);
/// After so many times the session's ttl the observation ends without a result.
const MOST_TTLS: u32 = 3;

/// A key to be given to another group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// The key.
    pub key: Key,
    /// The group (UID) that gets it.
    pub group: String,
    /// The token that the row has now; `None` if there is no row.
    pub expected: Option<Token>,
    /// Later tokens are larger than this, and than the row's.
    pub floor: Token,
    /// Why, for the history. It should name the person.
    pub reason: String,
    /// Whether to take the key away from a session that is alive.
    pub force: bool,
}

/// The answer to a [`Reassignment`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reassigned {
    /// The key belongs to the group. It has no holder.
    Done {
        /// The next token is larger than this.
        token: Token,
    },
    /// Nothing was changed. [`Refusal::Unclaimed`] names the session that is alive.
    Refused(Refusal),
}

impl Store {
    /// Gives a key to another group. Its holder loses it, and tokens only grow. A key of the same group that has no
    /// holder keeps its owner: only its token is raised.
    ///
    /// The former group can continue to act if it is not gone: its holder is not told. A fence refuses its later
    /// writes.
    pub async fn reassign(&self, request: &Reassignment) -> Result<Reassigned, LockError> {
        check_text("group", &request.group)?;
        check_text("reason", &request.reason)?;
        check_token(request.floor)?;
        let bind = Bind::new()
            .with(request.key.as_str())?
            .with(PROTOCOL.cast_signed())?
            .with(request.group.as_str())?
            .with(request.expected.map(Token::get))?
            .with(request.floor.get())?
            .with(request.reason.as_str())?
            .with(request.force)?;
        let row = self.database.row(REASSIGN, bind).await?;
        if let Some(refusal) = refusal(&row, get(&row, "verdict")?)? {
            return Ok(Reassigned::Refused(refusal));
        }
        self.database.claims_given_up(std::iter::once(&request.key)).await;
        Ok(Reassigned::Done { token: Token::new(get(&row, "token")?) })
    }

    /// Observes a session, and marks it dead if its heartbeat does not change for its ttl. Returns whether it is dead;
    /// false as soon as its heartbeat changes, or if nothing can be said within three times its ttl. `name` is the
    /// observer's, for people.
    pub async fn observe_death(&self, name: &str, session: SessionId) -> Result<bool, LockError> {
        let (own, _) = self.register(name, OBSERVER_TTL, None, None).await?;
        let observed = self.watch(own, session).await;
        self.close(own).await?;
        observed
    }

    async fn watch(&self, own: SessionId, session: SessionId) -> Result<bool, LockError> {
        let (began, mut first) = (self.clock().now(), None);
        let mut detector = FailureDetector::new(LOOK);
        loop {
            let sent = self.clock().now();
            let beat = self.beat(own, &[session]).await?;
            let now = self.clock().now();
            // A session that was removed has ended long ago.
            let Some(seen) = beat.sessions.iter().find(|seen| seen.id == session && !seen.dead) else {
                return Ok(true);
            };
            if *first.get_or_insert(seen.beat) != seen.beat {
                return Ok(false);
            }
            let expired: Vec<_> =
                detector.observe(now, sent, &beat).into_iter().filter(|(id, _)| *id == session).collect();
            if self.mark_dead(&expired, Some(beat.era)).await?.contains(&session) {
                return Ok(true);
            }
            if now.saturating_sub(began) > seen.ttl * MOST_TTLS + OBSERVER_TTL {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
    }
}
