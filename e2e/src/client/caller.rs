//! The calling process: `leadergroup-e2e call`.

use std::{io::Write, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{self, MissedTickBehavior},
};

use super::Call;
use crate::moment::Moment;

/// Calls an address repeatedly and prints a line of JSON for each call.
#[derive(Args, Clone, Debug)]
pub struct CallArgs {
    /// Address and port of the Service.
    pub target: SocketAddr,
    /// Milliseconds from the start of one call to the start of the next.
    #[arg(long, default_value_t = 10)]
    pub every_ms: u64,
    /// Time limit of one call in milliseconds.
    #[arg(long, default_value_t = 250)]
    pub timeout_ms: u64,
}

impl CallArgs {
    /// Calls until the output is closed.
    pub async fn run(self) -> Result<()> {
        let mut ticks = time::interval(Duration::from_millis(self.every_ms));
        // After a delay there is no burst of calls, which would not keep the rate.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let timeout = Duration::from_millis(self.timeout_ms);
        let closed = Arc::new(Mutex::new(None));
        loop {
            ticks.tick().await;
            if let Some(error) = closed.lock().take() {
                return Err(error);
            }
            let closed = Arc::clone(&closed);
            tokio::spawn(async move {
                let call = call(self.target, timeout).await;
                let printed = serde_json::to_string(&call).map_err(Into::into).and_then(|line| {
                    writeln!(std::io::stdout().lock(), "{line}").context("the output is closed")
                });
                if let Err(error) = printed {
                    *closed.lock() = Some(error);
                }
            });
        }
    }
}

async fn call(target: SocketAddr, timeout: Duration) -> Call {
    let at = Moment::now();
    let answer = time::timeout(timeout, get(target)).await.unwrap_or_else(|_| Err(anyhow!("timeout")));
    Call { at, end: Moment::now(), answer: answer.map_err(|error| format!("{error:#}")) }
}

/// An HTTP GET of `/` on a new connection; the body is the pod's name.
async fn get(target: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(target).await.map_err(|error| anyhow!("{}", error.kind()))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: service\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(16 << 10).read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer).context("the answer is no text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is cut short")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("status {status}");
    }
    Ok(body.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn answering(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 256];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn a_call_returns_the_pod_that_answered_or_the_error() {
        let second = Duration::from_secs(1);
        let good = call(answering("HTTP/1.1 200 OK\r\nServer: x\r\n\r\nweb-1\n").await, second).await;
        assert_eq!(good.answer, Ok("web-1".into()));
        assert!(good.end >= good.at);
        let bad = call(answering("HTTP/1.0 503 No\r\n\r\nweb-1").await, second).await;
        assert_eq!(bad.answer, Err("status 503".into()));
        let cut = call(answering("HTTP/1.0 200 OK\r\n").await, second).await;
        assert_eq!(cut.answer, Err("the answer is cut short".into()));
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let closed = free.local_addr().expect("bound");
        drop(free);
        assert_eq!(call(closed, second).await.answer, Err("connection refused".into()));
        let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let silent = call(mute.local_addr().expect("bound"), Duration::from_millis(50)).await;
        assert_eq!(silent.answer, Err("timeout".into()));
    }
}
