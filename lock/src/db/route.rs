//! Routes: the hosts of the URL, the order in which they are tried, and what is known about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;

use crate::LockError;
use crate::db::url::Wanted;

/// The hosts of a URL.
#[derive(Clone)]
pub(crate) struct Hosts {
    /// The driver's options for each host. At least one.
    pub(crate) each: Vec<PgConnectOptions>,
    pub(crate) wanted: Wanted,
}

impl Hosts {
    /// Their addresses, for people.
    pub(crate) fn endpoints(&self) -> String {
        let each: Vec<_> = self.each.iter().map(endpoint).collect();
        each.join(", ")
    }
}

/// Servers, database and user. Every connection refers to the place that it was made for: once the URL names another
/// place, the connection is closed.
pub(crate) struct Place {
    name: String,
    wanted: Wanted,
    several_hosts: bool,
    /// Whether a connection pooler was found there.
    pooled: AtomicBool,
    /// The number of the host that was connected to last.
    best: AtomicUsize,
}

impl Place {
    pub(crate) fn of(hosts: &Hosts) -> Self {
        let user = hosts.each.first().map_or("", |host| host.get_username());
        Self {
            name: format!("{user} at {}", hosts.endpoints()),
            wanted: hosts.wanted,
            several_hosts: hosts.each.len() > 1,
            pooled: AtomicBool::new(false),
            best: AtomicUsize::new(0),
        }
    }

    /// A separate place with the same properties.
    pub(crate) fn renewed(&self) -> Self {
        Self {
            name: self.name.clone(),
            wanted: self.wanted,
            several_hosts: self.several_hosts,
            pooled: AtomicBool::new(self.is_pooled()),
            best: AtomicUsize::new(self.best.load(Ordering::Relaxed)),
        }
    }

    /// Whether connections to one of the two places may stay when the other is wanted.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.wanted == other.wanted
    }

    /// The place, for people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The servers that connections may lead to.
    pub(crate) fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Whether another host may accept the writes that one host refused.
    pub(crate) fn may_move(&self) -> bool {
        self.several_hosts && self.wanted == Wanted::ReadWrite
    }

    /// Whether its connections are known to lead to a pooler.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// Remembers that its connections lead to a pooler.
    pub(crate) fn pooler_found(&self) {
        if !self.pooled.swap(true, Ordering::Relaxed) {
            tracing::info!(
                database = self.name,
                "the database is reached through a connection pooler: no notifications, waiters poll"
            );
        }
    }
}

/// What is needed to make one connection.
pub(crate) struct Route {
    pub(crate) hosts: Vec<PgConnectOptions>,
    pub(crate) place: Arc<Place>,
}

impl Route {
    /// One attempt at each host; together they may take this long.
    pub(crate) fn attempts(&self, limit: Duration) -> Attempts<'_> {
        Attempts {
            route: self,
            first: self.place.best.load(Ordering::Relaxed),
            end: Instant::now() + limit,
            failed: Vec::new(),
        }
    }
}

/// The attempts to make one connection, host by host.
pub(crate) struct Attempts<'a> {
    route: &'a Route,
    first: usize,
    end: Instant,
    failed: Vec<(String, LockError)>,
}

impl<'a> Attempts<'a> {
    /// The next host, and how long it may take; `None` if all have failed. The remaining time is divided equally among
    /// the remaining hosts.
    pub(crate) fn next(&self) -> Option<(&'a PgConnectOptions, Duration)> {
        let left = self.route.hosts.len() - self.failed.len();
        let share =
            self.end.saturating_duration_since(Instant::now()).checked_div(u32::try_from(left).ok()?)?;
        Some((self.route.hosts.get(self.number())?, share))
    }

    fn number(&self) -> usize {
        (self.first + self.failed.len()) % self.route.hosts.len().max(1)
    }

    /// Remembers that the present host could be used.
    pub(crate) fn worked(&self) {
        self.route.place.best.store(self.number(), Ordering::Relaxed);
    }

    /// Goes on with the next host.
    pub(crate) fn failed(&mut self, host: &PgConnectOptions, error: LockError) {
        self.failed.push((endpoint(host), error));
    }

    /// Why there is no connection.
    pub(crate) fn error(self) -> LockError {
        match self.failed.as_slice() {
            [(_, error)] => error.clone(),
            _ => LockError::NoHost { hosts: self.failed },
        }
    }
}

/// The error for a host that does not answer in time.
pub(crate) fn silent(host: &PgConnectOptions, limit: Duration) -> LockError {
    let detail = format!("no answer within {} ms", limit.as_millis());
    LockError::Unreachable { endpoint: endpoint(host), detail }
}

/// Host, port and database, for error texts.
pub(crate) fn endpoint(options: &PgConnectOptions) -> String {
    // The server's default.
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}
