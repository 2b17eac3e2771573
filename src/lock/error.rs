//! Errors of the lock. Every text says what to do. No secret gets in: driver errors are taken apart, not wrapped.

use std::time::Duration;

/// Why an operation on the lock could not be carried out. A refusal of a single key is not an error; see
/// [`Refusal`](super::Refusal) and [`Claimed`](super::Claimed).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// A setting is wrong. Found before anything is sent.
    #[error("database.{key}: {problem}")]
    Config {
        /// The setting, as in the configuration file below `database`.
        key: &'static str,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// An argument cannot be stored. A bug in the caller, or a name out of bounds.
    #[error("the {what} {problem}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No connection could be made, or it broke.
    #[error(
        "cannot reach PostgreSQL at {endpoint}: {detail}; check database.url, that the server runs and that the \
         network lets this program through"
    )]
    Unreachable {
        /// Host, port and database.
        endpoint: String,
        /// The operating system's or driver's word.
        detail: String,
    },
    /// TLS could not be set up or the certificate was refused.
    #[error(
        "TLS with PostgreSQL at {endpoint} failed: {detail}; set database.caFile to the CA of the server's \
         certificate, check that the host in database.url is in the certificate, or choose another sslmode"
    )]
    Tls {
        /// Host, port and database.
        endpoint: String,
        /// The driver's word.
        detail: String,
    },
    /// The server refused user, password or database.
    #[error(
        "PostgreSQL at {endpoint} refused the login: {detail}; check user, password (database.passwordFile wins over \
         the URL) and database name, and pg_hba.conf on the server"
    )]
    Login {
        /// Host, port and database.
        endpoint: String,
        /// The server's message.
        detail: String,
    },
    /// The password file cannot be read.
    #[error("database.passwordFile: cannot read {path}: {detail}")]
    PasswordFile {
        /// The file.
        path: String,
        /// The operating system's word.
        detail: String,
    },
    /// The server, or this program's own pool, has no connection left.
    #[error(
        "no database connection is free: {detail}; raise max_connections on the server or database.maxOpenConnections"
    )]
    NoConnection {
        /// Which limit was hit.
        detail: String,
    },
    /// The statement did not end in time. Whether it took effect is not known; repeating it is safe.
    #[error("PostgreSQL did not answer {statement} within {} ms; it may be overloaded or hang", after.as_millis())]
    Timeout {
        /// Which operation.
        statement: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The connection broke while the statement ran. Whether it took effect is not known; repeating it is safe.
    #[error("the connection to PostgreSQL broke during {statement}: {detail}")]
    Interrupted {
        /// Which operation.
        statement: &'static str,
        /// The operating system's or server's word.
        detail: String,
    },
    /// The database takes no writes.
    #[error(
        "the database is read-only (a standby, or default_transaction_read_only is on); point database.url at the \
         primary"
    )]
    ReadOnly,
    /// The schema is missing or older than the program.
    #[error(
        "the schema `leadergroup` is at version {found}, this program needs {needed}; run `leadergroup migrate`"
    )]
    SchemaOld {
        /// Version found; 0 when there is no schema.
        found: u32,
        /// Version needed.
        needed: u32,
    },
    /// The schema was changed by a newer program in a way that this one cannot work with.
    #[error(
        "the schema `leadergroup` is at version {found} and asks for a program that knows version {needed}; this one \
         knows {known}: upgrade it"
    )]
    SchemaNew {
        /// Version found.
        found: u32,
        /// The oldest program version that can work with it.
        needed: u32,
        /// What this program knows.
        known: u32,
    },
    /// The role may not do what is needed.
    #[error(
        "the database role lacks privileges: {detail}; let `leadergroup migrate` run as the owner of the schema \
         `leadergroup`, or grant USAGE on it and SELECT, INSERT, UPDATE, DELETE on its tables"
    )]
    Privileges {
        /// Which.
        detail: String,
    },
    /// The own session is dead, closed or unknown: register anew and claim again.
    #[error("this program's session was marked dead or closed; it has to register anew")]
    SessionDead,
    /// Anything else that the server said.
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
