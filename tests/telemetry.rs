//! Tests of metrics, logs and health endpoints from the outside.

#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::process::ExitStatusExt as _,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use leadergroup::telemetry::{
    ApiOutcome, ChangeKind, Endpoints, GroupReading, GroupState, Liveness, LockOperation, LockOutcome,
    LogFormat, Metrics, ReadyChecks, Server, end_on_panic, init_logs, log_subscriber,
};
use leadergroup_lock::{LockError, LockMetrics, Store};
use prometheus_client::metrics::counter::Counter;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Time limit for every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// The samples of an exposition, by name and labels. Also checks its format.
fn samples(text: &str) -> HashMap<String, f64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let described = |name: &str, what: &str| {
        let family = ["_total", "_bucket", "_count", "_sum", "_info"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        text.lines().any(|line| line.starts_with(&format!("# {what} {family} ")))
    };
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        assert!(described(name, "HELP") && described(name, "TYPE"), "{name} is not described in {text}");
        (series.to_owned(), value.parse().unwrap())
    };
    text.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

#[test]
fn each_metric_says_what_happened() {
    let metrics = Metrics::new();
    metrics.set_groups(GroupState::Active, 2);
    metrics.set_groups(GroupState::Vacant, 1);
    metrics.set_group("shop", "web", reading(), Duration::ZERO);
    metrics.set_group("shop", "db", GroupReading { active: None, eligible: 0, ..reading() }, Duration::ZERO);
    metrics.holder_changed("shop", "web", ChangeKind::Failure);
    metrics.failover("Silent", Duration::from_millis(40));
    metrics.failover("Silent", Duration::from_secs(70));
    metrics.probe("success", Some(Duration::from_millis(3)));
    metrics.set_watch_failing("pods", Duration::from_millis(1_500));
    metrics.set_probe_targets(6);
    metrics.set_lock_store_up(true);
    metrics.lock_operation(LockOperation::Grant, LockOutcome::Refused);
    metrics.session_lost();
    metrics.adoption();
    metrics.api_write("pods", ApiOutcome::Conflict);
    metrics.event_dropped();
    metrics.hook_request("promote", true);
    metrics.hook_request("demote", false);
    let samples = samples(&metrics.encode().unwrap());
    for (series, value) in [
        (format!("leadergroup_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")).as_str(), 1.0),
        ("leadergroup_groups{state=\"active\"}", 2.0),
        ("leadergroup_groups{state=\"vacant\"}", 1.0),
        ("leadergroup_active{namespace=\"shop\",name=\"web\"}", 1.0),
        ("leadergroup_active{namespace=\"shop\",name=\"db\"}", 0.0),
        ("leadergroup_active_info{namespace=\"shop\",name=\"web\",pod=\"web-0\"}", 1.0),
        ("leadergroup_eligible_pods{namespace=\"shop\",name=\"web\"}", 3.0),
        ("leadergroup_active_pods{namespace=\"shop\",name=\"web\"}", 1.0),
        ("leadergroup_fencing_token{namespace=\"shop\",name=\"web\"}", 7.0),
        ("leadergroup_last_change_timestamp_seconds{namespace=\"shop\",name=\"web\"}", 1_790_000_000.0),
        ("leadergroup_group_condition{namespace=\"shop\",name=\"web\",type=\"Ready\",status=\"true\"}", 1.0),
        ("leadergroup_outage_seconds_total{namespace=\"shop\",name=\"web\"}", 0.0),
        ("leadergroup_holder_changes_total{namespace=\"shop\",name=\"web\",kind=\"failure\"}", 1.0),
        ("leadergroup_holder_changes_total{namespace=\"shop\",name=\"web\",kind=\"planned\"}", 0.0),
        ("leadergroup_failovers_total{reason=\"Silent\"}", 2.0),
        ("leadergroup_failover_duration_seconds_bucket{le=\"0.025\"}", 0.0),
        ("leadergroup_failover_duration_seconds_bucket{le=\"0.05\"}", 1.0),
        ("leadergroup_failover_duration_seconds_bucket{le=\"60.0\"}", 1.0),
        ("leadergroup_failover_duration_seconds_bucket{le=\"3600.0\"}", 2.0),
        ("leadergroup_failover_duration_seconds_bucket{le=\"+Inf\"}", 2.0),
        ("leadergroup_failover_duration_seconds_count", 2.0),
        ("leadergroup_probes_total{outcome=\"success\"}", 1.0),
        ("leadergroup_probe_duration_seconds_bucket{le=\"0.0025\"}", 0.0),
        ("leadergroup_probe_duration_seconds_bucket{le=\"0.005\"}", 1.0),
        ("leadergroup_watch_failing_seconds{resource=\"pods\"}", 1.5),
        ("leadergroup_probe_targets", 6.0),
        ("leadergroup_lock_store_up", 1.0),
        ("leadergroup_lock_operations_total{operation=\"grant\",outcome=\"refused\"}", 1.0),
        ("leadergroup_hook_requests_total{hook=\"promote\",outcome=\"succeeded\"}", 1.0),
        ("leadergroup_hook_requests_total{hook=\"demote\",outcome=\"failed\"}", 1.0),
        ("leadergroup_lock_sessions_lost_total", 1.0),
        ("leadergroup_adoptions_total", 1.0),
        ("leadergroup_api_writes_total{kind=\"pods\",outcome=\"conflict\"}", 1.0),
        ("leadergroup_events_dropped_total", 1.0),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series} in {samples:#?}");
    }
}

#[test]
fn each_outcome_of_a_write_has_a_word_of_its_own() {
    let metrics = Metrics::new();
    let of_writes = [
        (ApiOutcome::Done, "done"),
        (ApiOutcome::Conflict, "conflict"),
        (ApiOutcome::Refused, "refused"),
        (ApiOutcome::Failed, "failed"),
    ];
    let of_lock =
        [(LockOutcome::Done, "done"), (LockOutcome::Refused, "refused"), (LockOutcome::Failed, "failed")];
    for (outcome, word) in of_writes {
        metrics.api_write(word, outcome);
    }
    for (outcome, _) in of_lock {
        metrics.lock_operation(LockOperation::Confirm, outcome);
    }
    let seen = samples(&metrics.encode().unwrap());
    for (_, word) in of_writes {
        let series = format!("leadergroup_api_writes_total{{kind=\"{word}\",outcome=\"{word}\"}}");
        assert_eq!(seen.get(&series), Some(&1.0), "{series}");
    }
    for (_, word) in of_lock {
        let series = format!("leadergroup_lock_operations_total{{operation=\"confirm\",outcome=\"{word}\"}}");
        assert_eq!(seen.get(&series), Some(&1.0), "{series}");
    }
}

/// Prometheus sees no increase in a counter that begins at 1, and no sum if a term of it has no series.
#[test]
fn counters_with_known_labels_begin_at_zero() {
    let metrics = Metrics::new().counting(["Silent", "PodDeleted"], ["active", "event"]);
    let seen = samples(&metrics.encode().unwrap());
    for series in [
        "leadergroup_failovers_total{reason=\"Silent\"}",
        "leadergroup_failovers_total{reason=\"PodDeleted\"}",
        "leadergroup_api_writes_total{kind=\"active\",outcome=\"done\"}",
        "leadergroup_api_writes_total{kind=\"active\",outcome=\"conflict\"}",
        "leadergroup_api_writes_total{kind=\"event\",outcome=\"refused\"}",
        "leadergroup_api_writes_total{kind=\"event\",outcome=\"failed\"}",
        "leadergroup_hook_requests_total{hook=\"promote\",outcome=\"succeeded\"}",
        "leadergroup_hook_requests_total{hook=\"promote\",outcome=\"failed\"}",
        "leadergroup_hook_requests_total{hook=\"demote\",outcome=\"succeeded\"}",
        "leadergroup_hook_requests_total{hook=\"demote\",outcome=\"failed\"}",
    ] {
        assert_eq!(seen.get(series), Some(&0.0), "{series} in {seen:#?}");
    }
    for outcome in ["success", "refused", "unanswered", "hint", "void"] {
        let series = format!("leadergroup_probes_total{{outcome=\"{outcome}\"}}");
        assert_eq!(seen.get(&series), Some(&0.0), "{series} in {seen:#?}");
    }
    for operation in ["grant", "vacate", "confirm", "tombstone"] {
        for outcome in ["done", "refused", "failed"] {
            let labels = format!("operation=\"{operation}\",outcome=\"{outcome}\"");
            let series = format!("leadergroup_lock_operations_total{{{labels}}}");
            assert_eq!(seen.get(&series), Some(&0.0), "{series} in {seen:#?}");
        }
    }
}

/// The page in the older text format, the only one that promtool reads: the type and help of a counter and of an info
/// belong to the name of its sample there, and there are neither units nor an end mark.
fn as_text_format(page: &str) -> String {
    let kind_of = |family: &str| {
        let prefix = format!("# TYPE {family} ");
        page.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default()
    };
    let convert = |line: &str| {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(family), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return line.to_owned();
        };
        let (name, kind) = match kind_of(family) {
            "counter" => (format!("{family}_total"), "counter"),
            "info" => (format!("{family}_info"), "gauge"),
            kind => (family.to_owned(), kind),
        };
        format!("# {what} {name} {}", if what == "TYPE" { kind } else { rest })
    };
    let lines = page.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT "));
    lines.map(|line| convert(line) + "\n").collect()
}

#[test]
fn promtool_has_nothing_against_the_metrics() {
    let store = Store::refusing(LockError::Invalid { what: "URL", problem: "is missing".to_owned() });
    let metrics = Metrics::new().with(|registry| LockMetrics::new(&store).only_database().register(registry));
    metrics.set_groups(GroupState::Active, 1);
    metrics.set_group("shop", "web", reading(), Duration::ZERO);
    metrics.failover("Silent", Duration::from_millis(40));
    metrics.probe("success", None);
    metrics.lock_operation(LockOperation::Grant, LockOutcome::Refused);
    metrics.api_write("pods", ApiOutcome::Conflict);
    metrics.hook_request("promote", true);
    let text = as_text_format(&metrics.encode().unwrap());
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is there: scripts/prerequisites.sh installs it");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let answer = promtool.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success() && complaints.is_empty(), "{complaints}\n{text}");
}

#[test]
fn metrics_that_others_count_are_read_at_each_scrape() {
    let counted: Counter = Counter::default();
    let metrics =
        Metrics::new().with(|registry| registry.register("others", "Counted by others", counted.clone()));
    for expected in [1.0, 2.0] {
        counted.inc();
        assert_eq!(samples(&metrics.encode().unwrap()).get("others_total"), Some(&expected));
    }
}

#[test]
fn the_process_shows_what_it_uses() {
    let samples = samples(&Metrics::new().encode().unwrap());
    for (name, least, most) in [
        ("process_resident_memory_bytes", 1e5, 1e11),
        ("process_open_fds", 3.0, 1e6),
        ("process_max_fds", 3.0, 1e10),
        ("process_cpu_seconds_total", 1e-6, 1e6),
        ("process_start_time_seconds", 1.7e9, 1e11),
    ] {
        let value = samples[name];
        assert!((least..most).contains(&value), "{name} is {value}");
    }
}

#[test]
fn the_series_of_a_group_end_with_its_ownership() {
    let metrics = Metrics::new();
    for n in 0..100 {
        let name = format!("g{n}");
        metrics.set_group("shop", &name, reading(), Duration::ZERO);
        metrics.holder_changed("shop", &name, ChangeKind::Planned);
        metrics.forget_group("shop", &name);
    }
    metrics.holder_changed("shop", "never-read", ChangeKind::Planned);
    metrics.forget_group("shop", "never-read");
    metrics.set_group("shop", "stays", reading(), Duration::ZERO);
    let samples = samples(&metrics.encode().unwrap());
    let of_groups: Vec<_> = samples.keys().filter(|series| series.contains("namespace=")).collect();
    // Eight gauges, two conditions, the outage, and four kinds of changes.
    assert!(
        of_groups.len() == 15 && of_groups.iter().all(|series| series.contains("stays")),
        "{of_groups:?}"
    );
}

#[test]
fn the_series_of_a_group_follow_what_is_read() {
    let metrics = Metrics::new();
    let series = |name: &str, rest: &str| {
        let shown = samples(&metrics.encode().unwrap());
        shown.get(&format!("leadergroup_{name}{{namespace=\"shop\",name=\"web\"{rest}}}")).copied()
    };
    let ready = |status| series("group_condition", &format!(",type=\"Ready\",status=\"{status}\""));
    metrics.set_group("shop", "web", reading(), Duration::ZERO);
    assert_eq!((ready("true"), ready("false")), (Some(1.0), None));
    let conditions = vec![("Ready", false)];
    let unwell = GroupReading { works: false, conditions, changed_at: None, ..reading() };
    metrics.set_group("shop", "web", unwell.clone(), Duration::from_secs(2));
    metrics.set_group(
        "shop",
        "web",
        GroupReading { labelled: 2, token: 8, ..unwell },
        Duration::from_secs(2),
    );
    assert_eq!((ready("true"), ready("false")), (None, Some(1.0)));
    assert_eq!(series("outage_seconds_total", ""), Some(4.0));
    assert_eq!((series("active_works", ""), series("last_change_timestamp_seconds", "")), (Some(0.0), None));
    assert_eq!((series("active_pods", ""), series("fencing_token", "")), (Some(2.0), Some(8.0)));
}

#[test]
fn the_active_pod_of_a_group_has_one_series() {
    let metrics = Metrics::new();
    let pods = || {
        let shown = samples(&metrics.encode().unwrap());
        let infos = shown.into_keys().filter(|series| series.starts_with("leadergroup_active_info{"));
        infos.map(|series| series.split('"').nth(5).unwrap().to_owned()).collect::<Vec<_>>()
    };
    for active in ["web-0", "web-1", "web-0"] {
        let reading = GroupReading { active: Some(active.to_owned()), ..reading() };
        metrics.set_group("shop", "web", reading, Duration::ZERO);
        assert_eq!(pods(), [active]);
    }
    metrics.set_group("shop", "web", GroupReading { active: None, ..reading() }, Duration::ZERO);
    assert_eq!(pods(), [""; 0]);
    metrics.set_group("shop", "web", reading(), Duration::ZERO);
    metrics.disown_group("shop", "web");
    assert_eq!(pods(), [""; 0]);
}

/// Nobody owns it, and somebody should be told.
#[test]
fn a_group_that_no_replica_can_own_has_conditions_and_nothing_else() {
    let metrics = Metrics::new();
    let gauges = || {
        let mut shown: Vec<_> = samples(&metrics.encode().unwrap()).into_keys().collect();
        shown.retain(|series| series.contains("namespace=") && !series.contains("_total{"));
        shown.sort();
        shown
    };
    let condition = |kind: &str, status| {
        let labels = format!("namespace=\"shop\",name=\"web\",type=\"{kind}\",status=\"{status}\"");
        format!("leadergroup_group_condition{{{labels}}}")
    };
    let stalled = [("Ready", false), ("Stalled", true)];
    for _ in 0..2 {
        metrics.set_group("shop", "web", reading(), Duration::ZERO);
        metrics.set_unowned_group("shop", "web", &stalled);
        assert_eq!(gauges(), [condition("Ready", "false"), condition("Stalled", "true")]);
    }
    metrics.set_group("shop", "web", reading(), Duration::ZERO);
    let owned = gauges();
    assert!(owned.contains(&condition("Stalled", "false")) && !owned.contains(&condition("Stalled", "true")));
    metrics.set_unowned_group("shop", "web", &stalled);
    metrics.forget_group("shop", "web");
    assert_eq!(gauges(), [""; 0]);
}

/// What was counted just before a group moved to another replica may not have been read yet.
#[test]
fn counters_of_a_group_outlive_its_ownership() {
    let metrics = Metrics::new();
    let series = || {
        let mut shown: Vec<_> = samples(&metrics.encode().unwrap()).into_keys().collect();
        shown.retain(|series| series.contains("namespace="));
        shown
    };
    metrics.set_group("shop", "web", reading(), Duration::ZERO);
    metrics.holder_changed("shop", "web", ChangeKind::Failure);
    metrics.disown_group("shop", "web");
    let counters = ["leadergroup_outage_seconds_total", "leadergroup_holder_changes_total"];
    assert!(series().iter().all(|one| counters.iter().any(|name| one.starts_with(name))), "{:?}", series());
    metrics.set_group("shop", "web", reading(), Duration::ZERO);
    let failures = "leadergroup_holder_changes_total{namespace=\"shop\",name=\"web\",kind=\"failure\"}";
    assert_eq!(samples(&metrics.encode().unwrap()).get(failures), Some(&1.0));
    metrics.forget_group("shop", "web");
    assert_eq!(series(), [""; 0]);
}

/// A group with an active pod, two standbys that could be active, and one that could not.
fn reading() -> GroupReading {
    GroupReading {
        active: Some("web-0".to_owned()),
        works: true,
        labelled: 1,
        eligible: 3,
        members: 4,
        token: 7,
        changed_at: Some(1_790_000_000),
        conditions: vec![("Ready", true), ("Stalled", false)],
    }
}

#[test]
fn a_name_cannot_break_out_of_its_label() {
    let metrics = Metrics::new();
    metrics.failover("a\"} 1\nevil_total 2", Duration::ZERO);
    let text = metrics.encode().unwrap();
    assert!(!text.lines().any(|line| line.starts_with("evil")), "{text}");
}

/// A server on the loopback address with all its handles.
struct Running {
    address: SocketAddr,
    endpoints: Endpoints,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start(liveness: Liveness) -> Self {
        Self::start_on(Ipv4Addr::LOCALHOST.into(), liveness)
    }

    fn start_on(address: IpAddr, liveness: Liveness) -> Self {
        let server = Server::bind((address, 0).into()).unwrap();
        let metrics = Arc::new(Metrics::new());
        let endpoints = Endpoints { metrics, liveness, readiness: ReadyChecks::default() };
        let (address, shutdown) = (server.address(), CancellationToken::new());
        let task = tokio::spawn(server.run(endpoints.clone(), shutdown.clone()));
        Self { address, endpoints, shutdown, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes, and reads until the server closes the connection.
    async fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        read_all(&mut stream).await
    }

    /// The status and body of a GET.
    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let (head, body) =
            answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer but {answer:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset after the answer does not matter.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server closes");
    String::from_utf8(answer).unwrap()
}

fn forever() -> Liveness {
    Liveness::new(Duration::MAX)
}

#[tokio::test]
async fn liveness_needs_a_running_loop() {
    let bound = Duration::from_secs(1);
    let running = Running::start(Liveness::new(bound));
    let becomes_stuck = async {
        loop {
            let (status, body) = running.get("/livez").await;
            if status != 200 {
                return (status, body);
            }
            assert_eq!(body, "ok\n");
        }
    };
    let (status, body) = timeout(PATIENCE, becomes_stuck).await.expect("it is not touched");
    assert_eq!(status, 503);
    assert!(
        body.starts_with("event loop: has not turned for ") && body.ends_with("at most 1000 ms\n"),
        "{body}"
    );
    let recovers = async {
        loop {
            running.endpoints.liveness.touch();
            if running.get("/livez").await.0 == 200 {
                return;
            }
        }
    };
    timeout(PATIENCE, recovers).await.expect("it is touched again");
}

#[tokio::test]
async fn ready_means_that_every_check_passes() {
    let running = Running::start(forever());
    assert_eq!(running.get("/readyz").await, (200, "ok\n".into()), "there are no checks");
    let watches = running.endpoints.readiness.check("watches", "not synced yet");
    let store = running.endpoints.readiness.check("lock store", "never reached");
    let both = "lock store: never reached\nwatches: not synced yet\n";
    assert_eq!(running.get("/readyz").await, (503, both.into()));
    watches.pass();
    assert_eq!(running.get("/readyz").await, (503, "lock store: never reached\n".into()));
    store.pass();
    assert_eq!(running.get("/readyz").await, (200, "ok\n".into()));
    watches.fail("the API server is away");
    assert_eq!(running.get("/readyz").await, (503, "watches: the API server is away\n".into()));
    assert_eq!(running.get("/livez").await.0, 200, "a restart would not help");
}

#[tokio::test]
async fn metrics_are_served_in_their_own_format() {
    let running = Running::start(forever());
    running.endpoints.metrics.adoption();
    let answer = running.exchange("GET /metrics?x=1 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.starts_with("HTTP/1.1 200") && head.to_lowercase().contains(kind), "{head}");
    assert!(body.contains("leadergroup_adoptions_total 1\n") && !samples(body).is_empty(), "{body}");
}

#[tokio::test]
async fn other_paths_and_methods_are_turned_away() {
    let running = Running::start(forever());
    assert_eq!(
        running.get("/").await,
        (404, "not found; the paths are /livez, /readyz and /metrics\n".into())
    );
    assert_eq!(running.get("/livez/").await.0, 404);
    let post = running.exchange("POST /livez HTTP/1.1\r\nhost: a\r\ncontent-length: 999999999\r\n\r\n").await;
    assert!(post.starts_with("HTTP/1.1 405") && post.to_lowercase().contains("allow: get, head"), "{post}");
    let head = running.exchange("HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    let garbage = running.exchange("not http at all\r\n\r\n").await;
    assert!(garbage.starts_with("HTTP/1.1 400"), "{garbage}");
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut_short() {
    let running = Running::start(forever());
    let mut stream = running.connect().await;
    let mut sent = stream.write_all(b"GET /livez HTTP/1.1\r\n").await;
    let mut bytes = 0;
    while sent.is_ok() && bytes < 1_000_000 {
        let line = [b"x: ".as_slice(), &[b'a'; 1_000], b"\r\n"].concat();
        bytes += line.len();
        sent = stream.write_all(&line).await;
    }
    let answer = read_all(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(running.get("/livez").await.0, 200);
}

#[tokio::test]
async fn slow_clients_delay_others_only_for_a_limited_time() {
    let running = Running::start(forever());
    let mut idle = Vec::new();
    for _ in 0..64 {
        let mut stream = running.connect().await;
        stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        idle.push(stream);
    }
    let answered = timeout(PATIENCE, running.get("/livez")).await.expect("the others are sent away");
    assert_eq!(answered.0, 200);
    for mut stream in idle {
        read_all(&mut stream).await;
    }
}

#[tokio::test]
async fn shutting_down_closes_the_port() {
    let running = Running::start(forever());
    assert_eq!(running.get("/livez").await.0, 200);
    let mut idle = running.connect().await;
    running.shutdown.cancel();
    timeout(PATIENCE, running.task).await.expect("it ends").unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
    read_all(&mut idle).await;
}

#[tokio::test]
async fn every_address_is_that_of_both_families() {
    let running = Running::start_on(Ipv6Addr::UNSPECIFIED.into(), forever());
    assert!(running.address.is_ipv6(), "this machine has IPv6");
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let mut stream = TcpStream::connect((address, running.address.port())).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: pod\r\n\r\n").await.unwrap();
        let answer = read_all(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{address}: {answer}");
    }
}

#[tokio::test]
async fn the_addresses_of_one_family_are_those_of_that_family() {
    let running = Running::start_on(Ipv4Addr::UNSPECIFIED.into(), forever());
    let port = running.address.port();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
    assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_err());
}

#[tokio::test]
async fn an_address_in_use_is_said_so() {
    let running = Running::start(forever());
    let error = Server::bind(running.address).unwrap_err().to_string();
    assert!(
        error.contains(&running.address.to_string()) && error.contains("choose a free address"),
        "{error}"
    );
}

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// The log with this format and filter.
    fn logged(format: LogFormat, filter: &str) -> String {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = log_subscriber(format, filter, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("change", group = "shop/web");
            let _guard = span.enter();
            tracing::info!(token = 7, "promoted \"web-1\"");
            tracing::debug!("detail");
            tracing::warn!(target: "kube_client::client", "an attempt failed");
            tracing::warn!(target: "kube_runtime::watcher", "an attempt failed");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }
}

#[test]
fn a_line_for_machines_is_an_object() {
    let log = Lines::logged(LogFormat::Json, "info");
    let line: serde_json::Value =
        serde_json::from_str(log.strip_suffix('\n').unwrap()).expect("one line of JSON");
    assert_eq!(line["message"], "promoted \"web-1\"");
    assert_eq!((&line["level"], &line["token"]), (&"INFO".into(), &7.into()));
    assert_eq!(line["span"]["group"], "shop/web");
    assert!(line["timestamp"].is_string() && line["target"].is_string(), "{line}");
}

#[test]
fn a_line_for_people_is_plain_and_the_filter_decides() {
    let log = Lines::logged(LogFormat::Text, "info");
    assert!(log.contains("INFO") && log.contains("group=\"shop/web\"") && log.contains("token=7"), "{log}");
    assert!(!log.contains('\u{1b}') && !log.contains("detail"), "{log}");
    assert!(Lines::logged(LogFormat::Text, "warn,telemetry=debug").contains("detail"));
    assert_eq!(Lines::logged(LogFormat::Text, "off"), "");
}

/// They log a line for every failed attempt. The operator says once what fails, and why.
#[test]
fn what_the_client_logs_is_off_unless_the_filter_names_it() {
    assert!(!Lines::logged(LogFormat::Text, "debug").contains("an attempt failed"));
    let named = Lines::logged(LogFormat::Text, "info,kube_client=warn");
    assert!(named.contains("kube_client") && !named.contains("kube_runtime"), "{named}");
}

#[test]
fn a_bad_filter_or_format_is_refused_with_the_remedy() {
    let Err(error) = log_subscriber(LogFormat::Text, "leadergroup=loud", io::stderr) else {
        panic!("there is no level `loud`")
    };
    let error = error.to_string();
    assert!(error.contains("leadergroup=loud") && error.contains("info,leadergroup=debug"), "{error}");
    for format in [LogFormat::Json, LogFormat::Text] {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let error = "yaml".parse::<LogFormat>().unwrap_err().to_string();
    assert_eq!(error, "`yaml` is no log format; write json or text");
}

#[test]
fn a_panic_in_any_task_ends_the_process_with_a_line_in_the_log() {
    const CHILD: &str = "LEADERGROUP_TEST_PANICS";
    if std::env::var_os(CHILD).is_some() {
        init_logs(LogFormat::Json, "info").unwrap();
        end_on_panic();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let task = tokio::spawn(async { panic!("one task of many") });
            // Without the hook the other tasks, like this one, would continue.
            assert!(task.await.is_err());
        });
        return;
    }
    let name = "a_panic_in_any_task_ends_the_process_with_a_line_in_the_log";
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(6), "it ends by SIGABRT: {:?}: {errors}", output.status);
    let line = errors.lines().find(|line| line.contains("one task of many")).unwrap_or_default();
    assert!(line.starts_with('{') && line.contains("\"level\":\"ERROR\""), "{errors}");
}
