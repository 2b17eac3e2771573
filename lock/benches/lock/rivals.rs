//! The alternatives to the lock, statement by statement.

use anyhow::Result;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};

pub(crate) const TABLES: &str = "
    create table baseline (
        key text, holder text, lock_timestamp timestamp not null, ttl interval not null, primary key (key, holder)
    );
    create table upsert (
        key text primary key, holder text not null, expires_at timestamptz not null, token bigint not null default 0
    ) with (fillfactor = 50)";

pub(crate) const BASELINE_RELEASE: &str = "delete from baseline where key = $1 and holder = $2";
pub(crate) const ADVISORY_RELEASE: &str = "select pg_advisory_unlock(hashtextextended($1, 0)) where $2 <> ''";

/// PostgreSQL's SQLSTATE when `NOWAIT` finds a lock taken.
const NOT_AVAILABLE: &str = "55P03";

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The key was free, or its holder's time was over.
    Taken,
    /// The caller already held it, and keeps it.
    Kept,
    /// Another candidate holds it.
    Held,
}

/// The lease's variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// The usual form.
    Plain,
    /// The commit of a release does not wait for the disk.
    AsyncRelease,
    /// Each change of holder takes the next token, which is returned to the holder.
    Token,
}

impl Lease {
    /// $1 key, $2 holder. No row: another holder has it.
    fn attempt_sql(self) -> &'static str {
        match self {
            Self::Plain | Self::AsyncRelease => {
                "insert into upsert as u (key, holder, expires_at) values ($1, $2, now() + interval '5 s') \
                 on conflict (key) do update set holder = excluded.holder, expires_at = excluded.expires_at \
                 where u.expires_at < now() or u.holder = excluded.holder"
            }
            Self::Token => {
                "insert into upsert as u (key, holder, expires_at, token) values ($1, $2, now() + interval '5 s', 1) \
                 on conflict (key) do update set holder = excluded.holder, expires_at = excluded.expires_at, \
                 token = u.token + 1 where u.expires_at < now() returning token"
            }
        }
    }

    pub(crate) fn release_sql(self) -> &'static str {
        match self {
            Self::Plain | Self::Token => {
                "update upsert set expires_at = '-infinity' where key = $1 and holder = $2"
            }
            Self::AsyncRelease => {
                "update upsert set expires_at = '-infinity' where key = $1 and holder = $2 \
                 returning set_config('synchronous_commit', 'off', true)"
            }
        }
    }
}

/// Takes or refreshes a lease.
pub(crate) async fn upsert(
    connection: &mut PgConnection,
    lease: Lease,
    key: &str,
    holder: &str,
) -> Result<Outcome> {
    let taken = sqlx::query(lease.attempt_sql()).bind(key).bind(holder).execute(connection).await?;
    Ok(if taken.rows_affected() == 1 { Outcome::Taken } else { Outcome::Held })
}

/// Takes expired leases in one statement, each with a token. Returns how many it took.
pub(crate) async fn upsert_batch(
    connection: &mut PgConnection,
    keys: &[String],
    holder: &str,
) -> Result<usize> {
    let taken = sqlx::query(
        "insert into upsert as u (key, holder, expires_at, token) \
         select key, $2, now() + interval '5 s', 1 from unnest($1::text[]) as key \
         on conflict (key) do update set holder = excluded.holder, expires_at = excluded.expires_at, \
         token = u.token + 1 where u.expires_at < now() returning token",
    )
    .bind(keys)
    .bind(holder)
    .fetch_all(connection)
    .await?;
    Ok(taken.len())
}

/// A process's round: it renews all its leases in one statement, and reads which others have expired. Returns how many
/// it keeps.
pub(crate) async fn renew_batch(connection: &mut PgConnection, holder: &str) -> Result<(u64, i64)> {
    let kept = sqlx::query(
        "update upsert set expires_at = now() + interval '5 s' where holder = $1 and expires_at >= now()",
    )
    .bind(holder)
    .execute(&mut *connection)
    .await?;
    let expired = sqlx::query_scalar("select count(*) from upsert where expires_at < now()")
        .fetch_one(connection)
        .await?;
    Ok((kept.rows_affected(), expired))
}

/// One round of the protocol, statement by statement as published, with a key column for many groups.
pub(crate) async fn baseline(connection: &mut PgConnection, key: &str, holder: &str) -> Result<Outcome> {
    let mut transaction = connection.begin().await?;
    transaction.execute("lock table baseline in access exclusive mode").await?;
    let found: Option<(String, i64)> = match sqlx::query_as(
        "select holder, (extract(epoch from lock_timestamp + ttl) * 1000000)::bigint \
         from baseline where key = $1 limit 1 for update nowait",
    )
    .bind(key)
    .fetch_optional(&mut *transaction)
    .await
    {
        Ok(found) => found,
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(NOT_AVAILABLE) => {
            return Ok(Outcome::Held);
        }
        Err(error) => return Err(error.into()),
    };
    let now: i64 =
        sqlx::query_scalar("select (extract(epoch from now() at time zone 'utc') * 1000000)::bigint")
            .fetch_one(&mut *transaction)
            .await?;
    let outcome = match &found {
        Some((present, _)) if present == holder => {
            sqlx::query(
                "update baseline set lock_timestamp = now() at time zone 'utc' where key = $1 and holder = $2",
            )
            .bind(key)
            .bind(holder)
            .execute(&mut *transaction)
            .await?;
            Outcome::Kept
        }
        Some((_, expiry)) if *expiry >= now => Outcome::Held,
        expired => {
            if let Some((present, _)) = expired {
                sqlx::query(BASELINE_RELEASE).bind(key).bind(present).execute(&mut *transaction).await?;
            }
            sqlx::query(
                "insert into baseline (key, holder, lock_timestamp, ttl) \
                 values ($1, $2, now() at time zone 'utc', interval '5 s')",
            )
            .bind(key)
            .bind(holder)
            .execute(&mut *transaction)
            .await?;
            Outcome::Taken
        }
    };
    transaction.commit().await?;
    Ok(outcome)
}

pub(crate) async fn advisory(connection: &mut PgConnection, key: &str) -> Result<Outcome> {
    let taken: bool = sqlx::query_scalar("select pg_try_advisory_lock(hashtextextended($1, 0))")
        .bind(key)
        .fetch_one(connection)
        .await?;
    Ok(if taken { Outcome::Taken } else { Outcome::Held })
}
