//! A throwaway PostgreSQL for tests: a real server from the installed binaries, in a temporary directory, on loopback.
//!
//! One server serves all tests of a binary ([`shared`]); each test gets a database of its own. A watcher process stops
//! the server and removes its directory when the test process has ended, for whatever reason.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test's support fails by panicking")]

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use leadergroup_lock::{DatabaseConfig, Store};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};

/// The superuser, for actions of a test outside the program.
pub const SUPERUSER: &str = "postgres";
/// The role that programs under test log in as. It owns its databases and has no other privilege.
pub const ROLE: &str = "app";
/// Its password.
pub const PASSWORD: &str = "the-app-password-4711";

/// How long anything here may take before the test fails.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// A running (or stopped) server.
pub struct Server {
    directory: PathBuf,
    port: u16,
    settings: Mutex<Vec<(String, String)>>,
    environment: Mutex<Vec<(String, String)>>,
    /// A program, with its arguments, that starts the server in its own environment.
    wrapper: Mutex<Vec<String>>,
    process: Mutex<Option<Child>>,
    /// Stops the server when its standard input is closed, which the end of this process causes.
    watcher: Child,
}

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
        let server = Self::prepare(&[]);
        for (name, value) in settings {
            server.set(name, value);
        }
        server.launch();
        server.psql(&format!("create role {ROLE} login password '{PASSWORD}'"));
        server
    }

    /// A copy of this server, which has to run, made by `pg_basebackup`: an asynchronous standby once it is launched.
    pub fn standby(&self) -> Self {
        let source = self.socket().display().to_string();
        let port = self.port.to_string();
        Self::prepare(&["-h", &source, "-p", &port, "-U", SUPERUSER, "-R", "-X", "stream", "-c", "fast"])
    }

    /// Makes the files of a new server, or of a copy by `pg_basebackup` with these arguments.
    fn prepare(basebackup: &[&str]) -> Self {
        let directory = tempfile::Builder::new().prefix("leadergroup-pg-").tempdir().unwrap().keep();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        let watcher = watcher(&directory);
        let home = directory.join("server");
        std::fs::create_dir(&home).unwrap();
        if let Some(uid) = unprivileged() {
            chown(&home, Some(uid), None).unwrap();
        }
        let mut command = if basebackup.is_empty() {
            let mut initdb = as_server("initdb");
            initdb.args([
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--encoding=UTF8",
                "--no-locale",
            ]);
            initdb.arg(format!("--username={SUPERUSER}"));
            initdb
        } else {
            let mut copy = as_server("pg_basebackup");
            copy.args(basebackup);
            copy
        };
        let output = command.arg("--no-sync").arg("-D").arg(home.join("data")).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        Self {
            directory,
            // Free now; no other process on this machine is expected to take it in the next moments.
            port: TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(),
            settings: Mutex::default(),
            environment: Mutex::default(),
            wrapper: Mutex::default(),
            process: Mutex::new(None),
            watcher,
        }
    }

    /// Changes a setting from the next launch on.
    pub fn set(&self, name: &str, value: &str) {
        self.settings.lock().unwrap().push((name.to_owned(), value.to_owned()));
    }

    /// Sets a variable in the server's environment, from the next launch on.
    pub fn set_environment(&self, name: &str, value: &str) {
        self.environment.lock().unwrap().push((name.to_owned(), value.to_owned()));
    }

    /// Sets a program that gets the server's command line and executes it, from the next launch on.
    pub fn wrap(&self, program: &[&str]) {
        *self.wrapper.lock().unwrap() = program.iter().map(|&part| part.to_owned()).collect();
    }

    /// Waits until recovery has ended.
    pub fn wait_writable(&self) {
        let start = Instant::now();
        while self.data().join("recovery.signal").exists() {
            assert!(start.elapsed() < DEADLINE, "recovery does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the server and waits until it accepts connections. Does nothing if it runs.
    pub fn launch(&self) {
        let mut process = self.process.lock().unwrap();
        if process.is_some() {
            return;
        }
        let mut command = as_server_with(&self.environment.lock().unwrap(), "postgres");
        if let [program, arguments @ ..] = self.wrapper.lock().unwrap().as_slice() {
            let mut wrapped = Command::new(program);
            wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
            wrapped.current_dir("/").env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
            command = wrapped;
        }
        command.arg("-D").arg(self.data());
        let fixed = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &self.port.to_string()),
            ("unix_socket_directories", &self.socket().display().to_string()),
            ("fsync", "off"),
            // In the data directory, so that it is removed with everything else when the server is killed.
            ("dynamic_shared_memory_type", "mmap"),
            ("max_connections", "200"),
            ("shared_preload_libraries", "pg_stat_statements"),
            ("log_line_prefix", "%m [%p] %a "),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (name, value) in fixed.iter().chain(self.settings.lock().unwrap().iter()) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let log =
            std::fs::File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        // Its own process group: on Ctrl-C, the watcher stops the server.
        command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).process_group(0);
        let mut child = command.spawn().unwrap();
        let start = Instant::now();
        loop {
            let ready = binary_command("pg_isready")
                .arg("-q")
                .arg("-h")
                .arg(self.socket())
                .args(["-p", &self.port.to_string()])
                .status()
                .unwrap();
            if ready.success() {
                break;
            }
            let gone = child.try_wait().unwrap().is_some();
            assert!(!gone && start.elapsed() < DEADLINE, "PostgreSQL did not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        *process = Some(child);
    }

    /// Stops the server at once, like a power cut: clients only notice the end of their connections.
    pub fn kill(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            // `setpriv` replaces itself by the server, so the child's id is the server's.
            signal(child.id(), "QUIT");
            child.wait().unwrap();
        }
    }

    /// Stops the server in order; connected clients are notified.
    pub fn stop(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            signal(child.id(), "INT");
            child.wait().unwrap();
        }
    }

    /// The server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Runs SQL as superuser in the database `postgres`.
    pub fn psql(&self, sql: &str) {
        let output = binary_command("psql")
            .arg("-h")
            .arg(self.socket())
            .args([
                "-p",
                &self.port.to_string(),
                "-U",
                SUPERUSER,
                "-d",
                "postgres",
                "-qX",
                "-v",
                "ON_ERROR_STOP=1",
            ])
            .args(["-c", sql])
            .output()
            .unwrap();
        assert!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.join("server/data")
    }

    /// The directory of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("server")
    }

    /// The database of this name, which came with a copy of another server.
    pub fn database_called(&self, name: &str) -> Database {
        let idle = tokio::sync::Mutex::default();
        Database { name: name.to_owned(), port: self.port, socket: self.socket(), idle }
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

impl Drop for Server {
    fn drop(&mut self) {
        // The child has to be waited for here: to the watcher, it would look alive for ever.
        self.kill();
        drop(self.watcher.stdin.take());
        // The watcher has removed everything when it ends.
        let _ = self.watcher.wait();
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

/// Starts a process that stops the server and removes everything once this process has ended.
fn watcher(directory: &Path) -> Child {
    const SCRIPT: &str = r#"
        cat > /dev/null
        pid=$(head -n 1 "$1/server/data/postmaster.pid" 2> /dev/null)
        if [ -n "$pid" ]; then
            kill -QUIT "$pid" 2> /dev/null
            while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
        fi
        rm -rf "$1"
    "#;
    Command::new("sh")
        .args(["-c", SCRIPT, "sh"])
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap()
}

/// If the tests run as root, which PostgreSQL refuses: the user that its package created.
pub fn unprivileged() -> Option<u32> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let output = Command::new("id").args(["-u", "postgres"]).output().unwrap();
    let uid = String::from_utf8(output.stdout).unwrap().trim().parse();
    Some(uid.expect("running as root, the tests need the user `postgres` that the PostgreSQL package makes"))
}

/// Runs a program of PostgreSQL as its user.
fn as_server(program: &str) -> Command {
    as_server_with(&[], program)
}

/// Like `as_server`, with more variables in the environment of the program itself, but not of those that only start it.
fn as_server_with(environment: &[(String, String)], program: &str) -> Command {
    let mut command = match unprivileged() {
        Some(uid) => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={uid}")).args(["--regid=postgres", "--clear-groups", "--", "env"]);
            command
        }
        None => Command::new("env"),
    };
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}"))).arg(binary(program));
    command.current_dir("/").env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
    command
}

fn binary_command(program: &str) -> Command {
    let mut command = Command::new(binary(program));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
    command
}

/// The newest installed version's program.
fn binary(program: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin").join(program)).collect())
        .unwrap_or_default();
    found.retain(|path| path.exists());
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.exists());
    found.pop().or(on_path).unwrap_or_else(|| panic!("{program} not found: install the package postgresql"))
}

fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success(), "cannot send {signal} to {pid}");
}
