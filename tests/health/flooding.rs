//! Servers that send without end: no more than a part of it is read, and the probes of other pods go on meanwhile.

use std::{collections::HashMap, time::Duration};

use leadergroup::{
    api::ProbeScheme,
    health::{ProbeFailure, ProbeKind, ProbeOutcome, Target},
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};

use super::{
    probed::{Probed, http, outcome, target},
    prober::{acceptor, get},
    server::{OK, PATIENCE, Server, eventually, until_closed},
};

/// An interim answer, which a client reads over.
const INTERIM: &[u8] = b"HTTP/1.1 100 \r\n\r\n";
/// The frame of HTTP/2 with which a server begins.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// A frame of a type that no standard knows, which a client ignores.
const UNKNOWN: &[u8] = &[0, 0, 0, 0xfa, 0, 0, 0, 0, 0];
/// A frame that changes nothing: one more byte may be sent.
const WINDOW_UPDATE: &[u8] = &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// A frame that a client answers.
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Waits for the request, then writes `first` and `again` for ever, and reads what comes meanwhile.
async fn flood(stream: impl AsyncRead + AsyncWrite, first: &[u8], again: &[u8]) {
    let (mut requests, mut answers) = split(stream);
    if requests.read_u8().await.is_err() || answers.write_all(first).await.is_err() {
        return;
    }
    let many = again.repeat(64 * 1024 / again.len());
    let write = async { while answers.write_all(&many).await.is_ok() {} };
    tokio::select! {
        () = write => {}
        () = until_closed(&mut requests) => {}
    }
}

async fn flooding(first: &'static [u8], again: &'static [u8]) -> Server {
    Server::start(move |stream| flood(stream, first, again)).await
}

/// The same, over TLS.
async fn flooding_over_tls(again: &'static [u8]) -> Server {
    let acceptor = acceptor();
    Server::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                flood(stream, &[], again).await;
            }
        }
    })
    .await
}

/// Servers that flood by each protocol, and their probes.
async fn floods() -> Vec<(&'static str, Server, ProbeKind)> {
    let grpc = || ProbeKind::Grpc { service: String::new() };
    vec![
        ("interim", flooding(&[], INTERIM).await, http()),
        ("interim over TLS", flooding_over_tls(INTERIM).await, get(ProbeScheme::Https, "/ready", &[])),
        ("unknown frames", flooding(SETTINGS, UNKNOWN).await, grpc()),
        ("window updates", flooding(SETTINGS, WINDOW_UPDATE).await, grpc()),
        ("pings", flooding(SETTINGS, PING).await, grpc()),
    ]
}

#[tokio::test]
async fn a_flood_is_read_for_a_while_only() {
    for (name, server, kind) in floods().await {
        let outcome = Probed::new(8).outcome("u", &target(server.address, kind, PATIENCE / 4)).await;
        assert!(matches!(outcome, ProbeOutcome::Refused(ProbeFailure::Protocol)), "{name}: {outcome:?}");
        eventually("the connection is broken off", || server.open() == 0).await;
    }
}

#[tokio::test]
async fn pods_that_flood_are_refused_while_others_are_probed() {
    let (well, floods) = (Server::answering(OK).await, floods().await);
    let mut probed = Probed::new(64);
    let each = Duration::from_millis(200);
    let regular =
        |server: &Server, kind, interval| Target { interval, ..target(server.address, kind, PATIENCE) };
    for (name, server, kind) in &floods {
        probed.set(name, &regular(server, kind.clone(), each));
    }
    probed.set("well", &regular(&well, http(), each / 10));
    let mut ended: HashMap<String, u32> = HashMap::new();
    let enough = |ended: &HashMap<String, u32>| {
        let of = |name: &str| ended.get(name).copied().unwrap_or_default();
        floods.iter().all(|(name, ..)| of(name) >= 3) && of("well") >= 10
    };
    while !enough(&ended) {
        let event = probed.next().await;
        let Some(outcome) = outcome(&event) else { continue };
        let expected = match &*event.uid {
            "well" => ProbeOutcome::Success,
            _ => ProbeOutcome::Refused(ProbeFailure::Protocol),
        };
        assert_eq!(outcome, expected, "{}", event.uid);
        *ended.entry(event.uid.to_string()).or_default() += 1;
    }
}
