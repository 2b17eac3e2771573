//! The examples do what they say.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::timeout;

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

#[tokio::test(flavor = "multi_thread")]
async fn an_old_holder_books_nothing() {
    let database = database().await;
    assert_eq!(fenced_transaction::run(&database.url()).await.unwrap(), 110);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_a_runtime_does_its_job() {
    let url = database().await.url();
    let job = tokio::task::spawn_blocking(move || blocking_job::run(&url).map_err(|error| error.to_string()));
    assert_eq!(job.await.unwrap(), Ok(leadergroup_lock::Held::Done(10)));
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
