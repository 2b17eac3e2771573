//! What a probe costs in processor time: the prober with many pods, beside the bare system calls of as many probes.
//!
//! `cargo bench --bench prober` prints a table. The program in the pods is another process on this machine, at
//! 127.0.0.1. The kernel charges the receiver's part of the network stack to the sender, too, so both rows contain it.

#![allow(missing_docs)]

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use http::uri::PathAndQuery;
use leadergroup::{
    api::{HoldConnection, ProbeScheme},
    health::{ProbeEvent, ProbeKind, ProbeOutcome, ProbeStep, Prober, ResolvedProbe, Target},
};
use rustix::net::listen;
use tokio::sync::mpsc;

/// As many as one of two replicas probes in a cluster with a thousand groups of three pods.
const PODS: u32 = 1_500;
const INTERVAL: Duration = Duration::from_secs(1);
const RUN: Duration = Duration::from_secs(10);
/// The argument that makes this program the one in the pods.
const ANSWER: &str = "answer";
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nuser-agent: leadergroup-probe/0.1\r\naccept: */*\r\nconnection: close\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

fn main() -> Result<()> {
    if env::args().any(|argument| argument == ANSWER) {
        return answer();
    }
    let (mut server, port) = server()?;
    let results = [("system calls", bare(port)), ("prober", probed(port))];
    server.kill()?;
    server.wait()?;
    println!("{PODS} pods, probed every second; processor time of a probe, µs");
    println!("{:<16}{:>10}{:>10}{:>10}", "", "user", "kernel", "both");
    for (name, cost) in results {
        let (user, kernel) = cost?;
        println!("{name:<16}{user:>10.0}{kernel:>10.0}{:>10.0}", user + kernel);
    }
    Ok(())
}

/// The user and system time that this process has used, in microseconds.
fn used() -> Result<[f64; 2]> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // Behind the name, which may contain anything. The unit is a hundredth of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field =
        |at: usize| anyhow::Ok(fields.get(at).context("a field of /proc/self/stat")?.parse::<f64>()? * 1e4);
    Ok([field(11)?, field(12)?])
}

fn each(before: [f64; 2], count: u32) -> Result<(f64, f64)> {
    let [user, kernel] = used()?;
    Ok(((user - before[0]) / f64::from(count), (kernel - before[1]) / f64::from(count)))
}

/// One probe after the other: connect, send, read to the end.
fn bare(port: u16) -> Result<(f64, f64)> {
    let (before, mut buffer) = (used()?, [0; 1024]);
    let count = PODS * 10;
    for _ in 0..count {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.write_all(REQUEST)?;
        while stream.read(&mut buffer)? > 0 {}
    }
    each(before, count)
}

fn probed(port: u16) -> Result<(f64, f64)> {
    let (events, mut told) = mpsc::channel::<ProbeEvent>(4_096);
    let mut prober = Prober::new(events, 4_096)?;
    for n in 0..PODS {
        let uid: Arc<str> = format!("0b5f31a4-{n}").into();
        let kind = ProbeKind::HttpGet {
            path: PathAndQuery::from_static("/healthz"),
            scheme: ProbeScheme::Http,
            headers: [].into(),
        };
        let target = Target {
            ip: IpAddr::from(Ipv4Addr::LOCALHOST),
            probe: ResolvedProbe { kind, port, timeout: INTERVAL },
            interval: INTERVAL,
            listen: INTERVAL * 5,
            hold: HoldConnection::Never,
            threshold: 2,
            is_holder: false,
        };
        prober.set_target(&uid, &target);
    }
    // The first probe of each pod is sent at once. After that each has its turn.
    let (mut before, mut count, begin) = ([0.0; 2], 0, Instant::now() + INTERVAL * 2);
    while Instant::now() < begin + RUN {
        let event = told.blocking_recv().context("the prober has ended")?;
        if let ProbeStep::Ended(outcome) = event.step {
            ensure!(outcome == ProbeOutcome::Success, "a probe ended with {outcome:?}");
            if Instant::now() < begin {
                before = used()?;
            } else {
                count += 1;
            }
        }
    }
    each(before, count)
}

/// Starts the program in the pods. Returns its port.
fn server() -> Result<(Child, u16)> {
    let mut server = Command::new(env::current_exe()?).arg(ANSWER).stdout(Stdio::piped()).spawn()?;
    let mut port = String::new();
    BufReader::new(server.stdout.take().context("a pipe")?).read_line(&mut port)?;
    Ok((server, port.trim().parse()?))
}

/// Answers requests one after the other, until it is killed.
fn answer() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // A longer queue than that of the standard library, for the first probes of all pods.
    listen(&listener, i32::try_from(PODS)?)?;
    println!("{}", listener.local_addr()?.port());
    let mut request = [0; 1024];
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut length = 0;
        while !request[..length].ends_with(b"\r\n\r\n") {
            match stream.read(&mut request[length..])? {
                0 => break,
                read => length += read,
            }
        }
        stream.write_all(RESPONSE)?;
    }
    Ok(())
}
