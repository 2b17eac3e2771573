//! The examples work as documented.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Key, Store, Token};

use crate::cast::row;
use crate::postgres::{DEADLINE, database};

#[allow(dead_code)]
#[path = "../../examples/blocking_job.rs"]
mod blocking_job;
#[allow(dead_code)]
#[path = "../../examples/fenced_transaction.rs"]
mod fenced_transaction;
#[allow(dead_code)]
#[path = "../../examples/fifo_waiters.rs"]
mod fifo_waiters;
#[allow(dead_code)]
#[path = "../../examples/singleton_worker.rs"]
mod singleton_worker;

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_in_order() {
    let database = database().await;
    assert_eq!(fifo_waiters::run(&database.url()).await.unwrap(), ["eve", "ann", "bob"]);
}

/// The lines between the two marks are those of the README, except the URL.
#[tokio::test(flavor = "multi_thread")]
async fn the_readme_s_example_works_as_printed() {
    #[rustfmt::skip]
    #[allow(clippy::duration_suboptimal_units, reason = "seconds are what most readers expect in a README")]
    async fn run<T>(url: &str, work: impl AsyncFn(i64) -> T) -> Result<(), Box<dyn std::error::Error>> {
        // begin
        let store = Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() })?;
        store.migrate().await?;
        let client = Client::connect(store, ClientConfig { name: "worker-1".into(), ..ClientConfig::default() }).await?;
        let key = Key::new("nightly-report")?;
        let wait = Duration::from_secs(60);
        client.run_while_held(&key, wait, async |guard| work(guard.token().get()).await).await?;
        // end
        Ok(())
    }
    let trimmed = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let between = |text: &'static str, begin: &str, end: &str| {
        let inside = text.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).unwrap().0;
        trimmed(inside.trim())
    };
    let printed = between(include_str!("../../README.md"), "```rust\n", "```");
    let code = between(include_str!("examples.rs"), "// begin\n", "// end");
    assert_eq!(printed.replace("\"postgres://app@db.example/app\".into()", "url.into()"), code);

    let database = database().await;
    let worked = std::sync::Mutex::new(Vec::new());
    for _ in 0..2 {
        run(&database.url(), async |token| worked.lock().unwrap().push(token)).await.unwrap();
    }
    assert_eq!(*worked.lock().unwrap(), [1, 2]);
    let row = row(&database.store(), &Key::new("nightly-report").unwrap()).await;
    assert_eq!((row.token, row.holder), (Token::new(2), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_holder_books_nothing() {
    let database = database().await;
    assert_eq!(fenced_transaction::run(&database.url()).await.unwrap(), 110);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_a_runtime_does_its_job() {
    let url = database().await.url();
    let job = tokio::task::spawn_blocking(move || blocking_job::run(&url).map_err(|error| error.to_string()));
    assert_eq!(job.await.unwrap(), Ok(10));
}

/// Two copies; the second one works once the first one is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_the_workers_works() {
    let database = database().await;
    let (url, works, stop) = (database.url(), Arc::new(Notify::new()), Notify::new());
    let work = |_token: i64| {
        let works = Arc::clone(&works);
        async move {
            works.notify_one();
            std::future::pending::<()>().await;
        }
    };
    let first = Box::pin(singleton_worker::run(&url, stop.notified(), work));
    let second = async {
        works.notified().await;
        let second = Box::pin(singleton_worker::run(&url, works.notified(), work));
        let stopping = async {
            let waiting = "select count(*) from leadergroup.waiter";
            crate::postgres::eventually("it waits", async || database.number(waiting).await == 1).await;
            stop.notify_one();
        };
        tokio::join!(second, stopping).0
    };
    let both = Box::pin(async { tokio::join!(first, second) });
    let (first, second) = timeout(DEADLINE, both).await.expect("both end");
    first.unwrap();
    second.unwrap();
    assert_eq!(database.number("select max(token) from leadergroup.lock").await, 2);
}
