//! The settings of a replica: from a file, environment variables and flags, each overriding the one before.
//!
//! Whatever is unknown or out of range is refused before anything starts, with its place and the remedy. A value that
//! may contain a password is never part of a message.

mod args;
mod error;
mod file;
mod table;

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

pub use args::SettingsArgs;
pub use error::{Origin, SettingsError, SettingsErrors};

pub use crate::telemetry::LogFormat;

use error::did_you_mean;
use leadergroup_lock::{DatabaseConfig, FencePolicy, LockError, Secret, Store};
use table::{ENVIRONMENT_PREFIX, Setting};

/// What a replica of the operator works by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// After how long without a heartbeat other replicas take this one's groups over.
    pub ttl: Duration,
    /// Time between two heartbeats.
    pub retry_interval: Duration,
    /// How the database is reached.
    pub database: DatabaseConfig,
    /// What a change of holder does about fenced transactions of the old holder.
    pub fence: FencePolicy,
    /// The namespaces whose groups are looked after, sorted; all if empty.
    pub namespaces: Vec<String>,
    /// What this replica is called.
    pub replica: String,
    /// Where `/livez`, `/readyz` and `/metrics` are served.
    pub listen: SocketAddr,
    /// What is logged, and how.
    pub log: LogSettings,
    /// What is wrong with the database's URL, if it comes from the environment: most likely from a Secret, which somebody
    /// else than who started the program may put right. The operator runs on and says so.
    pub database_problem: Option<SettingsError>,
    origins: BTreeMap<&'static str, Origin>,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// How lines are written.
    pub format: LogFormat,
    /// Which lines are written, as directives of `tracing_subscriber::EnvFilter`; checked to be valid.
    pub filter: String,
}

/// The setting that may turn out wrong without ending the program.
const URL: &str = "database.url";
/// The setting in whose place the former may be given.
const URL_FILE: &str = "database.urlFile";
/// The variable that names the settings file.
const CONFIG_VARIABLE: &str = "LEADERGROUP_CONFIG";
/// The variable that names the replica by default, as set by the pod's manifest.
const POD_NAME_VARIABLE: &str = "POD_NAME";

/// What the settings are read from, weakest first.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The settings file named by a flag.
    pub config: Option<PathBuf>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// Values given by flags, by key.
    pub flags: BTreeMap<&'static str, String>,
    /// The name of the host, for want of a better name of the replica.
    pub host_name: String,
}

impl Settings {
    /// Puts the settings together and checks them.
    ///
    /// # Errors
    ///
    /// All that is wrong, with place and remedy.
    pub fn load(sources: &Sources) -> Result<Self, SettingsErrors> {
        let mut settings = Self::unset();
        let mut errors = Vec::new();
        settings.replica.clone_from(&sources.host_name);
        if let Some(name) = sources.environment.get(POD_NAME_VARIABLE).filter(|name| !name.is_empty())
            && let Some(replica) = table::by_key("replica")
        {
            settings.take(replica, name, Origin::Environment(POD_NAME_VARIABLE.to_owned()), &mut errors);
        }
        let from_environment = sources.environment.get(CONFIG_VARIABLE).filter(|path| !path.is_empty());
        if let Some(path) = sources.config.clone().or_else(|| from_environment.map(PathBuf::from)) {
            for found in file::read(&path) {
                match found {
                    Ok(value) => settings.take(value.setting, &value.text, value.origin, &mut errors),
                    Err(error) => errors.push(error),
                }
            }
        }
        settings.take_environment(&sources.environment, &mut errors);
        for setting in &table::ALL {
            if let Some(text) = sources.flags.get(setting.key) {
                settings.take(setting, text, Origin::Flag(setting.flag.to_owned()), &mut errors);
            }
        }
        if errors.is_empty() {
            settings.check_together(&sources.environment, &mut errors);
        }
        if errors.is_empty() { Ok(settings) } else { Err(SettingsErrors(errors)) }
    }

    /// The database. Where its URL cannot be used, one that says so to whoever asks.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`], which [`Settings::load`] has found before.
    pub fn store(&self) -> Result<Store, LockError> {
        let Some(SettingsError { origin, problem }) = &self.database_problem else {
            return Ok(Store::new(&self.database)?.with_fence_policy(self.fence));
        };
        let (key, problem) = match problem.strip_prefix("database.caFile ") {
            Some(problem) => ("caFile", problem),
            None => ("url", problem.strip_prefix("database.url ").unwrap_or(problem)),
        };
        Ok(Store::refusing(LockError::Config {
            key,
            problem: format!(
                "{problem} ({origin}). It is read at the start only: put it, or the Secret that it comes from, right, and \
                 restart the operator's pods (kubectl rollout restart). With {URL_FILE} in its place no restart is needed"
            ),
        }))
    }

    fn url_is_unset(&self) -> bool {
        self.database.url.reveal().is_empty()
    }

    /// Where the value of the setting with this key, such as `database.url`, comes from.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    fn unset() -> Self {
        Self {
            ttl: Duration::from_secs(4),
            retry_interval: Duration::from_secs(1),
            database: DatabaseConfig { url: Secret::new(""), ..DatabaseConfig::default() },
            fence: FencePolicy::default(),
            namespaces: Vec::new(),
            replica: String::new(),
            listen: (Ipv4Addr::UNSPECIFIED, 8080).into(),
            log: LogSettings { format: LogFormat::Json, filter: "info".to_owned() },
            database_problem: None,
            origins: BTreeMap::new(),
        }
    }

    fn take(&mut self, setting: &Setting, text: &str, origin: Origin, errors: &mut Vec<SettingsError>) {
        match (setting.read)(self, text) {
            Ok(()) => {
                if setting.key == URL {
                    self.database_problem = None;
                }
                self.origins.insert(setting.key, origin);
            }
            Err(problem) => {
                let found = if setting.secret { String::new() } else { format!(" (found `{text}`)") };
                let error = SettingsError { origin, problem: format!("{} {problem}{found}", setting.key) };
                if setting.key == URL && matches!(error.origin, Origin::Environment(_)) {
                    self.database_problem = Some(error);
                } else {
                    errors.push(error);
                }
            }
        }
    }

    fn take_environment(&mut self, environment: &BTreeMap<String, String>, errors: &mut Vec<SettingsError>) {
        for setting in &table::ALL {
            let variable = setting.variable();
            // Manifests set variables to nothing where they mean not at all.
            if let Some(text) = environment.get(&variable).filter(|text| !text.is_empty()) {
                self.take(setting, text, Origin::Environment(variable), errors);
            }
        }
        let known: Vec<String> = table::ALL.iter().map(Setting::variable).collect();
        for name in environment.keys().filter(|name| name.starts_with(ENVIRONMENT_PREFIX)) {
            if name != CONFIG_VARIABLE && !known.contains(name) && !is_service_link(name) {
                errors.push(SettingsError {
                    origin: Origin::Environment(name.clone()),
                    problem: format!(
                        "is no setting: take it out, or write a name that `leadergroup run --help` lists{}",
                        did_you_mean(name, known.iter().map(String::as_str))
                    ),
                });
            }
        }
    }

    /// The URL stands in a setting or in a file. Were one of them to win, a stronger source of the one could lose against
    /// a weaker source of the other without a word.
    fn check_url_is_given_once(
        &mut self,
        environment: &BTreeMap<String, String>,
        errors: &mut Vec<SettingsError>,
    ) {
        let by_problem = self.database_problem.as_ref().map(|problem| &problem.origin);
        let by_url = by_problem.or((!self.url_is_unset()).then(|| self.origin(URL)));
        match (by_url, &self.database.url_file) {
            (Some(_), None) | (None, Some(_)) => {}
            (Some(other), Some(_)) => errors.push(SettingsError {
                origin: self.origin(URL_FILE).clone(),
                problem: format!("{URL_FILE} is set, and {URL}, too ({other}): take one of the two out"),
            }),
            (None, None) => {
                let variable = table::by_key(URL).map(Setting::variable).unwrap_or_default();
                if environment.contains_key(&variable) {
                    let problem = format!("{URL} is empty: write a URL like postgres://user@host:5432/name");
                    let origin = Origin::Environment(variable);
                    self.database_problem = Some(SettingsError { origin, problem });
                } else {
                    let problem = format!(
                        "{URL} is not set: write --database-url, LEADERGROUP_DATABASE_URL, or `database: {{url: ...}}` \
                         in the settings file, like postgres://user@host:5432/name, or name a file that holds it: \
                         --database-url-file, LEADERGROUP_DATABASE_URL_FILE, or `database: {{urlFile: ...}}`"
                    );
                    errors.push(SettingsError { origin: Origin::Default, problem });
                }
            }
        }
    }

    /// What only several settings together can get wrong.
    fn check_together(&mut self, environment: &BTreeMap<String, String>, errors: &mut Vec<SettingsError>) {
        self.check_url_is_given_once(environment, errors);
        if errors.is_empty()
            && self.database_problem.is_none()
            && let Err(LockError::Config { key, problem }) = Store::new(&self.database)
        {
            let key = format!("database.{key}");
            let error =
                SettingsError { origin: self.origin(&key).clone(), problem: format!("{key} {problem}") };
            let by_url = key == URL || key == "database.caFile";
            if by_url && matches!(self.origin(URL), Origin::Environment(_)) {
                self.database_problem = Some(error);
            } else {
                errors.push(error);
            }
        }
        let mut refuse = |key: &str, problem: &str| {
            errors.push(SettingsError {
                origin: self.origin(key).clone(),
                problem: format!("{key} {problem}"),
            });
        };
        if self.retry_interval * 3 > self.ttl {
            refuse(
                "retryInterval",
                "must be at most a third of ttl, so that one lost heartbeat does not look like a dead replica: write a \
                 shorter retryInterval or a longer ttl",
            );
        }
        if self.database.statement_timeout * 2 > self.ttl {
            refuse(
                "database.statementTimeout",
                "must be at most half of ttl, so that a heartbeat that hangs can be tried again: write a shorter \
                 statementTimeout or a longer ttl",
            );
        }
        // The default gives way: nobody asked for it.
        if self.fence.patience * 2 > self.database.statement_timeout
            && *self.origin("fence.patience") != Origin::Default
        {
            refuse(
                "fence.patience",
                "must be at most half of database.statementTimeout, so that there is time left for the change: write a \
                 shorter patience or a longer statementTimeout",
            );
        }
        if self.database.max_idle_connections > self.database.max_open_connections {
            refuse(
                "database.maxIdleConnections",
                "must be at most maxOpenConnections: write a smaller number, or a larger maxOpenConnections",
            );
        }
        if self.replica.is_empty() {
            refuse(
                "replica",
                "is not set, and this host has no name: write --replica or the variable POD_NAME",
            );
        }
    }
}

/// The settings in force as a settings file, with where each comes from; passwords are left out.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for setting in &table::ALL {
            let (own, name) = setting.key.split_once('.').unwrap_or(("", setting.key));
            if own != section && !own.is_empty() {
                writeln!(f, "{own}:")?;
            }
            section = own;
            let indent = if own.is_empty() { "" } else { "  " };
            writeln!(f, "{indent}{name}: {} # {}", (setting.show)(self), self.origin(setting.key))?;
        }
        Ok(())
    }
}

/// Whether Kubernetes itself sets such a variable in pods, for a Service whose name starts with `leadergroup`.
fn is_service_link(name: &str) -> bool {
    let ends_in_port = |name: &str| {
        let protocols = ["_TCP", "_UDP", "_SCTP"];
        let number = protocols.iter().find_map(|protocol| name.strip_suffix(protocol));
        number
            .and_then(|rest| rest.rsplit_once("_PORT_"))
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && !name.ends_with("_TCP_PORT"))
        || ends_in_port(name)
        || ["_PROTO", "_PORT", "_ADDR"].iter().any(|end| name.strip_suffix(end).is_some_and(ends_in_port))
}
