//! One connection: how a statement runs on it, and how it ends.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::time::timeout;

use crate::db::statement::{Bind, Row, Statement};
#[cfg(feature = "memory")]
use crate::memory::Connected;

/// How long closing a connection in order may take before it is simply dropped.
const GOODBYE: Duration = Duration::from_secs(1);

/// A connection, by what it leads to.
pub(crate) enum Link {
    Server(PgConnection),
    #[cfg(feature = "memory")]
    Memory(Connected),
}

impl Link {
    /// Runs a statement. Through a pooler it needs the command that begins a transaction.
    pub(crate) async fn rows(
        &mut self,
        statement: Statement,
        bind: Bind,
        begin: Option<&str>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let connection = match self {
            Self::Server(connection) => connection,
            #[cfg(feature = "memory")]
            Self::Memory(connection) => return connection.rows(statement.name, bind.values).await,
        };
        let query = sqlx::query_with(statement.sql, bind.into_inner());
        let Some(begin) = begin else {
            return Ok(rows_of(query.fetch_all(connection).await?));
        };
        // Through a pooler, prepared statements and the server's connection last only as long as the transaction.
        connection.execute(AssertSqlSafe(begin)).await?;
        let rows = query.persistent(false).fetch_all(&mut *connection).await?;
        connection.execute("commit").await?;
        Ok(rows_of(rows))
    }

    /// Closes it in order.
    pub(crate) async fn close(self) {
        match self {
            // It does not matter whether the server receives the message.
            Self::Server(connection) => {
                let _ = timeout(GOODBYE, connection.close()).await;
            }
            #[cfg(feature = "memory")]
            Self::Memory(connection) => drop(connection),
        }
    }
}

fn rows_of(rows: Vec<PgRow>) -> Vec<Row> {
    rows.into_iter().map(Row::Server).collect()
}
