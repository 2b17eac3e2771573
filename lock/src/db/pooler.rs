//! Settings of statements (time limits, search path), and the two ways to apply them. A direct connection gets the
//! settings once, when it is made. Through a pooler that gives each transaction another connection to the server
//! (PgBouncer's transaction mode), every transaction sets them again. A pooler is detected by its behaviour: it refuses
//! such settings, or it drops them.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor, Postgres, Row as _};

use crate::LockError;
use crate::db::url::Wanted;

/// A setting that only this program makes. If the server has it, it got all others as well, and from this very
/// connection.
const MARK: &str = "leadergroup.direct";

/// Queries a server's properties. The schema is looked up in its catalog table: `to_regnamespace` would make the
/// server's process cache that there is none, and a migration on this connection would not see a schema that another
/// one created while it waited for its turn.
const LOOK: &str = "
    select current_setting('leadergroup.direct', true) is not distinct from 'on' as direct,
           pg_is_in_recovery() as in_recovery,
           current_setting('transaction_read_only') = 'on' as read_only,
           current_setting('synchronous_commit') <> 'off' as durable,
           exists (
               select from pg_catalog.pg_namespace as n join pg_catalog.pg_proc as p on p.pronamespace = n.oid
               where n.nspname = 'leadergroup' and p.proname = 'read_history' and p.pronargs = 0
                     and has_schema_privilege(n.oid, 'usage') and has_function_privilege(p.oid, 'execute')
           ) as tells_history";

/// Caches the server's history in a setting of the connection.
const CACHE_HISTORY: &str = "select set_config('leadergroup.history', leadergroup.read_history(), false)";

/// Makes commits wait for the server's own disk if they would not. Otherwise a crash could undo a grant that a program
/// relies on, or the heartbeat that a lease rests on, and nothing would show it: the history is the same.
const DURABLE: &str = "select set_config('synchronous_commit', 'local', $local) \
                       where current_setting('synchronous_commit') = 'off'";

/// What poolers answer to settings that they cannot pass on: PgBouncer, and Amazon's RDS Proxy.
const REFUSED: [&str; 2] = ["unsupported startup parameter", "RDS Proxy currently doesn"];

/// The settings of statements and connections.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    statement: Vec<(&'static str, String)>,
    /// These belong to the connection, which a pooler manages if there is one.
    connection: Vec<(&'static str, String)>,
}

impl Settings {
    /// The settings for statements with this time limit.
    pub(crate) fn new(limit: Duration) -> Self {
        let limit = limit.as_millis();
        Self {
            statement: vec![
                ("search_path", "pg_catalog".to_owned()),
                ("statement_timeout", limit.to_string()),
                // A wait for a row must not use up the whole time of a statement.
                ("lock_timeout", (limit / 2).max(1).to_string()),
                ("idle_in_transaction_session_timeout", (limit * 2).to_string()),
                // A statement may be prepared while the tables are empty, and is used for as long as the connection
                // lives: its plan has to suit any size, and is not made again for each set of arguments.
                ("plan_cache_mode", "force_generic_plan".to_owned()),
                ("enable_seqscan", "off".to_owned()),
                // The costs that this causes must not trigger compilation.
                ("jit", "off".to_owned()),
                // Makes the server notice a client that went away while its statement runs, and free the rows that it
                // locked.
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
    pub(crate) fn with(mut self, name: &'static str, value: String) -> Self {
        self.statement.retain(|(known, _)| *known != name);
        self.statement.push((name, value));
        self
    }

    /// Adds them to the options of a direct connection.
    pub(crate) fn startup(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.options(self.statement.iter().chain(&self.connection).cloned())
    }

    /// The command that begins a transaction with them, in one message.
    pub(crate) fn begin(&self) -> String {
        let set = |(name, value): &(&str, String)| format!("; set local {name} = '{value}'");
        let all: String = self.statement.iter().map(set).collect();
        format!("begin isolation level read committed{all}; {}", DURABLE.replace("$local", "true"))
    }
}

/// A new connection.
pub(crate) struct Opened {
    pub(crate) connection: PgConnection,
    /// It leads through a pooler: nothing may be kept on the server from one transaction to the next.
    pub(crate) pooled: bool,
}

/// Connects, with all settings in force if the connection is a direct one. `pooled`: it is known that it is not.
/// `wanted`: the servers that it may lead to.
pub(crate) async fn open(
    options: &PgConnectOptions,
    settings: &Settings,
    pooled: bool,
    wanted: Wanted,
) -> Result<Opened, Failure> {
    if !pooled {
        match PgConnection::connect_with(&settings.startup(options.clone())).await {
            Ok(mut connection) => {
                let seen = look(&mut connection).await.map_err(Failure::Asking)?;
                if !seen.is(wanted) {
                    return Err(Failure::Unfit);
                }
                if seen.direct {
                    if !seen.durable {
                        let durable = DURABLE.replace("$local", "false");
                        connection.execute(AssertSqlSafe(durable)).await.map_err(Failure::Asking)?;
                    }
                    cache(&mut connection, &seen).await.map_err(Failure::Asking)?;
                }
                return Ok(Opened { connection, pooled: !seen.direct });
            }
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(Failure::Connecting(error)),
        }
    }
    // The driver adds this setting by itself, and PgBouncer refuses it as well. No floating-point number is ever sent.
    let options = options.clone().extra_float_digits(None);
    let mut connection = PgConnection::connect_with(&options).await.map_err(Failure::Connecting)?;
    if wanted != Wanted::Any && !look(&mut connection).await.map_err(Failure::Asking)?.is(wanted) {
        return Err(Failure::Unfit);
    }
    Ok(Opened { connection, pooled: true })
}

/// Why a connection could not be opened.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server could not be reached, or refused the login.
    Connecting(sqlx::Error),
    /// The first query on the connection failed.
    Asking(sqlx::Error),
    /// The server is not one of the wanted ones.
    Unfit,
}

impl Failure {
    /// The failure as an error of the lock.
    pub(crate) fn told(&self, endpoint: &str) -> LockError {
        match self {
            Self::Connecting(error) => LockError::from_connecting(error, endpoint),
            Self::Asking(error) => LockError::from_first_question(error, endpoint),
            Self::Unfit => LockError::ReadOnly,
        }
    }
}

/// The properties of the server behind a new connection.
pub(crate) struct Seen {
    /// Whether the server got the settings that the connection was made with: there is no pooler in between, or one
    /// that reserves a connection to the server for it.
    pub(crate) direct: bool,
    state: State,
    durable: bool,
    tells_history: bool,
}

/// Whether a server accepts writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writable,
    /// It is not a standby, but refuses writes unless a transaction asks for them.
    ReadOnly,
    InRecovery,
}

impl Seen {
    /// Whether the server is one of the wanted ones.
    pub(crate) fn is(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Any => true,
            Wanted::ReadWrite => self.state == State::Writable,
            Wanted::Primary => self.state != State::InRecovery,
        }
    }
}

/// Queries the server's properties. Leaves nothing behind on the connection, which may lead through a pooler.
pub(crate) async fn look<'c>(
    connection: impl Executor<'c, Database = Postgres>,
) -> Result<Seen, sqlx::Error> {
    let row = connection.fetch_one(sqlx::raw_sql(LOOK)).await?;
    let state = match (row.try_get("in_recovery")?, row.try_get("read_only")?) {
        (true, _) => State::InRecovery,
        (false, true) => State::ReadOnly,
        (false, false) => State::Writable,
    };
    let (direct, durable) = (row.try_get("direct")?, row.try_get("durable")?);
    Ok(Seen { direct, state, durable, tells_history: row.try_get("tells_history")? })
}

/// Caches the history, which stays the same for as long as this direct connection lives, so that statements need not
/// compute it. If the server denies it, the connection is used without: statements then compute the history, or report
/// the missing privilege.
async fn cache(connection: &mut PgConnection, seen: &Seen) -> Result<(), sqlx::Error> {
    // A server in recovery may be promoted while the connection lives, which begins another history. A server that
    // accepts writes keeps its history until it is restarted.
    if !seen.tells_history || seen.state == State::InRecovery {
        return Ok(());
    }
    match connection.execute(sqlx::raw_sql(CACHE_HISTORY)).await {
        Err(error) if !is_denial(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the server does not have the function, or this role may not call it.
fn is_denial(error: &sqlx::Error) -> bool {
    // Insufficient privilege; no such function; no such schema.
    const CODES: [&str; 3] = ["42501", "42883", "3F000"];
    matches!(error, sqlx::Error::Database(error) if error.code().is_some_and(|code| CODES.contains(&&*code)))
}

/// Whether this is a pooler's error for settings that it cannot pass on.
pub(crate) fn is_refusal(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if REFUSED.iter().any(|words| error.message().contains(words)))
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
             set local jit = 'off'; set local client_connection_check_interval = '500'; \
             set local statement_timeout = '7000'; \
             select set_config('synchronous_commit', 'local', true) where current_setting('synchronous_commit') = 'off'"
        );
    }
}
