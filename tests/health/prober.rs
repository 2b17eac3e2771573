//! Tests of the prober with real servers of many behaviours.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use leadergroup::{
    api::{HoldConnection, ProbeScheme},
    health::{ProbeEvent, ProbeFailure, ProbeKind, ProbeOutcome, ProbeStep, Prober, ResolvedProbe, Target},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{Notify, mpsc},
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::server::{PATIENCE, Server, closed_port, eventually, finish, read_head, until_closed};

/// A timeout that no healthy loopback server reaches, even on a busy machine.
const AMPLE: Duration = PATIENCE;
/// A timeout for servers that do not answer.
const SHORT: Duration = Duration::from_millis(150);
/// An interval that never ends during a test.
const NEVER: Duration = Duration::from_hours(1);

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn tcp() -> ProbeKind {
    ProbeKind::TcpSocket
}

fn http() -> ProbeKind {
    get(ProbeScheme::Http, "/ready", &[])
}

fn https() -> ProbeKind {
    get(ProbeScheme::Https, "/ready", &[])
}

fn get(scheme: ProbeScheme, path: &str, headers: &[(&'static str, &'static str)]) -> ProbeKind {
    let header = |(name, value): &(&'static str, &'static str)| {
        (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
    };
    ProbeKind::HttpGet { scheme, path: path.parse().unwrap(), headers: headers.iter().map(header).collect() }
}

fn target(address: SocketAddr, kind: ProbeKind, timeout: Duration, interval: Duration) -> Target {
    Target {
        ip: address.ip(),
        probe: ResolvedProbe { kind, port: address.port(), timeout },
        interval,
        listen: Duration::ZERO,
        hold: HoldConnection::Never,
        threshold: 2,
    }
}

fn uid(text: &str) -> Arc<str> {
    text.into()
}

async fn next(events: &mut mpsc::Receiver<ProbeEvent>) -> ProbeEvent {
    timeout(PATIENCE + AMPLE, events.recv()).await.expect("an event in time").expect("the prober lives")
}

async fn next_outcome(events: &mut mpsc::Receiver<ProbeEvent>) -> ProbeOutcome {
    loop {
        if let ProbeStep::Ended(outcome) = next(events).await.step {
            return outcome;
        }
    }
}

/// Sends a probe and returns its outcome. If the probe failed because of this process, which can happen on a busy
/// machine, another one is sent.
async fn once(address: SocketAddr, kind: ProbeKind, timeout: Duration) -> ProbeOutcome {
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    loop {
        // A new target is probed at once.
        prober.remove("u");
        prober.set_target(&uid("u"), &target(address, kind.clone(), timeout, NEVER));
        let outcome = next_outcome(&mut events).await;
        if outcome != ProbeOutcome::Void {
            return outcome;
        }
    }
}

fn status(code: u16) -> ProbeOutcome {
    ProbeOutcome::Refused(ProbeFailure::HttpStatus(code))
}

#[tokio::test]
async fn the_status_of_an_answer_decides() {
    for (line, expected) in [
        ("200 OK", ProbeOutcome::Success),
        ("204 No Content", ProbeOutcome::Success),
        ("399 Odd", ProbeOutcome::Success),
        ("400 Bad Request", status(400)),
        ("404 Not Found", status(404)),
        ("500 Internal Server Error", status(500)),
        ("503 Service Unavailable", status(503)),
    ] {
        let server = Server::answering(format!("HTTP/1.1 {line}\r\nconnection: close\r\n\r\n")).await;
        assert_eq!(once(server.address, http(), AMPLE).await, expected, "{line}");
    }
}

#[tokio::test]
async fn an_old_server_without_lengths_is_understood() {
    let server = Server::answering("HTTP/1.0 200 OK\r\n\r\nfine").await;
    assert_eq!(once(server.address, http(), AMPLE).await, ProbeOutcome::Success);
}

#[tokio::test]
async fn an_interim_answer_is_not_the_answer() {
    let server = Server::answering(format!("HTTP/1.1 103 Early Hints\r\n\r\n{OK}")).await;
    assert_eq!(once(server.address, http(), AMPLE).await, ProbeOutcome::Success);
}

#[tokio::test]
async fn a_redirect_counts_as_success_and_is_not_followed() {
    let elsewhere = Server::answering(OK).await;
    let answer =
        format!("HTTP/1.1 302 Found\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n", elsewhere.address);
    let server = Server::answering(answer).await;
    assert_eq!(once(server.address, http(), AMPLE).await, ProbeOutcome::Success);
    assert_eq!((server.accepted(), elsewhere.accepted()), (1, 0));
}

/// Probes a server that records the heads of requests.
async fn heads_of(kind: impl Fn(SocketAddr) -> ProbeKind) -> (SocketAddr, String) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = heads.clone();
    let server = Server::start(move |mut stream| {
        let kept = kept.clone();
        async move {
            let head = read_head(&mut stream).await;
            kept.lock().unwrap().push(head);
            finish(stream, OK.as_bytes()).await;
        }
    })
    .await;
    assert_eq!(once(server.address, kind(server.address), AMPLE).await, ProbeOutcome::Success);
    let heads = heads.lock().unwrap();
    assert_eq!(heads.len(), 1);
    (server.address, heads[0].to_lowercase())
}

#[tokio::test]
async fn the_request_has_the_headers_of_a_probe() {
    let (address, head) = heads_of(|_| get(ProbeScheme::Http, "/ready?deep=1", &[("x-token", "a")])).await;
    let agent = format!("user-agent: leadergroup/{}\r\n", env!("CARGO_PKG_VERSION"));
    assert!(head.starts_with("get /ready?deep=1 http/1.1\r\n"), "{head}");
    for line in [
        &format!("host: {address}\r\n"),
        &agent,
        "accept: */*\r\n",
        "connection: close\r\n",
        "x-token: a\r\n",
    ] {
        assert!(head.contains(line), "{line:?} is missing in {head}");
    }
}

#[tokio::test]
async fn headers_of_the_probe_go_before_our_own() {
    let own = [("host", "web.internal"), ("user-agent", "kube"), ("accept", "text/plain")];
    let (address, head) = heads_of(|_| get(ProbeScheme::Http, "/", &own)).await;
    assert!(
        !head.contains(&address.to_string()) && !head.contains("leadergroup") && !head.contains("*/*"),
        "{head}"
    );
    for (name, value) in own {
        assert!(head.contains(&format!("{name}: {value}\r\n")), "{head}");
    }
}

fn acceptor() -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("expired-certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("throwaway-key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn tls_server(answer: &'static str) -> Server {
    let acceptor = acceptor();
    Server::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                read_head(&mut stream).await;
                finish(stream, answer.as_bytes()).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_certificate_of_another_time_and_name_is_taken() {
    let server = tls_server(OK).await;
    assert_eq!(once(server.address, https(), AMPLE).await, ProbeOutcome::Success);
    let server = tls_server("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(once(server.address, https(), AMPLE).await, status(503));
}

#[tokio::test]
async fn the_wrong_scheme_is_an_answer_and_not_a_good_one() {
    let plain = Server::start(|mut stream| async move {
        stream.read_u8().await.unwrap();
        finish(stream, b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    })
    .await;
    let tls = tls_server(OK).await;
    for (server, kind) in [(&plain, https()), (&tls, http())] {
        let outcome = once(server.address, kind, AMPLE).await;
        assert!(
            matches!(outcome, ProbeOutcome::Refused(ProbeFailure::Protocol | ProbeFailure::Reset)),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_tcp_probe_needs_only_a_connection() {
    let server = Server::hanging().await;
    assert_eq!(once(server.address, tcp(), AMPLE).await, ProbeOutcome::Success);
    eventually("the connection is closed", || server.accepted() >= 1 && server.open() == 0).await;
}

#[tokio::test]
async fn a_port_without_a_listener_refuses() {
    for kind in [tcp(), http(), https()] {
        let outcome = once(closed_port().await, kind, AMPLE).await;
        assert_eq!(outcome, ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_unanswered_and_disconnected() {
    for kind in [http(), https()] {
        let server = Server::hanging().await;
        let begin = Instant::now();
        assert_eq!(once(server.address, kind, SHORT).await, ProbeOutcome::Unanswered);
        assert!(begin.elapsed() >= SHORT);
        eventually("the connection is closed", || server.accepted() >= 1 && server.open() == 0).await;
    }
}

#[tokio::test]
async fn a_network_without_a_way_is_no_answer() {
    // The block 2001:db8::/32 is reserved for documentation. A host without IPv6 cannot even send the probe.
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    prober.set_target(&uid("u"), &target("[2001:db8::1]:9".parse().unwrap(), tcp(), SHORT, NEVER));
    let outcome = next_outcome(&mut events).await;
    assert!(matches!(outcome, ProbeOutcome::Unanswered | ProbeOutcome::Void), "{outcome:?}");
}

#[tokio::test]
async fn an_answer_within_the_timeout_is_an_answer_however_slow() {
    let go = Arc::new(Notify::new());
    let wait = go.clone();
    let server = Server::start(move |mut stream| {
        let wait = wait.clone();
        async move {
            read_head(&mut stream).await;
            let (status, body) = OK.split_at(10);
            stream.write_all(status.as_bytes()).await.unwrap();
            wait.notified().await;
            finish(stream, body.as_bytes()).await;
        }
    })
    .await;
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    prober.set_target(&uid("u"), &target(server.address, http(), AMPLE, NEVER));
    assert_eq!(next(&mut events).await.step, ProbeStep::Sent);
    let early = timeout(SHORT, events.recv()).await;
    assert!(early.is_err(), "half an answer is none: {early:?}");
    go.notify_one();
    assert_eq!(next(&mut events).await.step, ProbeStep::Ended(ProbeOutcome::Success));
}

#[tokio::test]
async fn a_body_that_never_ends_is_not_waited_for_and_a_body_that_stops_is() {
    let endless = Server::start(|mut stream| async move {
        read_head(&mut stream).await;
        let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while sent.is_ok() {
            sent = stream.write_all(&[b'x'; 4096]).await;
        }
    })
    .await;
    assert_eq!(once(endless.address, http(), AMPLE).await, ProbeOutcome::Success);
    eventually("the connection is broken off", || endless.open() == 0).await;

    let stops = Server::start(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await.unwrap();
        until_closed(&mut stream).await;
    })
    .await;
    assert_eq!(once(stops.address, http(), SHORT).await, ProbeOutcome::Unanswered);
}

#[tokio::test]
async fn headers_that_never_end_are_read_for_a_while_only() {
    for line in ["x-more: and more\r\n", "x-one-long-line-without-an-end"] {
        let server = Server::start(move |mut stream| async move {
            read_head(&mut stream).await;
            let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
            while sent.is_ok() {
                sent = stream.write_all(line.as_bytes()).await;
            }
        })
        .await;
        assert_eq!(
            once(server.address, http(), AMPLE).await,
            ProbeOutcome::Refused(ProbeFailure::Protocol),
            "{line}"
        );
        eventually("the connection is broken off", || server.open() == 0).await;
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_answer_is_a_refusal() {
    let breaking = |how: fn(&TcpStream)| {
        Server::start(move |mut stream| async move {
            read_head(&mut stream).await;
            how(&stream);
        })
    };
    let reset = breaking(|stream| stream.set_zero_linger().unwrap()).await;
    let closed = breaking(|_| ()).await;
    let halfway = Server::answering("HTTP/1.1 200 OK\r\ncontent-le").await;
    for server in [reset, closed, halfway] {
        assert_eq!(once(server.address, http(), AMPLE).await, ProbeOutcome::Refused(ProbeFailure::Reset));
    }
    let tls = Server::start(|mut stream| async move {
        stream.read_u8().await.unwrap();
        stream.set_zero_linger().unwrap();
    })
    .await;
    assert_eq!(once(tls.address, https(), AMPLE).await, ProbeOutcome::Refused(ProbeFailure::Reset));
}

#[tokio::test]
async fn a_response_that_is_not_http_is_a_refusal() {
    let server = Server::answering("SSH-2.0-OpenSSH_9.9\r\n").await;
    assert_eq!(once(server.address, http(), AMPLE).await, ProbeOutcome::Refused(ProbeFailure::Protocol));
}

#[tokio::test]
async fn each_probe_is_numbered_on_time_and_on_a_fresh_connection() {
    let server = Server::answering(OK).await;
    let interval = Duration::from_millis(30);
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    let first = prober.set_target(&uid("u"), &target(server.address, http(), AMPLE, interval)).unwrap();
    let (mut sent, mut ended) = (Vec::new(), HashSet::new());
    while ended.len() < 5 {
        let event = next(&mut events).await;
        assert_eq!(&*event.uid, "u");
        match event.step {
            ProbeStep::Sent => sent.push((event.seq, event.sent_at)),
            ProbeStep::Ended(outcome) => {
                assert_eq!(outcome, ProbeOutcome::Success);
                let known = sent.contains(&(event.seq, event.sent_at));
                assert!(known, "{event:?} was never sent");
                assert!(ended.insert(event.seq), "{event:?} ended twice");
            }
            ProbeStep::Accepted | ProbeStep::AnsweredLate => panic!("{event:?}"),
        }
    }
    for (n, pair) in sent.windows(2).enumerate() {
        assert_eq!(pair[0].0, first + n as u64);
        assert!(pair[1].1 > pair[0].1, "{sent:?}");
    }
    // Missed turns are skipped, not made up for: on average not faster than the interval.
    let fewest = interval * u32::try_from(sent.len() - 2).unwrap();
    assert!(sent[sent.len() - 1].1 >= sent[0].1 + fewest, "{sent:?}");
    assert!(server.accepted() >= ended.len());
}

#[tokio::test]
async fn a_new_target_is_asked_at_once_and_not_when_its_turn_comes() {
    let server = Server::answering(OK).await;
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    let uids = ["u", "v", "w"].map(uid);
    for uid in &uids {
        prober.set_target(uid, &target(server.address, tcp(), AMPLE, NEVER));
    }
    for _ in &uids {
        assert_eq!(next_outcome(&mut events).await, ProbeOutcome::Success);
    }
}

#[tokio::test]
async fn a_pod_is_probed_out_of_turn_when_it_is_asked_about_and_only_its_answer_counts() {
    let server = Server::answering(OK).await;
    let hanging = Server::hanging().await;
    let (events, mut received) = mpsc::channel(16);
    let mut prober = Prober::new(events, 16).expect("a prober");
    prober.probe_now("unknown");
    prober.set_target(&"a".into(), &target(server.address, http(), AMPLE, NEVER));
    assert_eq!(next_outcome(&mut received).await, ProbeOutcome::Success);
    prober.probe_now("a");
    assert_eq!(next_outcome(&mut received).await, ProbeOutcome::Success);
    prober.remove("a");
    prober.set_target(&"b".into(), &target(hanging.address, http(), SHORT, NEVER));
    assert_eq!(next_outcome(&mut received).await, ProbeOutcome::Unanswered);
    prober.probe_now("b");
    assert_eq!(next_outcome(&mut received).await, ProbeOutcome::Void);
}

#[tokio::test]
async fn a_new_probe_goes_out_although_the_last_was_not_answered_but_no_more_than_fit() {
    let server = Server::hanging().await;
    let interval = Duration::from_millis(40);
    let (sender, mut events) = mpsc::channel(64);
    let mut prober = Prober::new(sender, 64).expect("a prober");
    prober.set_target(&uid("u"), &target(server.address, http(), interval * 3, interval));
    let (mut ended, mut under_way, mut most) = (0, 0, 0);
    while ended < 6 {
        match next(&mut events).await.step {
            ProbeStep::Sent => under_way += 1,
            ProbeStep::Ended(ProbeOutcome::Unanswered | ProbeOutcome::Void) => {
                under_way -= 1;
                ended += 1;
            }
            ProbeStep::Accepted => {}
            step @ (ProbeStep::Ended(_) | ProbeStep::AnsweredLate) => panic!("{step:?}"),
        }
        most = most.max(under_way);
    }
    assert!((2..=4).contains(&most), "three fit into the timeout, and one that is asked for; not {most}");
    eventually("all of them were connections", || server.accepted() >= 6).await;
}

#[tokio::test]
async fn no_more_probes_are_under_way_than_allowed() {
    let server = Server::hanging().await;
    let (sender, mut events) = mpsc::channel(64);
    let mut prober = Prober::new(sender, 3).expect("a prober");
    let mut void = 0;
    for n in 0..20 {
        let uid = uid(&format!("u{n}"));
        prober.set_target(&uid, &target(server.address, http(), AMPLE, SHORT));
    }
    let mut sent = 0;
    while void < 40 {
        match next(&mut events).await.step {
            ProbeStep::Ended(ProbeOutcome::Void) => void += 1,
            ProbeStep::Sent => sent += 1,
            step => panic!("{step:?}"),
        }
    }
    eventually("the three are connected", || server.accepted() == 3).await;
    assert_eq!((sent, server.most_open()), (3, 3));
}

#[tokio::test]
async fn pods_that_do_not_answer_leave_room_for_those_that_do() {
    let (hanging, well) = (Server::hanging().await, Server::answering(OK).await);
    let (sender, mut events) = mpsc::channel(64);
    let mut prober = Prober::new(sender, 1).expect("a prober");
    let pause = Duration::from_millis(500);
    for n in 0..20 {
        let uid = uid(&format!("u{n}"));
        prober.set_target(&uid, &target(hanging.address, http(), SHORT, pause));
    }
    let mut unanswered = HashSet::new();
    while unanswered.len() < 20 {
        let event = next(&mut events).await;
        if event.step == ProbeStep::Ended(ProbeOutcome::Unanswered) {
            unanswered.insert(event.uid);
        }
    }
    prober.set_target(&uid("well"), &target(well.address, http(), AMPLE, pause));
    let (mut answered, mut never_sent) = (0, 0);
    while answered + never_sent < 5 {
        let event = next(&mut events).await;
        match event.step {
            ProbeStep::Ended(ProbeOutcome::Success) => answered += 1,
            ProbeStep::Ended(ProbeOutcome::Void) if &*event.uid == "well" => never_sent += 1,
            _ => {}
        }
    }
    assert!(answered > never_sent, "{never_sent} were never sent");
}

#[tokio::test]
async fn a_changed_target_is_probed_again_and_an_unchanged_one_is_not() {
    let (one, two) = (Server::answering(OK).await, Server::answering(OK).await);
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    let interval = Duration::from_millis(20);
    let uid = uid("u");
    let first = prober.set_target(&uid, &target(one.address, http(), AMPLE, interval)).unwrap();
    assert_eq!(next_outcome(&mut events).await, ProbeOutcome::Success);
    assert_eq!(prober.set_target(&uid, &target(one.address, http(), AMPLE, interval)), None);
    assert_eq!(
        prober.set_target(&uid, &target(one.address, http(), AMPLE, interval * 2)),
        None,
        "only its pace"
    );
    let second = prober.set_target(&uid, &target(two.address, http(), AMPLE, interval)).unwrap();
    assert!(second > first);
    let mut last = next(&mut events).await;
    while last.seq < second || last.step == ProbeStep::Sent {
        last = next(&mut events).await;
    }
    assert_eq!(last.step, ProbeStep::Ended(ProbeOutcome::Success));
    assert!(two.accepted() >= 1);
    assert_eq!(prober.len(), 1);
}

#[tokio::test]
async fn a_removed_target_is_disconnected_at_once() {
    let server = Server::hanging().await;
    let (sender, mut events) = mpsc::channel(8);
    let mut prober = Prober::new(sender, 8).expect("a prober");
    prober.set_target(&uid("u"), &target(server.address, http(), AMPLE, NEVER));
    assert_eq!(next(&mut events).await.step, ProbeStep::Sent);
    eventually("the probe has arrived", || server.open() == 1).await;
    prober.remove("u");
    eventually("the connection is closed", || server.open() == 0).await;
    assert!(prober.is_empty());
    drop(prober);
    let after = timeout(PATIENCE, events.recv()).await.expect("the prober lets go of the channel");
    assert_eq!(after, None, "there are no more events of it");
}

#[tokio::test]
async fn a_full_queue_holds_the_probes_back_and_loses_none() {
    let server = Server::answering(OK).await;
    let (sender, mut events) = mpsc::channel(1);
    let mut prober = Prober::new(sender, 64).expect("a prober");
    for n in 0..10 {
        let uid = uid(&format!("u{n}"));
        prober.set_target(&uid, &target(server.address, http(), AMPLE, NEVER));
    }
    let mut steps: HashMap<Arc<str>, Vec<ProbeStep>> = HashMap::new();
    while steps.values().map(Vec::len).sum::<usize>() < 20 {
        let event = next(&mut events).await;
        steps.entry(event.uid).or_default().push(event.step);
    }
    let expected = vec![ProbeStep::Sent, ProbeStep::Ended(ProbeOutcome::Success)];
    assert!(steps.len() == 10 && steps.values().all(|steps| *steps == expected), "{steps:?}");
}
