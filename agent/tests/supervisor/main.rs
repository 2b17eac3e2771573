//! The agent as process 1 of a container: a PID namespace of its own, a program with children, and an API server that
//! the test can stop.

#![allow(unreachable_pub, reason = "modules of one test")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api_server;
mod container;
mod readiness;
mod waiting;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::{Duration, Instant},
};

use api_server::ApiServer;
use container::Container;
use leadergroup_agent::contract::KILL_MARGIN;
use waiting::eventually;

/// Long enough for a busy machine, short enough to see the end of it.
const LEASE: Duration = Duration::from_secs(4);

#[test]
fn a_program_starts_with_its_term_and_ends_with_the_next() {
    let api = ApiServer::start();
    let container =
        Container::start(&api, "echo \"$LEADERGROUP_TOKEN $LEADERGROUP_KEY\" >ran; exec sleep 1000");
    let boot = container.boot();
    // Not this start, and not yet.
    api.declare(6, "A".repeat(43).as_str(), true, LEASE);
    api.declare(7, &boot, false, LEASE);
    let seen = api.reads();
    eventually("two more reads", || api.reads() >= seen + 2);
    assert_eq!(container.read("ran"), None);
    api.declare(7, &boot, true, LEASE);
    eventually("the program", || container.read("ran").is_some_and(|text| text == "7 shop/web\n"));
    assert_eq!(container.answer(), (7, false));
    api.declare(8, "A".repeat(43).as_str(), true, LEASE);
    eventually("its end", || container.processes("sleep 1000") == 0);
    eventually("the promise", || container.answer() == (8, true));
    assert!(container.is_running(), "it stands by");
    eventually("the metrics", || {
        let (_, text) = container.get("/metrics").unwrap_or_default();
        let has = |sample: &str| text.lines().any(|line| line == format!("leadergroup_agent_{sample}"));
        has("starts_total 1")
            && has("ends_total{reason=\"superseded\"} 1")
            && has("exits_total{status=\"143\"} 1")
    });
    // No term starts twice.
    api.declare(7, &boot, true, LEASE);
    let seen = api.reads();
    eventually("two more reads", || api.reads() >= seen + 2);
    assert_eq!(container.processes("sleep 1000"), 0);
}

#[test]
fn a_group_without_agents_is_told_once() {
    let api = ApiServer::start();
    api.set_agent(false);
    let container = Container::start(&api, "exec sleep 1000");
    let lines = |text: &str| container.log().lines().filter(|line| line.contains(text)).count();
    eventually("the reason", || lines("LeaderGroup shop/web has no spec.agent") > 0);
    let seen = api.reads();
    eventually("two more reads", || api.reads() >= seen + 2);
    assert_eq!(lines("has no spec.agent"), 1, "{}", container.log());
    api.set_agent(true);
    api.declare(7, &container.boot(), true, LEASE);
    eventually("the program", || container.processes("sleep 1000") > 0);
    api.set_agent(false);
    eventually("the reason, again", || lines("has no spec.agent") == 2);
}

/// A program that ignores SIGTERM, and leaves behind a daemon in a session of its own.
const STUBBORN: &str = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 1001 & wait' &); touch ran; \
                        while :; do date +%s.%N >alive; sleep 0.05; done";

#[test]
fn without_the_api_server_nothing_is_left_of_the_program_at_the_end_of_its_lease() {
    let api = ApiServer::start();
    let container = Container::start(&api, STUBBORN);
    api.declare(7, &container.boot(), true, LEASE);
    eventually("the program", || container.read("ran").is_some());
    let last = api.stop();
    eventually("its end", || container.processes("sleep 100") == 0);
    assert!(last.elapsed() >= LEASE / 2, "it may run for the rest of its lease");
    assert_outlived(&container, last);
    assert!(container.is_running(), "it stands by");
}

/// Nothing reads the log, and the program has filled it.
#[test]
fn a_log_that_is_full_prolongs_nothing() {
    let api = ApiServer::start();
    let script = format!("(dd if=/dev/zero bs=4096 >&2 &); {STUBBORN}");
    let container = Container::start_unread(&api, &["sh", "-c", &script]);
    api.declare(7, &container.boot(), true, LEASE);
    eventually("the program", || container.read("ran").is_some());
    let last = api.stop();
    eventually("its end", || container.processes("sleep 100") == 0);
    assert_outlived(&container, last);
}

#[test]
fn a_network_process_that_was_stopped_or_killed_prolongs_nothing() {
    for signal in ["STOP", "KILL"] {
        let api = ApiServer::start();
        let container = Container::start(&api, STUBBORN);
        api.declare(7, &container.boot(), true, LEASE);
        eventually("the program", || container.read("ran").is_some());
        if signal == "KILL" {
            // The next network process reads nothing either.
            api.stop();
        }
        container.signal("__network", signal);
        let last = Instant::now();
        eventually("the program's end", || container.processes("sleep 100") == 0);
        assert_outlived(&container, last);
    }
}

/// The program has written for at most one lease after the last answered read, which was sent before this time, and for
/// as long as the supervisor may wait for the CPU.
fn assert_outlived(container: &Container, last: Instant) {
    let (alive, now) = (container.modified("alive").unwrap(), std::time::SystemTime::now());
    let ended = Instant::now().checked_sub(now.duration_since(alive).unwrap_or_default()).unwrap();
    let after = ended.saturating_duration_since(last);
    assert!(after <= LEASE + KILL_MARGIN, "it wrote for {after:?}");
}

#[test]
fn a_program_that_ends_by_itself_ends_the_container_with_its_status() {
    for (script, status) in [("exit 7", 7), ("kill -9 $$", 137), ("(setsid sleep 1002 &); exit 0", 0)] {
        let api = ApiServer::start();
        let container = Container::start(&api, script);
        api.declare(7, &container.boot(), true, LEASE);
        assert_eq!(container.status(), status, "{script}");
        assert_eq!(container.processes("sleep 1002"), 0, "nothing outlives it");
    }
}

#[test]
fn signals_reach_the_program_and_a_container_that_is_ended_starts_nothing() {
    let api = ApiServer::start();
    let script = "trap 'echo hup >>got' HUP; trap 'echo term >>got; exit 3' TERM; touch ran; while :; do sleep 0.05; done";
    let container = Container::start(&api, script);
    api.declare(7, &container.boot(), true, LEASE);
    eventually("the program", || container.read("ran").is_some());
    container.signal("run --group", "HUP");
    eventually("the signal", || container.read("got").is_some_and(|text| text == "hup\n"));
    container.signal("run --group", "TERM");
    assert_eq!(container.status(), 3);
    assert_eq!(container.read("got").unwrap(), "hup\nterm\n");

    let standby = Container::start(&api, "touch ran");
    standby.boot();
    standby.signal("run --group", "TERM");
    assert_eq!(standby.status(), 0);
    assert_eq!(standby.read("ran"), None);
}

#[test]
fn the_operator_is_answered_on_one_connection_whoever_else_holds_connections_open() {
    let api = ApiServer::start();
    let container = Container::start(&api, "exec sleep 1003");
    container.boot();
    let mut operators = container.connect();
    let mut ask = || {
        operators.write_all(b"GET /answer HTTP/1.1\r\nHost: agent\r\n\r\n").unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"\"}") {
            let mut bytes = [0; 1024];
            let length = operators.read(&mut bytes).unwrap();
            assert!(length > 0, "closed");
            text.extend_from_slice(&bytes[..length]);
        }
        assert!(text.starts_with(b"HTTP/1.1 200"));
    };
    ask();
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = container.connect();
        // The agent may have closed it.
        let _ = stream.write_all(b"GET /answer HTTP/1.1\r\n");
        slow.push(stream);
    }
    ask();
    assert_eq!(container.answer(), (0, true), "on a new connection");
    container.signal("run --group", "TERM");
    assert_eq!(container.status(), 0);
    assert_eq!(operators.read(&mut [0; 1]).unwrap_or(0), 0, "it is seen at once");
}

#[test]
fn the_agent_answers_on_ipv4_also_where_ipv6_sockets_are_ipv6_only() {
    let answer = container::livez_where_ipv6_sockets_are_ipv6_only();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn the_agent_installs_itself_also_over_an_earlier_one() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().to_str().unwrap();
    // What an init container has left behind that was killed.
    fs::write(directory.path().join(".leadergroup-agent.new"), "half").unwrap();
    for _ in 0..2 {
        assert_eq!(container::outside(&["install", path]).0, 0);
    }
    let names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["leadergroup-agent"]);
    let installed = directory.path().join("leadergroup-agent");
    assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o7777, 0o555);
    assert!(Command::new(&installed).arg("--version").status().unwrap().success());
    assert!(fs::read(&installed).unwrap() == fs::read(container::AGENT).unwrap());
    let (status, log) = container::outside(&["install", "/nowhere"]);
    assert_eq!(status, 125);
    assert!(log.contains("copying the agent to /nowhere"), "{log}");
}

#[test]
fn if_the_agent_is_killed_nothing_is_left() {
    let api = ApiServer::start();
    let container = Container::start(&api, STUBBORN);
    api.declare(7, &container.boot(), true, LEASE);
    eventually("the program", || container.read("ran").is_some());
    container.signal("run --group", "KILL");
    container.status();
    eventually("the end of all", || container.processes("sleep 100") == 0);
}

#[test]
fn a_program_that_cannot_be_run_and_an_agent_that_is_not_process_1_say_so() {
    let api = ApiServer::start();
    let container = Container::start_command(&api, &["/nowhere/program"]);
    api.declare(7, &container.boot(), true, LEASE);
    assert_eq!(container.status(), 127);
    assert!(container.log().contains("/nowhere/program cannot be run"), "{}", container.log());
    let (status, log) =
        container::outside(&["run", "--group", "web", "--namespace", "shop", "--pod", "p", "--", "true"]);
    assert_eq!(status, 125);
    assert!(log.contains("must be process 1 of its container"), "{log}");
}
