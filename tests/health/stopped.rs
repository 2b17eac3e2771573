//! Tests of an operator that is stopped during its probes, and of its verdicts after it resumes.
//!
//! The operator is a child process: this test program, with the address of the pod in an environment variable. It
//! prints each event and each verdict. The parent stops it with SIGSTOP, lets the pod answer or not, and resumes it.

use std::{env, net::SocketAddr, process::Stdio, time::Duration};

use leadergroup::{
    api::HoldConnection,
    health::{
        JudgedAs, NodeLease, PodEvidence, PodFacts, ProbeKind, ProbeStep, Prober, ResolvedProbe, Target,
        Thresholds,
    },
};
use leadergroup_lock::monotonic;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout, timeout_at},
};

use super::server::{PATIENCE, Server, eventually, finish, read_head};

const ADDRESS: &str = "LEADERGROUP_TEST_POD";
const INTERVAL: &str = "LEADERGROUP_TEST_INTERVAL_MS";
const TIMEOUT: &str = "LEADERGROUP_TEST_TIMEOUT_MS";
const R: Duration = Duration::from_millis(300);
const T: Duration = Duration::from_millis(1_200);

/// The child: probes the pod, and prints events and verdicts. Without a parent it is no test and does nothing.
#[tokio::test]
#[ignore = "run by the other tests of this file, as their child process"]
async fn operator() {
    let Ok(address) = env::var(ADDRESS) else { return };
    let address: SocketAddr = address.parse().unwrap();
    let [interval, timeout] =
        [INTERVAL, TIMEOUT].map(|name| Duration::from_millis(env::var(name).unwrap().parse().unwrap()));
    let kind = ProbeKind::HttpGet {
        scheme: leadergroup::api::ProbeScheme::Http,
        path: "/".parse().unwrap(),
        headers: vec![],
    };
    let probe = ResolvedProbe { kind, port: address.port(), timeout };
    let pod = json!({
        "metadata": { "uid": "u" },
        "spec": { "containers": [{ "name": "web", "readinessProbe": { "tcpSocket": { "port": 1 } } }] },
        "status": { "podIP": "198.18.0.1", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    let spec = serde_json::from_value(json!({ "selector": { "matchLabels": { "app": "web" } } })).unwrap();
    let facts = PodFacts::from_pod(&serde_json::from_value(pod).unwrap(), &spec);
    let (sender, mut events) = mpsc::channel(64);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    let mut evidence =
        PodEvidence::new(Thresholds { silence_timeout: T, interval, timeout, failure_threshold: 2 });
    evidence.kubelet(&facts, monotonic());
    let ip = address.ip();
    let hold = HoldConnection::Never;
    let listen = Duration::ZERO;
    let target = Target { ip, probe, interval, listen, hold, threshold: 2, is_holder: true };
    let first = prober.set_target(&"u".into(), &target);
    evidence.retarget(first.unwrap());
    let mut said = None;
    loop {
        // The verdict before the event: it must be right immediately after the process resumes.
        let now = monotonic();
        let verdict = evidence.verdict(JudgedAs::Holder, &NodeLease::default(), now);
        let name = format!("{verdict:?}").split([' ', '(']).next().unwrap().to_owned();
        if said.as_ref() != Some(&name) {
            println!("\nverdict {name}");
            said = Some(name);
        }
        let deadline = evidence.next_deadline(&NodeLease::default(), now);
        let pause = deadline.map_or(PATIENCE, |deadline| deadline.saturating_sub(now));
        if let Ok(event) = tokio::time::timeout(pause, events.recv()).await {
            let event = event.unwrap();
            match event.step {
                ProbeStep::Sent | ProbeStep::Waits => evidence.probe_sent(event.seq, event.sent_at),
                ProbeStep::Ended(outcome) => {
                    evidence.probe_answered(event.seq, event.sent_at, outcome);
                    println!("\nprobe {outcome:?}");
                }
                ProbeStep::Accepted | ProbeStep::Promised(_) => {}
                ProbeStep::AnsweredLate => evidence.probe_answered_late(event.seq, event.sent_at),
            }
        }
    }
}

struct Operator {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Operator {
    fn start(pod: SocketAddr, interval: Duration, timeout: Duration) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "stopped::operator", "--ignored", "--nocapture"])
            .env(ADDRESS, pod.to_string())
            .env(INTERVAL, interval.as_millis().to_string())
            .env(TIMEOUT, timeout.as_millis().to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// The next line of its output.
    async fn says(&mut self) -> String {
        loop {
            let line =
                timeout(PATIENCE, self.lines.next_line()).await.expect("it says something").unwrap().unwrap();
            if line.starts_with("verdict ") || line.starts_with("probe ") {
                return line;
            }
        }
    }

    /// Reads until this line, and returns all lines up to it.
    async fn until(&mut self, wanted: &str) -> Vec<String> {
        let mut said = Vec::new();
        while said.last().is_none_or(|line| line != wanted) {
            said.push(self.says().await);
            assert!(said.len() < 10_000, "it never says {wanted}: {said:?}");
        }
        said
    }

    /// The outcome of the next probe that it tells.
    async fn until_probe(&mut self) -> String {
        loop {
            let line = self.says().await;
            if line.starts_with("probe ") {
                return line;
            }
        }
    }

    /// Stops it for this time, resumes it, and returns when that was.
    async fn stop_for(&mut self, time: Duration, meanwhile: impl Future<Output = ()>) -> Instant {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id().unwrap());
        let is_stopped =
            || std::fs::read_to_string(&stat).unwrap().rsplit(')').next().unwrap().starts_with(" T");
        eventually("it has stopped", is_stopped).await;
        meanwhile.await;
        // Read all earlier output; then there is none until the time is over.
        let end = Instant::now() + time;
        while timeout_at(end, self.lines.next_line()).await.is_ok() {}
        let woken = Instant::now();
        self.signal(Signal::CONT);
        woken
    }
}

/// A pod that answers at once while `prompt` is true, and delays its answers otherwise.
async fn pod(prompt: watch::Receiver<bool>) -> Server {
    Server::start(move |mut stream| {
        let mut prompt = prompt.clone();
        async move {
            read_head(&mut stream).await;
            if prompt.wait_for(|prompt| *prompt).await.is_ok() {
                finish(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_the_operator_never_counts_against_a_healthy_pod() {
    let (prompt, orders) = watch::channel(true);
    let server = pod(orders).await;
    let mut operator = Operator::start(server.address, R, R);
    operator.until("verdict Eligible").await;
    // In the middle of a probe, longer than the silence timeout; the answer arrives while the operator is stopped.
    for _ in 0..3 {
        prompt.send_replace(false);
        let before = server.accepted();
        eventually("a probe has been sent", || server.accepted() > before).await;
        operator.stop_for(T * 2, async { prompt.send(true).unwrap() }).await;
        let said = operator.until("verdict Eligible").await;
        let bad = ["Silent", "Failing", "Refused", "Unanswered"];
        assert!(!said.iter().any(|line| bad.iter().any(|bad| line.contains(bad))), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_went_silent_during_a_stop_is_detected_a_silence_timeout_after_it() {
    let (prompt, orders) = watch::channel(true);
    let server = pod(orders).await;
    let mut operator = Operator::start(server.address, R, R);
    operator.until("verdict Eligible").await;
    let woken = operator.stop_for(T * 2, async { prompt.send(false).unwrap() }).await;
    let said = operator.until("verdict Silent").await;
    let unanswered = said.iter().filter(|line| *line == "probe Unanswered").count();
    assert!(unanswered >= 2, "{said:?}");
    assert!(woken.elapsed() >= T, "a full silence timeout must pass, not {:?}: {said:?}", woken.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_extends_the_timeout_of_a_probe() {
    let (prompt, orders) = watch::channel(true);
    let server = pod(orders).await;
    let timeout = Duration::from_secs(2);
    let mut operator = Operator::start(server.address, timeout * 3, timeout);
    operator.until("probe Success").await;
    prompt.send(false).unwrap();
    eventually("a probe has been sent", || server.accepted() >= 2).await;
    // Shorter than the timeout. The pod answers after the timeout, but the time in which the operator ran is less.
    let late = Instant::now() + timeout * 9 / 8;
    operator.stop_for(timeout * 3 / 4, async {}).await;
    sleep_until(late).await;
    prompt.send(true).unwrap();
    assert_eq!(operator.until_probe().await, "probe Success");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_during_a_long_stop_says_nothing() {
    let (held, orders) = watch::channel(true);
    let server = Server::start(move |mut stream| {
        let mut patience = orders.clone();
        async move {
            read_head(&mut stream).await;
            // A pod that gives up on a client that does not read its answer.
            let _ = patience.wait_for(|held| !held).await;
        }
    })
    .await;
    let mut operator = Operator::start(server.address, R, R);
    eventually("a probe has been sent", || server.open() == 1).await;
    operator.stop_for(T, async { held.send(false).unwrap() }).await;
    held.send(true).unwrap();
    let said = operator.until("probe Void(Stalled)").await;
    assert!(!said.iter().any(|line| line.contains("Refused")), "{said:?}");
}
