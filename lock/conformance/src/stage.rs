//! What a scenario works with: a database with the schema and the record, and processes of the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use leadergroup_lock::{DatabaseConfig, Store, monotonic};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::process::Command;
use tokio::time::sleep;
use uuid::Uuid;

use crate::audit::Event;
use crate::postgres::{SUPERUSER, Server};
use crate::process::{Answer, Client, History};
use crate::proxy::{Backend, Proxy};
use crate::rules::{Outcome, Rule, Trouble, Violation, late};
use crate::settings::Settings;
use crate::writes::Writer;

/// The password of all roles here.
const PASSWORD: &str = "conform";

/// The database that all others are copies of.
const TEMPLATE: &str = "leadergroup";

/// Starts a server, with the schema and the record in its template.
pub(crate) async fn server(environment: &[(&str, String)]) -> anyhow::Result<Arc<Server>> {
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let start = move || -> anyhow::Result<Server> {
        let server = Server::prepare()?;
        for (name, value) in &environment {
            server.set_environment(name, value);
        }
        server.trust()?;
        server.launch()?;
        Ok(server)
    };
    let server = tokio::task::spawn_blocking(start).await??;
    let mut admin = PgConnection::connect_with(&server.admin_of("postgres")).await?;
    admin.execute(AssertSqlSafe(format!("create database {TEMPLATE}"))).await?;
    let (port, socket) = (server.port(), server.socket());
    let url = format!("postgres://{SUPERUSER}@localhost:{port}/{TEMPLATE}?host={}", socket.display());
    let statement_timeout = Duration::from_mins(1);
    let config = DatabaseConfig { url: url.into(), statement_timeout, ..DatabaseConfig::default() };
    Store::new(&config)?.migrate().await?;
    let mut inside = PgConnection::connect_with(&server.admin_of(TEMPLATE)).await?;
    inside.execute(include_str!("audit.sql")).await.context("audit.sql")?;
    inside.close().await?;
    // The store's connections would keep others from copying the database.
    let others =
        format!("select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = '{TEMPLATE}'");
    admin.execute(AssertSqlSafe(others)).await?;
    Ok(Arc::new(server))
}

/// A scenario's database and processes.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The settings of the run.
    pub(crate) settings: Arc<Settings>,
    /// The server.
    pub(crate) server: Arc<Server>,
    /// The name of the database.
    pub(crate) database: String,
    /// What the processes said.
    pub(crate) history: History,
    /// What was recorded on a server that is gone.
    pub(crate) before: Vec<Event>,
    /// Everything that was recorded, if the server is gone at the end.
    pub(crate) ended_with: Option<Vec<Event>>,
    started: AtomicU32,
    writer: Option<Writer>,
}

impl Stage {
    /// Makes a database.
    pub(crate) async fn set(settings: Arc<Settings>, server: Arc<Server>) -> anyhow::Result<Self> {
        let database = format!("conform_{}", Uuid::new_v4().simple());
        let mut admin = PgConnection::connect_with(&server.admin_of("postgres")).await?;
        admin.execute(AssertSqlSafe(format!("create database {database} template {TEMPLATE}"))).await?;
        let (history, started) = (History::default(), AtomicU32::new(0));
        let start = || Writer::start(server.admin_of(&database), Arc::clone(&history));
        let writer = settings.history.is_some().then(start);
        Ok(Self {
            settings,
            server,
            database,
            history,
            before: Vec::new(),
            ended_with: None,
            started,
            writer,
        })
    }

    /// Ends the fenced writes of the history.
    pub(crate) async fn end_writes(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.finish().await;
        }
    }

    /// The ttl of the clients.
    pub(crate) fn ttl(&self) -> Duration {
        self.settings.ttl
    }

    /// How much later than necessary something may happen.
    pub(crate) fn slack(&self) -> Duration {
        self.settings.slack
    }

    /// A superuser's connection.
    pub(crate) async fn admin(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.server.admin_of(&self.database)).await?)
    }

    /// Runs SQL as superuser.
    pub(crate) async fn sql(&self, sql: &str) -> anyhow::Result<()> {
        self.admin().await?.execute(AssertSqlSafe(sql.to_owned())).await.with_context(|| sql.to_owned())?;
        Ok(())
    }

    /// The number that a query returns.
    pub(crate) async fn number(&self, sql: &str) -> anyhow::Result<i64> {
        let mut admin = self.admin().await?;
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut admin)
            .await
            .with_context(|| sql.to_owned())
    }

    /// Waits until a query returns true. False: not within the limit.
    pub(crate) async fn becomes_true(&self, sql: &str, limit: Duration) -> anyhow::Result<bool> {
        let start = monotonic();
        let mut admin = self.admin().await?;
        loop {
            let holds: bool = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
                .fetch_one(&mut admin)
                .await
                .with_context(|| sql.to_owned())?;
            if holds || monotonic() >= start + limit {
                return Ok(holds);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Begins to forge an answer.
    pub(crate) async fn forge(&self, what: &str) -> anyhow::Result<()> {
        self.sql(&format!("insert into conform.forged values ('{what}')")).await
    }

    /// Forges nothing any more.
    pub(crate) async fn be_honest(&self) -> anyhow::Result<()> {
        self.sql("delete from conform.forged").await
    }

    /// Starts a process, and lets it open its session.
    pub(crate) async fn client(&self) -> Outcome<Client> {
        self.client_with(&[]).await
    }

    /// The same, with more variables in its environment.
    pub(crate) async fn client_with(&self, environment: &[(&'static str, String)]) -> Outcome<Client> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let who = format!("{}_{number}", self.database);
        self.sql(&format!("create role {who} login password '{PASSWORD}'")).await?;
        let proxy = Proxy::before(Backend::Port(self.server.port())).await?;
        let url = format!("postgres://{who}:{PASSWORD}@127.0.0.1:{}/{}", proxy.port(), self.database);
        let clients = &self.settings.clients;
        let line = clients.get(number as usize % clients.len().max(1)).context("no client was named")?;
        let (program, arguments) = line.split_first().context("the client's command is empty")?;
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().cloned());
        let limit = self.ttl() + self.slack();
        let mut client = Client::start(command, who, proxy, Arc::clone(&self.history), limit)?;
        let open = format!("open {url} client-{number} {}", self.ttl().as_millis());
        client.send(&open).await?;
        match client.answer(Duration::from_secs(30)).await? {
            Answer::Ok => Ok(client),
            answer => {
                let seen = format!("to `open` it answered {answer:?}");
                Err(Trouble::Broken(Violation::late(Rule::LINES, seen)))
            }
        }
    }

    /// Everything that was recorded, in the order of time.
    pub(crate) async fn events(&self) -> anyhow::Result<Vec<Event>> {
        if let Some(events) = &self.ended_with {
            return Ok(events.clone());
        }
        let mut events = self.before.clone();
        // Transactions of another server are others.
        for event in &mut events {
            event.tx = -event.tx;
        }
        let mut admin = self.admin().await?;
        let new = Event::read(&mut admin).await?;
        events.extend(new.into_iter().filter(|event| !self.before.contains(event)));
        events.sort_by_key(Event::at);
        Ok(events)
    }

    /// Removes the database: many runs on one server would fill the disk. Its server may be gone already.
    pub(crate) async fn clear(&self) {
        if let Ok(mut admin) = PgConnection::connect_with(&self.server.admin_of("postgres")).await {
            let _ =
                admin.execute(AssertSqlSafe(format!("drop database {} with (force)", self.database))).await;
        }
    }

    /// The session of a process: the one that it registered last.
    pub(crate) async fn session(&self, client: &Client) -> anyhow::Result<Uuid> {
        let last = |event: &Event| event.what == "register" && event.who == client.who;
        let events = self.events().await?;
        let session = events.iter().rev().find(|event| last(event)).and_then(|event| event.session);
        session.context("the client has registered no session")
    }

    /// Marks the session of a process dead.
    pub(crate) async fn mark_dead(&self, client: &Client) -> anyhow::Result<()> {
        let session = self.session(client).await?;
        let marked = format!(
            "select exists (
                 select from leadergroup.session as s
                 cross join lateral leadergroup_real.mark_dead(array[s.id], array[s.beat]) as m
                 where s.id = '{session}'
             )"
        );
        let done = self.becomes_true(&marked, Duration::from_secs(10)).await?;
        anyhow::ensure!(done, "the session could not be marked dead");
        Ok(())
    }

    /// Closes all connections of a process, on the server.
    pub(crate) async fn terminate(&self, client: &Client) -> anyhow::Result<()> {
        let who = &client.who;
        self.sql(&format!("select pg_terminate_backend(pid) from pg_stat_activity where usename = '{who}'"))
            .await
    }

    /// A client that holds the key `k`, one that waits in its queue, and the holder's token.
    pub(crate) async fn holder_and_waiter(&self) -> Outcome<(Client, Client, i64)> {
        let (mut holder, mut waiter) = (self.client().await?, self.client().await?);
        let token = holder.take("k").await?;
        waiter.send("lock k 600000").await?;
        if !self.wait_for_waiters("k", 1).await? {
            return late(20, "a client waits for the key, and has no place in its queue");
        }
        Ok((holder, waiter, token))
    }

    /// Whether so many requests wait for a key, in time.
    pub(crate) async fn wait_for_waiters(&self, key: &str, count: usize) -> anyhow::Result<bool> {
        let sql = format!("select count(*) = {count} from leadergroup.waiter where key = '{key}'");
        self.becomes_true(&sql, self.ttl() + self.slack()).await
    }
}
