//! Whatever a pod answers, a probe ends with an outcome that counts for or against the pod, and reads only so much.

use std::{collections::BTreeMap, fs, net::Ipv4Addr, path::Path, time::Duration};

use http::uri::PathAndQuery;
use proptest::{collection::vec, prelude::*, sample::Index, test_runner::RngSeed};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split},
    runtime,
};

use super::{
    super::{
        super::probe::{ProbeFailure, ProbeKind, ProbeOutcome, ResolvedProbe},
        received::MAX_RECEIVED,
        tls,
    },
    Checked, MAX_BODY, MAX_HEAD, ask,
};
use crate::api::ProbeScheme;

/// How much of an endless answer is read at most, with what is under way in buffers.
const MOST_READ: usize = 2 * (MAX_HEAD + MAX_BODY) + 2 * IN_FLIGHT;
/// The size of the buffer between the probe and the server.
const IN_FLIGHT: usize = 8 * 1024;
/// How much an endless server sends at most.
const ENDLESS: usize = 4 * 1024 * 1024;

/// Sends the probe to a server that answers with these bytes, then again and again with `more`, and closes the
/// connection. Returns the outcome, whether the connection is kept, and how much of the answer was taken.
fn probe(kind: ProbeKind, answer: &[u8], more: &[u8]) -> (ProbeOutcome, bool, usize) {
    let end_of_request: &[u8] = match &kind {
        ProbeKind::Agent | ProbeKind::HttpGet { scheme: ProbeScheme::Http, .. } => b"\r\n\r\n",
        ProbeKind::Grpc { .. } => b"\x0a\x02db",
        ProbeKind::TcpSocket | ProbeKind::HttpGet { scheme: ProbeScheme::Https, .. } => b"",
    };
    let runtime = runtime::Builder::new_current_thread().build().expect("no system resource is needed");
    runtime.block_on(async {
        let (client, server) = duplex(IN_FLIGHT);
        let (mut requests, mut answers) = split(server);
        let probe = ResolvedProbe { kind, port: 80, timeout: Duration::from_secs(1) };
        let connector = tls::connector();
        let asked = async {
            let answer =
                ask(client, Ipv4Addr::LOCALHOST.into(), &probe, true, &connector, &Checked::default()).await;
            (answer.outcome, answer.kept.is_some())
        };
        let serve = async {
            let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
            while !request.windows(end_of_request.len().max(1)).any(|part| part.starts_with(end_of_request)) {
                match requests.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => request.extend_from_slice(&buffer[..length]),
                }
            }
            let write = async {
                let mut taken = 0;
                let again = std::iter::repeat_n(more, ENDLESS / more.len().max(1));
                for part in std::iter::once(answer).chain(again) {
                    // An error means that the probe has closed the connection.
                    if part.is_empty() || answers.write_all(part).await.is_err() {
                        break;
                    }
                    taken += part.len();
                }
                let _ = answers.shutdown().await;
                taken
            };
            let read = async { while requests.read(&mut buffer).await.is_ok_and(|length| length > 0) {} };
            tokio::join!(write, read).0
        };
        let ((outcome, kept), taken) = tokio::join!(asked, serve);
        (outcome, kept, taken)
    })
}

fn http(scheme: ProbeScheme) -> ProbeKind {
    ProbeKind::HttpGet { scheme, path: PathAndQuery::from_static("/ready"), headers: Vec::new() }
}

fn grpc() -> ProbeKind {
    ProbeKind::Grpc { service: "db".to_owned() }
}

/// The answers in the corpus for one protocol, by name.
fn corpus(protocol: &str) -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/answers");
    let files = fs::read_dir(directory).expect("it is there").flatten().map(|file| file.path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == protocol));
    let name = |file: &Path| file.file_stem().expect("it has one").to_string_lossy().into_owned();
    files.map(|file| (name(&file), fs::read(&file).expect("it can be read"))).collect()
}

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    /// A part once more, in another place.
    Repeat(Index, Index, usize),
    Cut(Index),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = any::<Index>;
    let byte =
        prop_oneof![any::<u8>(), prop::sample::select(vec![0, 1, 0x0a, 0x0d, 0x20, 0x30, 0x7f, 0x80, 0xff])];
    vec(
        prop_oneof![
            4 => (at(), byte.clone()).prop_map(|(at, byte)| Change::Set(at, byte)),
            1 => (at(), 1..20_usize).prop_map(|(at, length)| Change::Remove(at, length)),
            1 => (at(), vec(byte, 1..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
            1 => (at(), at(), 1..60_usize).prop_map(|(from, to, length)| Change::Repeat(from, to, length)),
            1 => at().prop_map(Change::Cut),
        ],
        0..6,
    )
}

fn changed(mut bytes: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    for change in changes {
        let size = bytes.len();
        if size == 0 {
            return bytes;
        }
        match change {
            Change::Set(at, byte) => bytes[at.index(size)] = byte,
            Change::Remove(at, length) => {
                let from = at.index(size);
                bytes.drain(from..(from + length).min(size));
            }
            Change::Insert(at, new) => drop(bytes.splice(at.index(size)..at.index(size), new)),
            Change::Repeat(from, to, length) => {
                let from = from.index(size);
                let part = bytes[from..(from + length).min(size)].to_vec();
                bytes.splice(to.index(size)..to.index(size), part);
            }
            Change::Cut(at) => bytes.truncate(at.index(size)),
        }
    }
    bytes
}

fn altered(protocol: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let answers: Vec<_> = corpus(protocol).into_values().collect();
    (prop::sample::select(answers), changes()).prop_map(|(answer, changes)| changed(answer, changes))
}

/// The same cases at every run, unless `PROPTEST_RNG_SEED` and `PROPTEST_CASES` ask for others.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { config.rng_seed };
    ProptestConfig { rng_seed, ..config }
}

/// Nothing that a pod sends is taken for silence, or for a failure of the prober itself.
fn counts(outcome: ProbeOutcome) -> bool {
    matches!(outcome, ProbeOutcome::Success | ProbeOutcome::Refused(_))
}

#[test]
fn each_answer_of_the_corpus_has_its_outcome() {
    let refused = ProbeOutcome::Refused;
    for (protocol, name, expected) in [
        ("http", "ok", ProbeOutcome::Success),
        ("http", "chunked", ProbeOutcome::Success),
        ("http", "redirect", ProbeOutcome::Success),
        ("http", "informational", ProbeOutcome::Success),
        ("http", "unavailable", refused(ProbeFailure::HttpStatus(503))),
        ("http", "bad-chunk", refused(ProbeFailure::Protocol)),
        ("h2", "serving", ProbeOutcome::Success),
        ("h2", "unknown-fields", ProbeOutcome::Success),
        ("h2", "busy-connection", ProbeOutcome::Success),
        ("h2", "not-serving", refused(ProbeFailure::NotServing)),
        ("h2", "unimplemented", refused(ProbeFailure::GrpcStatus(12))),
        ("h2", "reset", refused(ProbeFailure::Protocol)),
    ] {
        let kind = if protocol == "http" { http(ProbeScheme::Http) } else { grpc() };
        assert_eq!(probe(kind, &corpus(protocol)[name], &[]).0, expected, "{name}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_http_answer_counts(answer in altered("http")) {
        let (outcome, kept, _) = probe(http(ProbeScheme::Http), &answer, &[]);
        prop_assert!(counts(outcome), "{outcome:?}");
        prop_assert!(!kept || outcome == ProbeOutcome::Success);
        prop_assert!(outcome != ProbeOutcome::Success || answer.windows(5).any(|text| text == b"HTTP/"));
    }

    #[test]
    fn any_grpc_answer_counts(answer in altered("h2")) {
        let (outcome, kept, _) = probe(grpc(), &answer, &[]);
        prop_assert!(counts(outcome), "{outcome:?}");
        prop_assert!(!kept);
    }

    #[test]
    fn any_bytes_count(answer in vec(any::<u8>(), 0..200)) {
        for kind in [http(ProbeScheme::Http), http(ProbeScheme::Https), grpc()] {
            let (outcome, ..) = probe(kind, &answer, &[]);
            prop_assert!(counts(outcome), "{outcome:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: config().cases.div_ceil(8), ..config() })]

    /// A response without an end: the head, or the body, or an answer after the answer.
    #[test]
    fn of_an_endless_http_answer_only_a_part_is_read(answer in altered("http"), more in "[ -~]{1,2000}\r\n") {
        let (_, _, taken) = probe(http(ProbeScheme::Http), &answer, more.as_bytes());
        prop_assert!(taken <= answer.len() + MOST_READ, "{taken}");
    }

    #[test]
    fn of_an_endless_grpc_answer_only_a_part_is_read(answer in altered("h2"), from in any::<Index>()) {
        let more = &answer[from.index(answer.len().max(1)).min(answer.len())..];
        let (outcome, _, taken) = probe(grpc(), &answer, &more[..more.len().min(4096)]);
        prop_assert!(counts(outcome), "{outcome:?}");
        prop_assert!(taken <= MAX_RECEIVED + 2 * IN_FLIGHT, "{taken}");
    }

    /// Parts of an answer again and again, such as one that is interim.
    #[test]
    fn of_an_http_answer_that_begins_again_only_a_part_is_read(
        answer in altered("http"),
        from in any::<Index>(),
    ) {
        let more = &answer[from.index(answer.len().max(1)).min(answer.len())..];
        let (outcome, _, taken) = probe(http(ProbeScheme::Http), &answer, more);
        prop_assert!(counts(outcome), "{outcome:?}");
        prop_assert!(taken <= answer.len() + MAX_RECEIVED + 2 * IN_FLIGHT, "{taken}");
    }
}
