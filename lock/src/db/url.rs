//! The database's URL: the form that it must have, and the hosts that it names. The driver accepts URLs with one host
//! only, so a URL with several hosts is split into one for each.

use crate::LockError;

/// Query parameters that are understood here or by the driver. Any other is refused, since a misspelt `sslmode` would
/// otherwise turn off verification silently.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    ATTRIBUTES,
];

const ATTRIBUTES: &str = "target_session_attrs";

pub(crate) const REMEDY: &str =
    "write postgres://user@host:5432/database, optionally with ?sslmode=verify-full";

const REMEDY_HOSTS: &str = "write postgres://user@host1:5432,host2:5432/database";

const REMEDY_ATTRIBUTES: &str = "write read-write, primary or any";

const ESCAPE: &str =
    "write / as %2F, ? as %3F, # as %23, & as %26 and @ as %40 in user, password and database";

/// Which servers a connection may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Any that answers.
    Any,
    /// One where transactions may write.
    ReadWrite,
    /// One that is not in recovery.
    Primary,
}

/// A URL of the right form. Its parts are unchanged, including percent signs.
pub(crate) struct Url<'a> {
    /// User and password, with the `@` after them.
    login: &'a str,
    /// The hosts with their ports.
    hosts: &'a str,
    database: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Url<'a> {
    /// Checks scheme and parameters.
    pub(crate) fn parse(url: &'a str) -> Result<Self, LockError> {
        if url.is_empty() {
            return problem(format!("is not set; {REMEDY}"));
        }
        // The driver would silently drop them.
        if url.contains(char::is_control) {
            return problem(format!("contains a line break or another control character; {REMEDY}"));
        }
        let Some(rest) = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://")) else {
            return problem(format!("does not start with postgres://; {REMEDY}"));
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, database) = place.split_once('/').unwrap_or((place, ""));
        let (login, hosts) = server.split_at(server.rfind('@').map_or(0, |at| at + 1));
        let parameters = query
            .split('&')
            .filter(|parameter| !parameter.is_empty())
            .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
            .collect();
        let parsed = Self { login, hosts, database, parameters };
        // Otherwise parts of a password would be taken for the port, the database or a parameter, and printed in an
        // error.
        let cut_off = query.contains('@') && !place.contains('/') && !parsed.has(&["dbname"]);
        if rest.contains('#') || database.contains('@') || cut_off {
            return problem(format!("has a # in it, or a / or ? before an @; {ESCAPE}"));
        }
        let known = |name: &str| PARAMETERS.contains(&name) || name.starts_with("options[");
        if let Some((unknown, _)) = parsed.parameters.iter().find(|(name, _)| !known(name)) {
            // It may be a part of a password, whose / or ?, or whose & as a parameter, were not escaped.
            return problem(if query.contains('@') || parsed.has(&["password"]) {
                format!("has an unknown parameter, or a password with a /, ? or & in it; {ESCAPE}")
            } else {
                format!("has the unknown parameter {unknown:?}; {REMEDY}")
            });
        }
        if hosts.is_empty() && !parsed.has(&["host", "hostaddr"]) {
            return problem(format!("names no host; {REMEDY}"));
        }
        if database.is_empty() && !parsed.has(&["dbname"]) {
            return problem(format!("names no database; {REMEDY}"));
        }
        Ok(parsed)
    }

    /// Whether one of these parameters is given.
    pub(crate) fn has(&self, names: &[&str]) -> bool {
        self.last(names).is_some()
    }

    /// The last one of these parameters, which is the one that applies.
    fn last(&self, names: &[&str]) -> Option<(&'a str, &'a str)> {
        self.parameters.iter().rfind(|(name, _)| names.contains(name)).copied()
    }

    /// Which servers the connections of a URL with this number of hosts may lead to.
    pub(crate) fn wanted(&self, hosts: usize) -> Result<Wanted, LockError> {
        match self.last(&[ATTRIBUTES]).map(|(_, value)| value) {
            None if hosts > 1 => Ok(Wanted::ReadWrite),
            None | Some("any") => Ok(Wanted::Any),
            Some("read-write") => Ok(Wanted::ReadWrite),
            Some("primary") => Ok(Wanted::Primary),
            Some(value @ ("standby" | "read-only" | "prefer-standby")) => problem(format!(
                "asks for {ATTRIBUTES}={value}, but a lock needs a server that takes writes; {REMEDY_ATTRIBUTES}"
            )),
            Some(_) => problem(format!("has an unknown {ATTRIBUTES}; {REMEDY_ATTRIBUTES}")),
        }
    }

    /// A URL for each host, in their order.
    pub(crate) fn each(&self) -> Result<Vec<String>, LockError> {
        let (own_hosts, own_ports): (Vec<_>, Vec<_>) = self.hosts.split(',').map(split_port).unzip();
        let host_parameter = self.last(&["host", "hostaddr"]);
        let port_parameter = self.last(&["port"]);
        let hosts = host_parameter.map_or(own_hosts, |(_, list)| split_list(list));
        let ports = port_parameter.map_or(own_ports, |(_, list)| split_list(list));
        if hosts.iter().any(String::is_empty) {
            return problem(match hosts.len() {
                1 => format!("names no host; {REMEDY}"),
                _ => format!("has an empty name in its list of hosts; {REMEDY_HOSTS}"),
            });
        }
        if ports.len() != hosts.len() && ports.len() != 1 {
            return problem(format!(
                "has {} ports for {} hosts; write one for each host, or one for all",
                ports.len(),
                hosts.len()
            ));
        }
        let others: Vec<String> = self
            .parameters
            .iter()
            .filter(|(name, _)| !["host", "hostaddr", "port", ATTRIBUTES].contains(name))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let url = |(number, host): (usize, &String)| {
            let port = ports.get(number).or(ports.first()).map_or("", String::as_str);
            // If the host is a parameter, the driver still needs one before the database, and ignores it.
            let mut server = if host_parameter.is_some() { "localhost" } else { host }.to_owned();
            let mut parameters = others.clone();
            parameters.extend(host_parameter.map(|(name, _)| format!("{name}={host}")));
            match port_parameter {
                _ if port.is_empty() => {}
                Some(_) => parameters.push(format!("port={port}")),
                None => server.extend([":", port]),
            }
            format!("postgres://{}{server}/{}?{}", self.login, self.database, parameters.join("&"))
        };
        Ok(hosts.iter().enumerate().map(url).collect())
    }
}

fn problem<T>(problem: String) -> Result<T, LockError> {
    Err(LockError::Config { key: "url", problem })
}

/// A host and its port, which is empty if there is none. An IPv6 address has brackets around it.
fn split_port(host: &str) -> (String, String) {
    let name_end = host.find(']').unwrap_or(0);
    let (name, port) = match host[name_end..].find(':') {
        Some(colon) => (&host[..name_end + colon], &host[name_end + colon + 1..]),
        None => (host, ""),
    };
    (name.to_owned(), port.to_owned())
}

/// The items of a parameter's value.
fn split_list(list: &str) -> Vec<String> {
    list.replace("%2C", ",").replace("%2c", ",").split(',').map(str::to_owned).collect()
}

#[cfg(test)]
mod unescaped;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Passwords that were not escaped. `make fuzz` takes other seeds and more cases.
    mod fuzz {
        use proptest::prelude::*;

        use super::super::unescaped::{WORDS, config, url};
        use crate::{DatabaseConfig, Store};

        proptest! {
            #![proptest_config(config())]

            #[test]
            fn no_error_shows_a_part_of_a_password(url in url()) {
                let config = DatabaseConfig { url: url.as_str().into(), ..DatabaseConfig::default() };
                if let Err(error) = Store::new(&config) {
                    let texts = [error.to_string(), format!("{error:?}")];
                    let shown = texts.iter().find(|text| WORDS.iter().any(|word| text.contains(word)));
                    prop_assert!(shown.is_none(), "{url}: {shown:?}");
                }
                let debug = format!("{config:?}");
                prop_assert!(!debug.contains("hunter2"), "{debug}");
            }
        }
    }

    fn each(url: &str) -> Vec<String> {
        Url::parse(url).unwrap().each().unwrap()
    }

    fn refused(url: &str) -> String {
        let parsed = Url::parse(url).unwrap();
        match parsed.each().and_then(|each| parsed.wanted(each.len())) {
            Err(LockError::Config { key: "url", problem }) => problem,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn each_host_has_a_url_of_its_own() {
        for (url, expected) in [
            ("postgres://h/db", vec!["postgres://h/db?"]),
            ("postgresql://me:pw@h:1/db?sslmode=disable", vec!["postgres://me:pw@h:1/db?sslmode=disable"]),
            ("postgres://a,b:2/db", vec!["postgres://a/db?", "postgres://b:2/db?"]),
            ("postgres://me:p,w@a:1,b:2/db", vec!["postgres://me:p,w@a:1/db?", "postgres://me:p,w@b:2/db?"]),
            ("postgres://[::1]:1,[::2]/db", vec!["postgres://[::1]:1/db?", "postgres://[::2]/db?"]),
            // The parameters override what comes before the database.
            ("postgres://a,b/db?port=7", vec!["postgres://a/db?port=7", "postgres://b/db?port=7"]),
            ("postgres://a:1,b:2/db?port=7,8", vec!["postgres://a/db?port=7", "postgres://b/db?port=8"]),
            ("postgres:///db?host=a", vec!["postgres://localhost/db?host=a"]),
            (
                "postgres://me@/db?host=a%2C%2Frun&port=7,&user=x",
                vec![
                    "postgres://me@localhost/db?user=x&host=a&port=7",
                    "postgres://me@localhost/db?user=x&host=%2Frun",
                ],
            ),
            (
                "postgres://c:5/db?hostaddr=::1,::2",
                vec!["postgres://localhost:5/db?hostaddr=::1", "postgres://localhost:5/db?hostaddr=::2"],
            ),
        ] {
            assert_eq!(each(url), expected, "{url}");
        }
    }

    #[test]
    fn a_list_that_does_not_fit_is_refused() {
        for (url, expected) in [
            ("postgres://me:hunter2@a,,b/db", "has an empty name in its list of hosts"),
            ("postgres://me:hunter2@a,/db", "has an empty name in its list of hosts"),
            ("postgres://me:hunter2@:5432/db", "names no host"),
            ("postgres://me:hunter2@h/db?host=", "names no host"),
            ("postgres://me:hunter2@a,b,c/db?port=1,2", "has 2 ports for 3 hosts"),
            ("postgres://me:hunter2@a:1,b:2/db?host=c", "has 2 ports for 1 hosts"),
        ] {
            let problem = refused(url);
            assert!(problem.contains(expected) && problem.contains("; write "), "{url}: {problem}");
            assert!(!problem.contains("hunter2"), "{url}: {problem}");
        }
    }

    #[test]
    fn a_lock_needs_a_server_that_takes_writes() {
        let wanted = |url: &str| {
            let url = Url::parse(url).unwrap();
            url.wanted(url.each().unwrap().len()).unwrap()
        };
        assert_eq!(wanted("postgres://a/db"), Wanted::Any);
        assert_eq!(wanted("postgres://a,b/db"), Wanted::ReadWrite);
        assert_eq!(wanted("postgres://a/db?target_session_attrs=read-write"), Wanted::ReadWrite);
        assert_eq!(wanted("postgres://a,b/db?target_session_attrs=any"), Wanted::Any);
        assert_eq!(wanted("postgres://a,b/db?target_session_attrs=primary"), Wanted::Primary);
        for value in ["standby", "read-only", "prefer-standby"] {
            let problem = refused(&format!("postgres://a,b/db?target_session_attrs={value}"));
            assert!(problem.contains(&format!("={value}, but a lock needs")), "{problem}");
            assert!(problem.ends_with("; write read-write, primary or any"), "{problem}");
        }
        let problem = refused("postgres://a,b/db?target_session_attrs=hunter2");
        assert!(!problem.contains("hunter2") && problem.contains("; write read-write"), "{problem}");
    }
}
