//! What statements run with (time limits, search path), and the two ways to say so: once, when a connection is made, or,
//! through a pooler that gives each transaction another connection of the server (PgBouncer's transaction mode), in each
//! transaction anew. A pooler is recognised by what it does: it refuses such settings, or it drops them.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor, Postgres, Row as _};

/// A setting that only this program makes. A server that knows it got all others, too, and from this very connection.
const MARK: &str = "leadergroup.direct";

/// Where a direct connection keeps the identifier of the server's system.
const SYSTEM: &str = "leadergroup.system_identifier";

/// What PgBouncer says of a setting that it cannot pass on.
const REFUSED: &str = "unsupported startup parameter";

/// What statements run with.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    statement: Vec<(&'static str, String)>,
    /// These belong to the connection, which is the pooler's business if there is one.
    connection: Vec<(&'static str, String)>,
}

impl Settings {
    /// For statements that may take as long as this.
    pub(super) fn new(limit: Duration) -> Self {
        let limit = limit.as_millis();
        Self {
            statement: vec![
                ("search_path", "pg_catalog".to_owned()),
                ("statement_timeout", limit.to_string()),
                // A wait for a row is never worth the whole time of a statement.
                ("lock_timeout", (limit / 2).max(1).to_string()),
                ("idle_in_transaction_session_timeout", (limit * 2).to_string()),
                // A statement is prepared when the tables may still be empty, and used for as long as the connection lives:
                // its plan has to be one for any size, and is not made anew for each set of arguments.
                ("plan_cache_mode", "force_generic_plan".to_owned()),
                ("enable_seqscan", "off".to_owned()),
                // What that makes of the costs must not look like work worth compiling.
                ("jit", "off".to_owned()),
                // Notices a client that went away while a statement of it runs, and frees the rows it has locked.
                ("client_connection_check_interval", (limit / 4).max(1).to_string()),
            ],
            connection: vec![
                ("tcp_user_timeout", (limit * 2).to_string()),
                ("tcp_keepalives_idle", "10".to_owned()),
                ("tcp_keepalives_interval", "5".to_owned()),
                ("tcp_keepalives_count", "3".to_owned()),
                ("default_transaction_isolation", "read committed".to_owned()),
                (MARK, "on".to_owned()),
            ],
        }
    }

    /// Changes one setting, or adds it.
    #[must_use]
    pub(super) fn with(mut self, name: &'static str, value: String) -> Self {
        self.statement.retain(|(known, _)| *known != name);
        self.statement.push((name, value));
        self
    }

    /// Makes them part of a direct connection.
    pub(super) fn startup(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.options(self.statement.iter().chain(&self.connection).cloned())
    }

    /// Begins a transaction in which they count, in one message.
    pub(super) fn begin(&self) -> String {
        let set = |(name, value): &(&str, String)| format!("; set local {name} = '{value}'");
        let all: String = self.statement.iter().map(set).collect();
        format!("begin isolation level read committed{all}")
    }
}

/// A new connection.
pub(super) struct Opened {
    pub(super) connection: PgConnection,
    /// It is a pooler's: nothing may be kept on the server from one transaction to the next.
    pub(super) pooled: bool,
}

/// Connects, with all settings in force if the connection is a direct one. `pooled`: it is known that it will not be.
pub(super) async fn open(
    options: &PgConnectOptions,
    settings: &Settings,
    pooled: bool,
) -> Result<Opened, sqlx::Error> {
    if !pooled {
        match PgConnection::connect_with(&settings.startup(options.clone())).await {
            Ok(mut connection) => {
                let pooled = !is_direct(&mut connection).await?;
                return Ok(Opened { connection, pooled });
            }
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error),
        }
    }
    // The driver adds this one by itself, and PgBouncer refuses it, too. No floating-point number is ever sent.
    let options = options.clone().extra_float_digits(None);
    Ok(Opened { connection: PgConnection::connect_with(&options).await?, pooled: true })
}

/// Whether the server got the settings that the connection was made with. A server that did has noted, for this connection, which
/// system it is (see the view `leadergroup.present`); nothing is left behind on any other.
pub(super) async fn is_direct<'c>(
    connection: impl Executor<'c, Database = Postgres>,
) -> Result<bool, sqlx::Error> {
    let look = format!(
        "select case when current_setting('{MARK}', true) = 'on' then set_config('{SYSTEM}', \
         (select system_identifier::text from pg_control_system()), false) is not null else false end"
    );
    connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(look))).await?.try_get(0)
}

/// Whether this is how a pooler answers to settings that it cannot pass on.
pub(super) fn is_refusal(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.message().contains(REFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_through_a_pooler_has_the_settings_of_statements_and_no_others() {
        let settings = Settings::new(Duration::from_secs(2)).with("statement_timeout", "7000".to_owned());
        assert_eq!(
            settings.begin(),
            "begin isolation level read committed; set local search_path = 'pg_catalog'; \
             set local lock_timeout = '1000'; set local idle_in_transaction_session_timeout = '4000'; \
             set local plan_cache_mode = 'force_generic_plan'; set local enable_seqscan = 'off'; \
             set local jit = 'off'; set local client_connection_check_interval = '500'; set local statement_timeout = '7000'"
        );
    }
}
