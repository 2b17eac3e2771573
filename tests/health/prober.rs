//! Tests of the prober with real servers of many behaviours.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leadergroup::{
    api::ProbeScheme,
    health::{ProbeFailure, ProbeKind, ProbeOutcome, ProbeStep, Target, VoidCause},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::Notify,
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use super::{
    probed::{Probed, http, target},
    server::{OK, PATIENCE, Server, closed_port, eventually, finish, read_head, until_closed},
};

/// A timeout that no healthy loopback server reaches, even on a busy machine.
const AMPLE: Duration = PATIENCE;
/// A timeout for servers that do not answer.
const SHORT: Duration = Duration::from_millis(150);

fn tcp() -> ProbeKind {
    ProbeKind::TcpSocket
}

fn https() -> ProbeKind {
    get(ProbeScheme::Https, "/ready", &[])
}

pub(crate) fn get(scheme: ProbeScheme, path: &str, headers: &[(&'static str, &'static str)]) -> ProbeKind {
    let header = |(name, value): &(&'static str, &'static str)| {
        (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
    };
    ProbeKind::HttpGet { scheme, path: path.parse().unwrap(), headers: headers.iter().map(header).collect() }
}

/// A target that is probed again and again.
fn regular(address: SocketAddr, timeout: Duration, interval: Duration) -> Target {
    Target { interval, ..target(address, http(), timeout) }
}

/// Sends a probe and returns its outcome.
async fn once(address: SocketAddr, kind: ProbeKind, timeout: Duration) -> ProbeOutcome {
    Probed::new(8).outcome("u", &target(address, kind, timeout)).await
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

pub(crate) fn acceptor() -> TlsAcceptor {
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
    let address: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
    let expected = match TcpSocket::new_v6() {
        Ok(_) => ProbeOutcome::Unanswered,
        Err(error) => ProbeOutcome::Void(VoidCause::System(error.raw_os_error())),
    };
    assert_eq!(once(address, tcp(), SHORT).await, expected);
}

#[tokio::test]
async fn an_answer_within_the_timeout_is_an_answer_however_slow() {
    let (go, half) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (wait, written) = (go.clone(), half.clone());
    let server = Server::start(move |mut stream| {
        let (wait, written) = (wait.clone(), written.clone());
        async move {
            read_head(&mut stream).await;
            let (status, body) = OK.split_at(10);
            stream.write_all(status.as_bytes()).await.unwrap();
            written.store(true, Ordering::SeqCst);
            wait.notified().await;
            finish(stream, body.as_bytes()).await;
        }
    })
    .await;
    let mut probed = Probed::new(8);
    probed.set("u", &target(server.address, http(), AMPLE));
    assert_eq!(probed.next().await.step, ProbeStep::Sent);
    eventually("half an answer is sent", || half.load(Ordering::SeqCst)).await;
    assert_eq!(probed.followed_by().await, [], "half an answer is none");
    go.notify_one();
    assert_eq!(probed.next().await.step, ProbeStep::Ended(ProbeOutcome::Success));
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
    let mut probed = Probed::new(8);
    let first = probed.set("u", &regular(server.address, AMPLE, interval)).unwrap();
    let (mut sent, mut ended) = (Vec::new(), HashSet::new());
    while ended.len() < 5 {
        let event = probed.next().await;
        assert_eq!(&*event.uid, "u");
        match event.step {
            ProbeStep::Sent => sent.push((event.seq, event.sent_at)),
            ProbeStep::Ended(outcome) => {
                assert_eq!(outcome, ProbeOutcome::Success);
                let known = sent.contains(&(event.seq, event.sent_at));
                assert!(known, "{event:?} was never sent");
                assert!(ended.insert(event.seq), "{event:?} ended twice");
            }
            // On a busy machine a turn comes before the last answer.
            ProbeStep::Waits | ProbeStep::Accepted => {}
            ProbeStep::AnsweredLate | ProbeStep::Promised(_) => panic!("{event:?}"),
        }
    }
    for (n, pair) in sent.windows(2).enumerate() {
        assert_eq!(pair[0].0, first + n as u64);
        assert!(pair[1].1 > pair[0].1, "{sent:?}");
    }
    // Missed turns are skipped, not made up for: on average not faster than the interval. The first probe has no turn,
    // and two that are late may follow each other.
    let fewest = interval * u32::try_from(sent.len() - 3).unwrap();
    assert!(sent[sent.len() - 1].1 >= sent[0].1 + fewest, "{sent:?}");
    assert!(server.accepted() >= ended.len());
}

#[tokio::test]
async fn a_new_target_is_asked_at_once_and_not_when_its_turn_comes() {
    let server = Server::answering(OK).await;
    let mut probed = Probed::new(8);
    for uid in ["u", "v", "w"] {
        probed.set(uid, &target(server.address, tcp(), AMPLE));
    }
    assert_eq!(probed.outcomes(3).await, [ProbeOutcome::Success; 3]);
}

#[tokio::test]
async fn a_pod_is_probed_out_of_turn_when_it_is_asked_about_and_only_its_answer_counts() {
    let (server, hanging) = (Server::answering(OK).await, Server::hanging().await);
    let mut probed = Probed::new(16);
    probed.prober.probe_now("unknown");
    let well = target(server.address, http(), AMPLE);
    assert_eq!(probed.outcome("a", &well).await, ProbeOutcome::Success);
    probed.prober.probe_now("a");
    assert_eq!(probed.outcomes(1).await, [ProbeOutcome::Success]);
    let hung = target(hanging.address, http(), SHORT);
    assert_eq!(probed.outcome("b", &hung).await, ProbeOutcome::Unanswered);
    probed.prober.probe_now("b");
    assert_eq!(probed.outcomes(1).await, [ProbeOutcome::Void(VoidCause::OutOfTurn)]);
}

#[tokio::test]
async fn a_pod_that_hangs_is_asked_once_at_a_time_however_often_others_ask_about_it() {
    let (hanging, well) = (Server::hanging().await, Server::answering(OK).await);
    let mut probed = Probed::new(16);
    // Longer than the time limit of the whole test.
    probed.set("hung", &target(hanging.address, http(), AMPLE * 5));
    assert_eq!(probed.next().await.step, ProbeStep::Sent);
    probed.prober.probe_now("hung");
    assert_eq!(probed.next().await.step, ProbeStep::Sent);
    for n in 0..3 {
        probed.prober.probe_now("hung");
        // The prober has one thread: by the time of this answer it has seen the question.
        probed.set(&format!("well-{n}"), &target(well.address, http(), AMPLE));
        assert_eq!(probed.outcomes(1).await, [ProbeOutcome::Success]);
    }
    eventually("both probes are connections", || hanging.accepted() >= 2).await;
    assert_eq!(hanging.accepted(), 2);
}

#[tokio::test]
async fn a_new_probe_goes_out_although_the_last_was_not_answered_but_few_wait_at_a_time() {
    let interval = Duration::from_millis(40);
    // The least number leaves turns to a busy machine, which may skip them.
    for (timeout, expected) in [(interval * 3, 2..=4), (interval * 20, 3..=4)] {
        let server = Server::hanging().await;
        let mut probed = Probed::new(64);
        probed.set("u", &regular(server.address, timeout, interval));
        let (mut ended, mut most, mut waiting) = (0, 0, HashSet::new());
        while ended < 6 {
            let event = probed.next().await;
            match event.step {
                ProbeStep::Sent => {
                    waiting.insert(event.seq);
                }
                ProbeStep::Waits => assert!(waiting.contains(&event.seq), "{event:?} of {waiting:?}"),
                ProbeStep::Ended(ProbeOutcome::Unanswered | ProbeOutcome::Void(VoidCause::Stalled)) => {
                    assert!(waiting.remove(&event.seq), "{event:?} was not sent");
                    ended += 1;
                }
                ProbeStep::Accepted => {}
                step @ (ProbeStep::Ended(_) | ProbeStep::AnsweredLate | ProbeStep::Promised(_)) => {
                    panic!("{step:?}")
                }
            }
            most = most.max(waiting.len());
        }
        assert!(expected.contains(&most), "{most} with a timeout of {timeout:?}");
        eventually("all of them were connections", || server.accepted() >= 6).await;
    }
}

#[tokio::test]
async fn a_changed_target_is_probed_again_and_an_unchanged_one_is_not() {
    let (one, two) = (Server::answering(OK).await, Server::answering(OK).await);
    let mut probed = Probed::new(8);
    let interval = Duration::from_millis(20);
    let first = probed.set("u", &regular(one.address, AMPLE, interval)).unwrap();
    assert_eq!(probed.outcomes(1).await, [ProbeOutcome::Success]);
    assert_eq!(probed.set("u", &regular(one.address, AMPLE, interval)), None);
    assert_eq!(probed.set("u", &regular(one.address, AMPLE, interval * 2)), None, "only its pace");
    let second = probed.set("u", &regular(two.address, AMPLE, interval)).unwrap();
    assert!(second > first);
    let mut last = probed.next().await;
    while last.seq < second || !matches!(last.step, ProbeStep::Ended(_)) {
        last = probed.next().await;
    }
    assert_eq!(last.step, ProbeStep::Ended(ProbeOutcome::Success));
    assert!(two.accepted() >= 1);
    assert_eq!(probed.prober.len(), 1);
}

#[tokio::test]
async fn a_removed_target_is_disconnected_at_once() {
    let server = Server::hanging().await;
    let mut probed = Probed::new(8);
    probed.set("u", &target(server.address, http(), AMPLE * 5));
    assert_eq!(probed.next().await.step, ProbeStep::Sent);
    eventually("the probe has arrived", || server.open() == 1).await;
    probed.prober.remove("u");
    eventually("the connection is closed", || server.open() == 0).await;
    assert!(probed.prober.is_empty());
    assert_eq!(probed.end().await, None, "there are no more events of it");
}

#[tokio::test]
async fn a_full_queue_holds_the_probes_back_and_loses_none() {
    let server = Server::answering(OK).await;
    let mut probed = Probed::with_queue(64, 1);
    for n in 0..10 {
        probed.set(&format!("u{n}"), &target(server.address, http(), AMPLE));
    }
    let mut steps: HashMap<Arc<str>, Vec<ProbeStep>> = HashMap::new();
    while steps.values().map(Vec::len).sum::<usize>() < 20 {
        let event = probed.next().await;
        steps.entry(event.uid).or_default().push(event.step);
    }
    let expected = vec![ProbeStep::Sent, ProbeStep::Ended(ProbeOutcome::Success)];
    assert!(steps.len() == 10 && steps.values().all(|steps| *steps == expected), "{steps:?}");
}
