//! A throwaway PostgreSQL: a real server from the installed binaries, in a temporary directory, on loopback.
//!
//! A watcher process stops the server and removes its directory when this process has ended, for whatever reason.

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use sqlx::postgres::PgConnectOptions;

/// The superuser.
pub const SUPERUSER: &str = "postgres";

/// How long one step with a server may take.
const DEADLINE: Duration = Duration::from_mins(1);

/// A running (or stopped) server.
#[derive(Debug)]
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

impl Server {
    /// The files of a new server. It is not launched yet.
    pub fn prepare() -> Result<Self> {
        let initdb = as_server("initdb")?;
        Self::made_by(initdb, |initdb| {
            initdb.args([
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--encoding=UTF8",
                "--no-locale",
            ]);
            initdb.arg(format!("--username={SUPERUSER}"));
        })
    }

    /// A copy of this server, which has to run, made by `pg_basebackup`: an asynchronous standby once it is launched.
    pub fn standby(&self) -> Result<Self> {
        Self::made_by(as_server("pg_basebackup")?, |copy| {
            copy.arg("-h").arg(self.socket()).args(["-p", &self.port.to_string(), "-U", SUPERUSER]);
            copy.args(["-R", "-X", "stream", "-c", "fast"]);
        })
    }

    fn made_by(mut command: Command, arguments: impl FnOnce(&mut Command)) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("leadergroup-pg-").tempdir()?.keep();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        let watcher = watcher(&directory)?;
        let home = directory.join("server");
        std::fs::create_dir(&home)?;
        if let Some(uid) = unprivileged()? {
            chown(&home, Some(uid), None)?;
        }
        arguments(&mut command);
        let output = command.arg("--no-sync").arg("-D").arg(home.join("data")).output()?;
        ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Self {
            directory,
            port: free_port()?,
            settings: Mutex::default(),
            environment: Mutex::default(),
            wrapper: Mutex::default(),
            process: Mutex::new(None),
            watcher,
        })
    }

    /// Asks for no passwords, from the next launch on. Checking one takes longer than most calls.
    pub fn trust(&self) -> Result<()> {
        let lines = "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 trust\n";
        std::fs::write(self.data().join("pg_hba.conf"), lines).context("pg_hba.conf")
    }

    /// Changes a setting from the next launch on.
    pub fn set(&self, name: &str, value: &str) {
        self.settings.lock().push((name.to_owned(), value.to_owned()));
    }

    /// Sets a variable in the server's environment, from the next launch on.
    pub fn set_environment(&self, name: &str, value: &str) {
        self.environment.lock().push((name.to_owned(), value.to_owned()));
    }

    /// Sets a program that gets the server's command line and executes it, from the next launch on.
    pub fn wrap(&self, program: &[&str]) {
        *self.wrapper.lock() = program.iter().map(|&part| part.to_owned()).collect();
    }

    /// Waits until recovery has ended.
    pub fn wait_writable(&self) -> Result<()> {
        let start = Instant::now();
        while self.data().join("recovery.signal").exists() {
            ensure!(start.elapsed() < DEADLINE, "recovery does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Starts the server and waits until it accepts connections. Does nothing if it runs.
    pub fn launch(&self) -> Result<()> {
        let mut process = self.process.lock();
        if process.is_some() {
            return Ok(());
        }
        let mut child = self.command()?.spawn().context("cannot start PostgreSQL")?;
        let start = Instant::now();
        let mut ready = binary_command("pg_isready")?;
        ready.arg("-q").arg("-h").arg(self.socket()).args(["-p", &self.port.to_string()]);
        while !ready.status()?.success() {
            let gone = child.try_wait()?.is_some();
            ensure!(!gone && start.elapsed() < DEADLINE, "PostgreSQL did not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        *process = Some(child);
        Ok(())
    }

    fn command(&self) -> Result<Command> {
        let mut command = as_server_with(&self.environment.lock(), "postgres")?;
        if let [program, arguments @ ..] = self.wrapper.lock().as_slice() {
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
            ("log_line_prefix", "%m [%p] %a "),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (name, value) in fixed.iter().chain(self.settings.lock().iter()) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let log = std::fs::File::options().create(true).append(true).open(self.directory.join("log"))?;
        // Its own process group: on Ctrl-C, the watcher stops the server.
        command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null()).process_group(0);
        Ok(command)
    }

    /// Stops the server at once, like a power cut: clients only notice the end of their connections.
    pub fn kill(&self) -> Result<()> {
        self.end("QUIT")
    }

    /// Stops the server in order; connected clients are notified.
    pub fn stop(&self) -> Result<()> {
        self.end("INT")
    }

    fn end(&self, with: &str) -> Result<()> {
        if let Some(mut child) = self.process.lock().take() {
            // `setpriv` replaces itself by the server, so the child's id is the server's.
            let pid = child.id();
            let status = Command::new("kill").arg(format!("-{with}")).arg(pid.to_string()).status()?;
            ensure!(status.success(), "cannot send {with} to {pid}");
            child.wait()?;
        }
        Ok(())
    }

    /// The server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Runs SQL as superuser in the database `postgres`.
    pub fn psql(&self, sql: &str) -> Result<()> {
        let mut psql = binary_command("psql")?;
        psql.arg("-h").arg(self.socket()).args([
            "-p",
            &self.port.to_string(),
            "-U",
            SUPERUSER,
            "-d",
            "postgres",
        ]);
        let output = psql.args(["-qX", "-v", "ON_ERROR_STOP=1", "-c", sql]).output()?;
        ensure!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
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

    /// How the superuser connects to a database.
    pub fn admin_of(&self, database: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(self.socket())
            .port(self.port)
            .username(SUPERUSER)
            .database(database)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The child has to be waited for here: to the watcher, it would look alive for ever.
        let _ = self.kill();
        drop(self.watcher.stdin.take());
        // The watcher has removed everything when it ends.
        let _ = self.watcher.wait();
    }
}

/// A port on 127.0.0.1 that is free now. The kernel takes the ports of connections from a range above: otherwise a
/// connection could have it while the server is stopped.
fn free_port() -> Result<u16> {
    const LOWEST: u16 = 1 << 14;
    let any = || LOWEST + uuid::Uuid::new_v4().to_fields_le().1 % LOWEST;
    let mut ports = std::iter::repeat_with(any).take(100);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).context("no port is free")
}

/// Starts a process that stops the server and removes everything once this process has ended.
fn watcher(directory: &Path) -> Result<Child> {
    const SCRIPT: &str = r#"
        cat > /dev/null
        pid=$(head -n 1 "$1/server/data/postmaster.pid" 2> /dev/null)
        if [ -n "$pid" ]; then
            kill -QUIT "$pid" 2> /dev/null
            while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
        fi
        rm -rf "$1"
    "#;
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "sh"]).arg(directory).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().context("cannot start sh")
}

/// If this process runs as root, which PostgreSQL refuses: the user that its package created.
pub fn unprivileged() -> Result<Option<u32>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let output = Command::new("id").args(["-u", "postgres"]).output()?;
    let uid = String::from_utf8(output.stdout)?.trim().parse();
    uid.map(Some)
        .context("root cannot start PostgreSQL without the user `postgres` that PostgreSQL's package makes")
}

/// Runs a program of PostgreSQL as its user.
fn as_server(program: &str) -> Result<Command> {
    as_server_with(&[], program)
}

/// Like `as_server`, with more variables in the environment of the program itself, but not of those that only start it.
fn as_server_with(environment: &[(String, String)], program: &str) -> Result<Command> {
    let mut command = match unprivileged()? {
        Some(uid) => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={uid}")).args(["--regid=postgres", "--clear-groups", "--", "env"]);
            command
        }
        None => Command::new("env"),
    };
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}"))).arg(binary(program)?);
    command.current_dir("/").env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
    Ok(command)
}

fn binary_command(program: &str) -> Result<Command> {
    let mut command = Command::new(binary(program)?);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
    Ok(command)
}

/// The newest installed version's program.
fn binary(program: &str) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin").join(program)).collect())
        .unwrap_or_default();
    found.retain(|path| path.exists());
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.exists());
    found.pop().or(on_path).with_context(|| format!("{program} not found: install the package postgresql"))
}
