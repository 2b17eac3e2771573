//! Only one copy of this program works at a time; the others stand by.
//!
//! Run it twice, with `LEADERGROUP_DATABASE_URL` set. Stop the one that works with Ctrl-C or `kill -9`, or release the
//! lock by force with `leadergroup lock release singleton --force`, and watch the other one.

use std::error::Error;
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Key, Store};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LEADERGROUP_DATABASE_URL")?;
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run(&url, stop, work).await
}

/// Works whenever this copy has the lock, until `stop`.
pub async fn run<W: Future<Output = ()>>(
    url: &str,
    stop: impl Future<Output = ()>,
    work: impl Fn(i64) -> W,
) -> Result<(), Box<dyn Error>> {
    let store = Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() })?;
    store.migrate().await?;
    let config = ClientConfig {
        name: format!("worker-{}", std::process::id()),
        // Statements that are under way when a worker dies may take effect a little later.
        lock_delay: Duration::from_millis(500),
        ..ClientConfig::default()
    };
    let client = Client::connect(store, config).await?;
    let key = Key::new("singleton")?;
    // When the lock is lost, the work is dropped in the middle: a fifth of the ttl before anyone else can have the
    // lock.
    let campaign = client.campaign(&key, async |guard| {
        println!("this one works, in term {}", guard.token());
        work(guard.token().get()).await;
    });
    tokio::select! {
        ended = campaign => match ended? {},
        () = stop => println!("stopping"),
    }
    // The next copy gets the lock at once, instead of after the ttl.
    Ok(client.shutdown().await?)
}

/// An endless loop with a step each second. A real program passes the token to every store that it writes to.
async fn work(token: i64) {
    for step in 1.. {
        println!("term {token}, step {step}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
