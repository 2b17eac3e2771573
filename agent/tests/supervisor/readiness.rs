//! `/ready`: whether the kubelet may send the pod traffic.

use std::net::TcpListener;

use crate::{LEASE, api_server::ApiServer, container::Container, waiting::eventually};

fn not_ready(container: &Container, why: &str) -> bool {
    container.get("/ready").is_some_and(|(status, text)| status == 503 && text.contains(why))
}

fn ready(container: &Container, why: &str) -> bool {
    container.get("/ready") == Some((200, format!("{why}\n")))
}

#[test]
fn a_pod_is_ready_as_a_standby_and_once_its_program_is() {
    let api = ApiServer::start();
    // The port of the program, on which nobody listens yet.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let check = format!("tcp://:{}", address.port());
    let script = "trap 'touch told' TERM; touch ran; while [ ! -e end ]; do sleep 0.05; done";
    let container = Container::start_with(&api, &["--ready", &check], &["sh", "-c", script]);
    let boot = container.boot();
    eventually("a ready standby", || ready(&container, "the program could start"));
    api.declare(7, &boot, true, LEASE);
    eventually("the program", || container.read("ran").is_some());
    eventually("what the program lacks", || not_ready(&container, "Connection refused"));
    let listener = TcpListener::bind(address).unwrap();
    eventually("a ready program", || ready(&container, "the program runs"));
    // Another term: the program has to end, and is not ready although it still listens.
    api.declare(8, "A".repeat(43).as_str(), true, LEASE);
    eventually("SIGTERM", || container.read("told").is_some());
    eventually("no more traffic", || not_ready(&container, "another term was declared"));
    container.write("end", "");
    eventually("a ready standby", || ready(&container, "the program could start"));
    drop(listener);
}

#[test]
fn a_program_that_runs_is_ready_if_nothing_else_is_said_and_not_while_its_container_ends() {
    let api = ApiServer::start();
    let container = Container::start(&api, "trap 'touch told' TERM; touch ran; while :; do sleep 0.05; done");
    api.declare(7, &container.boot(), true, LEASE);
    eventually("a ready program", || ready(&container, "the program runs"));
    eventually("its trap", || container.read("ran").is_some());
    container.signal("run --group", "TERM");
    eventually("SIGTERM", || container.read("told").is_some());
    eventually("no more traffic", || not_ready(&container, "the container is being ended"));
}
