//! A test as a separate process: an ignored test of the same binary, which other tests start, read from, stop and kill.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test's support fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use rustix::process::{Pid, Signal, kill_process};

use crate::postgres::DEADLINE;

/// Marks each message to the process that started this one.
const MARK: &str = "says: ";

/// A process. It ends with the test that started it, however that ends.
pub struct Program {
    child: Child,
    told: Receiver<String>,
    orders: ChildStdin,
}

/// In the process: sends a message to the process that started it.
pub fn say(word: &str) {
    println!("{MARK}{word}");
}

/// In the process: waits for an [order](Program::order).
pub fn wait_for_order() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

impl Program {
    /// Starts the ignored test of this path, with these variables in its environment.
    pub fn start<'a>(test: &str, environment: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (tell, told) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The test harness prints its own text, without a line end before the message.
                if let Some((_, word)) = line.split_once(MARK)
                    && tell.send(word.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let orders = child.stdin.take().unwrap();
        Self { child, told, orders }
    }

    pub fn says(&self) -> String {
        self.told.recv_timeout(DEADLINE).expect("the process says something")
    }

    /// Checks that it has sent no message so far.
    pub fn says_nothing(&self) {
        assert_eq!(self.told.try_recv(), Err(TryRecvError::Empty));
    }

    /// Its remaining messages until its end.
    pub fn last_words(&self) -> impl Iterator<Item = String> {
        self.told.iter()
    }

    pub fn order(&mut self) {
        self.orders.write_all(b"go on\n").unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Kills it with SIGKILL. Does nothing if it has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
