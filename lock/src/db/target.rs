//! Where connections lead: the URL, given directly or in a file, with the other files that the settings name; or what
//! the program's provider says. For each connection, the files are read again or the provider is called again, so that
//! a change applies without a restart.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::db::config::quiet_and_named;
use crate::db::route::{Hosts, Place, Route};
use crate::db::url::Wanted;
use crate::{DatabaseConfig, LockError, Provider};

/// How often the file with the URL is read while existing connections are used. If the URL changes, new connections
/// follow within about this time.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where connections lead.
pub(crate) struct Target {
    source: Source,
    config: DatabaseConfig,
    state: Mutex<State>,
}

enum Source {
    /// The hosts in the settings.
    Given(Hosts),
    /// The URL in this file.
    File(PathBuf),
    /// What the program says.
    Provider(Provider),
    /// Nowhere, for this reason.
    Nowhere(LockError),
}

/// What is known so far.
#[derive(Default)]
struct State {
    /// The place that was named last.
    place: Option<Arc<Place>>,
    /// When the file with the URL was last read while existing connections were used.
    looked: Option<Instant>,
    /// Whether a warning was logged that the file's content cannot be used.
    told: bool,
}

impl Target {
    /// Checks the settings. No I/O.
    pub(crate) fn of(config: &DatabaseConfig) -> Result<Self, LockError> {
        config.check()?;
        let source = match (&config.provider, &config.url_file) {
            (Some(provider), _) => Source::Provider(provider.clone()),
            (None, Some(file)) => Source::File(file.clone()),
            (None, None) => Source::Given(config.hosts(config.url.reveal())?),
        };
        Ok(Self { source, config: config.clone(), state: Mutex::default() })
    }

    /// A target that leads nowhere, and returns this error each time.
    pub(crate) fn nowhere(error: LockError) -> Self {
        Self { source: Source::Nowhere(error), config: DatabaseConfig::default(), state: Mutex::default() }
    }

    /// The settings; `None` if it leads nowhere.
    pub(crate) fn config(&self) -> Option<&DatabaseConfig> {
        (!matches!(self.source, Source::Nowhere(_))).then_some(&self.config)
    }

    /// The route of the next connection.
    pub(crate) async fn route(&self) -> Result<Route, LockError> {
        let _turn;
        let mut hosts = match &self.source {
            Source::Given(hosts) => hosts.clone(),
            Source::File(file) => self.url(file).await?,
            Source::Provider(provider) => {
                let (options, turn) = provider.options(self.config.statement_timeout).await?;
                _turn = turn;
                Hosts { each: vec![quiet_and_named(options)], wanted: Wanted::Any }
            }
            Source::Nowhere(error) => return Err(error.clone()),
        };
        let place = self.arrive(&hosts);
        if let Some(file) = &self.config.password_file {
            let password = self.text("password_file", "the password", file).await?;
            hosts.each = hosts.each.into_iter().map(|host| host.password(&password)).collect();
        }
        if let Some(file) = &self.config.ca_file {
            let ca = self.read("ca_file", file).await?;
            hosts.each = hosts.each.into_iter().map(|host| host.ssl_root_cert_from_pem(ca.clone())).collect();
        }
        Ok(Route { hosts: hosts.each, place })
    }

    /// Where new connections lead; `None` before the first one.
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.state.lock().place.clone()
    }

    /// Checks from time to time whether the file with the URL names another place. If the file cannot be used, this
    /// only logs a warning: connections to the former place are better than none.
    pub(crate) async fn look(&self) {
        let Source::File(file) = &self.source else { return };
        {
            let mut state = self.state.lock();
            let looked_lately = state.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY);
            // Before the first connection, there is none to close.
            if state.place.is_none() || looked_lately {
                return;
            }
            state.looked = Some(Instant::now());
        }
        let url = self.url(file).await;
        let told_before = std::mem::replace(&mut self.state.lock().told, url.is_err());
        match url {
            Ok(hosts) => drop(self.arrive(&hosts)),
            Err(error) if !told_before => {
                tracing::warn!(%error, "the database's URL is no longer usable; present connections are kept");
            }
            Err(_) => {}
        }
    }

    /// The hosts of the URL in this file.
    async fn url(&self, file: &Path) -> Result<Hosts, LockError> {
        let url = self.text("url_file", "the URL", file).await?;
        self.config.hosts(&url).map_err(|error| match error {
            LockError::Config { key: "url", problem } => unusable("url_file", file, format!("it {problem}")),
            error => unusable("url_file", file, error.to_string()),
        })
    }

    /// Makes these hosts the place of new connections, and returns it. It is the same place as before unless they are
    /// other servers, another database or user: a new password is no reason to close connections.
    fn arrive(&self, hosts: &Hosts) -> Arc<Place> {
        let arrived = Place::of(hosts);
        let mut state = self.state.lock();
        match &state.place {
            Some(place) if place.is_same(&arrived) => return Arc::clone(place),
            Some(place) => {
                tracing::info!(
                    from = place.name(),
                    to = arrived.name(),
                    "connections now lead to another place"
                );
            }
            None => {}
        }
        let place = Arc::new(arrived);
        state.place = Some(Arc::clone(&place));
        place
    }

    /// Gives up all connections to this place. New connections try its hosts again.
    pub(crate) fn give_up(&self, place: &Arc<Place>) {
        let mut state = self.state.lock();
        // Many statements may notice the same failure at the same time.
        if state.place.as_ref().is_some_and(|present| Arc::ptr_eq(present, place)) {
            state.place = Some(Arc::new(place.renewed()));
        }
    }

    /// The content of a file that contains one text and nothing else.
    async fn text(&self, key: &'static str, what: &str, file: &Path) -> Result<String, LockError> {
        let text = String::from_utf8(self.read(key, file).await?).map_err(|_| {
            unusable(key, file, format!("it is not UTF-8; write {what} into it as plain text"))
        })?;
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            return Err(unusable(key, file, format!("it is empty; write {what} into it")));
        }
        Ok(text.to_owned())
    }

    async fn read(&self, key: &'static str, file: &Path) -> Result<Vec<u8>, LockError> {
        let limit = self.config.statement_timeout;
        let read = timeout(limit, tokio::fs::read(file)).await;
        let detail = match read {
            Ok(Ok(content)) => return Ok(content),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} ms", limit.as_millis()),
        };
        Err(unusable(key, file, format!("{detail}; make it a file that this program may read")))
    }
}

impl fmt::Debug for Target {
    /// Not derived: the options contain the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Given(hosts) => f.write_str(&hosts.endpoints()),
            Source::File(file) => write!(f, "the URL in {}", file.display()),
            Source::Provider(provider) => write!(f, "{provider:?}"),
            Source::Nowhere(_) => f.write_str("nowhere"),
        }
    }
}

fn unusable(key: &'static str, file: &Path, detail: String) -> LockError {
    LockError::File { key, path: file.display().to_string(), detail }
}
