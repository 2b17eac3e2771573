//! The list of all settings: name, meaning, and how a text becomes the value and back. Its one home: the file, the
//! environment variables, the flags, their help and the printed configuration all come from here.

use std::time::Duration;

use crate::api::HumanDuration;
use leadergroup_lock::{Overrun, Secret};

use super::{LogFormat, Settings};

/// One setting.
pub(super) struct Setting {
    /// Its key in the file, the sections joined by dots.
    pub key: &'static str,
    /// Its flag, without the dashes; the environment variable has the same words.
    pub flag: &'static str,
    /// What its values look like, for the help.
    pub value_name: &'static str,
    /// What it does, for the help.
    pub help: &'static str,
    /// Whether the value must not be shown.
    pub secret: bool,
    /// Whether it may be a list in the file, which elsewhere is written with commas.
    pub list: bool,
    /// Takes the value over, or says what is wrong with it and what to write.
    pub read: fn(&mut Settings, &str) -> Result<(), String>,
    /// The value as it can be read again; secrets redacted.
    pub show: fn(&Settings) -> String,
}

/// What environment variables of settings start with.
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
pub(super) static ALL: [Setting; 18] = [
    Setting {
        key: "ttl",
        flag: "ttl",
        value_name: TIME,
        help: "After how long without a heartbeat the other replicas take over this replica's groups",
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
        help: "A file with the database's URL, in place of database.url; read anew for each connection",
        read: |s, text| path(&mut s.database.url_file, text),
        show: |s| shown_path(s.database.url_file.as_deref()),
        ..BASIC
    },
    Setting {
        key: "database.passwordFile",
        flag: "database-password-file",
        value_name: FILE,
        help: "A file with the database's password; read anew for each connection",
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
        help: "Most connections at a time, two of which are reserved for heartbeats and notifications",
        read: |s, text| set(&mut s.database.max_open_connections, count(text, "from 3 to 1000", 3..=1000)),
        show: |s| s.database.max_open_connections.to_string(),
        ..BASIC
    },
    Setting {
        key: "database.maxIdleConnections",
        flag: "database-max-idle-connections",
        value_name: COUNT,
        help: "Most connections kept open without work, besides the reserved ones",
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
        help: "A connection without work is closed after this time",
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
        key: "database.statementTimeout",
        flag: "database-statement-timeout",
        value_name: TIME,
        help: "How long one statement, and likewise making one connection, may take: at most half of ttl",
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
        help: "For how long fenced transactions of an old holder may hold a change of holder off: at most half of \
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
        help: "What happens then: the server ends their connections, or the change waits for as long as they take",
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
        help: "The namespaces whose groups are looked after; all if there are none",
        list: true,
        read: |s, text| set(&mut s.namespaces, namespaces(text)),
        show: |s| format!("[{}]", s.namespaces.join(", ")),
        ..BASIC
    },
    Setting {
        key: "replica",
        flag: "replica",
        value_name: "NAME",
        help: "What this replica is called in the database, in events and logs; by default the variable POD_NAME, else \
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
        key: "listen",
        flag: "listen",
        value_name: "ADDRESS",
        help: "Where /livez, /readyz and /metrics are served",
        read: |s, text| {
            let address = text.parse().map_err(|_| {
                "must be an address and a port: write 0.0.0.0:8080, or [::]:8080 for IPv6".to_owned()
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
        help: "How log lines are written",
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
        help: "Which log lines are written: a level (error, warn, info, debug, trace), or levels by module, such as \
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
];

/// The setting of this key, if there is one.
pub(super) fn by_key(key: &str) -> Option<&'static Setting> {
    ALL.iter().find(|setting| setting.key == key)
}

fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn duration(text: &str, range: &str, millis: std::ops::RangeInclusive<u64>) -> Result<Duration, String> {
    let parsed = text.parse::<HumanDuration>().ok().map(|parsed| parsed.0);
    parsed
        .filter(|parsed| {
            (Duration::from_millis(*millis.start())..=Duration::from_millis(*millis.end())).contains(parsed)
        })
        .ok_or_else(|| {
            format!("must be {range}: write a number with a unit h, m, s or ms, such as 500ms, 4s or 30m")
        })
}

fn count(text: &str, range: &str, allowed: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let parsed = text.parse().ok().filter(|number| allowed.contains(number));
    parsed.ok_or_else(|| format!("must be {range}: write a whole number"))
}

fn one_of_two<T>(text: &str, words: [(&str, T); 2]) -> Result<T, String> {
    let [(one, _), (other, _)] = words;
    let problem = format!("must be one of two words: write {one} or {other}");
    words.into_iter().find(|(word, _)| *word == text).map(|(_, value)| value).ok_or(problem)
}

fn path(place: &mut Option<std::path::PathBuf>, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("must be the path of a file: write one, or leave it out".to_owned());
    }
    *place = Some(text.into());
    Ok(())
}

fn shown_path(path: Option<&std::path::Path>) -> String {
    path.map_or("null".to_owned(), |path| format!("\"{}\"", path.display()))
}

fn namespaces(text: &str) -> Result<Vec<String>, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = |name: &str| {
        (1..=63).contains(&name.len())
            && name.bytes().all(inner)
            && !name.starts_with('-')
            && !name.ends_with('-')
    };
    let mut names: Vec<String> =
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
        return Err(format!(
            "contains `{wrong}`, which names no namespace: write names such as default,my-team"
        ));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The URL with everything that may be a password taken out.
fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return String::from("null") };
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let place = place.rsplit_once('@').map_or(place.to_owned(), |(user, host)| {
        let (name, password) = user.split_once(':').map_or((user, ""), |(name, _)| (name, ":***"));
        format!("{name}{password}@{host}")
    });
    let query = query.map_or(String::new(), |query| {
        let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if name.to_lowercase().contains("pass") => format!("{name}=***"),
            _ => parameter.to_owned(),
        });
        format!("?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    format!("\"{scheme}://{place}{query}\"")
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

    #[test]
    fn no_password_survives_redaction() {
        for (url, shown) in [
            ("postgres://u:p@h:5432/d?sslmode=disable", "\"postgres://u:***@h:5432/d?sslmode=disable\""),
            ("postgres://u:p@q:r@h/d", "\"postgres://u:***@h/d\""),
            ("postgres://h/d?password=p&user=u", "\"postgres://h/d?password=***&user=u\""),
            ("postgres://u@h/d", "\"postgres://u@h/d\""),
            ("p", "null"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
