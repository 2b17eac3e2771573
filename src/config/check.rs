//! The checks that need several settings: each value is valid by itself, but they may not fit together.

use std::collections::BTreeMap;

use leadergroup_lock::{LockError, Store};

use super::{
    error::{Origin, SettingsError},
    settings::{CA_FILE, Settings, URL, URL_FILE},
    table::{self, Setting},
    words,
};

/// Checks the settings together.
pub(super) fn together(
    settings: &mut Settings,
    environment: &BTreeMap<String, String>,
    errors: &mut Vec<SettingsError>,
) {
    url_is_given_once(settings, environment, errors);
    if errors.is_empty() {
        database_can_be_used(settings, errors);
    }
    let mut refuse = |key: &str, problem: &str| {
        errors.push(SettingsError {
            origin: settings.origin(key).clone(),
            problem: format!("{key} {problem}"),
        });
    };
    if settings.retry_interval * 3 > settings.ttl {
        refuse(
            "retryInterval",
            "must be at most a third of ttl, so that one lost heartbeat does not look like a dead replica: write a \
             shorter retryInterval or a longer ttl",
        );
    }
    if settings.database.statement_timeout * 2 > settings.ttl {
        refuse(
            "database.statementTimeout",
            "must be at most half of ttl, so that a heartbeat that hangs can be tried again: write a shorter \
             statementTimeout or a longer ttl",
        );
    }
    // A default that does not fit is not the user's mistake.
    if settings.fence.patience * 2 > settings.database.statement_timeout
        && *settings.origin("fence.patience") != Origin::Default
    {
        refuse(
            "fence.patience",
            "must be at most half of database.statementTimeout, so that there is time left for the change: write a \
             shorter patience or a longer statementTimeout",
        );
    }
    if settings.database.max_idle_connections > settings.database.max_open_connections {
        refuse(
            "database.maxIdleConnections",
            "must be at most maxOpenConnections: write a smaller number, or a larger maxOpenConnections",
        );
    }
    if settings.replica.is_empty() {
        refuse("replica", "is not set, and this host has no name: write --replica or the variable POD_NAME");
    }
}

/// The URL comes from a setting or from a file, never from both: with a precedence between the two, a strong source of
/// one could silently lose against a weak source of the other.
fn url_is_given_once(
    settings: &mut Settings,
    environment: &BTreeMap<String, String>,
    errors: &mut Vec<SettingsError>,
) {
    let by_problem = settings.database_problem.as_ref().map(|problem| &problem.origin);
    let by_url = by_problem.or((!settings.url_is_unset()).then(|| settings.origin(URL)));
    match (by_url, &settings.database.url_file) {
        (Some(_), None) | (None, Some(_)) => {}
        (Some(other), Some(_)) => errors.push(SettingsError {
            origin: settings.origin(URL_FILE).clone(),
            problem: format!("{URL_FILE} is set, and {URL}, too ({other}): take one of the two out"),
        }),
        (None, None) => {
            let variable = table::by_key(URL).map(Setting::variable).unwrap_or_default();
            if environment.contains_key(&variable) {
                let problem = format!("{URL} is empty: write a URL like postgres://user@host:5432/name");
                let origin = Origin::Environment(variable);
                settings.database_problem = Some(SettingsError { origin, problem });
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

/// The lock crate accepts the database's configuration. It does not connect.
fn database_can_be_used(settings: &mut Settings, errors: &mut Vec<SettingsError>) {
    if settings.database_problem.is_none()
        && let Err(LockError::Config { key, problem }) = Store::new(&settings.database)
    {
        let (key, problem) = (words::setting(key), words::in_settings(&problem));
        let error =
            SettingsError { origin: settings.origin(&key).clone(), problem: format!("{key} {problem}") };
        let by_url = key == URL || key == CA_FILE;
        if by_url && matches!(settings.origin(URL), Origin::Environment(_)) {
            settings.database_problem = Some(error);
        } else {
            errors.push(error);
        }
    }
}
