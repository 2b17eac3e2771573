//! The program of the pods: `leadergroup-e2e serve`.
//!
//! It does not end at SIGTERM. The kubelet kills it when the grace period is over, and until then it serves the
//! connections that it has.

use std::{convert::Infallible, net::Ipv4Addr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use http::{Request, Response, StatusCode};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::books::{Book, Books, Failed};
use crate::command::progress;

/// Connections at the same time.
const CONNECTIONS: usize = 256;
/// A connection is closed after this time, so that those of clients that are gone do not use up the limit.
const LONGEST: Duration = Duration::from_mins(1);
const AFTER_AN_ERROR: Duration = Duration::from_millis(100);

/// Serves the pod's name, and writes to PostgreSQL under the pod's fencing token.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// The port.
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// The pod's name.
    #[arg(long, env = "HOSTNAME")]
    pub pod: String,
    /// The name of the books.
    #[arg(long)]
    pub book: String,
    /// The file with the fencing token, which the kubelet writes.
    #[arg(long, default_value = "/etc/leadergroup/fencing-token")]
    pub token_file: PathBuf,
    /// The URL of the database.
    #[arg(long, env = "DATABASE", hide_env_values = true)]
    pub database: String,
    /// Milliseconds from the read of the token to the transaction of a write.
    #[arg(long, default_value_t = 500)]
    pub work_ms: u64,
}

impl ServeArgs {
    /// Serves until the process ends.
    pub async fn run(self) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)).await.context("the port")?;
        let work = Duration::from_millis(self.work_ms);
        let books = Arc::new(Books::new(self.book, self.pod, self.token_file, self.database, work));
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let place = Arc::clone(&places).acquire_owned().await?;
            let Ok((stream, _)) = listener.accept().await else {
                sleep(AFTER_AN_ERROR).await;
                continue;
            };
            let books = Arc::clone(&books);
            let service = service_fn(move |request: Request<_>| answer(Arc::clone(&books), request));
            tokio::spawn(async move {
                let _place = place;
                let serve = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                // An error is the caller's.
                let _ = timeout(LONGEST, serve).await;
            });
        }
    }
}

async fn answer<B>(books: Arc<Books>, request: Request<B>) -> Result<Response<String>, Infallible> {
    let path = request.uri().path().to_owned();
    // In a task of its own, so that the work goes on if the caller no longer waits for it.
    let work = tokio::spawn(async move { act(&books, &path).await });
    let (status, body) =
        work.await.unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    Ok(response)
}

/// Does what a path says: `/` is the pod's name, `/write/BOOK/WRITER/NUMBER` adds an entry, `/read/BOOK` reads.
async fn act(books: &Books, path: &str) -> (StatusCode, String) {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let done = match parts[..] {
        [""] => return (StatusCode::OK, books.pod.clone()),
        ["write", book, writer, number] => match (Book::named(book), number.parse()) {
            (Some(book), Ok(number)) => books.write(book, writer, number).await,
            _ => return (StatusCode::NOT_FOUND, String::new()),
        },
        ["read", book] => match Book::named(book) {
            Some(book) => books.read(book).await,
            None => return (StatusCode::NOT_FOUND, String::new()),
        },
        _ => return (StatusCode::NOT_FOUND, String::new()),
    };
    match done {
        Ok((token, version)) => (StatusCode::OK, format!("{} {token} {version}", books.pod)),
        Err(Failed::NotActive) => (StatusCode::SERVICE_UNAVAILABLE, "not active".to_owned()),
        Err(Failed::Stale) => (StatusCode::CONFLICT, "the token is not the current one".to_owned()),
        Err(Failed::Other(error)) => {
            progress(&format!("{path}: {error}"));
            (StatusCode::INTERNAL_SERVER_ERROR, error)
        }
    }
}
