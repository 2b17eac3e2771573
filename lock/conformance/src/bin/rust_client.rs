//! The Rust client behind the lines of `docs/conformance.md`.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Guard, Key, Released, Store};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::sync::{mpsc, oneshot};

/// What the program asks the task that has a guard.
enum Ask {
    Held(oneshot::Sender<bool>),
    Release(oneshot::Sender<Result<Released>>),
}

/// A key that was granted.
struct Held {
    token: i64,
    task: mpsc::UnboundedSender<Ask>,
}

#[derive(Default)]
struct Program {
    client: Option<Client>,
    held: HashMap<String, Held>,
}

impl Program {
    /// Carries a command out, and returns the answer.
    async fn obey(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["open", url, name, ttl_ms] => {
                let ttl = Duration::from_millis(ttl_ms.parse()?);
                let store = Store::new(&DatabaseConfig { url: (*url).into(), ..DatabaseConfig::default() })?;
                let (name, retry_interval) = ((*name).to_owned(), ttl / 5);
                let config = ClientConfig { name, ttl, retry_interval, ..ClientConfig::default() };
                self.client = Some(Client::connect(store, config).await?);
                Ok("ok".to_owned())
            }
            ["try", key] => {
                let guard = self.client()?.try_lock(&Key::new(*key)?).await?;
                Ok(guard.map_or_else(|| "refused".to_owned(), |guard| self.keep(guard)))
            }
            ["lock", key, wait_ms] => {
                let wait = Duration::from_millis(wait_ms.parse()?);
                let guard = self.client()?.lock(&Key::new(*key)?, wait).await;
                Ok(guard.map_or_else(|_| "refused".to_owned(), |guard| self.keep(guard)))
            }
            ["held", key] => {
                let Some(Held { token, task }) = self.held.get(*key) else { return Ok("no".to_owned()) };
                let (answer, held) = oneshot::channel();
                let _ = task.send(Ask::Held(answer));
                Ok(if held.await.unwrap_or(false) { format!("yes {token}") } else { "no".to_owned() })
            }
            ["release", key] => {
                let Some(Held { task, .. }) = self.held.remove(*key) else { return Ok("no".to_owned()) };
                let (answer, released) = oneshot::channel();
                let _ = task.send(Ask::Release(answer));
                let is_done = matches!(released.await, Ok(Ok(Released::Done)));
                Ok(if is_done { "released" } else { "no" }.to_owned())
            }
            ["close"] => {
                self.held.clear();
                self.client.take().context("no session is open")?.shutdown().await?;
                Ok("ok".to_owned())
            }
            _ => bail!("unknown command"),
        }
    }

    fn client(&self) -> Result<&Client> {
        self.client.as_ref().context("no session is open")
    }

    fn keep(&mut self, guard: Guard) -> String {
        let (key, token) = (guard.key().to_string(), guard.token().get());
        let (task, asks) = mpsc::unbounded_channel();
        tokio::spawn(watch(guard, asks));
        self.held.insert(key, Held { token, task });
        format!("granted {token}")
    }
}

/// Says when the guard is lost, and answers until then.
async fn watch(guard: Guard, mut asks: mpsc::UnboundedReceiver<Ask>) {
    loop {
        tokio::select! {
            () = guard.lost() => {
                println!("lost {} {}", guard.key(), guard.token());
                return;
            }
            ask = asks.recv() => match ask {
                Some(Ask::Held(answer)) => {
                    let _ = answer.send(!guard.is_lost());
                }
                Some(Ask::Release(answer)) => {
                    let _ = answer.send(guard.release().await.map_err(Into::into));
                    return;
                }
                None => return,
            },
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let (mut program, mut lines) = (Program::default(), BufReader::new(stdin()).lines());
    while let Some(line) = lines.next_line().await? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = program.obey(&words).await.unwrap_or_else(|error| format!("error {error:#}"));
        println!("{}", answer.replace('\n', " "));
    }
    Ok(())
}
