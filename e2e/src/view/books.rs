//! Two books in PostgreSQL, as a pod writes them: one whose transactions begin with the fence, and one without it.
//!
//! The pod keeps in memory what it knows of a book in its term, as a program that expects no other writer does. Only
//! with the fence this is right: after the next grant, no transaction of the old holder commits, be it a write or a
//! read.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use anyhow::Result;
use leadergroup::api::FencingToken;
use parking_lot::Mutex;
use sqlx::{Connection, Executor, PgConnection};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

/// Time limit of a transaction.
const WITHIN: Duration = Duration::from_millis(1500);
/// Connections to the database at the same time.
const PLACES: usize = 6;
/// What the fence raises if the token is not the current one.
const STALE: &str = "LG001";

/// The row of the book is locked until the transaction ends, so that the versions are in the order of the commits.
const WRITE: &str = "with next as (
        update clients_view.book set version = version + 1 where name = $1 and fenced = $2 returning version)
    insert into clients_view.entry (name, fenced, version, token, pod, writer, number)
    select $1, $2, version, $3, $4, $5, $6 from next returning version";
const READ: &str = "select version from clients_view.book where name = $1 and fenced = $2";

/// One of the two books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Book {
    /// Each transaction shows its token first.
    Fenced,
    /// The control.
    Plain,
}

impl Book {
    pub(super) fn is_fenced(self) -> bool {
        self == Self::Fenced
    }

    /// The book of this name in a path.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Fenced, Self::Plain].into_iter().find(|book| book.to_string() == name)
    }
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_fenced() { "fenced" } else { "plain" })
    }
}

/// The token under which something was done, and the version of the book after it.
pub(super) type Outcome = (i64, i64);

/// Why nothing was done, or nothing is known.
#[derive(Debug)]
pub(super) enum Failed {
    /// The pod has no token: it is not active, or not told yet.
    NotActive,
    /// The fence refused the token.
    Stale,
    /// Something else.
    Other(String),
}

/// The books as one pod sees them.
pub(super) struct Books {
    /// The name of the books: that of the group.
    pub(super) name: String,
    /// The pod.
    pub(super) pod: String,
    /// The file with the pod's fencing token.
    pub(super) token_file: PathBuf,
    /// The URL of the database.
    pub(super) database: String,
    /// How long a write takes from the read of the token to the transaction.
    pub(super) work: Duration,
    /// The connections that are not in use.
    pub(super) idle: Mutex<Vec<PgConnection>>,
    /// Limits the connections.
    pub(super) places: Semaphore,
    /// The newest version of each book that was seen in a term.
    pub(super) seen: Mutex<BTreeMap<Book, Outcome>>,
}

impl Books {
    pub(super) fn new(
        name: String,
        pod: String,
        token_file: PathBuf,
        database: String,
        work: Duration,
    ) -> Self {
        let (idle, places, seen) = (Mutex::default(), Semaphore::new(PLACES), Mutex::default());
        Self { name, pod, token_file, database, work, idle, places, seen }
    }

    /// Adds an entry to a book.
    pub(super) async fn write(&self, book: Book, writer: &str, number: i64) -> Result<Outcome, Failed> {
        let (key, token) = self.token()?;
        sleep(self.work).await;
        let work = async |connection: &mut PgConnection| {
            let write = sqlx::query_scalar(WRITE).bind(&self.name).bind(book.is_fenced());
            let write = write.bind(token).bind(&self.pod).bind(writer).bind(number);
            write.fetch_one(connection).await
        };
        let version: i64 = self.transaction(book, &key, token, work).await?;
        self.saw(book, token, version);
        Ok((token, version))
    }

    /// The newest version of a book, from memory if the pod knows it in this term.
    pub(super) async fn read(&self, book: Book) -> Result<Outcome, Failed> {
        let (key, token) = self.token()?;
        let work = async |connection: &mut PgConnection| {
            let known = self.seen.lock().get(&book).copied();
            if let Some((_, version)) = known.filter(|(of, _)| *of == token) {
                return Ok(version);
            }
            let read = sqlx::query_scalar(READ).bind(&self.name).bind(book.is_fenced());
            let version: i64 = read.fetch_one(connection).await?;
            Ok(self.saw(book, token, version))
        };
        let version = self.transaction(book, &key, token, work).await?;
        Ok((token, version))
    }

    /// Remembers a version that was seen in a term, and returns the newest one of this term.
    fn saw(&self, book: Book, token: i64, version: i64) -> i64 {
        let mut seen = self.seen.lock();
        let newest = seen.entry(book).or_insert((token, version));
        if *newest < (token, version) {
            *newest = (token, version);
        }
        if newest.0 == token { newest.1 } else { version }
    }

    /// One read for each piece of work, which gives key and token together.
    fn token(&self) -> Result<(String, i64), Failed> {
        let text = std::fs::read_to_string(&self.token_file).unwrap_or_default();
        let fencing = FencingToken::parse(text.trim()).ok_or(Failed::NotActive)?;
        Ok((fencing.key.to_owned(), fencing.token))
    }

    /// Runs a transaction. For the plain book the statement is a transaction of its own: with a lock on the book's
    /// row, a pod that hangs would keep its successor from writing.
    async fn transaction(
        &self,
        book: Book,
        key: &str,
        token: i64,
        work: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<i64>,
    ) -> Result<i64, Failed> {
        let done = async {
            let _place = self.places.acquire().await.map_err(|error| Failed::Other(error.to_string()))?;
            let idle = self.idle.lock().pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => PgConnection::connect(&self.database).await?,
            };
            if book.is_fenced() {
                connection.execute("begin").await?;
                let fence = sqlx::query("select leadergroup.fence($1, $2)").bind(key).bind(token);
                fence.execute(&mut connection).await?;
            }
            let version = work(&mut connection).await?;
            if book.is_fenced() {
                connection.execute("commit").await?;
            }
            // After an error the state of a connection is not known, so it is not used again.
            self.idle.lock().push(connection);
            Ok(version)
        };
        timeout(WITHIN, done)
            .await
            .unwrap_or_else(|_| Err(Failed::Other("the database does not answer".to_owned())))
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        if code.as_deref() == Some(STALE) { Self::Stale } else { Self::Other(error.to_string()) }
    }
}
