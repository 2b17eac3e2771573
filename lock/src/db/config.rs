//! Settings of the database connection, and how a URL is turned into connection options.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::db::route::Hosts;
use crate::db::url::{REMEDY, Url};
use crate::{LockError, Provider};

/// The name of the connections in `pg_stat_activity`, unless the URL, the provider or `PGAPPNAME` sets another one.
const APPLICATION_NAME: &str = "leadergroup";

/// The smallest useful pool: one connection is reserved for heartbeats, one for hints, one for everything else.
const FEWEST_CONNECTIONS: u32 = 3;

/// A text that is never displayed: neither `Debug` nor an error prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// How to reach the database. Errors name the fields.
#[derive(Debug, Clone)]
pub struct DatabaseConfig {
    /// `postgres://user:password@host:port/database?sslmode=…`, or `postgres:///database?host=/socket/directory`.
    /// Without `sslmode`, a server on another machine must show a certificate for its name that a known CA signed
    /// (`verify-full`); on loopback and on a Unix socket the connection is not encrypted unless `sslmode` asks for it.
    /// Empty with `url_file` or `provider`.
    ///
    /// Several hosts are written as for libpq: `postgres://user@host1:5432,host2:5433/database`, or as lists in the
    /// parameters `host` and `port`, where a single port applies to all hosts. A connection is made to the first
    /// suitable host, beginning with the one that was used last; each host gets its share of `statement_timeout`.
    /// `target_session_attrs` says which hosts are suitable: `read-write`, one where transactions may write; `primary`,
    /// one that is not in recovery; `any`, every one that answers. With several hosts `read-write` is the default,
    /// since a lock needs the primary; with one host it is `any`, and statements on a standby fail with
    /// [`LockError::ReadOnly`].
    pub url: Secret,
    /// A file that contains the URL and nothing else (a line end is removed), in place of `url`. Read again for each
    /// connection: a mistake in it is an error of that attempt, and is gone once the file is corrected. When the URL
    /// names another place, connections to the former one are closed within seconds.
    pub url_file: Option<PathBuf>,
    /// Gives the options of each connection, in place of `url` and of all files named here.
    pub provider: Option<Provider>,
    /// A file that contains the password and nothing else (a line end is removed). Read again for each connection, so
    /// that a rotated password is picked up. Overrides a password in the URL.
    pub password_file: Option<PathBuf>,
    /// The largest number of connections at a time, at least 3: one is reserved for heartbeats, so that no other work
    /// can delay them, and one for notifications. Each further client on the store that waits for a key has one more
    /// for notifications; a client with a `heartbeat_thread`, and `blocking::migrate`, have connections of their own.
    /// Default: 8.
    pub max_open_connections: u32,
    /// How many connections are kept open without work for more than a few seconds, besides the two reserved ones.
    /// Default: 2.
    pub max_idle_connections: u32,
    /// A connection is replaced after this time. Default: 30 minutes.
    pub connection_max_lifetime: Duration,
    /// A connection without work is closed after this time. Default: 5 minutes.
    pub connection_max_idle_time: Duration,
    /// PEM file of the CA that signed the server's certificate; trusted in addition to the public ones. With it,
    /// `sslmode=require` means `verify-ca`.
    pub ca_file: Option<PathBuf>,
    /// Whether heartbeats wait for synchronous standbys, as grants do, if the server has any. Without this, a holder
    /// that reaches only a former primary keeps its lease there by its heartbeats, without limit, while the promoted
    /// standby grants its keys to others. With it, no heartbeat succeeds on a former primary whose synchronous standby
    /// was promoted, and the holder loses its keys before others get them. The price: while the standbys are away, no
    /// heartbeat succeeds either, and all keys are lost within the ttl. Default: no.
    pub synchronous_heartbeats: bool,
    /// How long one statement may take, how long making one connection may take, and how long a call of `provider` may
    /// take before that. The server gets the same limit. With the interval between heartbeats it should be below
    /// four fifths of the ttl of the sessions, so that a heartbeat that hangs can be repeated in time. Default: 2
    /// seconds.
    pub statement_timeout: Duration,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self {
            url: Secret::new(""),
            url_file: None,
            provider: None,
            password_file: None,
            max_open_connections: 8,
            max_idle_connections: 2,
            connection_max_lifetime: Duration::from_mins(30),
            connection_max_idle_time: Duration::from_mins(5),
            ca_file: None,
            synchronous_heartbeats: false,
            statement_timeout: Duration::from_secs(2),
        }
    }
}

impl DatabaseConfig {
    /// Checks all settings, but not the files that they name. No I/O.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        if self.max_open_connections < FEWEST_CONNECTIONS {
            return Err(LockError::Config {
                key: "max_open_connections",
                problem: format!(
                    "is {}; write {FEWEST_CONNECTIONS} or more (one connection each is reserved for heartbeats and \
                     hints)",
                    self.max_open_connections
                ),
            });
        }
        if !(Duration::from_millis(10)..=Duration::from_mins(10)).contains(&self.statement_timeout) {
            return Err(config("statement_timeout", "must be between 10ms and 10m, and well below `ttl`"));
        }
        if self.connection_max_lifetime.is_zero() {
            return Err(config("connection_max_lifetime", "is zero; write a time such as 30m"));
        }
        if self.connection_max_idle_time.is_zero() {
            return Err(config("connection_max_idle_time", "is zero; write a time such as 5m"));
        }
        if self.provider.is_some() {
            return self.only_the_provider();
        }
        match (&self.url_file, self.url.reveal()) {
            (None, url) => self.hosts(url).map(drop),
            (Some(_), "") => Ok(()),
            (Some(_), _) => Err(config("url_file", "is set, and so is `url`; remove one of the two")),
        }
    }

    fn only_the_provider(&self) -> Result<(), LockError> {
        let others = [
            ("url", !self.url.reveal().is_empty()),
            ("url_file", self.url_file.is_some()),
            ("password_file", self.password_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
        ];
        match others.iter().find(|(_, given)| *given) {
            Some((other, _)) => {
                let problem = format!(
                    "is set, and so is `{other}`; remove one of the two (the provider gives all options)"
                );
                Err(LockError::Config { key: "provider", problem })
            }
            None => Ok(()),
        }
    }

    /// The connection options for this URL. An error is about `url`, or about `ca_file` together with it.
    pub(crate) fn hosts(&self, url: &str) -> Result<Hosts, LockError> {
        let url = Url::parse(url)?;
        let each = url.each()?.iter().map(|one| self.host(&url, one)).collect::<Result<Vec<_>, _>>()?;
        let wanted = url.wanted(each.len())?;
        Ok(Hosts { each, wanted })
    }

    /// The connection options for one host, given as a URL with that host alone.
    fn host(&self, url: &Url<'_>, one: &str) -> Result<PgConnectOptions, LockError> {
        // The driver's error texts about a URL are fixed or name a parameter's value; none repeats the URL.
        let mut options = PgConnectOptions::from_str(one).map_err(|error| LockError::Config {
            key: "url",
            problem: format!("{}; {REMEDY}", flat(&error)),
        })?;
        let named_mode = url.has(&["sslmode", "ssl-mode"]);
        if !named_mode {
            let local = is_local(&options);
            options = options.ssl_mode(if local { PgSslMode::Disable } else { PgSslMode::VerifyFull });
        }
        if self.ca_file.is_some() {
            options = match options.get_ssl_mode() {
                PgSslMode::VerifyCa | PgSslMode::VerifyFull => options,
                // The driver itself would ignore the CA here.
                PgSslMode::Require => options.ssl_mode(PgSslMode::VerifyCa),
                _ if !named_mode => options.ssl_mode(PgSslMode::VerifyFull),
                _ => {
                    return Err(config(
                        "ca_file",
                        "has no effect with the sslmode in `url`; write sslmode=verify-full",
                    ));
                }
            };
        }
        Ok(quiet_and_named(options))
    }
}

/// The options without logging of statements, and with an application name.
pub(crate) fn quiet_and_named(options: PgConnectOptions) -> PgConnectOptions {
    let named = match options.get_application_name() {
        Some(_) => options,
        None => options.application_name(APPLICATION_NAME),
    };
    named.disable_statement_logging()
}

fn config(key: &'static str, problem: &str) -> LockError {
    LockError::Config { key, problem: problem.to_owned() }
}

/// Whether the server is reached without a network, where no one can eavesdrop or intercept.
fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The error on one line, without the driver's prefix.
fn flat(error: &sqlx::Error) -> String {
    let text = match error {
        sqlx::Error::Configuration(inner) => inner.to_string(),
        other => other.to_string(),
    };
    format!("is not a valid PostgreSQL URL ({text})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> DatabaseConfig {
        DatabaseConfig { url: url.into(), ..DatabaseConfig::default() }
    }

    fn problem(config: &DatabaseConfig) -> (&'static str, String) {
        match config.check() {
            Err(LockError::Config { key, problem }) => (key, problem),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bad_url_is_refused_with_the_remedy_and_without_the_password() {
        for (url, expected) in [
            ("", "is not set"),
            ("mysql://app:hunter2@db/app", "does not start with postgres://"),
            ("app:hunter2@db/app", "does not start with postgres://"),
            ("postgres://app:hunter2@db:port/app", "not a valid PostgreSQL URL"),
            ("postgres://app:hunter2@db:99999/app", "not a valid PostgreSQL URL"),
            ("postgres://app:hunter2@db,db2:port/app", "not a valid PostgreSQL URL"),
            ("postgres://app:hunter2@db,db2/app?port=1,99999", "not a valid PostgreSQL URL"),
            ("postgres://app:hunter2@/app", "names no host"),
            ("postgres://app:hunter2@db", "names no database"),
            ("postgres://app:hunter2@db/", "names no database"),
            ("postgres://app:hunter2@db/app?sslmode=on", "not a valid PostgreSQL URL"),
            ("postgres://app:hunter2@db/app?ssl_mode=verify-full", "unknown parameter \"ssl_mode\""),
            ("postgres://app@db/app?passwort=hunter2", "unknown parameter \"passwort\""),
            ("postgres://app:hunter2@db/app\npostgres://app@db/other", "line break"),
            ("postgres://app:12?hunter2@db/app", "as %3F"),
            ("postgres://app:12?sslmode=hunter2&x@db/app", "as %3F"),
            ("postgres://app:12/hunter2@db/app", "as %2F"),
            ("postgres://app:12#hunter2@db/app", "as %23"),
        ] {
            let (key, problem) = problem(&config(url));
            assert_eq!(key, "url", "{url}");
            assert!(problem.contains(expected), "{url}: {problem}");
            assert!(problem.contains("; write "), "{url}: {problem}");
            assert!(!problem.contains("hunter2"), "{url}: {problem}");
        }
    }

    #[test]
    fn bad_numbers_are_refused_by_name() {
        let good = config("postgres://app@db/app");
        assert_eq!(good.check(), Ok(()));
        let few = DatabaseConfig { max_open_connections: 2, ..good.clone() };
        assert_eq!(problem(&few).0, "max_open_connections");
        for timeout in [Duration::ZERO, Duration::from_millis(9), Duration::from_hours(1)] {
            let config = DatabaseConfig { statement_timeout: timeout, ..good.clone() };
            assert_eq!(problem(&config).0, "statement_timeout");
        }
        let config = DatabaseConfig { connection_max_lifetime: Duration::ZERO, ..good.clone() };
        assert_eq!(problem(&config).0, "connection_max_lifetime");
        let config = DatabaseConfig { connection_max_idle_time: Duration::ZERO, ..good };
        assert_eq!(problem(&config).0, "connection_max_idle_time");
    }

    #[test]
    fn a_provider_is_given_alone() {
        let good = DatabaseConfig {
            provider: Some(PgConnectOptions::new_without_pgpass().password("hunter2").into()),
            ..DatabaseConfig::default()
        };
        assert_eq!(good.check(), Ok(()));
        assert!(!format!("{good:?}").contains("hunter2"));
        let file = || Some(PathBuf::from("/file"));
        for (other, both) in [
            ("url", DatabaseConfig { url: "postgres://app@db/app".into(), ..good.clone() }),
            ("url_file", DatabaseConfig { url_file: file(), ..good.clone() }),
            ("password_file", DatabaseConfig { password_file: file(), ..good.clone() }),
            ("ca_file", DatabaseConfig { ca_file: file(), ..good.clone() }),
        ] {
            let (key, problem) = problem(&both);
            assert_eq!(key, "provider");
            assert!(problem.contains(&format!("so is `{other}`; remove one of the two")), "{problem}");
        }
        let few = DatabaseConfig { max_open_connections: 2, ..good };
        assert_eq!(problem(&few).0, "max_open_connections");
    }

    #[test]
    fn the_url_is_given_once() {
        let file = DatabaseConfig { url_file: Some("/url".into()), ..DatabaseConfig::default() };
        assert_eq!(file.check(), Ok(()), "what is in it counts when a connection is made");
        let both = DatabaseConfig { url: "postgres://app@db/app".into(), ..file.clone() };
        assert_eq!(problem(&both).0, "url_file");
        let few = DatabaseConfig { max_open_connections: 2, ..file };
        assert_eq!(problem(&few).0, "max_open_connections");
    }

    #[test]
    fn another_machine_has_to_prove_who_it_is() {
        let mode = |url: &str, ca: Option<&str>| {
            let config = DatabaseConfig { ca_file: ca.map(PathBuf::from), ..config(url) };
            config.hosts(url).map(|hosts| {
                let modes: Vec<_> =
                    hosts.each.iter().map(|host| format!("{:?}", host.get_ssl_mode())).collect();
                modes.join(" ")
            })
        };
        let is = |mode: &str| Ok(mode.to_owned());
        assert_eq!(mode("postgres://app@db.example/app", None), is("VerifyFull"));
        assert_eq!(mode("postgres://app@10.0.0.7/app", None), is("VerifyFull"));
        assert_eq!(mode("postgres://app@db.example/app?sslmode=disable", None), is("Disable"));
        assert_eq!(mode("postgres://app@db.example/app?sslmode=require", None), is("Require"));
        assert_eq!(mode("postgres://app@127.0.0.1/app", None), is("Disable"));
        assert_eq!(mode("postgres://app@[::1]/app", None), is("Disable"));
        assert_eq!(mode("postgres://app@localhost/app", None), is("Disable"));
        assert_eq!(mode("postgres:///app?host=/run/postgresql", None), is("Disable"));
        assert_eq!(mode("postgres://app@localhost.example/app", None), is("VerifyFull"));
        assert_eq!(mode("postgres://localhost,db.example/app", None), is("Disable VerifyFull"));
        // A CA that is given is used.
        assert_eq!(mode("postgres://app@localhost/app", Some("/ca.pem")), is("VerifyFull"));
        assert_eq!(mode("postgres://app@db/app?sslmode=require", Some("/ca.pem")), is("VerifyCa"));
        assert!(mode("postgres://app@db/app?sslmode=prefer", Some("/ca.pem")).is_err());
    }

    #[test]
    fn a_secret_is_not_shown() {
        let shown = format!("{:?}", config("postgres://app:hunter2@db/app"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
