//! What the lock crate's errors say, in the words of this program: the crate speaks of its own settings and calls.

/// What the crate calls a thing, and what it is called here.
const WORDS: [(&str, &str); 16] = [
    (" or `provider`", ""),
    ("`Store::migrate`", "`leadergroup migrate`"),
    ("call `leadergroup migrate`", "run `leadergroup migrate`"),
    ("`url`", "database.url"),
    ("`url_file`", "database.urlFile"),
    ("`password_file`", "database.passwordFile"),
    ("`ca_file`", "database.caFile"),
    ("`max_open_connections`", "database.maxOpenConnections"),
    ("`max_idle_connections`", "database.maxIdleConnections"),
    ("`connection_max_lifetime`", "database.connectionMaxLifetime"),
    ("`connection_max_idle_time`", "database.connectionMaxIdleTime"),
    ("`synchronous_heartbeats`", "database.synchronousHeartbeats"),
    ("`statement_timeout`", "database.statementTimeout"),
    ("`ttl`", "ttl"),
    ("`retry_interval`", "retryInterval"),
    ("see who they are", "see who they are: `leadergroup lock show`"),
];

/// The text of an error of the lock crate, with this program's settings and commands.
pub fn in_settings(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// This program's name of a setting of the crate.
pub(super) fn setting(theirs: &str) -> String {
    in_settings(&format!("`{theirs}`"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leadergroup_lock::{ClientError, LockError, Reason};

    use super::*;

    /// Everything in backticks is a command or a name in the database.
    #[test]
    fn errors_name_this_program_s_settings_and_commands() {
        let text = || "detail".to_owned();
        let endpoint = text;
        let host = LockError::ReadOnly;
        let deadline =
            |reason| ClientError::Deadline { key: text(), waited: Duration::ZERO, reason }.to_string();
        let errors = [
            LockError::Config { key: "max_idle_connections", problem: "is too large for `ttl`".to_owned() },
            LockError::Config { key: "retry_interval", problem: text() },
            LockError::Unreachable { endpoint: endpoint(), detail: text() },
            LockError::NoHost { hosts: vec![(endpoint(), host)] },
            LockError::Tls { endpoint: endpoint(), detail: text() },
            LockError::Login { endpoint: endpoint(), detail: text() },
            LockError::File { key: "url_file", path: text(), detail: text() },
            LockError::NoConnection { detail: text() },
            LockError::SchemaOld { found: 1, needed: 2 },
            LockError::Privileges { detail: text() },
        ];
        let errors = errors.iter().map(ToString::to_string);
        let all: Vec<_> = errors.chain([deadline(Reason::Others)]).map(|error| in_settings(&error)).collect();
        for error in &all {
            let quoted = error.split('`').skip(1).step_by(2);
            let known = |word: &str| word == "leadergroup" || word.starts_with("leadergroup ");
            assert_eq!(quoted.filter(|word| !known(word)).collect::<Vec<_>>(), [""; 0], "{error}");
        }
        for expected in [
            "database.maxIdleConnections: is too large for ttl",
            "retryInterval: detail",
            "check the URL (database.url or database.urlFile), that the server runs",
            "certificate in database.caFile, check",
            "user, password (database.passwordFile wins over the URL)",
            "or this program's database.maxOpenConnections",
            "run `leadergroup migrate`",
            "`leadergroup lock show`",
        ] {
            assert!(all.iter().any(|error| error.contains(expected)), "{expected}");
        }
    }
}
