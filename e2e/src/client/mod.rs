//! The client of a Service: records which pod answered each call, and which calls were lost.
//!
//! Calls are sent at a fixed rate, whatever happens to earlier calls. Each uses a new connection, because a Service
//! routes new connections; a caller that keeps its connections shows which pods serve on. On the project's own cluster
//! the caller is a process in a node's network ([`Client::spawn`] with a command that enters it); elsewhere it is a pod
//! whose log is read ([`Client::in_pod`]). [`Calls`] analyses the records.

mod analysis;
mod caller;
mod connection;
mod pod;

use std::{process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time,
};

pub use analysis::{Call, Calls, Switch};
pub use caller::CallArgs;

use crate::moment::Moment;

/// How long a pod that is active may need to answer many calls, on a busy machine.
const REACHED: Duration = Duration::from_mins(2);

/// A client that is calling.
#[derive(Debug)]
pub struct Client {
    name: String,
    calls: Arc<Mutex<Vec<Call>>>,
    made: watch::Receiver<usize>,
    child: Option<Child>,
    reader: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Client {
    /// Starts a command that prints one [`Call`] per line as JSON: `leadergroup-e2e call` in some network.
    pub fn spawn(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("starting the client {name}"))?;
        let lines = BufReader::new(child.stdout.take().context("the client has no output")?).lines();
        let lines = stream::try_unfold(lines, async |mut lines| {
            anyhow::Ok(lines.next_line().await?.map(|line| (line, lines)))
        });
        let parse =
            |line: &str| serde_json::from_str(line).with_context(|| format!("the client printed {line}"));
        let mut client = Self::reading(name, Box::pin(lines), parse);
        client.child = Some(child);
        Ok(client)
    }

    fn reading(
        name: &str,
        mut lines: impl Stream<Item = Result<String>> + Send + Unpin + 'static,
        parse: impl Fn(&str) -> Result<Call> + Send + 'static,
    ) -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (count, made) = watch::channel(0);
        let recorded = Arc::clone(&calls);
        let who = name.to_owned();
        let reader = tokio::spawn(async move {
            while let Some(Ok(line)) = lines.next().await {
                match parse(&line) {
                    Ok(call) => recorded.lock().push(call),
                    Err(error) => tracing::warn!("{who}: {error:#}"),
                }
                count.send_modify(|count| *count += 1);
            }
        });
        Self { name: name.to_owned(), calls, made, child: None, reader }
    }

    /// The calls recorded so far, ordered by start time.
    pub fn calls(&self) -> Calls {
        Calls::new(self.calls.lock().clone())
    }

    /// The calls that ended last.
    pub fn latest(&self, count: usize) -> Calls {
        let calls = self.calls.lock();
        Calls::new(calls[calls.len().saturating_sub(count)..].to_vec())
    }

    /// Waits until this pod has answered many calls from now on.
    pub async fn reaches(&self, pod: &str) -> Result<()> {
        let now = Moment::now();
        let enough = |calls: &Calls| calls.from(now).answered_by(pod) > 50;
        self.until(&format!("answers of {pod}"), REACHED, enough).await.map(drop)
    }

    /// Waits until the calls meet a condition, and returns them.
    pub async fn until(
        &self,
        what: &str,
        within: Duration,
        mut condition: impl FnMut(&Calls) -> bool,
    ) -> Result<Calls> {
        let mut made = self.made.clone();
        let wait = async {
            loop {
                made.mark_unchanged();
                let calls = self.calls();
                if condition(&calls) {
                    return Ok(calls);
                }
                if made.changed().await.is_err() {
                    bail!("the client {} ended", self.name);
                }
                // Checking after several calls is cheaper than after each.
                time::sleep(Duration::from_millis(20)).await;
            }
        };
        match time::timeout(within, wait).await {
            Ok(done) => done,
            Err(_) => {
                bail!("the client {}: {what} did not come true in {within:?}; {}", self.name, self.calls())
            }
        }
    }

    /// Ends the client and returns all its calls.
    pub async fn stop(mut self) -> Result<Calls> {
        if let Some(mut child) = self.child.take() {
            child.kill().await.context("ending the client")?;
            // Earlier output is still in the pipe.
            let read = time::timeout(Duration::from_secs(5), &mut self.reader).await;
            read.context("reading the last calls")?.context("reading the calls")?;
        }
        Ok(self.calls())
    }
}
