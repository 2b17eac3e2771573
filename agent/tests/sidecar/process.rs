//! A running sidecar, and those who ask it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use leadergroup_agent::{answer::Answer, contract::Promise};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    api_server::ApiServer,
    waiting::{DEADLINE, eventually},
};

/// A running sidecar. It ends when this is dropped.
pub struct Sidecar {
    directory: TempDir,
    port: u16,
    local_port: u16,
    process: Child,
}

impl Sidecar {
    /// Starts it where an earlier one has left its file behind.
    pub fn start(api: &ApiServer) -> Self {
        let directory = TempDir::new().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("active"), "{\"key\":\"shop/web\",\"token\":3}").unwrap();
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [port, local_port] = listeners.map(|listener| listener.local_addr().unwrap().port());
        let process = Command::new(env!("CARGO_BIN_EXE_leadergroup-agent"))
            .args(["watch", "--group", "web", "--namespace", "shop", "--interval", "1"])
            .args(["--api-server", &format!("http://127.0.0.1:{}", api.port)])
            .args(["--lapse-timeout", "1", "--port", &port.to_string()])
            .args(["--local-port", &local_port.to_string(), "--file"])
            .arg(file("active"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { directory, port, local_port, process }
    }

    /// What it promises the operator.
    pub fn promise(&self) -> Promise {
        let mut promise = None;
        eventually("an answer", || {
            let Ok(stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
            let (status, body) = answer(asked(stream, "/answer"));
            let answer: Option<Answer> = serde_json::from_str(&body).ok().filter(|_| status == 200);
            promise = answer.map(|answer| answer.verified().unwrap());
            promise.is_some()
        });
        promise.unwrap()
    }

    /// What it tells programs, if the pod is active.
    pub fn active(&self) -> Option<Value> {
        let (status, body) = answer(self.ask_active());
        assert!(matches!(status, 200 | 503), "{status}");
        (status == 200).then(|| serde_json::from_str(&body).unwrap())
    }

    /// Asks without waiting for the answer.
    pub fn ask_active(&self) -> TcpStream {
        asked(TcpStream::connect(("127.0.0.1", self.local_port)).unwrap(), "/active")
    }

    /// The lines of `/watch`.
    pub fn watch(&self) -> Lines {
        let stream = TcpStream::connect(("127.0.0.1", self.local_port)).unwrap();
        Lines(BufReader::new(asked(stream, "/watch")))
    }

    /// What its file says, if it is there.
    pub fn file(&self) -> Option<Value> {
        let text = fs::read(self.directory.path().join("active")).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    pub fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
    }

    /// Its exit status, once it has ended.
    pub fn status(&mut self) -> i32 {
        eventually("its end", || self.process.try_wait().unwrap().is_some());
        self.process.wait().unwrap().code().unwrap()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lines that arrive over time, in chunks of HTTP.
pub struct Lines(BufReader<TcpStream>);

impl Lines {
    /// The next one.
    pub fn next(&mut self) -> Value {
        let mut line = String::new();
        // Heads, and the lengths of chunks, are no JSON objects.
        while !line.starts_with('{') {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
        }
        serde_json::from_str(&line).unwrap()
    }
}

fn asked(mut stream: TcpStream, path: &str) -> TcpStream {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The status of the answer.
pub fn status(stream: TcpStream) -> u16 {
    answer(stream).0
}
