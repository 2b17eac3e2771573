//! Where connections lead: the URL, given or in a file, and the other files that the settings name. All files are read
//! anew for each connection, so that whatever is put right or changed there counts without a restart.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use tokio::time::timeout;

use super::{DatabaseConfig, LockError, Secret};

/// How often the file with the URL is looked at while connections are used again. A database that moved is followed
/// within about this time.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where connections lead.
pub(super) struct Target {
    source: Source,
    config: DatabaseConfig,
    seen: Mutex<Seen>,
}

enum Source {
    /// To where the settings say.
    Given(Box<PgConnectOptions>),
    /// To where the URL in this file says.
    File(PathBuf),
    /// Nowhere, for this reason.
    Nowhere(LockError),
}

/// What is known of the file with the URL.
#[derive(Default)]
struct Seen {
    looked: Option<Instant>,
    /// The last URL that could be used, and the server, database and user that it names.
    url: Option<Secret>,
    place: String,
    generation: u64,
    /// The content cannot be used, and that was told.
    told: bool,
}

/// What one connection is made with.
pub(super) struct Route {
    pub(super) options: PgConnectOptions,
    /// Grows when the URL's file names another server, database or user than before.
    pub(super) generation: u64,
}

impl Route {
    /// Host, port and database, for error texts.
    pub(super) fn endpoint(&self) -> String {
        endpoint(&self.options)
    }

    /// Turns an error of connecting into ours.
    pub(super) fn error(&self, error: &sqlx::Error) -> LockError {
        LockError::from_connecting(error, &self.endpoint())
    }
}

impl Target {
    /// Checks the settings. No I/O.
    pub(super) fn of(config: &DatabaseConfig) -> Result<Self, LockError> {
        config.check()?;
        let source = match &config.url_file {
            Some(file) => Source::File(file.clone()),
            None => Source::Given(Box::new(config.options(config.url.reveal())?)),
        };
        Ok(Self { source, config: config.clone(), seen: Mutex::default() })
    }

    /// Leads nowhere, and says why each time.
    pub(super) fn nowhere(error: LockError) -> Self {
        Self { source: Source::Nowhere(error), config: DatabaseConfig::default(), seen: Mutex::default() }
    }

    /// What the next connection is made with.
    pub(super) async fn route(&self) -> Result<Route, LockError> {
        let mut route = match &self.source {
            Source::Given(options) => Route { options: (**options).clone(), generation: 0 },
            Source::File(file) => self.follow(file, self.text("urlFile", "the URL", file).await?)?,
            Source::Nowhere(error) => return Err(error.clone()),
        };
        if let Some(file) = &self.config.password_file {
            route.options = route.options.password(&self.text("passwordFile", "the password", file).await?);
        }
        if let Some(file) = &self.config.ca_file {
            route.options = route.options.ssl_root_cert_from_pem(self.read("caFile", file).await?);
        }
        Ok(route)
    }

    /// Which place new connections lead to; see [`Route::generation`].
    pub(super) fn generation(&self) -> u64 {
        self.seen().generation
    }

    /// Looks from time to time whether the file with the URL names another place. A file that cannot be used is only
    /// told of: connections to the place it named before are better than none.
    pub(super) async fn look(&self) {
        let Source::File(file) = &self.source else { return };
        {
            let mut seen = self.seen();
            // Until there was a connection there is nothing to compare with.
            if seen.url.is_none() || seen.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
                return;
            }
            seen.looked = Some(Instant::now());
        }
        let looked = match self.text("urlFile", "the URL", file).await {
            Ok(text) if self.seen().url.as_ref().is_some_and(|url| url.reveal() == text) => Ok(()),
            Ok(text) => self.follow(file, text).map(drop),
            Err(error) => Err(error),
        };
        let told_before = std::mem::replace(&mut self.seen().told, looked.is_err());
        if let Err(error) = looked
            && !told_before
        {
            tracing::warn!(%error, "the database's URL cannot be used any more; present connections are kept");
        }
    }

    /// The route by this content of the file with the URL, which is remembered if it can be used.
    fn follow(&self, file: &Path, text: String) -> Result<Route, LockError> {
        let options = self.config.options(&text).map_err(|error| match error {
            LockError::Config { key: "url", problem } => unusable("urlFile", file, format!("it {problem}")),
            error => unusable("urlFile", file, error.to_string()),
        })?;
        let mut seen = self.seen();
        let place = format!("{} at {}", options.get_username(), endpoint(&options));
        if seen.place != place {
            if seen.url.is_some() {
                tracing::info!(from = seen.place, to = place, "the database's URL leads elsewhere");
            }
            seen.place = place;
            seen.generation += 1;
        }
        seen.url = Some(Secret::from(text));
        Ok(Route { options, generation: seen.generation })
    }

    /// The content of a file that holds one text and nothing else.
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

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while the lock is held.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Target {
    /// Not derived: the options contain the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Given(options) => f.write_str(&endpoint(options)),
            Source::File(file) => write!(f, "the URL in {}", file.display()),
            Source::Nowhere(_) => f.write_str("nowhere"),
        }
    }
}

fn unusable(key: &'static str, file: &Path, detail: String) -> LockError {
    LockError::File { key, path: file.display().to_string(), detail }
}

/// Where the options lead, for error texts.
fn endpoint(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or("?");
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}
