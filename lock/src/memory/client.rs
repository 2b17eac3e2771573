//! A program's way to the database: its connections, and the statements that are under way on them.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::database::MemoryDatabase;
use super::failure::Failure;
use super::network::{End, Fate};
use super::random::Random;
use super::signal::{Signal, Subscription};
use crate::db::statement::Notification;
use crate::db::statement::Row;
use crate::{Clock, DatabaseConfig, LockError};

/// The address in the settings, which a valid configuration needs.
const URL: &str = "postgres://program@memory/memory";

/// A program that uses a [`MemoryDatabase`], with a clock and a network of its own. Cheap to clone; a clone is the same
/// program.
#[derive(Debug, Clone)]
pub struct MemoryClient {
    name: Arc<str>,
    config: Arc<DatabaseConfig>,
    clock: Clock,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Where new connections lead.
    database: Mutex<MemoryDatabase>,
    random: Mutex<Random>,
    /// Given when this program's connections are cut.
    cuts: Signal,
}

impl MemoryClient {
    /// A program with this name. Its clock is that of tokio.
    pub fn new(database: &MemoryDatabase, name: &str) -> Self {
        let shared = Shared {
            random: Mutex::new(database.random()),
            database: Mutex::new(database.clone()),
            cuts: Signal::default(),
        };
        let config = DatabaseConfig { url: URL.into(), ..DatabaseConfig::default() };
        Self {
            name: name.into(),
            config: Arc::new(config),
            clock: Clock::simulated(0, Duration::ZERO),
            shared: Arc::new(shared),
        }
    }

    /// The same with another clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The same with these time limits and numbers of connections. Addresses and files in the settings are not used.
    #[must_use]
    pub fn with_config(self, config: &DatabaseConfig) -> Self {
        let config = DatabaseConfig {
            url: URL.into(),
            url_file: None,
            provider: None,
            password_file: None,
            ca_file: None,
            ..config.clone()
        };
        Self { config: Arc::new(config), ..self }
    }

    /// From now on, new connections lead to this database. Present ones stay until they are [cut](Self::cut).
    pub fn move_to(&self, database: &MemoryDatabase) {
        *self.shared.database.lock() = database.clone();
    }

    /// Cuts the program's connections. Statements that are under way take effect if their
    /// [`Fate::outlives`] says so.
    pub fn cut(&self) {
        self.shared.cuts.give();
    }

    pub(crate) fn config(&self) -> &DatabaseConfig {
        &self.config
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn new_uuid(&self) -> Uuid {
        self.shared.random.lock().uuid()
    }

    /// Makes a connection.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<Connected, LockError> {
        let (database, restarts) = self.dial("connect", limit, MemoryDatabase::connect).await?;
        let cuts = self.shared.cuts.subscribe();
        Ok(Connected { name: Arc::clone(&self.name), database, limit, restarts, cuts })
    }

    /// Listens on these channels.
    pub(crate) async fn listen(&self, channels: &[String], limit: Duration) -> Result<Heard, LockError> {
        let name = &self.name;
        let (database, received) =
            self.dial("listen", limit, |database| database.listen(name, channels)).await?;
        let cuts = self.shared.cuts.subscribe();
        Ok(Heard { name: Arc::clone(&self.name), database, received, cuts })
    }

    /// Makes a connection of either kind, if the network and the database allow it.
    async fn dial<T>(
        &self,
        what: &str,
        limit: Duration,
        accept: impl FnOnce(&MemoryDatabase) -> Option<T>,
    ) -> Result<(MemoryDatabase, T), LockError> {
        let database = self.shared.database.lock().clone();
        let Fate { request, work, answer, end, .. } = database.fate(&self.name, what);
        let way = async {
            pause(request + work + answer).await;
            match end {
                End::Silent { .. } => pending().await,
                End::Answered => accept(&database).ok_or("it does not run"),
                End::Broken { .. } => Err("the network is down"),
                End::Refused { code } => Err(code),
            }
        };
        let accepted = timeout(limit, way).await;
        let silent = format!("no answer within {} ms", limit.as_millis());
        let accepted = accepted.map_err(|_| unreachable(&silent))?;
        let accepted = accepted.map_err(unreachable)?;
        Ok((database, accepted))
    }
}

fn unreachable(detail: &str) -> LockError {
    LockError::Unreachable { endpoint: "the database in memory".to_owned(), detail: detail.to_owned() }
}

/// A connection.
pub(crate) struct Connected {
    name: Arc<str>,
    database: MemoryDatabase,
    /// The statement timeout.
    limit: Duration,
    restarts: Subscription,
    cuts: Subscription,
}

impl Connected {
    /// Runs the statement with this name. If this future is dropped, the statement runs on for as long as its fate
    /// says.
    pub(crate) async fn rows(
        &mut self,
        statement: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        if self.restarts.is_given() || self.cuts.is_given() {
            return Err(Failure::broken());
        }
        let fate = self.database.fate(&self.name, statement);
        let (client, mut answer) = oneshot::channel();
        let backend = Backend { database: self.database.clone(), limit: self.limit, fate, client };
        let restarts = self.restarts.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = restarts.given() => {}
                () = backend.run(statement, values) => {}
            }
        });
        let answer = tokio::select! {
            biased;
            () = self.cuts.given() => None,
            answer = &mut answer => answer.ok(),
        };
        answer.unwrap_or_else(|| Err(Failure::broken()))
    }
}

/// The database's side of a statement.
struct Backend {
    database: MemoryDatabase,
    limit: Duration,
    fate: Fate,
    client: oneshot::Sender<Result<Vec<Row>, sqlx::Error>>,
}

impl Backend {
    async fn run(mut self, statement: &str, values: Vec<Value>) {
        pause(self.fate.request).await;
        if self.is_given_up() {
            return;
        }
        let answer = self.work(statement, values).await;
        pause(self.fate.answer).await;
        match (self.fate.end, answer) {
            (End::Answered | End::Refused { .. }, Some(answer)) => drop(self.client.send(answer)),
            (End::Silent { .. }, _) => self.client.closed().await,
            // Dropping the client's channel breaks the connection.
            _ => {}
        }
    }

    async fn work(&self, statement: &str, values: Vec<Value>) -> Option<Result<Vec<Row>, sqlx::Error>> {
        if self.fate.work >= self.limit {
            pause(self.limit).await;
            return Some(Err(Failure::new("57014", "canceling statement due to statement timeout").into()));
        }
        pause(self.fate.work).await;
        if let End::Refused { code } = self.fate.end {
            return Some(Err(Failure::new(code, "as the simulated network wants it").into()));
        }
        if !self.fate.commits() || self.is_given_up() {
            return None;
        }
        Some(self.database.execute(statement, values, self.fate.busy).map_err(Into::into))
    }

    fn is_given_up(&self) -> bool {
        self.client.is_closed() && !self.fate.outlives
    }
}

/// A connection that listens.
pub(crate) struct Heard {
    name: Arc<str>,
    database: MemoryDatabase,
    received: mpsc::Receiver<Notification>,
    cuts: Subscription,
}

impl Heard {
    /// The next notification; none if the connection has broken.
    pub(crate) async fn next(&mut self) -> Option<Notification> {
        tokio::select! {
            biased;
            () = self.cuts.given() => None,
            heard = self.received.recv() => heard,
        }
    }

    /// Whether the database answers on this connection.
    pub(crate) async fn answers(&self) -> bool {
        let Fate { request, work, answer, end, .. } = self.database.fate(&self.name, "ping");
        pause(request + work + answer).await;
        match end {
            End::Silent { .. } => pending().await,
            end => end == End::Answered && !self.received.is_closed() && !self.cuts.is_given(),
        }
    }
}

/// Does not even yield if there is nothing to wait for.
async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}
