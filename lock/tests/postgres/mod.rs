//! The throwaway PostgreSQL of the conformance crate, for tests: what fails there panics here.
//!
//! One server serves all tests of a binary ([`shared`]); each test gets a database of its own.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test's support fails by panicking")]

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leadergroup_lock::{DatabaseConfig, Store};
use leadergroup_lock_conformance::postgres as real;
pub use leadergroup_lock_conformance::postgres::SUPERUSER;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};

/// The role that programs under test log in as. It owns its databases and has no other privilege.
pub const ROLE: &str = "app";
/// Its password.
pub const PASSWORD: &str = "the-app-password-4711";

/// How long anything here may take before the test fails.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// A running (or stopped) server.
pub struct Server(pub real::Server);

/// A database made for one test.
pub struct Database {
    pub name: String,
    port: u16,
    socket: PathBuf,
    /// A superuser's connection that is kept between two queries: a new one costs the server more than most queries.
    idle: tokio::sync::Mutex<Option<PgConnection>>,
}

/// The server that all tests of this binary share.
pub fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Server::start(&[]))
}

/// A new database on the shared server.
pub async fn database() -> Database {
    shared().database().await
}

/// A new database on the shared server with the schema in it, and a store for it.
pub async fn migrated() -> (Database, Store) {
    shared().migrated().await
}

/// Waits until the condition holds; fails the test when it does not within the deadline.
pub async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Server {
    /// A new server with additional settings.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let server = Self(real::Server::prepare().unwrap());
        server.set("shared_preload_libraries", "pg_stat_statements");
        for (name, value) in settings {
            server.set(name, value);
        }
        server.launch();
        server.psql(&format!("create role {ROLE} login password '{PASSWORD}'"));
        server
    }

    /// A copy of this server, which has to run, made by `pg_basebackup`: an asynchronous standby once it is launched.
    pub fn standby(&self) -> Self {
        let copy = Self(self.0.standby().unwrap());
        copy.set("shared_preload_libraries", "pg_stat_statements");
        copy
    }

    /// Changes a setting from the next launch on.
    pub fn set(&self, name: &str, value: &str) {
        self.0.set(name, value);
    }

    /// Sets a variable in the server's environment, from the next launch on.
    pub fn set_environment(&self, name: &str, value: &str) {
        self.0.set_environment(name, value);
    }

    /// Sets a program that gets the server's command line and executes it, from the next launch on.
    pub fn wrap(&self, program: &[&str]) {
        self.0.wrap(program);
    }

    /// Waits until recovery has ended.
    pub fn wait_writable(&self) {
        self.0.wait_writable().unwrap();
    }

    /// Starts the server and waits until it accepts connections. Does nothing if it runs.
    pub fn launch(&self) {
        self.0.launch().unwrap();
    }

    /// Stops the server at once, like a power cut: clients only notice the end of their connections.
    pub fn kill(&self) {
        self.0.kill().unwrap();
    }

    /// Stops the server in order; connected clients are notified.
    pub fn stop(&self) {
        self.0.stop().unwrap();
    }

    /// The server's log.
    pub fn log(&self) -> String {
        self.0.log()
    }

    /// Runs SQL as superuser in the database `postgres`.
    pub fn psql(&self, sql: &str) {
        self.0.psql(sql).unwrap();
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.0.data()
    }

    /// The directory of its socket.
    pub fn socket(&self) -> PathBuf {
        self.0.socket()
    }

    /// The database of this name, which came with a copy of another server.
    pub fn database_called(&self, name: &str) -> Database {
        let idle = tokio::sync::Mutex::default();
        Database { name: name.to_owned(), port: self.port(), socket: self.socket(), idle }
    }

    /// A new database with the schema in it, and a store for it.
    pub async fn migrated(&self) -> (Database, Store) {
        let database = self.database().await;
        let store = database.store();
        store.migrate().await.unwrap();
        (database, store)
    }

    /// A new, empty database that belongs to [`ROLE`].
    pub async fn database(&self) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let database = self.database_called(&name);
        let mut connection = database.admin_of("postgres").await;
        connection.execute(AssertSqlSafe(format!("create database {name} owner {ROLE}"))).await.unwrap();
        database
    }
}

impl Database {
    /// The URL with which [`ROLE`] logs in, over TCP.
    pub fn url(&self) -> String {
        format!("postgres://{ROLE}:{PASSWORD}@127.0.0.1:{}/{}", self.port, self.name)
    }

    /// A URL that names this database's server first, and then the other's.
    pub fn url_with(&self, other: &Self) -> String {
        format!("postgres://{ROLE}:{PASSWORD}@127.0.0.1:{},127.0.0.1:{}/{}", self.port, other.port, self.name)
    }

    /// Settings for a store. The time limit is generous: tests run on busy machines.
    pub fn config(&self) -> DatabaseConfig {
        DatabaseConfig {
            url: self.url().into(),
            statement_timeout: Duration::from_secs(20),
            ..DatabaseConfig::default()
        }
    }

    /// A store of its own, as another program would have.
    pub fn store(&self) -> Store {
        Store::new(&self.config()).unwrap()
    }

    /// A superuser's connection to this database.
    pub async fn admin(&self) -> PgConnection {
        self.admin_of(&self.name).await
    }

    /// Runs SQL as superuser.
    pub async fn sql(&self, sql: &str) {
        self.admin().await.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
    }

    /// The single number that a query returns.
    pub async fn number(&self, sql: &str) -> i64 {
        let mut idle = self.idle.lock().await;
        if let Some(mut connection) = idle.take() {
            let asked = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await;
            // The connection is broken if the server was restarted. Queries here change nothing, so they may be
            // repeated.
            if let Ok(number) = asked {
                *idle = Some(connection);
                return number;
            }
        }
        let mut connection = self.admin().await;
        let number =
            sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.unwrap();
        *idle = Some(connection);
        number
    }

    /// How many backends in this database wait for a lock.
    pub async fn waiting(&self) -> i64 {
        self.number(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .await
    }

    /// How many connections to this database listen for hints.
    pub async fn listening(&self) -> i64 {
        self.number(
            "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'",
        )
        .await
    }

    async fn admin_of(&self, database: &str) -> PgConnection {
        let options = PgConnectOptions::new_without_pgpass()
            .socket(&self.socket)
            .port(self.port)
            .username(SUPERUSER)
            .database(database);
        match PgConnection::connect_with(&options).await {
            Ok(connection) => connection,
            Err(error) => panic!("{error}; the end of the server's log:\n{}", self.end_of_log()),
        }
    }

    /// The last lines of the server's log: why it does not answer, such as a full disk.
    fn end_of_log(&self) -> String {
        let log = self.socket.parent().map(|directory| directory.join("log"));
        let text = log.and_then(|log| std::fs::read_to_string(log).ok()).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// If the tests run as root, which PostgreSQL refuses: the user that its package created.
pub fn unprivileged() -> Option<u32> {
    real::unprivileged().unwrap()
}
