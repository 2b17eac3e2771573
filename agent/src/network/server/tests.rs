use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const REQUEST: &[u8] = b"GET /path HTTP/1.1\r\nHost: agent\r\n\r\n";

struct Running {
    port: u16,
    _tasks: JoinSet<()>,
}

impl Running {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Some(LONGEST), |path| async move { text(StatusCode::OK, path) }));
        Self { port, _tasks: tasks }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.expect("a connection")
    }
}

/// Sends a request and reads the answer up to the end of its body.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(REQUEST).await.expect("sent");
    let mut answer = Vec::new();
    timeout(PATIENCE, async {
        while !answer.ends_with(b"\r\n\r\n/path") {
            assert!(stream.read_buf(&mut answer).await.expect("received") > 0, "closed");
        }
    })
    .await
    .expect("an answer");
    String::from_utf8(answer).expect("text")
}

/// Reads until the other side has closed the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection that is closed while something unread is left is reset.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the end");
    String::from_utf8(answer).expect("text")
}

#[tokio::test]
async fn clients_that_send_nothing_keep_nobody_out_and_close_no_connection_that_is_in_use() {
    let running = Running::start().await;
    let mut kept = running.connect().await;
    ask(&mut kept).await;
    let mut slow = Vec::new();
    for _ in 0..3 * MAX_CONNECTIONS {
        let mut stream = running.connect().await;
        // Some of them are closed at once.
        let _ = stream.write_all(b"GET /path HTT").await;
        slow.push(stream);
    }
    ask(&mut running.connect().await).await;
    ask(&mut kept).await;
    // Those that came first had to go, and the last ones are still there.
    for stream in &mut slow[..MAX_CONNECTIONS] {
        assert_eq!(rest(stream).await, "");
    }
    let last = slow.last_mut().expect("many");
    last.write_all(b"P/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").await.expect("sent");
    assert!(rest(last).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn if_all_have_asked_the_one_that_was_silent_longest_is_closed() {
    let running = Running::start().await;
    let mut all = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = running.connect().await;
        ask(&mut stream).await;
        all.push(stream);
    }
    ask(&mut all[0]).await;
    ask(&mut running.connect().await).await;
    assert_eq!(rest(&mut all[1]).await, "");
    ask(&mut all[0]).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_has_time_limits() {
    let running = Running::start().await;
    let mut silent = running.connect().await;
    ask(&mut silent).await;
    let begin = tokio::time::Instant::now();
    let mut answer = Vec::new();
    silent.read_to_end(&mut answer).await.expect("the end");
    assert!(begin.elapsed() >= HEAD_TIMEOUT, "{:?}", begin.elapsed());
    assert!(begin.elapsed() <= HEAD_TIMEOUT * 2, "{:?}", begin.elapsed());
    // In use all the time.
    let mut used = running.connect().await;
    let begin = tokio::time::Instant::now();
    loop {
        let answer = ask(&mut used).await;
        if answer.contains("connection: close") {
            break;
        }
        assert!(begin.elapsed() <= LONGEST + LAST_ANSWER, "it says when it ends");
        sleep(HEAD_TIMEOUT / 2).await;
    }
    assert!(begin.elapsed() >= LONGEST);
    assert_eq!(rest(&mut used).await, "");
}

#[tokio::test]
async fn other_methods_and_large_heads_are_refused() {
    let running = Running::start().await;
    for (request, status) in [
        ("POST /path HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n".to_owned(), "HTTP/1.1 405"),
        (format!("GET /{} HTTP/1.1\r\nHost: agent\r\n\r\n", "a".repeat(2 * MAX_HEAD)), "HTTP/1.1 4"),
    ] {
        let mut stream = running.connect().await;
        let _ = stream.write_all(request.as_bytes()).await;
        let answer = rest(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with(status), "{answer}");
    }
}
