//! The table of all settings: the name and meaning of each, and how its text is read and shown. The settings file, the
//! environment variables, the flags, their help and the printed configuration are all made from this table.

use std::fmt;

use leadergroup_lock::{Overrun, Secret};

use super::{
    settings::Settings,
    value::{count, duration, http_url, namespaces, one_of_two, path, redacted, set, shown_path},
};
use crate::{api::HumanDuration, telemetry::LogFormat};

/// One setting.
pub(super) struct Setting {
    /// Its key in the file, with a dot between section and name.
    pub key: &'static str,
    /// Its flag, without the dashes. The name of the environment variable has the same words.
    pub flag: &'static str,
    /// A placeholder for its values, for the help.
    pub value_name: &'static str,
    /// What it does, for the help.
    pub help: &'static str,
    /// Whether the value must not be shown in messages.
    pub secret: bool,
    /// Whether it may be a list in the file. Elsewhere the items are separated by commas.
    pub list: bool,
    /// Reads the value, or says what is wrong with it and what to write.
    pub read: fn(&mut Settings, &str) -> Result<(), String>,
    /// The value in a form that can be read again, with secrets redacted.
    pub show: fn(&Settings) -> String,
}

/// The prefix of the environment variables.
pub(super) const ENVIRONMENT_PREFIX: &str = "LEADERGROUP_";

impl Setting {
    /// The environment variable.
    pub(super) fn variable(&self) -> String {
        format!("{ENVIRONMENT_PREFIX}{}", self.flag.replace('-', "_").to_uppercase())
    }
}

const TIME: &str = "TIME";
const COUNT: &str = "COUNT";
const FILE: &str = "FILE";
const BASIC: Setting = Setting {
    key: "",
    flag: "",
    value_name: "",
    help: "",
    secret: false,
    list: false,
    read: |_, _| Ok(()),
    show: |_| String::new(),
};

/// All settings, in the order of the help.
pub(super) static ALL: [Setting; 24] = [
    Setting {
        key: "ttl",
        flag: "ttl",
        value_name: TIME,
        help: "How long this replica may miss heartbeats before the other replicas take over its groups",
        read: |s, text| set(&mut s.ttl, duration(text, "from 1s to 1h", 1_000..=3_600_000)),
        show: |s| HumanDuration(s.ttl).to_string(),
        ..BASIC
    },
    Setting {
        key: "retryInterval",
        flag: "retry-interval",
        value_name: TIME,
        help: "Time between two heartbeats, at most a third of ttl",
        read: |s, text| {
            set(&mut s.retry_interval, duration(text, "from 100ms to a third of ttl", 100..=1_200_000))
        },
        show: |s| HumanDuration(s.retry_interval).to_string(),
        ..BASIC
    },
    Setting {
        key: "database.url",
        flag: "database-url",
        value_name: "URL",
        help: "The PostgreSQL database: postgres://user@host:5432/name. Keep passwords out of arguments, which others on \
               the machine can see: give database.passwordFile or database.urlFile instead",
        secret: true,
        read: |s, text| {
            if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
                return Err(
                    "must be a PostgreSQL URL: write one like postgres://user@host:5432/name".to_owned()
                );
            }
            s.database.url = Secret::new(text);
            Ok(())
        },
        show: |s| redacted(s.database.url.reveal()),
        ..BASIC
    },
    Setting {
        key: "database.urlFile",
        flag: "database-url-file",
        value_name: FILE,
        help: "A file with the database's URL, in place of database.url; read for each new connection",
        read: |s, text| path(&mut s.database.url_file, text),
        show: |s| shown_path(s.database.url_file.as_deref()),
        ..BASIC
    },
    Setting {
        key: "database.passwordFile",
        flag: "database-password-file",
        value_name: FILE,
        help: "A file with the database's password; read for each new connection",
        read: |s, text| path(&mut s.database.password_file, text),
        show: |s| shown_path(s.database.password_file.as_deref()),
        ..BASIC
    },
    Setting {
        key: "database.caFile",
        flag: "database-ca-file",
        value_name: FILE,
        help: "A PEM file with the CA that signed the database's certificate",
        read: |s, text| path(&mut s.database.ca_file, text),
        show: |s| shown_path(s.database.ca_file.as_deref()),
        ..BASIC
    },
    Setting {
        key: "database.maxOpenConnections",
        flag: "database-max-open-connections",
        value_name: COUNT,
        help: "Most connections at a time; two of them are reserved for heartbeats and notifications",
        read: |s, text| set(&mut s.database.max_open_connections, count(text, "from 3 to 1000", 3..=1000)),
        show: |s| s.database.max_open_connections.to_string(),
        ..BASIC
    },
    Setting {
        key: "database.maxIdleConnections",
        flag: "database-max-idle-connections",
        value_name: COUNT,
        help: "Most idle connections to keep open, besides the reserved ones",
        read: |s, text| {
            set(&mut s.database.max_idle_connections, count(text, "from 0 to maxOpenConnections", 0..=1000))
        },
        show: |s| s.database.max_idle_connections.to_string(),
        ..BASIC
    },
    Setting {
        key: "database.connectionMaxLifetime",
        flag: "database-connection-max-lifetime",
        value_name: TIME,
        help: "A connection is replaced after this time",
        read: |s, text| {
            set(&mut s.database.connection_max_lifetime, duration(text, "from 1s to 24h", 1_000..=86_400_000))
        },
        show: |s| HumanDuration(s.database.connection_max_lifetime).to_string(),
        ..BASIC
    },
    Setting {
        key: "database.connectionMaxIdleTime",
        flag: "database-connection-max-idle-time",
        value_name: TIME,
        help: "A connection that is idle for this time is closed",
        read: |s, text| {
            set(
                &mut s.database.connection_max_idle_time,
                duration(text, "from 1s to 24h", 1_000..=86_400_000),
            )
        },
        show: |s| HumanDuration(s.database.connection_max_idle_time).to_string(),
        ..BASIC
    },
    Setting {
        key: "database.synchronousHeartbeats",
        flag: "database-synchronous-heartbeats",
        value_name: "true|false",
        help: "Whether heartbeats wait for synchronous standbys, so that none succeeds on a former primary",
        read: |s, text| {
            set(&mut s.database.synchronous_heartbeats, one_of_two(text, [("true", true), ("false", false)]))
        },
        show: |s| s.database.synchronous_heartbeats.to_string(),
        ..BASIC
    },
    Setting {
        key: "database.statementTimeout",
        flag: "database-statement-timeout",
        value_name: TIME,
        help: "How long a statement, or opening a connection, may take: at most half of ttl",
        read: |s, text| {
            set(&mut s.database.statement_timeout, duration(text, "from 10ms to half of ttl", 10..=600_000))
        },
        show: |s| HumanDuration(s.database.statement_timeout).to_string(),
        ..BASIC
    },
    Setting {
        key: "fence.patience",
        flag: "fence-patience",
        value_name: TIME,
        help: "How long fenced transactions of the old holder may delay a change of holder: at most half of \
               database.statementTimeout",
        read: |s, text| {
            let allowed = "from 1ms to half of database.statementTimeout";
            set(&mut s.fence.patience, duration(text, allowed, 1..=300_000))
        },
        show: |s| HumanDuration(s.fence.patience).to_string(),
        ..BASIC
    },
    Setting {
        key: "fence.overrun",
        flag: "fence-overrun",
        value_name: "terminate|wait",
        help: "What happens after that: terminate their connections, or wait for them however long they take",
        read: |s, text| {
            let words = [("terminate", Overrun::Terminate), ("wait", Overrun::Wait)];
            set(&mut s.fence.overrun, one_of_two(text, words))
        },
        show: |s| {
            let word = match s.fence.overrun {
                Overrun::Terminate => "terminate",
                Overrun::Wait => "wait",
            };
            word.to_owned()
        },
        ..BASIC
    },
    Setting {
        key: "namespaces",
        flag: "namespaces",
        value_name: "NAME,...",
        help: "The namespaces to watch; all of them by default",
        list: true,
        read: |s, text| set(&mut s.namespaces, namespaces(text)),
        show: |s| format!("[{}]", s.namespaces.join(", ")),
        ..BASIC
    },
    Setting {
        key: "managedEndpoints",
        flag: "managed-endpoints",
        value_name: "true|false",
        help: "Whether to write the EndpointSlices of Services for groups with routing.endpoints: Managed; needs rights \
               to Services and EndpointSlices",
        read: |s, text| set(&mut s.managed_endpoints, one_of_two(text, [("true", true), ("false", false)])),
        show: |s| s.managed_endpoints.to_string(),
        ..BASIC
    },
    Setting {
        key: "observeServices",
        flag: "observe-services",
        value_name: "true|false",
        help: "Whether the condition Routed tells where the Services with the label leadergroup.dev/group route to; needs \
               rights to watch Services and EndpointSlices",
        read: |s, text| set(&mut s.observe_services, one_of_two(text, [("true", true), ("false", false)])),
        show: |s| s.observe_services.to_string(),
        ..BASIC
    },
    Setting {
        key: "namespacedKeys",
        flag: "namespaced-keys",
        value_name: "true|false",
        help: "Whether spec.lock.key must begin with the group's namespace and a slash; groups that have had a term under \
               another key keep it",
        read: |s, text| set(&mut s.namespaced_keys, one_of_two(text, [("true", true), ("false", false)])),
        show: |s| s.namespaced_keys.to_string(),
        ..BASIC
    },
    Setting {
        key: "replica",
        flag: "replica",
        value_name: "NAME",
        help: "The name of this replica in the database, in events and logs; by default the variable POD_NAME, else \
               the host's name",
        read: |s, text| {
            let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            if text.is_empty() || text.len() > 253 || !text.bytes().all(inner) {
                return Err("must be 1 to 253 of a-z, A-Z, 0-9, -, _ and .: write the pod's name".to_owned());
            }
            text.clone_into(&mut s.replica);
            Ok(())
        },
        show: |s| s.replica.clone(),
        ..BASIC
    },
    Setting {
        key: "node",
        flag: "node",
        value_name: "NAME",
        help: "The node that this replica runs on: it is given groups whose active pods are on other nodes; if no pod \
               on any other node can be reached, their silence does not count",
        read: |s, text| {
            let inner =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            if text.is_empty() || text.len() > 253 || !text.bytes().all(inner) {
                return Err("must be 1 to 253 of a-z, 0-9, - and .: write the node's name".to_owned());
            }
            s.node = Some(text.to_owned());
            Ok(())
        },
        show: |s| s.node.clone().unwrap_or_else(|| "null".to_owned()),
        ..BASIC
    },
    Setting {
        key: "listen",
        flag: "listen",
        value_name: "ADDRESS",
        help: "Where /livez, /readyz and /metrics are served; [::] is every address, IPv6 and IPv4",
        read: |s, text| {
            let address = text.parse().map_err(|_| {
                "must be an address and a port: write [::]:8080 for every address, or 0.0.0.0:8080 for IPv4".to_owned()
            });
            set(&mut s.listen, address)
        },
        show: |s| format!("\"{}\"", s.listen),
        ..BASIC
    },
    Setting {
        key: "log.format",
        flag: "log-format",
        value_name: "json|text",
        help: "The format of log lines",
        read: |s, text| {
            set(&mut s.log.format, one_of_two(text, [("json", LogFormat::Json), ("text", LogFormat::Text)]))
        },
        show: |s| s.log.format.to_string(),
        ..BASIC
    },
    Setting {
        key: "log.filter",
        flag: "log-filter",
        value_name: "FILTER",
        help: "The log lines to write: a level (error, warn, info, debug, trace), or levels by module, such as \
               info,leadergroup_lock=debug",
        read: |s, text| {
            tracing_subscriber::EnvFilter::builder().parse(text).map_err(|error| {
                format!(
                    "is not a filter ({error}): write a level such as info, or info,leadergroup_lock=debug"
                )
            })?;
            text.clone_into(&mut s.log.filter);
            Ok(())
        },
        show: |s| format!("\"{}\"", s.log.filter),
        ..BASIC
    },
    Setting {
        key: "tracing.endpoint",
        flag: "tracing-endpoint",
        value_name: "URL",
        help: "The OpenTelemetry collector that traces of changes of holder are sent to, by OTLP over HTTP, such as \
               http://otel-collector:4318; none by default",
        read: |s, text| set(&mut s.tracing_endpoint, http_url(text).map(Some)),
        show: |s| s.tracing_endpoint.as_ref().map_or("null".to_owned(), |url| format!("\"{url}\"")),
        ..BASIC
    },
];

/// The setting of this key, if there is one.
pub(super) fn by_key(key: &str) -> Option<&'static Setting> {
    ALL.iter().find(|setting| setting.key == key)
}

/// The settings as a settings file, with the origin of each value and without passwords.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for setting in &ALL {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_variables_are_the_keys_in_their_own_spelling() {
        for setting in &ALL {
            let mut kebab = String::new();
            for c in setting.key.chars() {
                match c {
                    '.' => kebab.push('-'),
                    c if c.is_uppercase() => kebab.extend(['-', c.to_ascii_lowercase()]),
                    c => kebab.push(c),
                }
            }
            assert_eq!(setting.flag, kebab);
        }
        let setting = by_key("database.maxOpenConnections").expect("it is in the list");
        assert_eq!(setting.variable(), "LEADERGROUP_DATABASE_MAX_OPEN_CONNECTIONS");
    }
}
