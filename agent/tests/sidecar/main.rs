//! The agent as a sidecar: what it tells programs that ask, and an API server that the test can stop.

#![allow(unreachable_pub, reason = "modules of one test")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../supervisor/api_server.rs"]
#[allow(dead_code, reason = "the supervisor's tests use more of it")]
mod api_server;
mod process;
#[path = "../supervisor/waiting.rs"]
mod waiting;

use std::time::{Duration, Instant};

use api_server::ApiServer;
use leadergroup_agent::contract::KILL_MARGIN;
use process::Sidecar;
use waiting::eventually;

/// Long enough for a busy machine, short enough to see the end of it.
const LEASE: Duration = Duration::from_secs(4);

fn other() -> String {
    "A".repeat(43)
}

#[test]
fn a_pod_is_active_from_its_own_term_to_the_next() {
    let api = ApiServer::start();
    let sidecar = Sidecar::start(&api);
    let boot = sidecar.promise().boot.to_string();
    assert_eq!(sidecar.file(), None, "that of an earlier start");
    let mut lines = sidecar.watch();
    assert_eq!(lines.next()["active"], false);
    // Not this start, and not yet.
    api.declare(6, &other(), true, LEASE);
    api.declare(7, &boot, false, LEASE);
    let seen = api.reads();
    eventually("two more reads", || api.reads() >= seen + 2);
    assert_eq!(sidecar.active(), None);
    api.declare(7, &boot, true, LEASE);
    let mut line = lines.next();
    while line["active"] == false {
        line = lines.next();
    }
    let of = |value: &serde_json::Value| (value["key"].clone(), value["token"].clone());
    assert_eq!(of(&line), ("shop/web".into(), 7.into()));
    let answer = sidecar.active().unwrap();
    assert_eq!(of(&answer), of(&line));
    let remaining = Duration::from_millis(answer["remainingMilliseconds"].as_u64().unwrap());
    assert!(remaining <= LEASE, "{remaining:?}");
    assert_eq!(of(&sidecar.file().unwrap()), of(&line));
    assert!(!sidecar.promise().idle);
    // Each read extends the lease.
    let ends_at = answer["endsAtBoottimeMilliseconds"].as_u64();
    eventually("a longer lease", || sidecar.file().unwrap()["endsAtBoottimeMilliseconds"].as_u64() > ends_at);
    api.declare(8, &other(), true, LEASE);
    eventually("the promise", || sidecar.promise().idle);
    assert_eq!((sidecar.active(), sidecar.file()), (None, None));
    assert_eq!(sidecar.promise().floor, 8);
    while line["active"] == true {
        line = lines.next();
    }
}

#[test]
fn without_the_api_server_a_pod_is_not_active_any_more_at_the_end_of_its_lease() {
    let api = ApiServer::start();
    let sidecar = Sidecar::start(&api);
    api.declare(7, &sidecar.promise().boot.to_string(), true, LEASE);
    eventually("the term", || sidecar.active().is_some());
    let mut lines = sidecar.watch();
    let last = api.stop();
    // The watch says so by itself, and again and again before.
    while lines.next()["active"] == true {
        assert!(last.elapsed() <= LEASE + KILL_MARGIN, "it is told in time");
    }
    assert_eq!((sidecar.active(), sidecar.file()), (None, None));
    assert!(sidecar.promise().idle);
}

#[test]
fn a_file_ends_with_its_lease_although_nobody_asks() {
    let api = ApiServer::start();
    let sidecar = Sidecar::start(&api);
    api.declare(7, &sidecar.promise().boot.to_string(), true, LEASE);
    eventually("the file", || sidecar.file().is_some());
    let last = api.stop();
    eventually("its end", || sidecar.file().is_none());
    assert!(last.elapsed() <= LEASE + KILL_MARGIN, "{:?}", last.elapsed());
}

#[test]
fn an_agent_that_was_frozen_says_nothing_that_was_true_before() {
    let api = ApiServer::start();
    let sidecar = Sidecar::start(&api);
    api.declare(7, &sidecar.promise().boot.to_string(), true, LEASE);
    eventually("the term", || sidecar.active().is_some());
    api.stop();
    sidecar.signal("STOP");
    // The question waits for the agent, in the kernel's queue.
    let asked = sidecar.ask_active();
    let frozen = Instant::now();
    eventually("the end of the lease", || frozen.elapsed() > LEASE);
    assert!(sidecar.file().is_some(), "nobody can remove it");
    sidecar.signal("CONT");
    assert_eq!(process::status(asked), 503);
    eventually("the file's end", || sidecar.file().is_none());
}

#[test]
fn an_agent_that_is_ended_takes_its_file_with_it() {
    let api = ApiServer::start();
    let mut sidecar = Sidecar::start(&api);
    api.declare(7, &sidecar.promise().boot.to_string(), true, LEASE);
    eventually("the term", || sidecar.file().is_some());
    sidecar.signal("TERM");
    assert_eq!(sidecar.status(), 0);
    assert_eq!(sidecar.file(), None);
}
