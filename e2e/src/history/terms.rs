//! The collector of the lock's term history: reads the view `leadergroup.terms` periodically.
//!
//! The table is bounded and old terms are removed from it, so every row that was read is kept here.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use jiff::Timestamp;
use parking_lot::Mutex;
use sqlx::{Connection, PgConnection};
use tokio::{task::JoinHandle, time};

use super::Term;

/// The table keeps many more terms of a key than a scenario can create in this time.
const EVERY: Duration = Duration::from_millis(500);
const WITHIN: Duration = Duration::from_secs(5);

type Rows = BTreeMap<(String, i64, String, String), Timestamp>;

/// Records the term history of a lock database.
#[derive(Debug)]
pub struct TermCollector {
    url: String,
    rows: Arc<Mutex<Rows>>,
    task: JoinHandle<()>,
}

impl Drop for TermCollector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TermCollector {
    /// Starts to read. The database may be unavailable for a time: the next read catches up, and [`Self::terms`]
    /// requires a last successful one.
    pub fn start(url: &str) -> Self {
        let rows = Arc::new(Mutex::new(Rows::new()));
        let task = tokio::spawn(poll(url.to_owned(), Arc::clone(&rows)));
        Self { url: url.to_owned(), rows, task }
    }

    /// Reads once more and returns every row that was ever seen.
    pub async fn terms(&self) -> Result<Vec<Term>> {
        let read = async {
            let mut connection = PgConnection::connect(&self.url).await?;
            read(&mut connection, &self.rows).await
        };
        time::timeout(WITHIN, read).await.context("the lock's database does not answer")??;
        let rows = self.rows.lock();
        let term =
            |((key, token, grant, owner), granted_at): (&(String, i64, String, String), &Timestamp)| Term {
                key: key.clone(),
                token: *token,
                grant: grant.clone(),
                owner: owner.clone(),
                granted_at: *granted_at,
            };
        Ok(rows.iter().map(term).collect())
    }
}

async fn poll(url: String, rows: Arc<Mutex<Rows>>) {
    loop {
        let pass = async {
            let mut connection = PgConnection::connect(&url).await?;
            loop {
                read(&mut connection, &rows).await?;
                time::sleep(EVERY).await;
            }
            #[allow(unreachable_code, reason = "gives the block its type")]
            anyhow::Ok(())
        };
        if let Err(error) = pass.await {
            tracing::debug!("reading the term history: {error:#}");
        }
        time::sleep(EVERY).await;
    }
}

async fn read(connection: &mut PgConnection, rows: &Mutex<Rows>) -> Result<()> {
    let there: bool = sqlx::query_scalar("select to_regclass('leadergroup.terms') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(());
    }
    let query = "select key, token, grant_id::text, holder_uid, (extract(epoch from granted_at) * 1000000)::bigint \
                 from leadergroup.terms";
    let found: Vec<(String, i64, String, String, i64)> = sqlx::query_as(query).fetch_all(connection).await?;
    let mut rows = rows.lock();
    for (key, token, grant, owner, micros) in found {
        rows.insert((key, token, grant, owner), Timestamp::from_microsecond(micros)?);
    }
    Ok(())
}
