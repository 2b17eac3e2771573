//! The settings themselves, and their defaults.

use std::{
    collections::BTreeMap,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use leadergroup_lock::{DatabaseConfig, FencePolicy, LockError, Secret, Store};

use super::error::{Origin, SettingsError};
use crate::telemetry::LogFormat;

/// The key of the setting for the database's URL.
pub(super) const URL: &str = "database.url";
/// The key of the setting that names a file with the URL, in place of [`URL`].
pub(super) const URL_FILE: &str = "database.urlFile";
/// The key of the setting for the database's certificate authority.
pub(super) const CA_FILE: &str = "database.caFile";

/// The settings of a replica of the operator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// After this time without a heartbeat, other replicas take over this replica's groups.
    pub ttl: Duration,
    /// The time between two heartbeats.
    pub retry_interval: Duration,
    /// How to reach the database.
    pub database: DatabaseConfig,
    /// What a change of holder does about the fenced transactions of the old holder.
    pub fence: FencePolicy,
    /// The namespaces to watch, sorted; all of them if empty.
    pub namespaces: Vec<String>,
    /// Whether EndpointSlices are written for the groups that ask for it.
    pub managed_endpoints: bool,
    /// Whether the Services that name a group without managed endpoints are watched.
    pub observe_services: bool,
    /// Whether a key that a group names must begin with the group's namespace.
    pub namespaced_keys: bool,
    /// The name of this replica.
    pub replica: String,
    /// The node that this replica runs on, if it is known.
    pub node: Option<String>,
    /// Where `/livez`, `/readyz` and `/metrics` are served.
    pub listen: SocketAddr,
    /// What is logged, and how.
    pub log: LogSettings,
    /// The collector that traces are sent to; none if they are off.
    pub tracing_endpoint: Option<String>,
    /// Why the database's URL cannot be used, if it comes from the environment. Its source is then most likely a
    /// Secret, which another person may have to correct, so the operator starts nevertheless and reports the problem.
    pub database_problem: Option<SettingsError>,
    pub(super) origins: BTreeMap<&'static str, Origin>,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The format of a line.
    pub format: LogFormat,
    /// Which lines are written: valid directives of `tracing_subscriber::EnvFilter`.
    pub filter: String,
}

impl Settings {
    /// The defaults. Settings without a default are empty, which the checks refuse.
    pub(super) fn unset() -> Self {
        Self {
            ttl: Duration::from_secs(4),
            retry_interval: Duration::from_secs(1),
            database: DatabaseConfig { url: Secret::new(""), ..DatabaseConfig::default() },
            fence: FencePolicy::default(),
            namespaces: Vec::new(),
            managed_endpoints: false,
            observe_services: false,
            namespaced_keys: false,
            replica: String::new(),
            node: None,
            listen: (Ipv6Addr::UNSPECIFIED, 8080).into(),
            log: LogSettings { format: LogFormat::Json, filter: "info".to_owned() },
            tracing_endpoint: None,
            database_problem: None,
            origins: BTreeMap::new(),
        }
    }

    /// The database. If its URL cannot be used, every call to the returned store fails with the reason.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`], which [`Settings::load`] has already reported.
    pub fn store(&self) -> Result<Store, LockError> {
        let Some(SettingsError { origin, problem }) = &self.database_problem else {
            return Ok(Store::new(&self.database)?.with_fence_policy(self.fence));
        };
        let of_ca_file = problem.strip_prefix(CA_FILE).and_then(|rest| rest.strip_prefix(' '));
        let of_url = problem.strip_prefix(URL).and_then(|rest| rest.strip_prefix(' '));
        let (key, problem) = match of_ca_file {
            Some(problem) => ("ca_file", problem),
            None => ("url", of_url.unwrap_or(problem)),
        };
        Ok(Store::refusing(LockError::Config {
            key,
            problem: format!(
                "{problem} ({origin}). It is read at the start only: put it, or the Secret that it comes from, right, and \
                 restart the operator's pods (kubectl rollout restart). With {URL_FILE} in its place no restart is needed"
            ),
        }))
    }

    /// Where the value of the setting with this key, such as `database.url`, comes from.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    pub(super) fn url_is_unset(&self) -> bool {
        self.database.url.reveal().is_empty()
    }
}
