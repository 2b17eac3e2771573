//! Sessions: registering, the heartbeat, the death mark, the normal end.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::postgres::PgRow;

use super::model::check_text;
use super::pool::{Lane, Statement};
use super::schema;
use super::store::{Bind, get, unexpected};
use super::{Beat, Epoch, LockError, SessionId, SessionSeen, Store, monotonic};

const REGISTER: Statement = Statement { name: "register", sql: include_str!("sql/register.sql") };
const BEAT: Statement = Statement { name: "heartbeat", sql: include_str!("sql/beat.sql") };
const SET_TTL: Statement = Statement { name: "change of ttl", sql: include_str!("sql/set_ttl.sql") };
const NEW_ERA: Statement = Statement { name: "new era", sql: include_str!("sql/new_era.sql") };
const SETTLE: Statement = Statement { name: "settle", sql: include_str!("sql/settle.sql") };
const MARK_DEAD: Statement = Statement { name: "death mark", sql: include_str!("sql/mark_dead.sql") };
const MARK_DEAD_WAITING: Statement =
    Statement { name: "death mark", sql: include_str!("sql/mark_dead_waiting.sql") };
const CLOSE: Statement = Statement { name: "close", sql: include_str!("sql/close.sql") };

/// The number of this process's next change of a ttl. A session belongs to one process.
static TTL_CHANGES: AtomicI64 = AtomicI64::new(1);

/// What a try to mark sessions dead came to.
#[derive(Debug, Default)]
struct Marked {
    dead: Vec<SessionId>,
    busy: Vec<(SessionId, u64)>,
}

impl Store {
    /// Makes a new session. Others may mark it dead when its heartbeat has not been seen to move for `ttl`. The name is
    /// for people. The first thing to need the schema, so it says when that is too old or too new.
    pub async fn register(&self, name: &str, ttl: Duration) -> Result<SessionId, LockError> {
        Ok(self.register_in(name, ttl).await?.0)
    }

    /// As [`register`](Self::register). Also says in which history: whatever the session holds is granted in that one or a
    /// later one.
    pub(super) async fn register_in(
        &self,
        name: &str,
        ttl: Duration,
    ) -> Result<(SessionId, Epoch), LockError> {
        check_text("session's name", name)?;
        let ttl_ms = ttl_ms(ttl)?;
        self.schema_version().await?.check()?;
        let id = SessionId::new();
        let rows = self.rows(REGISTER, Bind::new().with(id.as_uuid())?.with(name)?.with(ttl_ms)?).await?;
        let row = rows.first().ok_or_else(|| unexpected("register", "no rows"))?;
        Ok((id, self.present_epoch(row).await?))
    }

    /// One heartbeat: tells the others that this session lives and says what is known about them, in one statement on a
    /// connection of its own. When the database's history turns out to be another one than the tokens were granted in, a
    /// new era is begun first.
    pub async fn beat(&self, own: SessionId) -> Result<Beat, LockError> {
        let bind = Bind::new().with(own.as_uuid())?;
        let sent = monotonic();
        let rows = self.pool.rows(Lane::Heartbeat, BEAT, bind.into_inner()).await?;
        let first = rows.first().ok_or_else(|| unexpected("heartbeat", "no rows"))?;
        self.counters.clock(get(first, "clock_us")?, sent, monotonic());
        schema::check_works_with(get::<Option<i32>>(first, "works_with")?)?;
        let epoch = self.present_epoch(first).await?;
        let settled = get::<bool>(first, "settled")? && epoch == epoch_of(first)?;
        self.settled.store(settled, Ordering::Relaxed);
        let mut sessions = Vec::with_capacity(rows.len());
        let mut alive = false;
        for row in &rows {
            let Some(id) = get::<Option<uuid::Uuid>>(row, "id")? else { continue };
            alive |= get::<bool>(row, "mine")?;
            sessions.push(SessionSeen {
                id: id.into(),
                name: get(row, "name")?,
                beat: get::<i64>(row, "beat")?.unsigned_abs(),
                ttl: Duration::from_millis(get::<i64>(row, "ttl_ms")?.unsigned_abs()),
                dead: get(row, "dead")?,
            });
        }
        let epoch_changed = self.epoch_changed(epoch);
        Ok(Beat { alive, own, sessions, epoch, settled, epoch_changed })
    }

    /// Gives a session another ttl; also counts as a heartbeat, so that everybody watches it anew by the new one. `false` if
    /// it is dead or unknown. Whoever shortens a ttl must have stopped believing in the longer one *before* it calls this,
    /// whatever comes of it; whoever lengthens it may believe in the longer one only *after* it was told `true`. A change that
    /// takes effect late does not undo one that was asked for after it, in the same process.
    ///
    /// Commits as durably as a grant does, other than heartbeats: a longer ttl must not be lost where they are not.
    pub async fn set_ttl(&self, own: SessionId, ttl: Duration) -> Result<bool, LockError> {
        Ok(self.set_ttl_in(own, ttl).await?.is_some())
    }

    /// As [`set_ttl`](Self::set_ttl). Says in which history, if the session lives.
    pub(super) async fn set_ttl_in(&self, own: SessionId, ttl: Duration) -> Result<Option<Epoch>, LockError> {
        let change = TTL_CHANGES.fetch_add(1, Ordering::Relaxed);
        let bind = Bind::new().with(own.as_uuid())?.with(ttl_ms(ttl)?)?.with(change)?;
        match self.rows(SET_TTL, bind).await?.first() {
            Some(row) => self.present_epoch(row).await.map(Some),
            None => Ok(None),
        }
    }

    /// From now on keys that programs hold are given to new holders in this history, if it is still the present one. To be
    /// said when a [`Settler`](super::Settler) says so; may be repeated.
    pub async fn settle(&self, epoch: Epoch) -> Result<(), LockError> {
        let bind = Bind::new()
            .with(epoch.system_identifier)?
            .with(i64::from(epoch.timeline))?
            .with(i64::from(epoch.era))?;
        if !self.rows(SETTLE, bind).await?.is_empty() {
            tracing::info!(
                era = epoch.era,
                "nobody believes in lost grants any more: keys go to new holders again"
            );
        }
        Ok(())
    }

    /// The history that an answer came from; a new one is begun first.
    async fn present_epoch(&self, row: &PgRow) -> Result<Epoch, LockError> {
        if get(row, "same_history")? { epoch_of(row) } else { self.begin_era().await }
    }

    /// Makes the present history the one that tokens are granted in.
    pub(super) async fn begin_era(&self) -> Result<Epoch, LockError> {
        let rows = self.rows(NEW_ERA, Bind::new()).await?;
        let row = rows.first().ok_or_else(|| unexpected("new era", "no rows"))?;
        let epoch = epoch_of(row)?;
        self.settled.store(false, Ordering::Relaxed);
        tracing::warn!(
            system_identifier = epoch.system_identifier,
            timeline = epoch.timeline,
            era = epoch.era,
            "the database's history changed, so commits may have been lost: tokens jump"
        );
        Ok(epoch)
    }

    /// Marks sessions dead whose counter still is as observed, and returns those that are dead now, by whomever. A
    /// session whose counter moved on lives. From now on nothing that a dead session sends has any effect, but for a key of
    /// a program that is taken or given up at this very moment: that counts as having come before (`sql/take.sql`).
    ///
    /// A session in the middle of any other change cannot be marked before the change ends. When there is nothing else to do
    /// that is waited for, but not for longer than half a statement's time; then it is missing from the answer and observed
    /// on.
    pub async fn mark_dead(&self, observed: &[(SessionId, u64)]) -> Result<Vec<SessionId>, LockError> {
        if observed.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.try_mark_dead(MARK_DEAD, observed).await?;
        if !first.dead.is_empty() || first.busy.is_empty() {
            return Ok(first.dead);
        }
        match self.try_mark_dead(MARK_DEAD_WAITING, &first.busy).await {
            Ok(second) => Ok(second.dead),
            Err(LockError::Timeout { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn try_mark_dead(
        &self,
        statement: Statement,
        observed: &[(SessionId, u64)],
    ) -> Result<Marked, LockError> {
        let ids: Vec<_> = observed.iter().map(|(id, _)| id.as_uuid()).collect();
        let beats: Vec<_> = observed.iter().map(|(_, beat)| i64::try_from(*beat).unwrap_or(-1)).collect();
        let rows = self.rows(statement, Bind::new().with(ids)?.with(beats)?).await?;
        let mut marked = Marked::default();
        let mut newly = false;
        for row in &rows {
            let id = SessionId::from(get::<uuid::Uuid>(row, "id")?);
            newly |= get::<bool>(row, "marked")?;
            if get(row, "dead")? {
                marked.dead.push(id);
            } else if get(row, "unchanged")? {
                // Neither dead nor moved on: some transaction has the row locked.
                marked.busy.extend(observed.iter().filter(|(observed, _)| *observed == id));
            }
        }
        if newly {
            self.notify("").await;
        }
        Ok(marked)
    }

    /// The normal end: the charge of all the session's keys becomes free at once, holders and tokens stay, and others get
    /// a hint. Returns how many keys that were. The session never lives again; closing it twice is harmless.
    pub async fn close(&self, own: SessionId) -> Result<u64, LockError> {
        self.end(own, true).await
    }

    /// As [`close`](Self::close), but an unclean end: whoever worked under the session's keys may not have stopped yet, so
    /// delays that were asked for are kept.
    pub(super) async fn abandon(&self, own: SessionId) -> Result<u64, LockError> {
        self.end(own, false).await
    }

    async fn end(&self, own: SessionId, in_order: bool) -> Result<u64, LockError> {
        let rows = self.rows(CLOSE, Bind::new().with(own.as_uuid())?.with(in_order)?).await?;
        let row = rows.first().ok_or_else(|| unexpected("close", "no rows"))?;
        let freed = get::<i64>(row, "freed")?.unsigned_abs();
        // Programs come and go all the time, most of them with nothing left to give up.
        if freed > 0 {
            self.notify("").await;
        }
        Ok(freed)
    }

    /// The version of the schema, checked by the caller.
    pub(super) async fn schema_version(&self) -> Result<schema::Found, LockError> {
        let rows = self.rows(schema::READ_VERSION, Bind::new()).await?;
        schema::Found::from_rows(&rows)
    }
}

fn ttl_ms(ttl: Duration) -> Result<i64, LockError> {
    let invalid = |problem: &str| LockError::Invalid { what: "ttl", problem: problem.to_owned() };
    match i64::try_from(ttl.as_millis()) {
        Ok(0) => Err(invalid("is below 1 ms")),
        Ok(millis) => Ok(millis),
        Err(_) => Err(invalid("is too long")),
    }
}

fn epoch_of(row: &PgRow) -> Result<Epoch, LockError> {
    let number = |column| -> Result<u32, LockError> {
        u32::try_from(get::<i64>(row, column)?).map_err(|_| unexpected(column, "out of range"))
    };
    Ok(Epoch {
        system_identifier: get(row, "system_identifier")?,
        timeline: number("timeline")?,
        era: number("era")?,
    })
}
