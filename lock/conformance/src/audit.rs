//! The record that `audit.sql` keeps in the database.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

/// The clock of the record counts hundredths of a second, rounded down.
pub(crate) const GRAIN: Duration = Duration::from_millis(10);

/// A call of a function, or what a change of a row means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its place in the order of events.
    pub(crate) id: i64,
    at_ms: i64,
    /// The transaction.
    pub(crate) tx: i64,
    /// The role that did it.
    pub(crate) who: String,
    /// The function's name; `grant`, `end`, `queue`, `era` for changes of rows; `hand` for a change by hand.
    pub(crate) what: String,
    /// The session that it is about.
    pub(crate) session: Option<Uuid>,
    /// The key.
    pub(crate) key: Option<String>,
    /// The token.
    pub(crate) token: Option<i64>,
    /// The request; of `era`, `beat` and `end_quarantine`, the era.
    pub(crate) grant_id: Option<Uuid>,
    /// The counter; of `register` the ttl, of `end_quarantine` the longest ttl.
    pub(crate) beat: Option<i64>,
    /// The answer.
    pub(crate) verdict: Option<String>,
    /// `synchronous_commit`
    pub(crate) sync: String,
    /// `statement_timeout`
    pub(crate) time_limit: String,
}

impl Event {
    /// Reads the record.
    pub(crate) async fn read(connection: &mut PgConnection) -> sqlx::Result<Vec<Self>> {
        let rows = sqlx::query("select * from conform.event order by id").fetch_all(connection).await?;
        rows.iter().map(Self::from_row).collect()
    }

    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            at_ms: row.try_get("at_ms")?,
            tx: row.try_get("tx")?,
            who: row.try_get("who")?,
            what: row.try_get("what")?,
            session: row.try_get("session")?,
            key: row.try_get("key")?,
            token: row.try_get("token")?,
            grant_id: row.try_get("grant_id")?,
            beat: row.try_get("beat")?,
            verdict: row.try_get("verdict")?,
            sync: row.try_get("sync")?,
            time_limit: row.try_get("time_limit")?,
        })
    }

    /// When it happened, on this program's clock. It may have been up to [`GRAIN`] later.
    pub(crate) fn at(&self) -> Duration {
        Duration::from_millis(self.at_ms.unsigned_abs())
    }

    /// `beat` as a time.
    pub(crate) fn millis(&self) -> Duration {
        Duration::from_millis(self.beat.unwrap_or_default().unsigned_abs())
    }

    /// Whether it is a heartbeat that its session can rely on.
    pub(crate) fn is_heartbeat(&self) -> bool {
        self.what == "beat" && self.verdict.as_deref() != Some("dead")
    }
}
