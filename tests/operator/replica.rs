//! A running replica of the operator.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use tempfile::TempDir;

use crate::{apiserver::ApiServer, postgres::DEADLINE};

/// A running replica.
pub(crate) struct Operator {
    child: Child,
    address: String,
    directory: TempDir,
}

impl Operator {
    pub(crate) fn start(server: &ApiServer, namespace: &str, database_url: &str) -> Self {
        Self::start_with(server, namespace, &[("LEADERGROUP_DATABASE_URL", database_url)])
    }

    /// Starts a replica for its own namespaces, because other tests run their own operators on the same API server.
    pub(crate) fn start_with(server: &ApiServer, namespaces: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_as("one", server, namespaces, variables)
    }

    /// A replica of this name.
    pub(crate) fn start_as(
        name: &str,
        server: &ApiServer,
        namespaces: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        // The port is free now, and is unlikely to be taken in the next moments.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_leadergroup"))
            .env_clear()
            .args(["run", "--replica", name, "--listen", &address])
            .env("KUBECONFIG", server.kubeconfig())
            .env("LEADERGROUP_NAMESPACES", namespaces)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, address, directory }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Status line, headers and body; empty if there is no answer.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
            let done = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
            done.unwrap_or_default();
        }
        answer
    }

    /// Lets it open no further file or connection, or as many as it likes. Those that are open stay open.
    pub(crate) fn allow_descriptors(&self, allowed: bool) {
        let pid = Some(Pid::from_child(&self.child));
        let maximum = getrlimit(Resource::Nofile).maximum;
        // The numbers up to 2 are taken.
        let current = if allowed { maximum } else { Some(3) };
        prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends it without a chance to release anything.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and says how it did and how long that took.
    pub(crate) async fn end(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, start.elapsed());
            }
            assert!(start.elapsed() < DEADLINE, "it does not end: {}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        if std::thread::panicking() {
            eprintln!("what the operator wrote: {}", self.log());
        }
    }
}
