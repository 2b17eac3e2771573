//! The example in Python and the Rust client exclude each other: they share nothing but the SQL protocol.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, Reason, Store, Token};

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, eventually, migrated};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/python/lock.py");

/// The example, run as a program for the key `a`.
struct Python {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Python {
    fn start(database: &Database, arguments: &[&str]) -> Self {
        let mut child = Command::new("/usr/bin/python3")
            .args([EXAMPLE, &database.url(), "a", "--ttl", "2"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the tests need python3 and the package python3-psycopg");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { input: child.stdin.take(), child, lines }
    }

    fn says(&mut self) -> String {
        self.lines.next().expect("it says something").unwrap()
    }

    /// The end of its input makes it release the key.
    fn ends(mut self) -> Option<i32> {
        drop(self.input.take());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn client(store: &Store) -> Client {
    let config = ClientConfig {
        name: "rust".into(),
        ttl: Duration::from_secs(2),
        retry_interval: Duration::from_millis(200),
        ..ClientConfig::default()
    };
    Client::connect(store.clone(), config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_goes_back_and_forth_with_growing_tokens() {
    let (database, store) = migrated().await;
    let client = client(&store).await;
    let mut python = Python::start(&database, &[]);
    assert_eq!(python.says(), "held 1");
    assert_eq!(client.try_lock_or_why(&key("a")).await.unwrap().unwrap_err(), Reason::Others);
    assert_eq!(python.ends(), Some(0));
    let guard = client.lock(&key("a"), DEADLINE).await.unwrap();
    assert_eq!(guard.token(), Token::new(2));
    let mut tries = Python::start(&database, &[]);
    assert_eq!(tries.says(), "not held");
    assert_eq!(tries.ends(), Some(75));
    let mut waits = Python::start(&database, &["--wait", "60"]);
    let waiting = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || database.number(waiting).await == 1).await;
    guard.release().await.unwrap();
    assert_eq!(waits.says(), "held 3");
    assert_eq!(waits.ends(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_one_that_was_killed_goes_to_the_other() {
    let (database, store) = migrated().await;
    let rust = client(&store).await;
    let mut python = Python::start(&database, &[]);
    assert_eq!(python.says(), "held 1");
    python.child.kill().unwrap();
    let guard = rust.lock(&key("a"), DEADLINE).await.unwrap();
    assert_eq!(guard.token(), Token::new(2));
    // As if this process was killed: no release, and no more heartbeats.
    std::mem::forget(guard);
    drop(rust);
    let silent = "select count(*) from leadergroup.session
                  where not dead and name = 'rust' and now() - seen > interval '4.5 seconds'";
    eventually("its heartbeat is silent", async || database.number(silent).await == 1).await;
    let mut tries = Python::start(&database, &[]);
    assert_eq!(tries.says(), "held 3", "a single try watches a silent holder, and takes the key");
    assert_eq!(tries.ends(), Some(0));
}
