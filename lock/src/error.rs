//! Errors of the lock. Every text says what to do. None contains a secret: driver errors are taken apart, not wrapped.

use std::time::Duration;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::db::migrations::VERSION;

/// Why an operation on the lock could not be carried out. A refusal of a single key is not an error; see
/// [`Refusal`](crate::Refusal).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// A setting is wrong. Found before anything is sent.
    #[error("`{key}`: {problem}")]
    Config {
        /// The setting: a field of [`DatabaseConfig`](crate::DatabaseConfig), [`ClientConfig`](crate::ClientConfig) or
        /// `SessionConfig`.
        key: &'static str,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// An argument cannot be stored: a bug in the caller, or a name that is too long.
    #[error("the {what} {problem}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No connection could be made, or it broke.
    #[error(
        "cannot reach PostgreSQL at {endpoint}: {detail}; check the URL (`url` or `url_file`) or `provider`, that the \
         server runs and that the network lets this program reach it"
    )]
    Unreachable {
        /// Host, port and database.
        endpoint: String,
        /// The operating system's or driver's message.
        detail: String,
    },
    /// The URL names several hosts, and none of them could be used.
    #[error(
        "none of the hosts in the URL can be used: {}; check the URL (`url` or `url_file`), and that one of its \
         servers is the primary and accepts this program's login",
        reasons(hosts)
    )]
    NoHost {
        /// Host, port and database of each, and why it could not be used.
        hosts: Vec<(String, LockError)>,
    },
    /// TLS could not be set up, or the certificate was refused.
    #[error(
        "TLS with PostgreSQL at {endpoint} failed: {detail}; give the CA of the server's certificate in `ca_file` or \
         `provider`, check that the host is in the certificate, or choose another sslmode"
    )]
    Tls {
        /// Host, port and database.
        endpoint: String,
        /// The driver's message.
        detail: String,
    },
    /// The server refused user, password or database.
    #[error(
        "PostgreSQL at {endpoint} refused the login: {detail}; check user, password (`password_file` wins over the \
         URL) or `provider`, database name, and pg_hba.conf on the server"
    )]
    Login {
        /// Host, port and database.
        endpoint: String,
        /// The server's message.
        detail: String,
    },
    /// A file that the settings name cannot be used. It is read again at the next attempt.
    #[error("`{key}`: cannot use {path}: {detail}")]
    File {
        /// The setting: a field of [`DatabaseConfig`](crate::DatabaseConfig).
        key: &'static str,
        /// The file.
        path: String,
        /// What is wrong with it, or the operating system's message.
        detail: String,
    },
    /// The program's own [`Provider`](crate::Provider) failed or was too slow. It is called again at the next attempt.
    #[error(
        "`provider`: {detail}; check that what it asks can be reached, accepts this program and answers within \
         `statement_timeout`"
    )]
    Provider {
        /// Its error with the causes.
        detail: String,
    },
    /// The server, or this program's own pool, has no connection left.
    #[error(
        "no database connection is free: {detail}; raise max_connections on the server (max_client_conn on a pooler) \
         or this program's `max_open_connections`"
    )]
    NoConnection {
        /// Which limit was hit.
        detail: String,
    },
    /// The pooler may run each statement on another connection to the server.
    #[error(
        "the connection pooler is in statement mode ({detail}), in which nothing can be locked; set pool_mode = \
         transaction (or session) for this database in the pooler, or connect to PostgreSQL itself"
    )]
    StatementPooling {
        /// The pooler's message.
        detail: String,
    },
    /// The statement did not end in time. Whether it took effect is not known; repeating it is safe.
    #[error("PostgreSQL did not answer {statement} within {} ms; it may be overloaded or hanging", after.as_millis())]
    Timeout {
        /// Which operation.
        statement: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection broke while the statement ran. Whether it took effect is not known; repeating it is safe.
    #[error("the connection to PostgreSQL broke during {statement}: {detail}")]
    Interrupted {
        /// Which operation.
        statement: &'static str,
        /// The operating system's or server's message.
        detail: String,
    },
    /// The database accepts no writes.
    #[error(
        "the database is read-only (a standby, or default_transaction_read_only is on); connect to the \
         primary"
    )]
    ReadOnly,
    /// The schema is missing or older than the program.
    #[error(
        "the schema `leadergroup` is at version {found}, this program needs {needed}; call `Store::migrate`"
    )]
    SchemaOld {
        /// Version found; 0 when there is no schema.
        found: u32,
        /// Version needed.
        needed: u32,
    },
    /// The schema was changed by a newer program in a way that this one cannot work with.
    #[error(
        "the schema `leadergroup` was changed by a newer program and needs one that supports version {needed}; this \
         one supports {known}: upgrade it"
    )]
    SchemaNew {
        /// The oldest program version that can work with it.
        needed: u32,
        /// The version that this program supports.
        known: u32,
    },
    /// The role lacks a privilege that is needed.
    #[error(
        "the database role lacks privileges: {detail}; call `Store::migrate` as the owner of the schema \
         `leadergroup`, or grant USAGE on it, SELECT, INSERT, UPDATE, DELETE on its tables, and EXECUTE on the \
         functions named here"
    )]
    Privileges {
        /// The privileges that are missing.
        detail: String,
    },
    /// The own session is dead, closed or unknown. After a shutdown, connect a new client.
    #[error("this program's session was marked dead or closed; it has to register again")]
    SessionDead,
    /// Any other error that the server reported.
    #[error("PostgreSQL refused {statement}: {message} (SQLSTATE {code})")]
    Database {
        /// Which operation.
        statement: &'static str,
        /// SQLSTATE.
        code: String,
        /// The server's message.
        message: String,
    },
}

/// The SQLSTATE for a full lock table, among others.
const OUT_OF_MEMORY: &str = "53200";

/// The classes of SQLSTATE that may pass without any change: a broken connection, a transaction that was chosen as a
/// victim, a lack of resources, an object in another state, an intervention, an error of the system.
const TEMPORARY: [&str; 6] = ["08", "40", "53", "55", "57", "58"];

impl LockError {
    /// Whether the server's lock table was full. There is one for the whole server, with some thousands of entries by
    /// default. Each key that changes hands, and each that is created, needs an entry until its statement has ended, so
    /// a smaller batch may fit. While the table is full, not even a connection can be made.
    pub(crate) fn is_out_of_locks(&self) -> bool {
        match self {
            Self::Database { code, .. } => code == OUT_OF_MEMORY,
            Self::NoHost { hosts } => hosts.iter().any(|(_, error)| error.is_out_of_locks()),
            _ => false,
        }
    }

    /// Whether the same call may succeed a little later without any change. [`Client::lock`](crate::Client::lock) waits
    /// through these errors. They include a database that accepts no writes, because a standby may be promoted, and of
    /// the server's errors the SQLSTATE classes 08, 40, 53, 55, 57 and 58.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Interrupted { .. }
            | Self::Unreachable { .. }
            | Self::Provider { .. }
            | Self::NoConnection { .. }
            | Self::ReadOnly => true,
            Self::NoHost { hosts } => hosts.iter().any(|(_, error)| error.is_temporary()),
            Self::Database { code, .. } => TEMPORARY.iter().any(|class| code.starts_with(class)),
            Self::Config { .. }
            | Self::Invalid { .. }
            | Self::Tls { .. }
            | Self::Login { .. }
            | Self::File { .. }
            | Self::StatementPooling { .. }
            | Self::SchemaOld { .. }
            | Self::SchemaNew { .. }
            | Self::Privileges { .. }
            | Self::SessionDead => false,
        }
    }

    /// Whether the server itself reported this error, as opposed to being out of reach.
    pub fn is_an_answer(&self) -> bool {
        match self {
            Self::Login { .. }
            | Self::ReadOnly
            | Self::SchemaOld { .. }
            | Self::SchemaNew { .. }
            | Self::Privileges { .. }
            | Self::SessionDead
            | Self::Database { .. } => true,
            Self::NoHost { hosts } => hosts.iter().any(|(_, error)| error.is_an_answer()),
            Self::Config { .. }
            | Self::Invalid { .. }
            | Self::Unreachable { .. }
            | Self::Tls { .. }
            | Self::File { .. }
            | Self::Provider { .. }
            | Self::NoConnection { .. }
            | Self::StatementPooling { .. }
            | Self::Timeout { .. }
            | Self::Interrupted { .. } => false,
        }
    }

    /// The error for a failure to connect.
    pub(crate) fn from_connecting(error: &sqlx::Error, endpoint: &str) -> Self {
        let endpoint = endpoint.to_owned();
        match error {
            sqlx::Error::Tls(inner) => Self::Tls { endpoint, detail: inner.to_string() },
            sqlx::Error::Io(inner) if is_tls(inner) => Self::Tls { endpoint, detail: inner.to_string() },
            sqlx::Error::Database(inner) => {
                let detail = inner.message().to_owned();
                match inner.code().as_deref() {
                    // Too many connections, or too many for this role or database.
                    Some("53300") => Self::NoConnection { detail },
                    Some(OUT_OF_MEMORY) => Self::Database {
                        statement: "connect",
                        code: OUT_OF_MEMORY.to_owned(),
                        message: detail,
                    },
                    // PgBouncer's message for too many connections.
                    _ if detail.contains("no more connections allowed") => Self::NoConnection { detail },
                    // Wrong role, wrong password, no entry in pg_hba.conf, no such database.
                    Some("28000" | "28P01" | "3D000" | "42501") => Self::Login { endpoint, detail },
                    _ => Self::Unreachable { endpoint, detail },
                }
            }
            sqlx::Error::Configuration(inner) => Self::Unreachable { endpoint, detail: inner.to_string() },
            other => Self::Unreachable { endpoint, detail: other.to_string() },
        }
    }

    /// The error for a failure of the first query on a new connection, after a successful login.
    pub(crate) fn from_first_question(error: &sqlx::Error, endpoint: &str) -> Self {
        match error {
            sqlx::Error::Database(inner) if inner.code().as_deref() == Some("42501") => {
                Self::Privileges { detail: inner.message().to_owned() }
            }
            error => Self::from_connecting(error, endpoint),
        }
    }

    /// The error for a failed statement.
    pub(crate) fn from_statement(error: &sqlx::Error, statement: &'static str, limit: Duration) -> Self {
        let sqlx::Error::Database(inner) = error else {
            return match error {
                sqlx::Error::Io(inner) => Self::Interrupted { statement, detail: inner.to_string() },
                other => Self::Database { statement, code: "none".to_owned(), message: other.to_string() },
            };
        };
        let message = inner.message().to_owned();
        if inner
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|error| error.severity() == PgSeverity::Panic)
        {
            // The whole server ends. Whether the statement took effect is known only after its recovery.
            return Self::Interrupted { statement, detail: message };
        }
        match inner.code().as_deref().unwrap_or_default() {
            // Statement timeout (or a cancel by an administrator), lock timeout.
            "57014" | "55P03" => Self::Timeout { statement, after: limit },
            // Shutdown, crash of another backend, not yet started, idle in transaction; class 08 is the connection.
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => {
                Self::Interrupted { statement, detail: message }
            }
            // PgBouncer reports it with a code of the class of broken connections.
            "08P01" if message.contains("statement pooling") => Self::StatementPooling { detail: message },
            code if code.starts_with("08") => Self::Interrupted { statement, detail: message },
            // The statement was prepared before the schema was changed: a new connection prepares it again.
            "0A000" if message.contains("cached plan") => Self::Interrupted { statement, detail: message },
            // Read-only transaction; recovery in progress.
            "25006" => Self::ReadOnly,
            "55000" if message.contains("recovery") => Self::ReadOnly,
            "42501" => Self::Privileges { detail: message },
            // No such schema or table.
            "3F000" | "42P01" | "42883" => Self::SchemaOld { found: 0, needed: VERSION },
            code => Self::Database { statement, code: code.to_owned(), message },
        }
    }
}

/// Why each of several hosts could not be used, in short: the text of the whole error says once what to do.
fn reasons(hosts: &[(String, LockError)]) -> String {
    let short = |error: &LockError| match error {
        LockError::Unreachable { detail, .. } | LockError::NoConnection { detail } => detail.clone(),
        LockError::Tls { detail, .. } => format!("TLS failed: {detail}"),
        LockError::Login { detail, .. } => format!("it refused the login: {detail}"),
        LockError::ReadOnly => {
            "it accepts no writes (a standby, or default_transaction_read_only is on)".to_owned()
        }
        error => error.to_string(),
    };
    let all: Vec<_> = hosts.iter().map(|(host, error)| format!("{host}: {}", short(error))).collect();
    all.join("; ")
}

/// The TLS library reports some failures of the handshake as I/O errors.
fn is_tls(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::InvalidData
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(code: &str) -> LockError {
        LockError::Database { statement: "acquire", code: code.to_owned(), message: String::new() }
    }

    #[test]
    fn what_may_pass_by_itself_is_temporary() {
        let one_of_two = [("a".to_owned(), LockError::SessionDead), ("b".to_owned(), LockError::ReadOnly)];
        for error in [
            LockError::ReadOnly,
            LockError::NoHost { hosts: one_of_two.to_vec() },
            database("53100"),
            database(OUT_OF_MEMORY),
            database("40001"),
            database("40P01"),
            database("55006"),
            database("58030"),
        ] {
            assert!(error.is_temporary(), "{error}");
        }
        let privileges = LockError::Privileges { detail: String::new() };
        for error in [database("42601"), database("none"), privileges, LockError::SessionDead] {
            assert!(!error.is_temporary(), "{error}");
        }
    }
}
