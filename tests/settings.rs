//! Settings: which source wins, and that whatever is wrong is refused with its place and the remedy.

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]
#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

use std::{collections::BTreeMap, io::Write as _, path::Path, process::Command, time::Duration};

use leadergroup::config::{LogFormat, Origin, Settings, Sources};
use tempfile::NamedTempFile;

const URL: &str = "postgres://lock:s3cret@db:5432/locks";

fn file(yaml: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(yaml.as_bytes()).expect("it can be written");
    file
}

fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Sources that are enough to start with.
fn enough() -> Sources {
    Sources {
        flags: [("database.url", URL.to_owned())].into(),
        host_name: "host-1".into(),
        ..Sources::default()
    }
}

fn problems(sources: &Sources) -> Vec<String> {
    let errors = Settings::load(sources).expect_err("it must be refused");
    errors.0.iter().map(ToString::to_string).collect()
}

#[test]
fn a_url_is_enough() {
    let settings = Settings::load(&enough()).unwrap();
    assert_eq!(settings.ttl, Duration::from_secs(4));
    assert_eq!(settings.retry_interval, Duration::from_secs(1));
    assert_eq!(settings.database.url.reveal(), URL);
    assert_eq!(settings.replica, "host-1");
    assert_eq!(settings.listen.port(), 8080);
    assert_eq!(settings.log.format, LogFormat::Json);
    assert_eq!(settings.tracing_endpoint, None);
    assert!(settings.namespaces.is_empty());
    assert!(
        settings.ttl + settings.retry_interval <= Duration::from_secs(5),
        "a replica's loss is noticed within 5 s"
    );
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = file("ttl: 7s\nretryInterval: 700ms\nlog: {format: text, filter: warn}\nnamespaces: [b, a]\n");
    let mut sources = enough();
    sources.config = Some(file.path().to_owned());
    sources.environment = environment(&[
        ("LEADERGROUP_TTL", "8s"),
        ("LEADERGROUP_LOG_FILTER", "debug"),
        ("LEADERGROUP_LISTEN", ""),
        ("LEADERGROUP_DATABASE_SYNCHRONOUS_HEARTBEATS", "true"),
        ("POD_NAME", "operator-0"),
        ("HOME", "/root"),
    ]);
    sources.flags.insert("ttl", "9s".to_owned());
    let settings = Settings::load(&sources).unwrap();
    assert_eq!(settings.ttl, Duration::from_secs(9));
    assert_eq!(settings.origin("ttl"), &Origin::Flag("ttl".into()));
    assert_eq!(settings.log.filter, "debug");
    assert_eq!(settings.origin("log.filter"), &Origin::Environment("LEADERGROUP_LOG_FILTER".into()));
    assert_eq!(settings.retry_interval, Duration::from_millis(700));
    assert_eq!(settings.origin("retryInterval"), &Origin::File { path: file.path().into(), line: 2 });
    assert_eq!(settings.log.format, LogFormat::Text);
    assert_eq!(settings.namespaces, ["a", "b"]);
    assert_eq!(settings.replica, "operator-0");
    assert!(
        settings.database.synchronous_heartbeats
            && !Settings::load(&enough()).unwrap().database.synchronous_heartbeats
    );
    assert_eq!(settings.origin("listen"), &Origin::Default, "a variable that is set to nothing is not set");
}

#[test]
fn the_file_can_also_be_named_by_the_environment_but_a_flag_wins() {
    let (by_variable, by_flag) = (file("ttl: 10s\n"), file("ttl: 11s\n"));
    let mut sources = enough();
    sources.environment = environment(&[("LEADERGROUP_CONFIG", &by_variable.path().display().to_string())]);
    assert_eq!(Settings::load(&sources).unwrap().ttl, Duration::from_secs(10));
    sources.config = Some(by_flag.path().to_owned());
    assert_eq!(Settings::load(&sources).unwrap().ttl, Duration::from_secs(11));
}

#[test]
fn what_is_wrong_in_the_file_is_named_with_its_line() {
    let cases = [
        (
            "ttl: 4s\nretryIntervall: 1s\n",
            2,
            "unknown key retryIntervall: write a key",
            "(did you mean retryInterval?)",
        ),
        ("database:\n  ulr: x\n", 2, "unknown key database.ulr", "(did you mean database.url?)"),
        ("colour: red\n", 1, "unknown key colour", "run --help"),
        ("ttl: 4\n", 1, "ttl must be from 1s to 1h: write a number with a unit", "(found `4`)"),
        ("ttl: 1 day\n", 1, "ttl must be from 1s to 1h", "(found `1 day`)"),
        ("ttl: 2h\n", 1, "ttl must be from 1s to 1h", "(found `2h`)"),
        ("retryInterval: 10ms\n", 1, "retryInterval must be from 100ms to a third of ttl", "(found `10ms`)"),
        ("ttl: [4s]\n", 1, "ttl must be a single value", "write `ttl: value`"),
        ("log: debug\n", 1, "log is a section", "such as log.format"),
        (
            "log: {format: xml}\n",
            1,
            "log.format must be one of two words: write json or text",
            "(found `xml`)",
        ),
        ("log:\n  filter: leadergroup=loud\n", 2, "log.filter is not a filter", "write a level such as info"),
        ("namespaces:\n  - default\n  - My_Team\n", 2, "namespaces contains `My_Team`", "default,my-team"),
        ("namespaces: [[a]]\n", 1, "is not valid YAML", "write `key: value` pairs"),
        (
            "database: {maxOpenConnections: 2}\n",
            1,
            "database.maxOpenConnections must be from 3 to 1000",
            "(found `2`)",
        ),
        ("database: {maxIdleConnections: -1}\n", 1, "database.maxIdleConnections must be", "(found `-1`)"),
        (
            "database: {connectionMaxLifetime: 0s}\n",
            1,
            "database.connectionMaxLifetime must be",
            "such as 500ms",
        ),
        (
            "database: {statementTimeout: 1ms}\n",
            1,
            "database.statementTimeout must be",
            "from 10ms to half of ttl",
        ),
        ("fence: {patience: 0s}\n", 1, "fence.patience must be", "half of database.statementTimeout"),
        ("fence: {overrun: kill}\n", 1, "fence.overrun must be one of two words", "terminate or wait"),
        ("database: {caFile: ''}\n", 1, "database.caFile must be the path of a file", "leave it out"),
        ("node: A\n", 1, "node must be 1 to 253", "write the node's name"),
        ("replica: a b\n", 1, "replica must be 1 to 253", "write the pod's name"),
        (
            "tracing: {endpoint: otel-collector:4318}\n",
            1,
            "tracing.endpoint must be a URL",
            "http://otel-collector:4318",
        ),
        (
            "tracing: {endpoint: 'http://me:secret@host'}\n",
            1,
            "tracing.endpoint must be a URL",
            "without a user",
        ),
        ("tracing: {endpoint: 'grpc://host:4317'}\n", 1, "tracing.endpoint must be a URL", "or leave it out"),
        ("tracing: {endpoint: 'http://host/?tenant=1'}\n", 1, "tracing.endpoint must be a URL", "a query"),
        ("listen: 8080\n", 1, "listen must be an address and a port", "[::]:8080"),
        ("ttl: 4s\nttl: 5s\n", 2, "sets a key twice", "each key once"),
        ("ttl: 4s\n]", 2, "is not valid YAML", "write `key: value` pairs"),
        ("just text\n", 1, "the file must consist of `key: value` pairs", "such as `ttl: 4s`"),
    ];
    for (yaml, line, problem, remedy) in cases {
        let file = file(yaml);
        let mut sources = enough();
        sources.config = Some(file.path().to_owned());
        let found = problems(&sources);
        assert_eq!(found.len(), 1, "{yaml}: {found:?}");
        assert!(found[0].starts_with(&format!("{}:{line}: ", file.path().display())), "{yaml}: {}", found[0]);
        assert!(found[0].contains(problem) && found[0].contains(remedy), "{yaml}: {}", found[0]);
    }
}

#[test]
fn a_collector_of_traces_may_be_named() {
    for url in ["http://otel-collector:4318", "https://[2001:db8::1]:4318/otlp/"] {
        let mut sources = enough();
        sources.environment = environment(&[("LEADERGROUP_TRACING_ENDPOINT", url)]);
        let settings = Settings::load(&sources).unwrap();
        assert_eq!(settings.tracing_endpoint.as_deref(), Some(url));
        assert!(settings.to_string().contains(&format!("tracing:\n  endpoint: \"{url}\" # ")), "{settings}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let mut sources = enough();
    sources.config = Some("/nonexistent/settings.yaml".into());
    let found = problems(&sources);
    assert!(found[0].contains("/nonexistent/settings.yaml cannot be read"), "{found:?}");
    assert!(found[0].contains("write the path of a readable file"), "{found:?}");
}

#[test]
fn an_empty_file_and_empty_keys_set_nothing() {
    for yaml in ["", "# nothing\n", "ttl:\ndatabase:\n", "ttl: null\n", "{}"] {
        let file = file(yaml);
        let mut sources = enough();
        sources.config = Some(file.path().to_owned());
        assert_eq!(Settings::load(&sources).unwrap().ttl, Duration::from_secs(4), "{yaml:?}");
    }
}

#[test]
fn a_misspelt_variable_is_refused_but_not_what_kubernetes_or_a_parent_process_sets() {
    let mut sources = enough();
    sources.environment = environment(&[
        ("LEADERGROUP_SERVICE_HOST", "198.18.0.1"),
        ("LEADERGROUP_SERVICE_PORT", "5432"),
        ("LEADERGROUP_POSTGRESQL_SERVICE_PORT_DB", "5432"),
        ("LEADERGROUP_POSTGRESQL_PORT", "tcp://198.18.0.1:5432"),
        ("LEADERGROUP_POSTGRESQL_PORT_5432_TCP", "tcp://198.18.0.1:5432"),
        ("LEADERGROUP_POSTGRESQL_PORT_5432_TCP_PROTO", "tcp"),
        ("LEADERGROUP_POSTGRESQL_PORT_5432_TCP_PORT", "5432"),
        ("LEADERGROUP_POSTGRESQL_PORT_5432_TCP_ADDR", "198.18.0.1"),
    ]);
    Settings::load(&sources).unwrap();
    // What `leadergroup exec` and the agent give to programs, such as this one.
    sources.environment = environment(&[
        ("LEADERGROUP_KEY", "nightly"),
        ("LEADERGROUP_TOKEN", "7"),
        ("LEADERGROUP_GROUP", "web"),
        ("LEADERGROUP_POD", "web-0"),
    ]);
    Settings::load(&sources).unwrap();
    sources.environment = environment(&[("LEADERGROUP_RETRYINTERVAL", "1s")]);
    let found = problems(&sources);
    assert!(
        found[0].starts_with("environment variable LEADERGROUP_RETRYINTERVAL: is no setting"),
        "{found:?}"
    );
    assert!(found[0].contains("did you mean LEADERGROUP_RETRY_INTERVAL?"), "{found:?}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    for (flags, key, remedy) in [
        (
            [("ttl", "2s"), ("retryInterval", "1s")],
            "retryInterval must be at most a third of ttl",
            "longer ttl",
        ),
        (
            [("ttl", "3s"), ("database.statementTimeout", "2s")],
            "database.statementTimeout must be at most half",
            "ttl",
        ),
        (
            [("database.maxOpenConnections", "3"), ("database.maxIdleConnections", "4")],
            "database.maxIdleConnections must be at most maxOpenConnections",
            "smaller number",
        ),
        (
            [("fence.patience", "501ms"), ("fence.overrun", "wait")],
            "fence.patience must be at most half of database.statementTimeout",
            "shorter patience",
        ),
    ] {
        let mut sources = enough();
        sources.flags.insert("database.statementTimeout", "1s".to_owned());
        sources.flags.extend(flags.map(|(key, text)| (key, text.to_owned())));
        let found = problems(&sources);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(key) && found[0].contains(remedy), "{found:?}");
    }
}

#[test]
fn the_database_must_be_named_and_its_url_valid() {
    let mut sources = enough();
    sources.flags.clear();
    let found = problems(&sources);
    assert!(
        found[0].starts_with("database.url is not set: write --database-url, LEADERGROUP_DATABASE_URL"),
        "{found:?}"
    );
    assert!(found[0].contains("--database-url-file, LEADERGROUP_DATABASE_URL_FILE"), "{found:?}");
    for url in
        ["mysql://db/locks", "postgres://db/locks?sslmod=disable", "postgres://db:x/locks", "postgres://db"]
    {
        sources.flags = [("database.url", url.to_owned())].into();
        let found = problems(&sources);
        assert!(found[0].starts_with("--database-url: database.url"), "{found:?}");
        assert!(found[0].contains("write"), "{found:?}");
    }
}

#[test]
fn the_url_may_stand_in_a_file_which_need_not_be_there_yet() {
    let mut sources = enough();
    sources.flags = [("database.urlFile", "/nonexistent/url".to_owned())].into();
    // As a manifest does that sets the variable to nothing.
    sources.environment = environment(&[("LEADERGROUP_DATABASE_URL", "")]);
    let settings = Settings::load(&sources).unwrap();
    assert_eq!(settings.database.url_file.as_deref(), Some(Path::new("/nonexistent/url")));
    assert_eq!(settings.database_problem, None);
    assert!(settings.store().is_ok());
    assert!(
        settings.to_string().contains("  urlFile: \"/nonexistent/url\" # --database-url-file\n"),
        "{settings}"
    );
    sources.flags.insert("database.urlFile", String::new());
    assert!(problems(&sources)[0].starts_with("--database-url-file: database.urlFile must be the path"));
}

#[test]
fn neither_of_url_and_its_file_wins_over_the_other() {
    let by_file = file("ttl: 4s\ndatabase:\n  urlFile: /url\n");
    let mut sources = enough();
    sources.config = Some(by_file.path().to_owned());
    let found = problems(&sources);
    let place = format!("{}:3: ", by_file.path().display());
    assert_eq!(
        found,
        [place + "database.urlFile is set, and database.url, too (--database-url): take one of the two out"]
    );
    // A wrong one is one, too.
    sources.flags.clear();
    for url in [URL, "mysql://lock:s3cret@db/locks"] {
        sources.environment = environment(&[("LEADERGROUP_DATABASE_URL", url)]);
        let found = problems(&sources).join("\n");
        assert!(found.contains("(environment variable LEADERGROUP_DATABASE_URL): take one"), "{found}");
        assert!(!found.contains("s3cret"), "{found}");
    }
}

#[test]
fn a_wrong_url_in_the_environment_is_a_problem_of_the_database_and_not_of_the_start() {
    let mut sources = enough();
    sources.flags.clear();
    for url in [
        "",
        "mysql://db/locks",
        "postgres://db/locks?sslmod=disable",
        "postgres://u:s3cret@db:x/locks",
        "postgres://db",
    ] {
        sources.environment = environment(&[("LEADERGROUP_DATABASE_URL", url)]);
        let settings = Settings::load(&sources).unwrap();
        let problem = settings.database_problem.as_ref().unwrap().to_string();
        let expected = "environment variable LEADERGROUP_DATABASE_URL: database.url ";
        assert!(problem.starts_with(expected) && problem.contains("write"), "{problem}");
        assert!(settings.store().is_ok() && !problem.contains("s3cret"), "{problem}");
    }
    // What goes before it, or was there already, counts.
    sources.flags = enough().flags;
    assert_eq!(Settings::load(&sources).unwrap().database_problem, None);
    // Everything else in the environment is refused at the start, as ever.
    sources.environment = environment(&[("LEADERGROUP_DATABASE_URL", "x"), ("LEADERGROUP_TTL", "x")]);
    assert_eq!(problems(&sources).len(), 1);
}

#[test]
fn a_migration_with_a_wrong_url_in_the_environment_ends_at_once() {
    let output = program(&["migrate", "--replica", "r"])
        .env("LEADERGROUP_DATABASE_URL", "mysql://u:s3cret@db/locks")
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("must be a PostgreSQL URL") && !errors.contains("s3cret"), "{errors}");
}

#[test]
fn no_password_is_ever_shown() {
    let settings = Settings::load(&enough()).unwrap();
    assert!(!format!("{settings:?}").contains("s3cret"), "Debug");
    assert!(!settings.to_string().contains("s3cret"), "the printed settings");
    assert!(settings.to_string().contains("postgres://lock:***@db:5432/locks"), "{settings}");
    for yaml in [
        "database: {url: 'mysql://lock:s3cret@db/locks'}",
        "database: {url: 'postgres://lock:s3cret@db:99999/locks'}",
        "database:\n  url: [postgres://lock:s3cret@db/locks]\n",
        "database:\n  url: 'postgres://lock:s3cret@db/locks\n",
        "database: {url: {postgres: s3cret}}",
        "url: postgres://lock:s3cret@db/locks",
        "postgres://lock:s3cret@db/locks",
    ] {
        let file = file(yaml);
        let sources =
            Sources { config: Some(file.path().to_owned()), host_name: "h".into(), ..Sources::default() };
        let found = problems(&sources).join("\n");
        assert!(!found.contains("s3cret"), "{yaml}: {found}");
    }
}

#[test]
fn the_printed_settings_are_a_settings_file() {
    let mut sources = enough();
    sources.flags.extend([("namespaces", "b,a".to_owned()), ("ttl", "1m30s".to_owned())]);
    let printed = Settings::load(&sources).unwrap().to_string();
    let file = file(&printed);
    let read =
        Settings::load(&Sources { config: Some(file.path().to_owned()), ..Sources::default() }).unwrap();
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(" # ").next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(values(&read.to_string()), values(&printed));
}

/// The program with an environment of its own.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leadergroup"));
    command.env_clear().args(arguments);
    command
}

#[test]
fn wrong_settings_end_the_program_at_once_with_every_problem_on_a_line() {
    let output = program(&["run", "--ttl", "x", "--listen", "y"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors.lines().count(), 2, "{errors}");
    assert!(errors.lines().all(|line| line.starts_with("leadergroup: --")), "{errors}");
}

#[test]
fn the_settings_in_force_can_be_printed() {
    let output = program(&["run", "--print-config", "--database-url", URL, "--replica", "r"])
        .env("LEADERGROUP_TTL", "6s")
        .output()
        .expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}");
    assert!(printed.starts_with("ttl: 6s # environment variable LEADERGROUP_TTL\n"), "{printed}");
    assert!(!printed.contains("s3cret"), "{printed}");
}
