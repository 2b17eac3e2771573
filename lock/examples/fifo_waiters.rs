//! Waiting in order, with a time limit, and transferring a key to a waiter further back in the queue.
//!
//! Needs `LEADERGROUP_DATABASE_URL`, and ends by itself.

use std::error::Error;
use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, ClientError, DatabaseConfig, Guard, Key, Released, Store, Successor, Transferred,
};
use tokio::task::JoinHandle;

type Turn = JoinHandle<Result<Guard, ClientError>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let order = run(&std::env::var("LEADERGROUP_DATABASE_URL")?).await?;
    println!("served: {order:?}");
    Ok(())
}

/// Returns the holders, in the order in which they got the key.
pub async fn run(url: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let store = Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() })?;
    store.migrate().await?;
    let config = ClientConfig { name: "host".into(), ..ClientConfig::default() };
    let client = Client::connect(store.clone(), config).await?;
    let key = Key::new("single-file")?;
    let held = client.lock(&key, Duration::from_secs(30)).await?;

    // Holders of one process share its session: any number of waiters costs one heartbeat.
    let mut waiting = Vec::new();
    for name in ["ann", "bob", "eve"] {
        waiting.push((name, queue_up(&client.another_holder(name), &key)));
        while store.waiters(&key, 10).await?.len() < waiting.len() {
            tokio::task::yield_now().await;
        }
    }
    // A try does not overtake them, and a wait that takes too long ends with an error.
    if client.another_holder("pushy").try_lock(&key).await?.is_some() {
        return Err("a try overtook the queue".into());
    }
    let late = client.another_holder("impatient").lock(&key, Duration::from_millis(100)).await;
    println!("{}", late.err().map_or_else(String::new, |error| error.to_string()));

    // Eve is in a hurry. The others keep their places.
    let Transferred::Done = held.transfer_to(Successor::Name("eve")).await? else {
        return Err("eve is no longer waiting".into());
    };
    let mut served = Vec::new();
    for next in ["eve", "ann", "bob"] {
        let place = waiting.iter().position(|(name, _)| *name == next).ok_or("no waiter has that name")?;
        let (name, turn) = waiting.remove(place);
        let guard = turn.await??;
        println!("{name} has it in term {}", guard.token());
        served.push(name.to_owned());
        // Dropping the guard would do the same in the background.
        if guard.release().await? == Released::WasLost {
            println!("it had lost it before");
        }
    }
    client.shutdown().await?;
    Ok(served)
}

fn queue_up(client: &Client, key: &Key) -> Turn {
    let (client, key) = (client.clone(), key.clone());
    tokio::spawn(async move { client.lock(&key, Duration::from_secs(30)).await })
}
