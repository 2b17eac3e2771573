//! A container: a PID namespace in which the agent is process 1, and a directory.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::SystemTime,
};

use leadergroup_agent::answer::{Answer, terminated_boot};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::{
    api_server::ApiServer,
    waiting::{DEADLINE, eventually},
};

pub const AGENT: &str = env!("CARGO_BIN_EXE_leadergroup-agent");

/// A container. All of its processes end when this is dropped.
pub struct Container {
    directory: TempDir,
    port: u16,
    unshare: Mutex<Child>,
}

impl Container {
    /// Runs a shell script under the agent, in a directory of its own.
    pub fn start(api: &ApiServer, script: &str) -> Self {
        Self::start_command(api, &["sh", "-c", script])
    }

    pub fn start_command(api: &ApiServer, command: &[&str]) -> Self {
        Self::start_with(api, &[], command)
    }

    /// The same, with more arguments for the agent.
    pub fn start_with(api: &ApiServer, arguments: &[&str], command: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        Self::start_in(directory, api, arguments, command, log.into())
    }

    /// The same, with a log that nothing reads.
    pub fn start_unread(api: &ApiServer, command: &[&str]) -> Self {
        Self::start_in(TempDir::new().unwrap(), api, &[], command, Stdio::piped())
    }

    fn start_in(
        directory: TempDir,
        api: &ApiServer,
        arguments: &[&str],
        command: &[&str],
        log: Stdio,
    ) -> Self {
        let file = |name: &str| directory.path().join(name);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // In a session of its own, as a container is in a control group of its own: other tests do not take its share
        // of the CPU.
        let unshare = Command::new("setsid")
            .arg("unshare")
            .args(user())
            .args(["--pid", "--fork", "--mount-proc", "--kill-child", AGENT, "run", "--group", "web"])
            .args(["--namespace", "shop", "--pod", "web-0", "--interval", "1", "--lapse-timeout", "1"])
            .args(["--stop-timeout", "60", "--port", &port.to_string()])
            .args(["--api-server", &format!("http://127.0.0.1:{}", api.port), "--termination-log"])
            .arg(file("termination-log"))
            .args(arguments)
            .arg("--")
            .args(command)
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(fs::File::create(file("output")).unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { directory, port, unshare: Mutex::new(unshare) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.file(name)).ok()
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    pub fn modified(&self, name: &str) -> Option<SystemTime> {
        fs::metadata(self.file(name)).ok()?.modified().ok()
    }

    pub fn log(&self) -> String {
        self.read("log").unwrap_or_default()
    }

    /// The boot that the agent has written for the kubelet.
    pub fn boot(&self) -> String {
        let mut boot = None;
        eventually("the boot", || {
            let text = self.read("termination-log").unwrap_or_default();
            boot = terminated_boot(&text).map(|boot| boot.to_string());
            boot.is_some()
        });
        boot.unwrap()
    }

    /// The floor that the agent promises, and whether nothing runs.
    pub fn answer(&self) -> (i64, bool) {
        let mut body = String::new();
        eventually("an answer", || {
            self.get("/answer").is_some_and(|(status, text)| {
                body = text;
                status == 200
            })
        });
        let answer: Answer = serde_json::from_str(&body).unwrap();
        let promise = answer.verified().unwrap();
        assert_eq!(promise.boot.to_string(), self.boot());
        (promise.floor, promise.idle)
    }

    /// The status and the body that the agent answers, if it listens.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// A new connection to the agent.
    pub fn connect(&self) -> TcpStream {
        let mut connected = None;
        eventually("a connection", || {
            connected = TcpStream::connect(("127.0.0.1", self.port)).ok();
            connected.is_some()
        });
        let stream = connected.unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// The processes of the container whose command lines contain these words. The agent's contains the program's.
    fn found(&self, words: &str, of_agent: bool) -> Vec<String> {
        let own = self.directory.path().to_owned();
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let found = processes.filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let is_here = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == own);
            let is_agent = line.contains("__network") || line.contains("run --group");
            is_here && line.contains(words) && is_agent == of_agent && !line.starts_with("unshare")
        });
        found.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    /// How many processes of the program have these words in their command lines.
    pub fn processes(&self, words: &str) -> usize {
        self.found(words, false).len()
    }

    /// Sends a signal to the process of the agent whose command line contains these words.
    pub fn signal(&self, words: &str, signal: &str) {
        let mut found = Vec::new();
        eventually(words, || {
            found = self.found(words, true);
            !found.is_empty()
        });
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(&found[0]).status().unwrap();
        assert!(sent.success());
    }

    pub fn is_running(&self) -> bool {
        self.unshare.lock().unwrap().try_wait().unwrap().is_none()
    }

    /// The exit status, once it has ended.
    pub fn status(&self) -> i32 {
        eventually("the container's end", || !self.is_running());
        let status = self.unshare.lock().unwrap().wait().unwrap();
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
        let mut unshare = self.unshare.lock().unwrap();
        // With --kill-child, process 1 of the namespace ends with it, and so do all others.
        let _ = unshare.kill();
        let _ = unshare.wait();
    }
}

/// Runs the agent outside of a container. Returns its exit status and its log.
pub fn outside(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(AGENT).args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What an agent answers on IPv4, to the path /livez, on a node whose IPv6 sockets are for IPv6 only.
pub fn livez_where_ipv6_sockets_are_ipv6_only() -> String {
    let script = r#"
        set -eu
        echo 1 >/proc/sys/net/ipv6/bindv6only
        ip link set lo up
        unshare --pid --fork --mount-proc --kill-child "$AGENT" run --group web --namespace shop --pod web-0 \
          --api-server http://127.0.0.1:1 --termination-log /dev/null -- true >/dev/null & trap 'kill -KILL %1' EXIT
        for _ in {1..600}; do
          if exec 3<>/dev/tcp/127.0.0.1/9470; then
            printf 'GET /livez HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n' >&3
            cat <&3
            exit
          fi
          sleep 0.05
        done 2>/dev/null"#;
    let mut command = Command::new("unshare");
    command.args(user()).args(["--net", "--fork", "--kill-child", "bash", "-c", script]);
    command.env("AGENT", AGENT);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Without root, only a user namespace gives the right to make the others.
fn user() -> &'static [&'static str] {
    if geteuid().is_root() { &[] } else { &["--map-root-user"] }
}
