//! The calling process: `leadergroup-e2e call`.

use std::{io::Write, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use parking_lot::Mutex;
use tokio::time::{self, MissedTickBehavior};

use super::{Call, connection::Connections};
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
    /// Keep each connection for so many milliseconds and use it for more calls.
    #[arg(long)]
    pub keep_alive_ms: Option<u64>,
    /// The paths to call in turn. `{}` is replaced by the number of the call.
    #[arg(long = "path", default_value = "/")]
    pub paths: Vec<String>,
}

impl CallArgs {
    /// Calls until the output is closed.
    pub async fn run(self) -> Result<()> {
        let mut ticks = time::interval(Duration::from_millis(self.every_ms));
        // After a delay there is no burst of calls, which would not keep the rate.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let timeout = Duration::from_millis(self.timeout_ms);
        let keep = self.keep_alive_ms.map(Duration::from_millis);
        let connections = Arc::new(Connections::new(self.target, keep));
        let closed = Arc::new(Mutex::new(None));
        for (number, path) in self.paths.iter().cycle().enumerate() {
            ticks.tick().await;
            if let Some(error) = closed.lock().take() {
                return Err(error);
            }
            let (closed, connections) = (Arc::clone(&closed), Arc::clone(&connections));
            let path = path.replace("{}", &number.to_string());
            tokio::spawn(async move {
                let call = call(&connections, path, timeout).await;
                let printed = serde_json::to_string(&call).map_err(Into::into).and_then(|line| {
                    writeln!(std::io::stdout().lock(), "{line}").context("the output is closed")
                });
                if let Err(error) = printed {
                    *closed.lock() = Some(error);
                }
            });
        }
        Ok(())
    }
}

async fn call(connections: &Connections, path: String, timeout: Duration) -> Call {
    let at = Moment::now();
    let chosen = connections.choose();
    let (connection, kept) = (chosen.number, chosen.is_kept());
    let answer = async {
        let (status, body) = connections.get(chosen, &path).await?;
        if status != "200" {
            bail!("status {status}");
        }
        Ok(body)
    };
    let answer = time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(anyhow!("timeout")));
    let answer = answer.map_err(|error| format!("{error:#}"));
    Call { at, end: Moment::now(), answer, path, connection, kept }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

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

    async fn call(target: SocketAddr, timeout: Duration) -> Call {
        super::call(&Connections::new(target, None), "/".to_owned(), timeout).await
    }

    #[tokio::test]
    async fn a_kept_connection_is_used_until_it_is_too_old_or_the_server_closes_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let target = listener.local_addr().expect("bound");
        // Each connection answers twice. The second answer comes in two parts.
        tokio::spawn(async move {
            let mut number = 0;
            while let Ok((mut stream, _)) = listener.accept().await {
                number += 1;
                let _ = stream.read(&mut [0; 256]).await;
                let answer = format!("HTTP/1.1 503 No\r\nContent-Length: 1\r\n\r\n{number}");
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.read(&mut [0; 256]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n0").await;
                let _ = stream.write_all(format!("{number}").as_bytes()).await;
            }
        });
        let second = Duration::from_secs(1);
        let mut heard = Vec::new();
        let kept = Connections::new(target, Some(Duration::from_hours(1)));
        for _ in 0..4 {
            let call = super::call(&kept, "/".to_owned(), second).await;
            heard.push((call.connection, call.kept, call.answer.unwrap_or_else(|error| error)));
            if call.kept {
                kept.closed().await;
            }
        }
        let text = |number, kept, text: &str| (number, kept, text.to_owned());
        let expected = [
            text(0, false, "status 503"),
            text(0, true, "01"),
            text(1, false, "status 503"),
            text(1, true, "02"),
        ];
        assert_eq!(heard, expected);
        let old = Connections::new(target, Some(Duration::ZERO));
        let calls = [
            super::call(&old, "/".to_owned(), second).await,
            super::call(&old, "/".to_owned(), second).await,
        ];
        assert_eq!(calls.map(|call| (call.connection, call.kept)), [(0, false), (1, false)]);
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
