//! Sessions in the database: registering, the heartbeat, the death mark, the end.

use std::time::Duration;

use crate::db::database::Ending;
use crate::db::pool::Lane;
use crate::db::statement::{Bind, Row, Statement, get, unexpected};
use crate::db::stats::Timer;
use crate::types::check_text;
use crate::{
    LockError, SessionId, Store,
    db::schema,
    protocol::{Beat, EraId, SessionSeen},
};

/// Whether a session has peers.
macro_rules! peers {
    ($id:literal) => {
        concat!(
            "exists (select from leadergroup.session as s where s.id = ",
            $id,
            " and s.peers is not null) as has_peers"
        )
    };
}

const REGISTER: Statement =
    Statement { name: "register", sql: "select era_id from leadergroup.register($1, $2, $3, $4, $5)" };
const BEAT: Statement = Statement { name: "heartbeat", sql: "select * from leadergroup.beat($1, $2)" };
const END_QUARANTINE: Statement =
    Statement { name: "end of quarantine", sql: "select leadergroup.end_quarantine($1) as ended" };
const MARK_DEAD: Statement = Statement {
    name: "death mark",
    sql: concat!("select d.id, d.marked, ", peers!("d.id"), " from leadergroup.mark_dead($1, $2, $3) as d"),
};
const CLOSE: Statement =
    Statement { name: "close", sql: concat!("select leadergroup.close($1, $2) as closed, ", peers!("$1")) };
/// Begins another era, unless that was done since the given one.
const BEGIN_ERA: Statement =
    Statement { name: "end of an era", sql: "select leadergroup.commits_were_lost($1) as begun" };

impl Store {
    /// Registers a new session. Others may mark it dead when its heartbeat has not moved for `ttl`. The name is for
    /// people. Sessions with the same `peers` watch each other, and see each other's `place`. This is the first
    /// operation that needs the schema, so it reports a schema that is too old or too new.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn register(
        &self,
        name: &str,
        ttl: Duration,
        peers: Option<&str>,
        place: Option<&str>,
    ) -> Result<(SessionId, EraId), LockError> {
        let (session, era, _) = self.register_at(name, ttl, peers, place).await?;
        Ok((session, era))
    }

    /// Like [`register`](Self::register), and also returns a time before which no one can have seen the session.
    /// Connecting, which may take longer than everything else, comes before it.
    pub(crate) async fn register_at(
        &self,
        name: &str,
        ttl: Duration,
        peers: Option<&str>,
        place: Option<&str>,
    ) -> Result<(SessionId, EraId, Duration), LockError> {
        check_text("session's name", name)?;
        if let Some(peers) = peers {
            check_text("session's peers", peers)?;
        }
        if let Some(place) = place {
            check_text("session's place", place)?;
        }
        let ttl_ms = ttl_ms(ttl)?;
        self.schema_version().await?.check()?;
        let id = SessionId::from(self.database.pool.new_uuid());
        let bind = Bind::new().with(id.as_uuid())?.with(name)?.with(ttl_ms)?.with(peers)?.with(place)?;
        let sent = self.clock().now();
        let row = self.database.row(REGISTER, bind).await?;
        Ok((id, era_of(&row)?, sent))
    }

    /// Sends one heartbeat, on a connection of its own: it shows others that this session is alive, and returns the
    /// state of the sessions that this one has to watch. `watch` names sessions to watch besides its neighbours and
    /// peers.
    ///
    /// The cost does not grow with the number of keys or sessions, apart from those watched.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn beat(&self, own: SessionId, watch: &[SessionId]) -> Result<Beat, LockError> {
        let watch: Vec<_> = watch.iter().map(|session| session.as_uuid()).collect();
        let bind = Bind::new().with(own.as_uuid())?.with(watch)?;
        let timer = Timer::start(&self.database.counters);
        let rows = self.database.pool.rows(Lane::Heartbeat, BEAT, bind).await?;
        drop(timer);
        let Some((first, others)) = rows.split_first() else {
            return Err(unexpected(BEAT.name, "no rows"));
        };
        schema::check_works_with(get::<Option<i32>>(first, "works_with")?)?;
        let alive = !get::<bool>(first, "dead")?;
        let number = |column| get::<Option<i64>>(first, column).map(|n| n.unwrap_or_default().unsigned_abs());
        let quarantine = if get(first, "quarantine")? { Some(number("longest_ttl_ms")?) } else { None };
        Ok(Beat {
            alive,
            own,
            count: number("beat")?,
            revoked: number("revoked")?,
            sessions: others.iter().map(session_seen).collect::<Result<_, _>>()?,
            era: era_of(first)?,
            quarantine: quarantine.map(Duration::from_millis),
        })
    }

    /// Ends the quarantine of this era, if it is still the present one: keys that programs hold go to new holders
    /// again. Call it when a [`Quarantine`](crate::protocol::Quarantine) says so; it may be repeated.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn end_quarantine(&self, era: EraId) -> Result<(), LockError> {
        let row = self.database.row(END_QUARANTINE, Bind::new().with(era.as_uuid())?).await?;
        if get(&row, "ended")? {
            self.database.wake_waiters().await;
            tracing::info!(
                "the quarantine is over, no program relies on a lost grant: keys go to new holders again"
            );
        }
        Ok(())
    }

    /// Begins a new era, for a program that has proof that the database lost commits although its history is the same.
    /// Does nothing if `era` is no longer the present one. Returns whether it began one.
    pub(crate) async fn commits_were_lost(&self, era: EraId) -> Result<bool, LockError> {
        get(&self.database.row(BEGIN_ERA, Bind::new().with(era.as_uuid())?).await?, "begun")
    }

    /// Marks sessions dead whose counter is still as observed, and returns those that are dead now. A session whose
    /// counter has changed is alive. After this, nothing that a dead session sends has any effect, except for a key
    /// that is acquired or released at this very moment: that counts as having happened before.
    ///
    /// `era` is the one in which the counters were observed: a server that is in another one marks none. Leave it out
    /// only if no heartbeat was sent.
    ///
    /// A session in the middle of another change is skipped: call this again with the next heartbeat.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn mark_dead(
        &self,
        observed: &[(SessionId, u64)],
        era: Option<EraId>,
    ) -> Result<Vec<SessionId>, LockError> {
        if observed.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = observed.iter().map(|(id, _)| id.as_uuid()).collect();
        let beats: Vec<_> = observed.iter().map(|(_, beat)| i64::try_from(*beat).unwrap_or(-1)).collect();
        let bind = Bind::new().with(ids)?.with(beats)?.with(era.map(EraId::as_uuid))?;
        let rows = self.database.rows(MARK_DEAD, bind).await?;
        let (mut dead, mut newly) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in &rows {
            let session = get::<uuid::Uuid>(row, "id")?.into();
            dead.push(session);
            if get(row, "marked")? {
                newly.push(Ending { session, has_peers: get(row, "has_peers")? });
            }
        }
        self.database.sessions_ended(&newly).await;
        Ok(dead)
    }

    /// Ends the session in order: everything that it held or claimed is free at once, and those are notified that may
    /// [wait](crate::controller::Hint::Freed) for it. A closed
    /// session never lives again; closing it twice is harmless.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn close(&self, own: SessionId) -> Result<(), LockError> {
        self.end(own, true, true).await
    }

    /// The same for a session that neither holds a key nor waits for one: nobody has to be notified.
    pub(crate) async fn close_quietly(&self, own: SessionId) -> Result<(), LockError> {
        self.end(own, true, false).await
    }

    /// Ends the session uncleanly: work under its keys may not have stopped yet, so lock delays apply.
    pub(crate) async fn abandon(&self, own: SessionId) -> Result<(), LockError> {
        self.end(own, false, true).await
    }

    async fn end(&self, own: SessionId, in_order: bool, notify: bool) -> Result<(), LockError> {
        let row = self.database.row(CLOSE, Bind::new().with(own.as_uuid())?.with(in_order)?).await?;
        if notify && get(&row, "closed")? {
            let ending = Ending { session: own, has_peers: get(&row, "has_peers")? };
            self.database.sessions_ended(&[ending]).await;
        }
        Ok(())
    }
}

fn session_seen(row: &Row) -> Result<SessionSeen, LockError> {
    Ok(SessionSeen {
        id: get::<uuid::Uuid>(row, "id")?.into(),
        beat: get::<i64>(row, "beat")?.unsigned_abs(),
        ttl: Duration::from_millis(get::<i64>(row, "ttl_ms")?.unsigned_abs()),
        dead: get(row, "dead")?,
        peer: get(row, "peer")?,
        place: get(row, "place")?,
    })
}

fn ttl_ms(ttl: Duration) -> Result<i64, LockError> {
    let invalid = |problem: &str| LockError::Invalid { what: "ttl", problem: problem.to_owned() };
    match i64::try_from(ttl.as_millis()) {
        Ok(0) => Err(invalid("is below 1 ms")),
        Ok(millis) => Ok(millis),
        Err(_) => Err(invalid("is too long")),
    }
}

pub(crate) fn era_of(row: &Row) -> Result<EraId, LockError> {
    Ok(get::<uuid::Uuid>(row, "era_id")?.into())
}
