//! The connection that is held open to an active pod, and the probes that follow when it is closed.

use std::{sync::Arc, time::Duration};

use leadergroup::{
    api::HoldConnection,
    health::{ProbeFailure, ProbeOutcome, Target, VoidCause},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    sync::{Mutex, watch},
};

use super::{
    probed::{Probed, http, outcome},
    server::{OK, PATIENCE, Server, eventually, finish, read_head, until_closed},
};

const OK_AND_CLOSE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
const UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const SHORT: Duration = Duration::from_millis(150);
const THRESHOLD: u32 = 3;

/// Probes once, and otherwise only because of the connection held to the server. Returns the first outcomes.
async fn probed(
    server: &Server,
    hold: HoldConnection,
    timeout: Duration,
    number: usize,
) -> (Probed, Vec<ProbeOutcome>) {
    let target = super::probed::target(server.address, http(), timeout);
    let target = Target { hold, threshold: THRESHOLD, is_holder: true, ..target };
    let mut probed = Probed::new(8);
    let events = probed.probe("u", &target, number).await;
    (probed, events.iter().filter_map(outcome).collect())
}

/// Answers one request after the other, until the client closes the connection, or `close` changes.
async fn serve(mut stream: TcpStream, mut close: watch::Receiver<bool>) {
    close.mark_unchanged();
    let serving = async {
        while !read_head(&mut stream).await.is_empty() && stream.write_all(OK.as_bytes()).await.is_ok() {}
    };
    tokio::select! {
        () = serving => {}
        _ = close.changed() => {}
    }
}

#[tokio::test]
async fn when_the_process_ends_as_many_probes_are_refused_at_once_as_make_a_pod_failing() {
    let (end, ended) = watch::channel(false);
    let server = Server::start(move |stream| serve(stream, ended.clone())).await;
    let address = server.address;
    // The second one shows that the server answers while a connection is held.
    let (mut probed, outcomes) = probed(&server, HoldConnection::WhenKeptAlive, PATIENCE, 2).await;
    assert_eq!(outcomes, [ProbeOutcome::Success; 2]);
    eventually("one connection is held", || server.open() == 1).await;

    // As the kernel does it: the listener and the connections are closed together.
    drop(server);
    while TcpStream::connect(address).await.is_ok() {}
    end.send_replace(true);
    let refused = ProbeOutcome::Refused(ProbeFailure::ConnectionRefused);
    assert_eq!(probed.outcomes(THRESHOLD as usize).await, [refused; THRESHOLD as usize]);
    assert_eq!(probed.followed_by().await, [], "no more than needed");
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_is_probed_once_more_and_then_left_alone() {
    let (close, closed) = watch::channel(false);
    let server = Server::start(move |stream| serve(stream, closed.clone())).await;
    let (mut probed, outcomes) = probed(&server, HoldConnection::WhenKeptAlive, PATIENCE, 2).await;
    assert_eq!(outcomes, [ProbeOutcome::Success; 2]);
    eventually("one connection is held", || server.open() == 1).await;
    close.send_replace(true);
    assert_eq!(probed.outcomes(1).await, [ProbeOutcome::Success]);
    eventually("no other one is held", || server.accepted() == 3 && server.open() == 0).await;
    assert_eq!(probed.followed_by().await, [], "the next probe comes when its turn comes");
}

#[tokio::test]
async fn a_refusal_by_the_program_itself_counts_only_in_its_turn() {
    let (stop, stopped) = watch::channel(false);
    let server = Server::start(move |mut stream| {
        let stopped = stopped.clone();
        async move {
            if *stopped.borrow() {
                read_head(&mut stream).await;
                return finish(stream, UNAVAILABLE).await;
            }
            serve(stream, stopped).await;
        }
    })
    .await;
    let (mut probed, outcomes) = probed(&server, HoldConnection::WhenKeptAlive, PATIENCE, 2).await;
    assert_eq!(outcomes, [ProbeOutcome::Success; 2]);
    stop.send_replace(true);
    assert_eq!(probed.outcomes(1).await, [ProbeOutcome::Void(VoidCause::OutOfTurn)]);
}

#[tokio::test]
async fn a_connection_is_held_only_where_it_is_wanted() {
    for (answer, hold, held) in [
        (OK, HoldConnection::WhenKeptAlive, 1),
        (OK, HoldConnection::Never, 0),
        (OK_AND_CLOSE, HoldConnection::WhenKeptAlive, 0),
        (OK_AND_CLOSE, HoldConnection::Always, 1),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", HoldConnection::WhenKeptAlive, 0),
    ] {
        let server = Server::start(move |mut stream| async move {
            read_head(&mut stream).await;
            if stream.write_all(answer.as_bytes()).await.is_ok() {
                until_closed(&mut stream).await;
            }
        })
        .await;
        let number = 1 + held;
        let (_probed, outcomes) = probed(&server, hold, PATIENCE, number).await;
        assert_eq!(outcomes, vec![ProbeOutcome::Success; number]);
        let what = format!("{held} held of {hold:?} to a server that says {answer:?}");
        eventually(&what, || server.accepted() >= number && server.open() == held).await;
    }
}

#[tokio::test]
async fn a_server_that_serves_one_connection_at_a_time_is_freed_again() {
    let (_never, ended) = watch::channel(false);
    let turn = Arc::new(Mutex::new(()));
    let server = Server::start(move |stream| {
        let (turn, ended) = (turn.clone(), ended.clone());
        async move {
            let _turn = turn.lock().await;
            serve(stream, ended).await;
        }
    })
    .await;
    let (_probed, outcomes) = probed(&server, HoldConnection::WhenKeptAlive, SHORT, 2).await;
    assert_eq!(outcomes, [ProbeOutcome::Success, ProbeOutcome::Unanswered]);
    eventually("no connection is held", || server.open() == 0).await;
}
