//! PgBouncer in transaction mode, in front of a throwaway server.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::postgres::{DEADLINE, Database, PASSWORD, ROLE, Server, unprivileged};

/// A PgBouncer process. It ends when this is dropped, or with the test's thread.
pub struct PgBouncer {
    port: u16,
    process: Child,
    _directory: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts it with these additional settings. It makes at most two connections to each database.
    pub fn start(server: &Server, settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("users"), format!("\"{ROLE}\" \"{PASSWORD}\"\n")).unwrap();
        let text = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\npool_mode = transaction\ndefault_pool_size = 2\n\
             max_client_conn = 200\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = scram-sha-256\nauth_file = {}\nlogfile = {}\n{settings}\n",
            server.socket().display(),
            server.port(),
            at("users").display(),
            at("log").display(),
        );
        std::fs::write(at("settings"), text).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(uid) = unprivileged() {
            for path in [directory.path(), &at("users"), &at("settings")] {
                chown(path, Some(uid), None).unwrap();
            }
            command.arg(format!("--reuid={uid}")).args(["--regid=postgres", "--clear-groups"]);
        }
        command.args(["--", "pgbouncer", "-q"]).arg(at("settings"));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin").current_dir("/");
        let process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = std::fs::read_to_string(at("log")).unwrap_or_default();
            assert!(start.elapsed() < DEADLINE, "PgBouncer does not start: {log}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Self { port, process, _directory: directory }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the database through the pooler.
    pub fn url(&self, database: &Database) -> String {
        format!("postgres://{ROLE}:{PASSWORD}@127.0.0.1:{}/{}", self.port, database.name)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
